"""Artefacts without some of their documents.

Extraction takes the most time of all, so segments are rewritten instead of being made again: what remains is what
extracting the remaining files gives, under the key that it would have. Evaluation sets are rewritten because models are
compared on them; selections, because they say what a model was trained on; and lists of files, because by them people
name what is to be forgotten next. A selection, a list and a training keep their key: nothing is made from them anew,
and they no longer say what should not be known.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from storage.digest import sha256_json
from storage.manifest import ArtifactRef, Manifest
from storage.schemas import (
    CUTS,
    CUTS_FILE,
    DOCUMENTS_FILE,
    DROPPED,
    DROPPED_FILE,
    EVALSET,
    EXTRACTS,
    EXTRACTS_FILE,
    FILES,
    FILES_FILE,
    GRAMS_FILE,
    OFFSETS_FILE,
    PAGES,
    PAGES_FILE,
    SELECTION,
    SELECTION_FILE,
)
from storage.store import Store, Workspace
from storage.tables import TableWriter, read_rows, stream_rows, union_digest, write_table
from storage.tombstones import Tombstones
from tasks.curate.evalset import load_grams
from tasks.ingest.extract import document_id, forgotten_row
from tasks.ingest.journal import Content, is_doubtful
from tasks.training.telemetry import JOURNAL_FILE

SELECTION_FILES = {SELECTION_FILE: SELECTION, DROPPED_FILE: DROPPED, CUTS_FILE: CUTS}


def rewrite_segment(store: Store, segment: Manifest, forgotten: Tombstones) -> ArtifactRef | None:
    """A segment of extraction without forgotten documents; None if nothing is left of it.

    Files go with their members. Where only a member is forgotten, a row says so, and the file counts as extracted
    another time: the key follows from what was extracted, and this is not what was extracted before.
    """
    folder = store.folder(segment.ref)
    contents, later = _remaining(folder, segment, forgotten)
    if not contents:
        return None
    settings = {**segment.settings, "contents": [asdict(content) for content in contents]}
    kept = {content.sha256 for content in contents}
    key = replace(segment, settings=settings).content_key
    if (known := store.find(segment.stage, key)) is not None:
        return known.ref
    with store.workspace(segment.stage, key) as workspace:
        counts = {"rows": 0, "pages": 0, "units": len(contents), "doubtful": 0}
        gone: set[str] = set()

        def rows() -> Iterator[dict[str, Any]]:
            for row in stream_rows(folder / EXTRACTS_FILE):
                if row["file_sha256"] not in kept:
                    gone.add(row["doc_id"])
                    continue
                if forgotten.covers(row["doc_id"], row["sha256"]):
                    gone.add(row["doc_id"])
                    row = forgotten_row(row)
                row["attempt"] += row["file_sha256"] in later
                counts["doubtful"] += is_doubtful(row["status"], row["reason_code"])
                yield row

        counts["rows"] = write_table(workspace.out / EXTRACTS_FILE, EXTRACTS, rows())
        with TableWriter(workspace.out / PAGES_FILE, PAGES) as pages:
            pages.write(row for row in stream_rows(folder / PAGES_FILE) if row["doc_id"] not in gone)
        counts["pages"] = pages.count
        digest = union_digest([workspace.out / EXTRACTS_FILE])
        made = replace(segment, key=key, digest=digest, settings=settings, counts=counts)
        return store.commit(workspace, made).ref


def _remaining(folder: Path, segment: Manifest, forgotten: Tombstones) -> tuple[list[Content], set[str]]:
    """The contents of a segment that remain, and those of them in which a member is forgotten."""
    whole: set[str] = set()
    later: set[str] = set()
    for row in read_rows(folder / EXTRACTS_FILE, ["doc_id", "file_sha256", "sha256", "locator", "reason_code"]):
        if holds(row, forgotten):
            (later if row["locator"] else whole).add(row["file_sha256"])
    contents = [Content(**entry) for entry in segment.settings["contents"]]
    remaining = [
        replace(content, attempt=content.attempt + (content.sha256 in later))
        for content in contents
        if content.sha256 not in whole
    ]
    return remaining, later - whole


def holds(row: Mapping[str, Any], forgotten: Tombstones) -> bool:
    """Return True for a row of `extracts` with a forgotten document that is still there."""
    return row["reason_code"] != "forgotten" and forgotten.covers(row["doc_id"], row["sha256"])


def rewrite_evalset(store: Store, evalset: Manifest, forgotten: Collection[str]) -> ArtifactRef | None:
    """An evaluation set without some documents; None if nothing is left of it."""
    folder = store.folder(evalset.ref)
    rows = read_rows(folder / DOCUMENTS_FILE)
    places = [place for place, row in enumerate(rows) if row["doc_id"] not in forgotten]
    if not places:
        return None
    key = sha256_json([evalset.key, sorted({row["doc_id"] for row in rows} & set(forgotten))])
    if (known := store.find(evalset.stage, key)) is not None:
        return known.ref
    grams = load_grams(folder).take(np.array(places))
    with store.workspace(evalset.stage, key) as workspace:
        kept = [rows[place] for place in places]
        np.save(workspace.out / GRAMS_FILE, grams.values, allow_pickle=False)
        np.save(workspace.out / OFFSETS_FILE, grams.offsets, allow_pickle=False)
        counts = {
            "rows": write_table(workspace.out / DOCUMENTS_FILE, EVALSET, kept),
            "bytes": sum(len(row["text"].encode()) for row in kept),
        }
        digest = sha256_json(kept)
        made = replace(evalset, key=key, digest=digest, counts=evalset.counts | counts)
        return store.commit(workspace, made).ref


def trim_selection(store: Store, curated: Manifest, forgotten: Collection[str]) -> None:
    """Take documents out of what curation chose, dropped and cut."""
    folder = store.folder(curated.ref)
    found = {name: read_rows(folder / name) for name in SELECTION_FILES}
    if not any(row["doc_id"] in forgotten for rows in found.values() for row in rows):
        return
    with _in_place(store, curated, SELECTION_FILES) as workspace:
        for name, schema in SELECTION_FILES.items():
            write_table(workspace.out / name, schema, [row for row in found[name] if row["doc_id"] not in forgotten])


def trim_snapshot(store: Store, listing: Manifest, forgotten: Tombstones) -> None:
    """Take forgotten documents out of a list of files, which by its other rows still says what lay where."""
    path = store.folder(listing.ref) / FILES_FILE
    if any(lists(row, forgotten) for row in stream_rows(path)):
        with _in_place(store, listing, (FILES_FILE,)) as workspace:
            write_table(
                workspace.out / FILES_FILE, FILES, (row for row in stream_rows(path) if not lists(row, forgotten))
            )


def lists(row: Mapping[str, Any], forgotten: Tombstones) -> bool:
    """Return True for a row of `files` with the path of a forgotten document, not for one that was skipped since."""
    sha256 = row["sha256"]
    if sha256 is None or row["reason_code"] == "forgotten":
        return False
    return forgotten.covers(row["doc_id"] or document_id(sha256), sha256)


def samples_of(store: Store, training: Manifest) -> list[dict[str, Any]]:
    """Return the samples drawn during a training, each with its `prompt`."""
    path = store.folder(training.ref) / JOURNAL_FILE
    if not path.is_file():
        return []
    samples: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["samples"]
    return samples


def trim_samples(store: Store, training: Manifest, prompts: Collection[str]) -> None:
    """Take the samples of some prompts out of a training."""
    if not any(sample["prompt"] in prompts for sample in samples_of(store, training)):
        return
    path = store.folder(training.ref) / JOURNAL_FILE
    record = json.loads(path.read_text(encoding="utf-8"))
    record["samples"] = [sample for sample in record["samples"] if sample["prompt"] not in prompts]
    with _in_place(store, training, (JOURNAL_FILE,)) as workspace:
        text = json.dumps(record, ensure_ascii=False, indent=1)
        (workspace.out / JOURNAL_FILE).write_text(text, encoding="utf-8")


@contextmanager
def _in_place(store: Store, manifest: Manifest, without: Collection[str]) -> Iterator[Workspace]:
    """Replace an artefact by one of the same key and digest; the files that stay are no copies.

    Args:
        without: files that are not taken over.
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
