"""The evaluation set: the frozen documents that models are compared on.

It keeps its own copy of the texts, so that it stays the same when the corpus grows, and any tokeniser can be measured
on it.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage.digest import sha256_json
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import EVALSET
from storage.store import Store
from storage.tables import read_columns, write_table
from tasks.curate.kept import kept_documents, kept_rows
from tasks.stage import Work, stage


@dataclass(frozen=True)
class EvalsetSettings:
    """Settings of the stage; there are none yet."""


def trains_on_evalset(store: Store, curated: ArtifactRef, evalset: ArtifactRef) -> bool:
    """Whether the training side holds a document of a frozen evaluation set."""
    frozen = read_columns(store.folder(evalset) / "documents.parquet", ["doc_id"])["doc_id"]
    return not kept_documents(store, curated, "train").keys().isdisjoint(frozen)


@stage("evalset", version=1)
def freeze_evalset(work: Work, settings: EvalsetSettings, *, curated: ArtifactRef, documents: RefSet) -> str:
    """Copy the validation documents into a set of their own."""
    wanted = kept_documents(work.store, curated, "validation")
    found = kept_rows(work.store, wanted, documents, "documents.parquet", ["doc_id", "kind", "text"])
    rows = [row for _, row in found]
    rows.sort(key=lambda row: str(row["doc_id"]))
    work.counts["rows"] = write_table(work.out / "documents.parquet", EVALSET, rows)
    work.counts["bytes"] = sum(len(row["text"].encode()) for row in rows)
    return sha256_json([[row["doc_id"], row["text"]] for row in rows])
