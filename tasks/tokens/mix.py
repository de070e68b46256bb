"""Mixing: how often each group of training documents is read in an epoch.

A corpus is divided into groups by `mix.by`; the settings say what share of the training tokens each of them is to have.
In go the tokens and sequences of each group, out come its reads: how many of its sequences an epoch holds, some of
them twice or more. Shares count in tokens, because a group of short documents has emptier sequences. All arithmetic is
exact (fractions), so that the plan is the same on every machine; only `mix.temperature` begins with a power, which is
rounded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from pydantic.dataclasses import dataclass as pydantic_dataclass

from storage.errors import UserError
from tasks.core.option import STRICT, option

OTHERS = "*"  # stands for every group that is not named
NAMES_SHOWN = 20
SHOWN_CHARS = 200  # of a setting or a name, in messages
NO_GROUP = "none"  # the group of documents without the property
_ITEM = re.compile(r'\s*+(?:"([^"]*+)"\s*+|([^",=]++))=([^,="]++)(?:,|$)')
HIGHEST_TEMPERATURE = 10.0
LARGEST_WEIGHT = 1e12
MOST_PASSES = 10_000  # over one group in one epoch: far more than does any good, and few enough to count positions


class MixError(UserError):
    """A mix that the corpus cannot give."""


def shown(value: str | float) -> str:
    """A setting or a name in a message; of a long one its beginning."""
    if not isinstance(value, str) or len(value) <= SHOWN_CHARS:
        return repr(value)
    return f"{value[:SHOWN_CHARS]!r}... ({len(value):,} characters)"


@pydantic_dataclass(frozen=True, config=STRICT)
class MixSettings:
    """Sampling weight per group of training documents.

    Without `by` every training sequence is read once per epoch. With it, give one of `weights`, `temperature` and
    `epochs`; with none of them every group is read once.
    """

    by: Literal["", "kind", "language", "programming_language", "licence", "source", "folder"] = option(
        "",
        "Property of a document that makes the groups; `folder` is the first folder of its path below the source. "
        f"Documents without it are the group `{NO_GROUP}`.",
    )
    weights: str = option(
        "",
        "Relative shares of the training tokens, such as `code=0.3, prose=0.7`. `*` stands for all other groups "
        "together. Names with a comma, an = or a quotation mark around them are written in double quotes.",
    )
    temperature: float = option(
        0.0,
        "Weigh groups by their tokens to this power: 1 changes nothing, lower values favour small groups; 0 is off.",
        ge=0,
        le=HIGHEST_TEMPERATURE,
    )
    epochs: str = option(
        "",
        f"Reads of each group per epoch, such as `code=2, notes=0.5`, at most {MOST_PASSES}; other groups "
        "are read once, or as often as `*` says.",
    )
    max_epochs: float = option(
        4.0, "Most reads of a group per epoch under `weights` or `temperature`.", ge=1, le=MOST_PASSES
    )

    def __post_init__(self) -> None:
        asked = [name for name in ("weights", "temperature", "epochs") if getattr(self, name)]
        if asked and not self.by:
            raise ValueError(
                f"mix.{asked[0]} is {shown(getattr(self, asked[0]))}, but there are no groups: give mix.by, such as "
                "kind, source or language"
            )
        if len(asked) > 1:
            raise ValueError(f"mix.{asked[0]} and mix.{asked[1]} both say how often groups are read; give one of them")
        for name in ("weights", "epochs"):
            values = parse_shares(f"mix.{name}", getattr(self, name))
            if _reads_nothing(f"mix.{name}", values):
                raise ValueError(f"mix.{name} is {shown(getattr(self, name))}: nothing would be read; give one above 0")
            if name == "epochs" and max(values.values(), default=0) > MOST_PASSES:
                most = max(values, key=lambda group: values[group])
                raise ValueError(
                    f"mix.epochs: {shown(most)} has {float(values[most]):.12g}, expected at most {MOST_PASSES}: so "
                    "often is a group read in one epoch (train.max_epochs says how many epochs there are)"
                )

    def without(self, groups: Collection[str]) -> MixSettings:
        """The same mix of what is left when some groups are gone; the others keep their proportions.

        Raises:
            MixError: Nothing else was to be read.
        """
        return replace(
            self,
            weights=_without("mix.weights", self.weights, groups),
            epochs=_without("mix.epochs", self.epochs, groups),
        )


def _reads_nothing(setting: str, shares: Mapping[str, Fraction]) -> bool:
    """Return True if shares leave every group out; under `epochs`, a group that is not named is read once."""
    return bool(shares) and not any(shares.values()) and (setting == "mix.weights" or OTHERS in shares)


def _without(setting: str, text: str, groups: Collection[str]) -> str:
    """Shares as they are written, without those of some groups."""
    shares = parse_shares(setting, text)
    if shares.keys().isdisjoint(groups):
        return text  # as it was written, so that it is the same setting
    left = {name: share for name, share in shares.items() if name not in groups}
    if _reads_nothing(setting, left):
        raise MixError(f"{setting} is {shown(text)}, so without {_listed(groups)} nothing is left to train on")
    return ", ".join(f'"{name}"={float(share)!r}' for name, share in left.items())


def parse_shares(setting: str, text: str) -> dict[str, Fraction]:
    """The names and numbers of `code=0.3, prose=0.7`.

    Args:
        setting: Where it comes from, for messages.
        text: Empty for none.

    Raises:
        ValueError: It is written otherwise, a number is below 0, or a name stands there twice.
    """
    shares: dict[str, Fraction] = {}
    at = 0
    while at < len(text) and not text[at:].isspace():
        item = _ITEM.match(text, at)
        if item is None:
            raise ValueError(
                f"{setting} is {shown(text)}: cannot read {text[at : at + 60].strip()!r}; expected NAME=NUMBER with "
                "commas between, such as code=0.3, prose=0.7 (a name with a comma or an = in it in double quotes)"
            )
        quoted, bare, number = item.groups()
        name = bare.strip() if quoted is None else quoted
        value = _number(number)
        if value is None:
            found = f"{shown(name)} has {shown(number.strip())}"
            raise ValueError(f"{setting}: {found}, expected a number of 0 or more, such as 0.3")
        if name in shares:
            raise ValueError(f"{setting} names {shown(name)} twice")
        shares[name] = value
        at = item.end()
    return shares


def _number(text: str) -> Fraction | None:
    """A number; None where it is none, below 0, or beyond all use."""
    try:
        value = float(text)
    except ValueError:
        return None
    # 0.3 is to be three tenths, not the float next to it
    return Fraction(repr(value)) if 0 <= value <= LARGEST_WEIGHT else None


def plan_reads(tokens: Mapping[str, int], sequences: Mapping[str, int], mix: MixSettings) -> dict[str, int]:
    """Return the number of sequences of each group that an epoch reads.

    With weights or a temperature, tokens are read in the shares asked for; their total is what it takes to read every
    group at least once, and less where a group would be read more than `max_epochs` times. Numbers of sequences are
    rounded by largest remainders, so each is less than one sequence from what was asked for.

    Args:
        tokens: Training tokens of each group.
        sequences: Training sequences of each group; one that has none is not read, and the others share its weight.
        mix: What is asked for.

    Returns:
        The reads of every group, in the order of their names; 0 where a group is left out.

    Raises:
        MixError: The settings name a group that is not there, or miss one that is.
    """
    asked = asked_shares(tokens, sequences, mix)
    if not mix.by or not (mix.weights or mix.temperature):
        passes = _passes(tokens, mix)
        return {name: _at_least_one(passes[name] * sequences[name]) for name in sorted(sequences)}
    limits = {name: Fraction(mix.max_epochs) * sequences[name] for name in asked}
    wanted = {name: share for name, share in asked.items() if share}
    reads = dict.fromkeys(sorted(sequences), 0)
    if not wanted:
        return reads
    most = min(Fraction(mix.max_epochs) * tokens[name] / share for name, share in wanted.items())
    total = min(most, max(Fraction(tokens[name]) / share for name, share in wanted.items()))
    quotas = {name: total * share * sequences[name] / tokens[name] for name, share in wanted.items()}
    return reads | _rounded(quotas, limits)


def _rounded(quotas: Mapping[str, Fraction], limits: Mapping[str, Fraction]) -> dict[str, int]:
    """Whole numbers next to the quotas: those of the largest remainders go up, until the sum is right."""
    counts = {name: math.floor(quota) for name, quota in quotas.items()}
    missing = math.floor(sum(quotas.values()) + Fraction(1, 2)) - sum(counts.values())
    for name in sorted(quotas, key=lambda item: (counts[item] - quotas[item], item)):
        # what is asked for at all is read at all
        if (missing > 0 or not counts[name]) and counts[name] < quotas[name] and counts[name] + 1 <= limits[name]:
            counts[name] += 1
            missing -= 1
    return counts


def _at_least_one(quota: Fraction) -> int:
    """The nearest whole number, but not 0 for what is asked for."""
    return max(math.floor(quota + Fraction(1, 2)), 1 if quota else 0)


def asked_shares(tokens: Mapping[str, int], sequences: Mapping[str, int], mix: MixSettings) -> dict[str, Fraction]:
    """The share of the training tokens that is asked for each group, over those that have sequences.

    Raises:
        MixError: The settings name a group that is not there, or miss one that is.
    """
    if set(tokens) != set(sequences):
        raise ValueError(f"tokens of {sorted(tokens)}, but sequences of {sorted(sequences)}")
    weights = _weights(tokens, mix)
    there = {name: weights[name] for name in sorted(weights) if sequences[name] and tokens[name]}
    total = sum(there.values())
    return {name: weight / total if total else Fraction(0) for name, weight in there.items()}


def _weights(tokens: Mapping[str, int], mix: MixSettings) -> dict[str, Fraction]:
    """The weight of every group."""
    if mix.weights:
        given = parse_shares("mix.weights", mix.weights)
        _check_names("mix.weights", given, tokens, complete=True)
        others = [name for name in tokens if name not in given]
        together = sum(tokens[name] for name in others)
        rest = {name: given[OTHERS] * tokens[name] / together if together else Fraction(0) for name in others}
        return {**rest, **{name: weight for name, weight in given.items() if name in tokens}}
    if mix.temperature:
        # twelve digits: the last of a power differs from one machine to another
        return {name: Fraction(f"{n**mix.temperature:.12e}") if n else Fraction(0) for name, n in tokens.items()}
    passes = _passes(tokens, mix)
    return {name: passes[name] * n for name, n in tokens.items()}


def _passes(groups: Iterable[str], mix: MixSettings) -> dict[str, Fraction]:
    """Return the reads of each group per epoch under `mix.epochs`."""
    given = parse_shares("mix.epochs", mix.epochs)
    names = list(groups)
    _check_names("mix.epochs", given, names, complete=False)
    return {name: given.get(name, given.get(OTHERS, Fraction(1))) for name in names}


def _check_names(setting: str, given: Iterable[str], groups: Iterable[str], *, complete: bool) -> None:
    named, there = set(given) - {OTHERS}, set(groups)
    listed = _listed(there)
    if named - there:
        raise MixError(
            f"{setting} names {_listed(named - there)}, but no training document is of such a group; groups of mix.by "
            f"are {listed}"
        )
    if complete and there - named and OTHERS not in given:
        raise MixError(
            f"{setting} says nothing of {_listed(there - named)}; groups of mix.by are {listed}: name each, or all "
            f"others together as {OTHERS}=NUMBER"
        )


def _listed(names: Iterable[str]) -> str:
    found = sorted(names)
    more = f" and {len(found) - NAMES_SHOWN} more" if len(found) > NAMES_SHOWN else ""
    return ", ".join(shown(name) for name in found[:NAMES_SHOWN]) + more or "none"


@dataclass(frozen=True)
class GroupMix:
    """One group in the mix, for reports.

    Attributes:
        tokens: Training tokens of the group.
        sequences: Training sequences of the group.
        reads: Sequences of it in one epoch.
        tokens_read: Tokens of it in one epoch, as the group's sequences hold them on average.
        passes: How often the group is read in one epoch.
        share_asked: Its share of an epoch's tokens as the settings say it, over the groups that have sequences.
        share_realised: Its share of an epoch's tokens as it came out.
    """

    name: str
    tokens: int
    sequences: int
    reads: int
    tokens_read: float
    passes: float
    share_asked: float
    share_realised: float


def realised(
    tokens: Mapping[str, int], sequences: Mapping[str, int], reads: Mapping[str, int], mix: MixSettings
) -> list[GroupMix]:
    """Return the realised mix, by the names of the groups.

    Args:
        tokens: Training tokens of each group.
        sequences: Training sequences of each group.
        reads: What `plan_reads` gave.
        mix: What was asked for.
    """
    asked = asked_shares(tokens, sequences, mix)
    passes = {name: Fraction(reads[name], sequences[name]) if sequences[name] else Fraction(0) for name in sequences}
    read = {name: passes[name] * tokens[name] for name in sequences}
    total = sum(read.values())
    return [
        GroupMix(
            name=name,
            tokens=tokens[name],
            sequences=sequences[name],
            reads=reads[name],
            tokens_read=float(read[name]),
            passes=float(passes[name]),
            share_asked=float(asked.get(name, 0)),
            share_realised=float(read[name] / total) if total else 0.0,
        )
        for name in sorted(sequences)
    ]
