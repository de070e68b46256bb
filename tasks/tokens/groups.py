"""Groups of training documents, by the property that `mix.by` names, and how often each is read in an epoch.

The settings say what share of the training tokens each group is to have. From the tokens and sequences of each group
follow its reads: how many of its sequences an epoch holds, some of them twice or more. Shares count in tokens, because
a group of short documents has emptier sequences. All arithmetic is exact (fractions), so that the plan is the same on
every machine; only `mix.temperature` begins with a power, which is rounded.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.digest import rows_digest
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import DOCUMENTS_FILE, FILES_FILE, GROUPS, GROUPS_FILE, MEASURES, MEASURES_FILE, NORMALISED
from tasks.core.stage import Work, stage
from tasks.curate.corpus import Corpus, parquet, tables_of
from tasks.tokens.settings import NO_GROUP, OTHERS, MixError, MixSettings, listed, parse_shares, shown

if TYPE_CHECKING:
    from tasks.core.run import Run

MOST_GROUPS = 10_000
_BELOW = "if(label = '', path, substr(path, length(label) + 2))"
# the first folder of the path below the source; files beside the folders are in none
_FOLDER = f"case when contains({_BELOW}, '/') then split_part({_BELOW}, '/', 1) end"
_OF_PATHS = ("source", "folder")


@dataclass(frozen=True)
class GroupsSettings:
    """The property that groups have in common.

    Attributes:
        by: See `MixSettings.by`.
        listing: Digest of all paths with their contents where groups follow from paths: paths are no content, so they
            are in no digest of a snapshot.
    """

    by: str
    listing: str = ""


@stage("groups", version=3, tables={GROUPS_FILE: GROUPS})
def groups(
    work: Work,
    settings: GroupsSettings,
    *,
    snapshot: ArtifactRef,
    curated: ArtifactRef,
    measures: RefSet,
    texts: RefSet,
) -> str:
    """Write the group of every training document."""
    with Corpus(work.machine.query_bytes, work.scratch) as corpus:
        corpus.want_kept(work.folder(curated), "train")
        value, found = settings.by, "wanted"  # which has the licence
        if settings.by in _OF_PATHS:
            value = _FOLDER if settings.by == "folder" else "source"
            files = parquet(work.folder(snapshot) / FILES_FILE)
            found = f"wanted left join (from {files} where status = 'ok') as files using (doc_id)"
        elif settings.by != "licence":
            corpus.locate(tables_of(work.store, texts), DOCUMENTS_FILE, live=texts.live)
            rows = corpus.rows_of([str(work.folder(ref)) for ref in measures.refs], MEASURES_FILE, MEASURES)
            if settings.by == "programming_language":
                read = [manifest_of(work.store, ref).input_refs("documents")[0] for ref in measures.refs]
                rows = corpus.rows_of([str(work.folder(ref)) for ref in read], DOCUMENTS_FILE, NORMALISED)
            found = f"located join {rows} as found using (part, doc_id)"
        query = f"select doc_id, coalesce(nullif({value}, ''), '{NO_GROUP}') as \"group\" from {found} order by doc_id"
        table = corpus.arrow(query).cast(GROUPS).combine_chunks()
    names = pc.unique(table.column("group")).to_pylist()
    if len(names) > MOST_GROUPS:
        examples = " and ".join(shown(name) for name in sorted(names)[:2])
        raise MixError(
            f"mix.by is {settings.by}: the corpus has {len(names):,} of them, such as {examples}; expected at most "
            f"{MOST_GROUPS:,} groups"
        )
    pq.write_table(table, work.out / GROUPS_FILE, compression="zstd")
    work.counts.update(rows=table.num_rows, groups=len(names))
    return _digest(table)


def _digest(table: pa.Table) -> str:
    digest = hashlib.sha256()
    for name in ("doc_id", "group"):
        values = table.column(name).to_pylist()
        # lengths, so that no two columns join to the same text
        digest.update(",".join(str(len(value)) for value in values).encode() + b";")
        digest.update("".join(values).encode())
    return digest.hexdigest()


def group_documents(run: Run, mix: MixSettings, **inputs: Any) -> RefSet:
    """Return the groups that a mix asks for, made of the stage's inputs: empty without a mix, else one artefact."""
    if not mix.by:
        return RefSet((), rows_digest(()))
    listing = ""
    if mix.by in _OF_PATHS:
        snapshot = inputs["snapshot"]
        listing = run.read(snapshot, lambda ref: str(manifest_of(run.store, ref).settings["listing"]), "")
    made = groups(run, GroupsSettings(mix.by, listing), **inputs)
    return RefSet((made,), made.digest)


