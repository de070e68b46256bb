"""Rewrite artefacts without forgotten documents, and merged segments, from their rows.

Segments are rewritten because extraction takes the most time; the result equals the extraction of the remaining files,
with the same key. Evaluation sets are rewritten because models are compared on them. Selections, snapshots and
trainings keep their key, as no stage computes anything from them again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage import schemas
from storage.digest import sha256_json
from storage.manifest import ArtifactRef, Manifest
from storage.store import Store, Workspace
from storage.tables import TableWriter, read_rows, stream_rows, union_digest, write_table
from storage.tombstones import FORGOTTEN, Tombstones
from tasks.curate.curate import curate
from tasks.curate.evalset import load_grams
from tasks.ingest.extract import document_id, forgotten_row
from tasks.ingest.journal import is_doubtful
from tasks.ingest.snapshot import snapshot
from tasks.lineage.documents import SEGMENT_STAGES
from tasks.training.telemetry import JOURNAL_FILE, read_notes

TRIMMED = {"curate": curate.facts.tables, "ablate": curate.facts.tables, "snapshot": snapshot.facts.tables}
# the tables with document ids, of stages whose artefacts are rewritten or trimmed
NAMING = {
    **dict.fromkeys(SEGMENT_STAGES, (schemas.EXTRACTS_FILE,)),
    "evalset": (schemas.DOCUMENTS_FILE,),
    **{stage: tuple(tables) for stage, tables in TRIMMED.items()},
}
_IDENTITY = ("doc_id", "sha256", "reason_code", "file_sha256", "locator")


def holders(store: Store, stages: Iterable[str], forgotten: Tombstones) -> list[Manifest]:
    """Return the artefacts of some stages of `NAMING` with a row of a forgotten document."""
    manifests = (manifest for stage in stages for manifest in store.manifests(stage))
    return [found for found in manifests if rows_to_forget(store, found, forgotten)]


def rows_to_forget(store: Store, found: Manifest, forgotten: Tombstones) -> list[dict[str, Any]]:
    """Return the identity columns of forgotten documents in an artefact, without rows already marked as forgotten."""
    rows: list[dict[str, Any]] = []
    for path in (store.folder(found.ref) / name for name in NAMING[found.stage]):
        columns = [name for name in pq.read_schema(path).names if name in _IDENTITY]
        table = pq.read_table(path, columns=columns, use_threads=False)
        wanted = among(table["doc_id"], forgotten.documents)
        if "sha256" in columns:
            wanted = pc.or_(wanted, among(table["sha256"], forgotten.contents))
        rows += [row for row in table.filter(wanted).to_pylist() if _is_forgotten(row, forgotten)]
    return rows


def among(column: Any, wanted: Iterable[str]) -> Any:
    """Return a mask of the values of an Arrow column that are among the wanted ones."""
    return pc.is_in(column, value_set=pa.array(list(wanted), pa.string()))


def _is_forgotten(row: Mapping[str, Any], forgotten: Tombstones) -> bool:
    # a container without a `doc_id` can be forgotten like a document
    doc_id = row["doc_id"] or (document_id(row["sha256"]) if row["sha256"] else "")
    return row.get("reason_code") != FORGOTTEN and forgotten.covers(doc_id, row.get("sha256") or "")


def rewrite_segment(store: Store, segment: Manifest, forgotten: Tombstones) -> ArtifactRef | None:
    """Return an extraction segment without forgotten documents; None if it is empty.

    A forgotten file is removed with its members. A forgotten member keeps a row with the reason, and the attempt of its
    file is increased, because the key depends on the attempts and the content of the segment changed.
    """
    rows = rows_to_forget(store, segment, forgotten)
    whole = {row["file_sha256"] for row in rows if not row["locator"]}
    partly = {row["file_sha256"] for row in rows} - whole
    contents = [
        {**content, "attempt": content["attempt"] + (content["sha256"] in partly)}
        for content in segment.settings["contents"]
        if content["sha256"] not in whole
    ]

    def remaining(row: dict[str, Any]) -> dict[str, Any] | None:
        if row["file_sha256"] in whole:
            return None
        left = forgotten_row(row) if forgotten.covers(row["doc_id"], row["sha256"]) else row
        return {**left, "attempt": left["attempt"] + (left["file_sha256"] in partly)}

    made = replace(segment, settings={**segment.settings, "contents": contents})
    return write_segment(store, made, [store.folder(segment.ref)], remaining).ref if contents else None


def write_segment(
    store: Store,
    described: Manifest,
    folders: Sequence[Path],
    change: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda row: row,
) -> Manifest:
    """Return an extraction segment from the rows of others, from the store or written.

    Args:
        described: Its manifest; key, digest and counts are computed.
        folders: Folders of segments that share no content.
        change: Returns the new record for each of their records, or None to remove it.
    """
    key = described.content_key
    if (known := store.find(described.stage, key)) is not None:
        return known
    rows = chain.from_iterable(stream_rows(folder / schemas.EXTRACTS_FILE) for folder in folders)
    records = sorted(
        filter(None, map(change, rows)), key=lambda row: row["file_sha256"]
    )  # stable: members stay after files
    place = {row["doc_id"]: number for number, row in enumerate(records) if row["n_pages"]}
    with store.workspace(described.stage, key) as workspace:
        store.note_inputs(workspace, described.input_refs())
        with TableWriter(workspace.out / schemas.PAGES_FILE, schemas.PAGES) as pages:
            found = chain.from_iterable(stream_rows(folder / schemas.PAGES_FILE) for folder in folders)
            kept = (row for row in found if row["doc_id"] in place)
            # pages of one segment are in order, and may be too many for memory
            pages.write(kept if len(folders) == 1 else sorted(kept, key=lambda row: place[row["doc_id"]]))
        counts = {
            "rows": write_table(workspace.out / schemas.EXTRACTS_FILE, schemas.EXTRACTS, records),
            "pages": pages.count,
            "units": len(described.settings["contents"]),
            "doubtful": sum(is_doubtful(row["status"], row["reason_code"]) for row in records),
        }
        digest = union_digest([workspace.out / schemas.EXTRACTS_FILE])
        return store.commit(workspace, replace(described, key=key, digest=digest, counts=counts))


def rewrite_evalset(store: Store, evalset: Manifest, forgotten: Collection[str]) -> ArtifactRef | None:
    """Return an evaluation set without some documents; None if it is empty."""
    folder = store.folder(evalset.ref)
    rows = read_rows(folder / schemas.DOCUMENTS_FILE)
    places = [place for place, row in enumerate(rows) if row["doc_id"] not in forgotten]
    if not places:
        return None
    key = sha256_json([evalset.key, sorted({row["doc_id"] for row in rows} & set(forgotten))])
    if (known := store.find(evalset.stage, key)) is not None:
        return known.ref
    grams = load_grams(folder).take(np.array(places))
    kept = [rows[place] for place in places]
    with store.workspace(evalset.stage, key) as workspace:
        np.save(workspace.out / schemas.GRAMS_FILE, grams.values, allow_pickle=False)
        np.save(workspace.out / schemas.OFFSETS_FILE, grams.offsets, allow_pickle=False)
        n_rows = write_table(workspace.out / schemas.DOCUMENTS_FILE, schemas.EVALSET, kept)
        counts = {**evalset.counts, "rows": n_rows, "bytes": sum(len(row["text"].encode()) for row in kept)}
        return store.commit(workspace, replace(evalset, key=key, digest=sha256_json(kept), counts=counts)).ref


def trim_tables(store: Store, found: Manifest, forgotten: Tombstones) -> None:
    """Remove forgotten documents from a selection or snapshot, which keeps its key."""
    if rows_to_forget(store, found, forgotten):
        folder, tables = store.folder(found.ref), TRIMMED[found.stage]
        with _in_place(store, found, tables) as workspace:
            for name, schema in tables.items():
                rows = (row for row in stream_rows(folder / name) if not _is_forgotten(row, forgotten))
                write_table(workspace.out / name, schema, rows)


def trim_samples(store: Store, training: Manifest, prompts: Collection[str]) -> None:
    """Remove the samples of some prompts from a training, which keeps its key."""
    notes = read_notes(store.folder(training.ref))
    kept = [sample for sample in notes.samples if sample.prompt not in prompts]
    if len(kept) < len(notes.samples):
        with _in_place(store, training, (JOURNAL_FILE,)) as workspace:
            text = json.dumps(asdict(replace(notes, samples=kept)), ensure_ascii=False, indent=1)
            (workspace.out / JOURNAL_FILE).write_text(text, encoding="utf-8")


@contextmanager
def _in_place(store: Store, manifest: Manifest, without: Collection[str]) -> Iterator[Workspace]:
    """Replace an artefact by one of the same key and digest; unchanged files are hard-linked.

    Args:
        without: Files that the caller writes.
    """
    folder = store.folder(manifest.ref)
    with store.workspace(manifest.stage, manifest.key) as workspace:
        for entry in manifest.files:
            if entry.name not in without:
                target = workspace.out / entry.name
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(folder / entry.name, target)
        yield workspace
        store.commit(workspace, manifest)
