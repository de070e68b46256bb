"""Selection: which documents of a snapshot are used, and on which side of the split each one is.

The split is a pure function of a document's text: a document is in validation if the hash of its cluster (all
documents with the same text) says so. Growing the corpus never moves a document from training to validation; the one
exception is a corpus so small that every hash says validation, where one document has to be trained on all the same.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import Any

from storage.digest import sha256_json
from storage.errors import UserError
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import DROPPED, SELECTION
from storage.tables import read_rows, write_table
from tasks.curate.kept import Kept, kept_rows
from tasks.settings import CurateSettings
from tasks.stage import Work, stage

COLUMNS = ["doc_id", "text_sha256", "n_chars", "n_bytes", "distinct_share", "digest"]


class EmptyCorpus(UserError):
    """There is not enough text to train on and to measure on."""


def hash_share(cluster: str, salt: str) -> float:
    """Place of a cluster in [0, 1), evenly spread and fixed for ever."""
    digest = hashlib.sha256(f"{salt}\x00{cluster}".encode()).digest()
    return int.from_bytes(digest[:8]) / 2**64


def split_clusters(clusters: list[str], settings: CurateSettings) -> dict[str, str]:
    """Split of each cluster: `train` or `validation`.

    If no cluster falls into validation, the one with the lowest hash is it.

    Raises:
        EmptyCorpus: if there are fewer than two clusters.
    """
    if len(clusters) < 2:
        raise EmptyCorpus(
            f"the corpus has {len(clusters)} distinct document(s) with text; at least two are needed, one to train on "
            "and one to measure on: add documents; `sheepfold ingest SOURCE` and then "
            '`sheepfold sql "select path, status, reason from files"` say what became of those that are there'
        )
    places = {cluster: hash_share(cluster, settings.salt) for cluster in clusters}
    lowest = min(places, key=lambda cluster: places[cluster])
    split = {
        cluster: "validation" if place < settings.validation_share or cluster == lowest else "train"
        for cluster, place in places.items()
    }
    if "train" not in split.values():
        split[max(places, key=lambda cluster: places[cluster])] = "train"
    return split


def _refusal(document: dict[str, Any], settings: CurateSettings) -> tuple[str, str] | None:
    """Why a document is not used: a code and a sentence; None when it is."""
    n_chars, share = document["n_chars"], document["distinct_share"]
    if n_chars < settings.min_chars:
        return "too_short", f"{n_chars} characters after normalising, fewer than {settings.min_chars}"
    if share < settings.min_distinct_share:
        return "repetitive", f"{share:.2%} of its phrases are distinct, fewer than {settings.min_distinct_share:.0%}"
    return None


def select(
    documents: list[dict[str, Any]], settings: CurateSettings
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Decide on every document.

    Args:
        documents: rows with `doc_id`, `segment`, `text_sha256`, `n_chars`, `n_bytes`, `distinct_share`.

    Returns:
        Rows of `selection` for all documents, and rows of `dropped` for those not kept, both by doc_id.
    """
    clusters: dict[str, list[dict[str, Any]]] = defaultdict(list)
    dropped = []
    for document in sorted(documents, key=lambda row: str(row["doc_id"])):
        refusal = _refusal(document, settings)
        if refusal is None:
            clusters[document["text_sha256"]].append(document)
        else:
            code, reason = refusal
            dropped.append({"doc_id": document["doc_id"], "reason_code": code, "reason": reason})
    split = split_clusters(sorted(clusters), settings)
    selection = []
    for cluster, members in clusters.items():
        for rank, document in enumerate(members):
            if rank > 0:
                reason = f"same text as document {members[0]['doc_id']}"
                dropped.append({"doc_id": document["doc_id"], "reason_code": "duplicate_text", "reason": reason})
            selection.append(
                {
                    "doc_id": document["doc_id"],
                    "segment": document["segment"],
                    "cluster": cluster,
                    "split": split[cluster],
                    "kept": rank == 0,
                    "n_bytes": document["n_bytes"],
                }
            )
    return _by_document(selection), _by_document(dropped)


def _by_document(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: str(row["doc_id"]))


@stage("curate", version=1)
def curate(work: Work, settings: CurateSettings, *, snapshot: ArtifactRef, documents: RefSet) -> str:
    """Choose the documents to use, drop exact duplicates, and split into training and validation."""
    files = read_rows(work.folder(snapshot) / "files.parquet", ["doc_id", "status", "segment"])
    live = {row["doc_id"]: Kept(row["segment"], "") for row in files if row["status"] == "ok"}
    found = kept_rows(work.store, live, documents, "documents.parquet", COLUMNS)
    rows = [{**row, "segment": live[row["doc_id"]].segment} for _, row in found]
    selection, dropped = select(rows, settings)
    work.counts["rows"] = write_table(work.out / "selection.parquet", SELECTION, selection)
    work.counts["dropped"] = write_table(work.out / "dropped.parquet", DROPPED, dropped)
    for side in ("train", "validation"):
        work.counts[side] = sum(row["kept"] and row["split"] == side for row in selection)
    # where a document lies is not part of what was selected
    content = [{name: value for name, value in row.items() if name != "segment"} for row in selection]
    return sha256_json({"selection": content, "documents": documents.digest})
