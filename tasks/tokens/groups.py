"""Groups of training documents by the property in `mix.by`, and their reads per epoch.

Settings give the share of each group in the training tokens; the result is the number of its sequences in an epoch,
with repetitions. Shares are of tokens, because sequences of short documents have more padding. Arithmetic is exact
(fractions) and so equal on every machine; only the power of `mix.temperature` is rounded.
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
# first folder of the path below the source; null for files in the source itself
_FOLDER = f"case when contains({_BELOW}, '/') then split_part({_BELOW}, '/', 1) end"
_OF_PATHS = ("source", "folder")


@dataclass(frozen=True)
class GroupsSettings:
    """The property that defines the groups.

    Attributes:
        by: see `MixSettings.by`.
        listing: digest of all paths and contents if groups depend on paths, which are not in the snapshot's digest.
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
        value, found = settings.by, "wanted"  # with the licence
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
            f"mix.by={settings.by} gives {len(names):,} groups, such as {examples}; expected at most "
            f"{MOST_GROUPS:,}: group by another property"
        )
    pq.write_table(table, work.out / GROUPS_FILE, compression="zstd")
    work.counts.update(rows=table.num_rows, groups=len(names))
    return _digest(table)


def _digest(table: pa.Table) -> str:
    digest = hashlib.sha256()
    for name in ("doc_id", "group"):
        values = table.column(name).to_pylist()
        # lengths make the concatenation unambiguous
        digest.update(",".join(str(len(value)) for value in values).encode() + b";")
        digest.update("".join(values).encode())
    return digest.hexdigest()


def group_documents(run: Run, mix: MixSettings, **inputs: Any) -> RefSet:
    """Return the groups of a mix as one artefact; an empty set without a mix."""
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

    With weights or a temperature, an epoch has the given shares of tokens and reads each group at least once, unless
    another would then be read more than `max_epochs` times. Numbers of sequences are rounded by the largest remainder
    method.

    Args:
        tokens: training tokens of each group.
        sequences: training sequences of each group; the others share the weight of one without any.

    Returns:
        The reads by group, in order of names; 0 for a group that is left out.

    Raises:
        MixError: the settings name an unknown group, or omit one.
    """
    if not mix.by or not (mix.weights or mix.temperature):
        passes = _passes(tokens, mix)
        wanted = {name: passes[name] * sequences[name] for name in sorted(sequences)}
        # rounded to the nearest whole number, but at least 1 for a positive weight
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
    """Round quotas by the largest remainder method, within the limits."""
    counts = {name: math.floor(quota) for name, quota in quotas.items()}
    missing = math.floor(sum(quotas.values()) + Fraction(1, 2)) - sum(counts.values())
    for name in sorted(quotas, key=lambda item: (counts[item] - quotas[item], item)):
        # a positive quota gives at least 1
        if (missing > 0 or not counts[name]) and counts[name] < quotas[name] and counts[name] + 1 <= limits[name]:
            counts[name] += 1
            missing -= 1
    return counts


def asked_shares(tokens: Mapping[str, int], sequences: Mapping[str, int], mix: MixSettings) -> dict[str, Fraction]:
    """Return the share of training tokens that the settings give each group with sequences."""
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
        # 13 significant digits: the last ones of a power differ between machines
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
            f"{setting} names {listed(named - there)}, but no training document is in such a group; groups of mix.by "
            f"are {listed(there)}"
        )
    if complete and there - named and OTHERS not in given:
        raise MixError(
            f"{setting} has no value for {listed(there - named)}; groups of mix.by are {listed(there)}: name each, or "
            f"set all others by {OTHERS}=NUMBER"
        )


@dataclass(frozen=True)
class GroupMix:
    """One group in the mix, for reports.

    Attributes:
        tokens, sequences: training tokens and sequences of the group.
        reads, tokens_read: sequences read per epoch, and expected tokens in them.
        passes: reads per sequence and epoch.
        share_asked: share of an epoch's tokens in the settings, over the groups with sequences.
        share_realised: realised share of an epoch's tokens.
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
    """Return the realised mix in order of names, from the arguments and the result of `plan_reads`."""
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