def plan_reads(tokens: Mapping[str, int], sequences: Mapping[str, int], mix: MixSettings) -> dict[str, int]:
    """Return the number of sequences of each group that an epoch reads.

    With weights or a temperature, tokens are read in the shares asked for; their total is what it takes to read every
    group at least once, and less where a group would be read more than `max_epochs` times. Numbers of sequences are
    rounded by largest remainders, so each is less than one sequence from what was asked for.

    Args:
        tokens: Training tokens of each group.
        sequences: Training sequences of each group; one that has none is not read, and the others share its weight.

    Returns:
        The reads of every group, in the order of their names; 0 where a group is left out.

    Raises:
        MixError: The settings name a group that is not there, or miss one that is.
    """
    if not mix.by or not (mix.weights or mix.temperature):
        passes = _passes(tokens, mix)
        wanted = {name: passes[name] * sequences[name] for name in sorted(sequences)}
        # the nearest whole number, but not 0 for what is asked for
        return {name: max(math.floor(n + Fraction(1, 2)), 1 if n else 0) for name, n in wanted.items()}
    asked = asked_shares(tokens, sequences, mix)
    limits = {name: Fraction(mix.max_epochs) * sequences[name] for name in asked}
    shares = {name: share for name, share in asked.items() if share}
    reads = dict.fromkeys(sorted(sequences), 0)
    if not shares:
        return reads
    most = min(Fraction(mix.max_epochs) * tokens[name] / share for name, share in shares.items())
    total = min(most, max(Fraction(tokens[name]) / share for name, share in shares.items()))
    quotas = {name: total * share * sequences[name] / tokens[name] for name, share in shares.items()}
    return reads | _rounded(quotas, limits)


def _rounded(quotas: Mapping[str, Fraction], limits: Mapping[str, Fraction]) -> dict[str, int]:
    """Return whole numbers next to the quotas: those of the largest remainders go up, until the sum is right."""
    counts = {name: math.floor(quota) for name, quota in quotas.items()}
    missing = math.floor(sum(quotas.values()) + Fraction(1, 2)) - sum(counts.values())
    for name in sorted(quotas, key=lambda item: (counts[item] - quotas[item], item)):
        # what is asked for at all is read at all
        if (missing > 0 or not counts[name]) and counts[name] < quotas[name] and counts[name] + 1 <= limits[name]:
            counts[name] += 1
            missing -= 1
    return counts


def asked_shares(tokens: Mapping[str, int], sequences: Mapping[str, int], mix: MixSettings) -> dict[str, Fraction]:
    """Return the share of the training tokens that is asked for each group, over those that have sequences."""
    weights = _weights(tokens, mix)
    there = {name: weights[name] for name in sorted(weights) if sequences[name] and tokens[name]}
    total = sum(there.values())
    return {name: weight / total if total else Fraction(0) for name, weight in there.items()}


def _weights(tokens: Mapping[str, int], mix: MixSettings) -> dict[str, Fraction]:
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
    if named - there:
        raise MixError(
            f"{setting} names {listed(named - there)}, but no training document is of such a group; groups of mix.by "
            f"are {listed(there)}"
        )
    if complete and there - named and OTHERS not in given:
        raise MixError(
            f"{setting} says nothing of {listed(there - named)}; groups of mix.by are {listed(there)}: name each, or "
            f"all others together as {OTHERS}=NUMBER"
        )


@dataclass(frozen=True)
class GroupMix:
    """One group in the mix, for reports.

    Attributes:
        tokens, sequences: Training tokens and sequences of the group.
        reads, tokens_read: Sequences of it in one epoch, and tokens as its sequences hold them on average.
        passes: Reads of the whole group in one epoch.
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
    """Return the realised mix, by the names of the groups, from the arguments and the result of `plan_reads`."""
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
