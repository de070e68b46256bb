"""Groups of training documents, by the property that `mix.by` names."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.digest import rows_digest
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import DOCUMENTS_FILE, GROUPS, GROUPS_FILE
from tasks.core.stage import Work, stage
from tasks.curate.view import DocumentView, kept_by_segment, paths_of, segment_tables
from tasks.tokens.mix import NO_GROUP, MixError, MixSettings, shown

if TYPE_CHECKING:
    from tasks.core.run import Run

MOST_GROUPS = 10_000
# the first folder of the path below the source; files beside the folders are in none
_FOLDER = "case when contains(path, '/') then split_part(path, '/', 1) end"
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


@stage("groups", version=2, tables={GROUPS_FILE: GROUPS})
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
    kept = kept_by_segment(work.store, curated, texts, DOCUMENTS_FILE, split="train")
    paths = paths_of(work.folder(snapshot)) if settings.by in _OF_PATHS else None
    column, value = ("path", _FOLDER) if settings.by == "folder" else (settings.by, settings.by)
    view = DocumentView(segment_tables(work.store, measures, texts, RefSet.of([])), kept, paths, {column})
    query = f"select doc_id, coalesce(nullif({value}, ''), '{NO_GROUP}') as \"group\" from documents"
    found = [GROUPS.empty_table()]
    for _ in view:
        found.append(view.connection.sql(query).to_arrow_table().cast(GROUPS))
        work.progress.update(len(found) - 1, len(kept), "segments")
    table = pa.concat_tables(found).sort_by("doc_id").combine_chunks()
    names = pc.unique(table.column("group")).to_pylist()
    _check_number(settings.by, names)
    pq.write_table(table, work.out / GROUPS_FILE, compression="zstd")
    work.counts.update(rows=table.num_rows, groups=len(names))
    return _digest(table)


def _check_number(by: str, names: Collection[str]) -> None:
    if len(names) > MOST_GROUPS:
        examples = " and ".join(shown(name) for name in sorted(names)[:2])
        raise MixError(
            f"mix.by is {by}: the corpus has {len(names):,} of them, such as {examples}; expected at most "
            f"{MOST_GROUPS:,} groups"
        )


def _digest(table: pa.Table) -> str:
    digest = hashlib.sha256()
    for name in ("doc_id", "group"):
        values = table.column(name).to_pylist()
        # lengths, so that no two columns join to the same text
        digest.update(",".join(str(len(value)) for value in values).encode() + b";")
        digest.update("".join(values).encode())
    return digest.hexdigest()


def group_documents(run: Run, mix: MixSettings, **inputs: Any) -> RefSet:
    """Return the groups that a mix asks for, as the dataset takes them: empty without a mix, else one artefact.

    Args:
        inputs: Those of the stage.
    """
    if not mix.by:
        return RefSet((), rows_digest(()))
    listing = ""
    if mix.by in _OF_PATHS:
        snapshot = inputs["snapshot"]
        listing = run.read(snapshot, lambda ref: str(manifest_of(run.store, ref).settings["listing"]), "")
    made = groups(run, GroupsSettings(mix.by, listing), **inputs)
    return RefSet((made,), made.digest)
