"""Settings of the tokeniser, of cutting and packing documents into sequences, and of the mix of training documents."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Literal

from pydantic.dataclasses import dataclass

from storage.errors import UserError
from tasks.core.option import STRICT, option
from tasks.tokens.hf_spec import LARGEST_VOCAB

OTHERS = "*"  # stands for every group that is not named
NAMES_SHOWN = 20
SHOWN_CHARS = 200  # of a setting or a name, in messages
NO_GROUP = "none"  # the group of documents without the property
_ITEM = re.compile(r'\s*+(?:"([^"]*+)"\s*+|([^",=]++))=([^,="]++)(?:,|$)')
HIGHEST_TEMPERATURE = 10.0
LARGEST_WEIGHT = 1e12
MOST_PASSES = 10_000  # over one group in one epoch: far more than does any good, and few enough to count positions


@dataclass(frozen=True, config=STRICT)
class TokenizerSettings:
    """The tokeniser."""

    kind: Literal["auto", "char", "ascii", "bytes", "word", "bpe", "file"] = option(
        "auto",
        "Vocabulary: characters, ASCII codes (all else is lost), bytes, words (for toys), byte-level BPE, an "
        "existing tokeniser's `file`, or `auto`: characters or BPE by the size of the training text.",
    )
    vocab_size: int = option(
        0,
        "Token ids in all, for `bpe`, `char` and `word`; 0 picks by the size of the training text, or takes all "
        "characters.",
    )
    fit_bytes: int = option(32 * 2**20, "Largest sample of training text to fit the vocabulary on.", ge=1)
    file: str = option(
        "",
        "With `kind=file`, a tokenizer.json of Hugging Face's tokenizers or of this project, GPT-2's vocab.json or "
        "encoder.json with merges.txt or vocab.bpe beside it, a folder with these, or a table of characters as JSON, "
        'such as `{" ": 4, "!": 5}`: ids 0 to 3 are special, and gaps are allowed.',
    )
    reserved: int = option(0, "Unused ids at the end of the vocabulary, for later use.", ge=0)
    extend: int = option(
        0,
        "Number of pieces of the training text to add to the vocabulary of `train.base` or of `file`, which must be "
        "byte-pair encoding; they take reserved ids first.",
        ge=0,
    )
    bos: bool = option(True, "Begin every document with the id that begins a text.")
    eos: bool = option(True, "End every document with the id that ends a text.")
    engine: Literal["auto", "reference"] = option(
        "auto", "`auto` encodes with the fastest engine that gives the ids of the reference engine."
    )

    def __post_init__(self) -> None:
        if bool(self.file) != (self.kind == "file"):
            raise ValueError(
                f"tokenizer.kind is {self.kind!r} and tokenizer.file is {self.file!r}; a file goes with kind file"
            )
        if self.vocab_size:
            self._check_size()
        for name in ("vocab_size", "reserved", "extend"):
            if getattr(self, name) >= LARGEST_VOCAB:  # some engines end the process for lack of memory
                raise ValueError(
                    f"tokenizer.{name} is {getattr(self, name):,}, expected less than {LARGEST_VOCAB:,}: every id "
                    "costs a row of the network"
                )

    def _check_size(self) -> None:
        given = f"tokenizer.vocab_size is {self.vocab_size}"
        fixed = {"ascii": "ASCII has 128 ids", "bytes": "bytes have 260 ids", "file": "a file has ids of its own"}
        if self.kind in fixed:
            raise ValueError(f"{given}, but {fixed[self.kind]}; leave it out")
        free = self.vocab_size - self.reserved
        beside = f" beside the {self.reserved} reserved ones" if self.reserved else ""
        if self.kind in ("char", "word") and free < 5:
            otherwise = "all characters" if self.kind == "char" else "as many as the text is worth"
            raise ValueError(f"{given}, expected 5 or more{beside} (4 ids are special), or 0 for {otherwise}")
        if self.kind in ("auto", "bpe") and free < 260:
            raise ValueError(f"{given}; byte-level BPE needs at least 260 (256 bytes, 4 special){beside}")


@dataclass(frozen=True, config=STRICT)
class DatasetSettings:
    """Cutting and packing of documents into training sequences."""

    packing: Literal["chunk", "concat", "pack"] = option(
        "chunk",
        "`chunk` cuts each document by itself and pads its last sequence; `concat` cuts one stream of all "
        "documents; `pack` combines whole documents and the ends of long ones, with attention within documents "
        "only.",
    )
    stride: int = option(
        0, "With `chunk`, tokens from one chunk's start to the next; 0 is the sequence length (no overlap).", ge=0
    )
    drop_last: bool = option(
        False, "With `concat`, leave out the last sequence of the training stream, which is short."
    )

    def __post_init__(self) -> None:
        if self.stride and self.packing != "chunk":
            raise ValueError(
                f"dataset.stride is {self.stride}, but only chunks overlap, and dataset.packing is {self.packing}; "
                "leave one of them out"
            )
        if self.drop_last and self.packing != "concat":
            raise ValueError(
                f"dataset.drop_last goes with dataset.packing=concat, found {self.packing}, which leaves nothing out"
            )


class MixError(UserError):
    """A mix that the corpus cannot give."""


@dataclass(frozen=True, config=STRICT)
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
        for name in {"weights", "epochs"}.intersection(asked):
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
        """Return the mix of what is left when some groups are gone; the others keep their proportions.

        Raises:
            MixError: Nothing else was to be read.
        """
        weights = _without("mix.weights", self.weights, groups)
        return replace(self, weights=weights, epochs=_without("mix.epochs", self.epochs, groups))


def _reads_nothing(setting: str, shares: Mapping[str, Fraction]) -> bool:
    """Return True if shares leave every group out; under `epochs`, a group that is not named is read once."""
    return bool(shares) and not any(shares.values()) and (setting == "mix.weights" or OTHERS in shares)


def _without(setting: str, text: str, groups: Collection[str]) -> str:
    """Return shares as they are written, without those of some groups."""
    shares = parse_shares(setting, text)
    if shares.keys().isdisjoint(groups):
        return text  # as it was written, so that it is the same setting
    left = {name: share for name, share in shares.items() if name not in groups}
    if _reads_nothing(setting, left):
        raise MixError(f"{setting} is {shown(text)}, so without {listed(groups)} nothing is left to train on")
    return ", ".join(f'"{name}"={float(share)!r}' for name, share in left.items())


def parse_shares(setting: str, text: str) -> dict[str, Fraction]:
    """Return the names and numbers of `code=0.3, prose=0.7`.

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
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not 0 <= value <= LARGEST_WEIGHT:
            found = f"{shown(name)} has {shown(number.strip())}"
            raise ValueError(f"{setting}: {found}, expected a number of 0 or more, such as 0.3")
        if name in shares:
            raise ValueError(f"{setting} names {shown(name)} twice")
        shares[name] = Fraction(repr(value))  # 0.3 is to be three tenths, not the float next to it
        at = item.end()
    return shares


def shown(value: str | float) -> str:
    """Return a setting or a name for a message; of a long one its beginning."""
    if not isinstance(value, str) or len(value) <= SHOWN_CHARS:
        return repr(value)
    return f"{value[:SHOWN_CHARS]!r}... ({len(value):,} characters)"


def listed(names: Iterable[str]) -> str:
    """Return names for a message, sorted; of many the first."""
    found = sorted(names)
    more = f" and {len(found) - NAMES_SHOWN} more" if len(found) > NAMES_SHOWN else ""
    return ", ".join(shown(name) for name in found[:NAMES_SHOWN]) + more or "none"
