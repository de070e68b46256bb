"""The stage `split`: one split of a corpus as an evaluation set; `tasks.curate.curate.hold_out` makes the split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from storage.errors import UserError
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import DOCUMENTS_FILE, EVALSET
from tasks.core.stage import Work, stage
from tasks.curate.corpus import Corpus
from tasks.curate.evalset import copy_documents

SPLITS = ("train", "validation")


@dataclass(frozen=True)
class SplitSettings:
    """Name of a split."""

    split: str


@stage("split", version=1, tables={DOCUMENTS_FILE: EVALSET})
def copy_split(
    work: Work,
    settings: SplitSettings,
    *,
    snapshot: ArtifactRef,
    curated: ArtifactRef,
    documents: RefSet,
    measures: RefSet,
) -> str:
    """Copy the documents of one split of a corpus into an evaluation set."""
    with Corpus(work.machine.query_bytes, work.scratch) as corpus:
        corpus.want_kept(work.folder(curated), settings.split)
        digest = copy_documents(work, corpus, snapshot, documents, measures)
    if not work.counts["rows"]:
        raise UserError(f"the corpus has no {settings.split} documents: add documents")
    return digest


def split_inputs(state: Mapping[str, list[ArtifactRef]]) -> dict[str, ArtifactRef | RefSet]:
    """Return the inputs of `copy_split` from the artefacts of a corpus's last run.

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
