"""The stage `split`: the documents of one side of a corpus, as a set to measure models on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage.digest import sha256_json
from storage.errors import UserError
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import DOCUMENTS_FILE, EVALSET
from storage.tables import write_table
from tasks.core.stage import Work, stage
from tasks.curate.corpus import kept_documents
from tasks.curate.evalset import evaluation_rows

if TYPE_CHECKING:
    pass


State = dict[str, list[ArtifactRef]]


@dataclass(frozen=True)
class SplitSettings:
    """Side of a corpus."""

    split: str


@stage("split", version=1)
def copy_split(
    work: Work,
    settings: SplitSettings,
    *,
    snapshot: ArtifactRef,
    curated: ArtifactRef,
    documents: RefSet,
    measures: RefSet,
) -> str:
    """Copy the documents of one side of a corpus into a set to measure models on."""
    wanted = kept_documents(work.store, curated, settings.split)
    if not wanted:
        raise UserError(f"the corpus has no {settings.split} documents")
    rows = evaluation_rows(work.store, wanted, snapshot, documents, measures)
    work.counts["rows"] = write_table(work.out / DOCUMENTS_FILE, EVALSET, rows)
    work.counts["bytes"] = sum(len(row["text"].encode()) for row in rows)
    return sha256_json(rows)  # with what results are told apart by


def split_inputs(state: State) -> dict[str, ArtifactRef | RefSet]:
    """Inputs of `copy_split` from the artefacts of a corpus's last run.

    Args:
        state: see `storage.catalog.read_state`.

    Raises:
        UserError: the corpus was never ingested, or not since documents were forgotten.
    """
    if not all(state.get(name) for name in ("snapshot", "curate", "refine", "measure")):
        raise UserError(
            "the corpus has no documents yet, or some were forgotten since its last run: run `sheepfold ingest SOURCE` "
            "or `run` first"
        )
    return {
        "snapshot": state["snapshot"][0],
        "curated": state["curate"][0],
        "documents": RefSet.of(state["refine"]),
        "measures": RefSet.of(state["measure"]),
    }
