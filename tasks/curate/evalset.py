"""The evaluation set: the frozen documents that models are compared on.

It keeps its own copy of the texts, so that it stays the same when the corpus grows, and any tokeniser can be measured
on it; what results are told apart by; and the runs of thirteen words of each, so that training text that quotes it is
seen when the document is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from storage.digest import sha256_json
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import DOCUMENTS_FILE, EVALSET, FILES_FILE, GRAMS_FILE, MEASURES_FILE, OFFSETS_FILE
from storage.store import Store, StoreError
from storage.tables import read_columns, read_rows, write_table
from tasks.core.stage import Work, stage
from tasks.curate.corpus import kept_documents, kept_rows
from tasks.text import Hashes, load_signatures
from tasks.text.words import joined

if TYPE_CHECKING:
    from tasks.core.run import Run
    from tasks.curate.settings import CurateSettings

FOLDERS = 2  # of a path say where a document comes from; the first is the source's own name where there are several


@dataclass(frozen=True)
class EvalsetSettings:
    """Settings of the stage; there are none yet."""


def trains_on_evalset(store: Store, curated: ArtifactRef, evalset: ArtifactRef) -> bool:
    """Whether the training side holds a document of a frozen evaluation set."""
    frozen = read_columns(store.folder(evalset) / DOCUMENTS_FILE, ["doc_id"])["doc_id"]
    return not kept_documents(store, curated, "train").keys().isdisjoint(frozen)


@stage("evalset", version=3, tables={DOCUMENTS_FILE: EVALSET}, pinned=True)
def freeze_evalset(
    work: Work,
    settings: EvalsetSettings,
    *,
    snapshot: ArtifactRef,
    curated: ArtifactRef,
    documents: RefSet,
    measures: RefSet,
) -> str:
    """Copy the validation documents into a set of their own."""
    wanted = kept_documents(work.store, curated, "validation")
    rows = evaluation_rows(work.store, wanted, snapshot, documents, measures)
    grams = _grams(work, wanted, measures)
    hashes = joined([grams[row["doc_id"]] for row in rows])
    np.save(work.out / GRAMS_FILE, hashes.values, allow_pickle=False)
    np.save(work.out / OFFSETS_FILE, hashes.offsets, allow_pickle=False)
    work.counts["rows"] = write_table(work.out / DOCUMENTS_FILE, EVALSET, rows)
    work.counts["bytes"] = sum(len(row["text"].encode()) for row in rows)
    return sha256_json(rows)  # with what results are told apart by


def evaluation_rows(
    store: Store, wanted: Mapping[str, str], snapshot: ArtifactRef, documents: RefSet, measures: RefSet
) -> list[dict[str, Any]]:
    """Rows of an evaluation set, by document.

    Args:
        wanted: the documents.
        snapshot: which paths they lie at.
        documents, measures: their refined texts, and what was measured on them.
    """
    facts = _facts(store, wanted, measures)
    folders = source_folders(store.folder(snapshot))
    rows = [
        {**row, **facts[row["doc_id"]], "source": folders[row["doc_id"]]}
        for row in kept_rows(store, wanted, documents, DOCUMENTS_FILE, ["doc_id", "kind", "text"])
    ]
    return sorted(rows, key=lambda row: str(row["doc_id"]))


def _facts(store: Store, wanted: Mapping[str, str], measures: RefSet) -> dict[str, dict[str, str]]:
    """Language and extraction method of some documents; the language of code is the one it is written in."""
    found: dict[str, dict[str, str]] = {}
    for ref in measures.refs:
        (normalised,) = manifest_of(store, ref).input_refs("documents")
        columns = ["doc_id", "programming_language", "ocr_share"]
        read = {row["doc_id"]: row for row in read_rows(store.folder(normalised) / DOCUMENTS_FILE, columns)}
        for row in read_rows(store.folder(ref) / MEASURES_FILE, ["doc_id", "language"]):
            if row["doc_id"] in wanted:
                beside = read[row["doc_id"]]
                language = beside["programming_language"] or row["language"]
                found[row["doc_id"]] = {"language": language, "method": _method(beside["ocr_share"])}
    return found


def _method(ocr_share: float) -> str:
    return "text" if not ocr_share else "ocr" if ocr_share == 1 else "both"


def source_folders(snapshot: Path) -> dict[str, str]:
    """The folder that each live document comes from, as far as it says something of many documents.

    Args:
        snapshot: its folder.
    """
    columns = read_columns(snapshot / FILES_FILE, ["doc_id", "status", "path"])
    return {
        doc_id: "/".join(PurePosixPath(path).parts[:-1][:FOLDERS]) or "."
        for doc_id, status, path in zip(columns["doc_id"], columns["status"], columns["path"], strict=True)
        if status == "ok" and doc_id is not None
    }


def _grams(work: Work, wanted: dict[str, str], measures: RefSet) -> dict[str, Hashes]:
    """Runs of thirteen words of some documents, as they were before anything was cut or redacted."""
    grams: dict[str, Hashes] = {}
    for ref, live in zip(measures.refs, measures.live or [wanted] * len(measures.refs), strict=True):
        names = enumerate(read_columns(work.folder(ref) / MEASURES_FILE, ["doc_id"])["doc_id"])
        chosen = {doc_id: place for place, doc_id in names if doc_id in wanted and doc_id in live}
        found = load_signatures(work.folder(ref)).gram_hashes.take(np.array(list(chosen.values()), np.int64))
        for doc_id, (first, last) in zip(chosen, pairwise(found.offsets.tolist()), strict=True):
            grams[doc_id] = Hashes(found.values[first:last], np.array([0, last - first]))
    return grams


def load_grams(folder: Path) -> Hashes:
    """Runs of thirteen words of an evaluation set's documents, in the order of its rows."""
    return Hashes(
        np.load(folder / GRAMS_FILE, mmap_mode="r", allow_pickle=False),
        np.load(folder / OFFSETS_FILE, allow_pickle=False),
    )


def has_split(store: Store, evalset: ArtifactRef, settings: CurateSettings) -> bool:
    """Return True if an evaluation set was frozen by this version of the stage, from the split of some settings."""
    found = manifest_of(store, evalset)
    if found.version != freeze_evalset.version:
        return False
    (curated,) = found.input_refs("curated")
    split = manifest_of(store, curated).settings["curate"]
    return (split["validation_share"], split["salt"]) == (settings.validation_share, settings.salt)


def frozen_evalset(run: Run) -> ArtifactRef:
    """Return the evaluation set of the corpus.

    Raises:
        StoreError: if the corpus was never prepared.
    """
    found = freeze_evalset.pinned(run)
    if found is None:
        raise StoreError(
            f"corpus {run.corpus!r} has no evaluation set yet: run `sheepfold prepare SOURCE` or `run` first"
        )
    if manifest_of(run.store, found).version != freeze_evalset.version:
        raise StoreError(
            f"the evaluation set of corpus {run.corpus!r} is of an earlier version of this program: run `sheepfold "
            "prepare SOURCE` or `run` to freeze it anew"
        )
    return found
