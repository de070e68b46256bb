"""The stage `fresh`: documents that came to the corpus after a model was trained, on which its drift is measured.

Documents that resemble something the model read are left out. The result has the layout of an evaluation set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.catalog import read_state, waits_for_run
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import SELECTION_FILE
from storage.store import Store
from storage.tables import read_columns
from tasks.core.stage import NoSettings, Work, stage
from tasks.curate.corpus import Corpus, kept_documents
from tasks.curate.evalset import copy_documents
from tasks.evaluation.split import split_inputs

if TYPE_CHECKING:
    from tasks.core.run import Run


@stage("fresh", version=1)
def fresh(
    work: Work,
    settings: NoSettings,
    *,
    snapshot: ArtifactRef,
    curated: ArtifactRef,
    known: RefSet,
    documents: RefSet,
    measures: RefSet,
) -> str:
    """Copy the documents that came since some earlier selections into a set to measure a model on."""
    wanted = came_since(work.store, curated, known)
    with Corpus(work.machine.query_bytes, work.scratch) as corpus:
        corpus.want(wanted)
        return copy_documents(work, corpus, snapshot, documents, measures)


def known_selections(store: Store, checkpoint: ArtifactRef) -> RefSet:
    """Return the selections of documents that a model, and those that it continues, were trained with."""
    found: list[ArtifactRef] = []
    waiting = [checkpoint]
    while waiting:
        inputs = manifest_of(store, waiting.pop())
        if "dataset" not in inputs.inputs:
            continue  # trained elsewhere
        (cut,) = inputs.input_refs("dataset")
        found += manifest_of(store, cut).input_refs("curated")
        waiting += inputs.input_refs("base") if "base" in inputs.inputs else []
    return RefSet.of(sorted(set(found)))


def came_since(store: Store, curated: ArtifactRef, known: RefSet) -> dict[str, str]:
    """Return the documents in use, by id, that were in no earlier selection and resemble none that was."""
    before: set[str] = set()
    for ref in known.refs:
        before.update(read_columns(store.folder(ref) / SELECTION_FILE, ["doc_id"])["doc_id"])
    rows = read_columns(store.folder(curated) / SELECTION_FILE, ["doc_id", "cluster"])
    cluster_of = dict(zip(rows["doc_id"], rows["cluster"], strict=True))
    read = {cluster for doc_id, cluster in cluster_of.items() if doc_id in before}
    kept = kept_documents(store, curated)
    return {doc_id: place for doc_id, place in kept.items() if doc_id not in before and cluster_of[doc_id] not in read}


def fresh_documents(run: Run, checkpoint: ArtifactRef) -> ArtifactRef | None:
    """Return the documents that came after a model was trained; None, with a note, where none did or none are known.

    Raises:
        UserError: the corpus was never ingested.
    """
    if waits := waits_for_run(run.store, run.corpus):
        run.note(f"{waits}; nothing is known of this model's drift before it")
        return None
    inputs = split_inputs(read_state(run.store, run.corpus))
    known = known_selections(run.store, checkpoint)
    if not known.refs:
        run.note("it is not known which documents this model read, so nothing is known of its drift")
        return None
    curated = inputs["curated"]
    assert isinstance(curated, ArtifactRef)
    if not came_since(run.store, curated, known):
        run.note("no document came to the corpus since this model was trained, so nothing is known of its drift")
        return None
    return fresh(run, NoSettings(), known=known, **inputs)
