"""The stage `fresh`: documents added to the corpus after a training, to measure the drift of the model.

Near-duplicates of documents that the model was trained on are left out. The result has the layout of an evaluation set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.catalog import read_state, waits_for_run
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import DOCUMENTS_FILE, EVALSET, SELECTION_FILE
from storage.store import Store
from tasks.core.stage import NoSettings, Work, stage
from tasks.curate.corpus import Corpus, parquet
from tasks.curate.evalset import copy_documents
from tasks.evaluation.split import split_inputs
from tasks.lineage.training_data import trainings_of

if TYPE_CHECKING:
    from tasks.core.run import Run


@stage("fresh", version=1, tables={DOCUMENTS_FILE: EVALSET})
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
    """Copy the documents that are new since the selections `known` into an evaluation set."""
    with Corpus(work.machine.query_bytes, work.scratch) as corpus:
        want_new(corpus, work.store, curated, known)
        return copy_documents(work, corpus, snapshot, documents, measures)


def want_new(corpus: Corpus, store: Store, curated: ArtifactRef, known: RefSet) -> None:
    """Select the kept documents whose clusters have no document of an earlier selection."""
    corpus.want_kept(store.folder(curated))
    before = " union all ".join(
        f"select doc_id from {parquet(store.folder(ref) / SELECTION_FILE)}" for ref in known.refs
    )
    selection = parquet(store.folder(curated) / SELECTION_FILE)
    # the cluster of a known document includes the document itself
    corpus.sql(f"delete from wanted where cluster in (select cluster from {selection} where doc_id in ({before}))")


def fresh_documents(run: Run, checkpoint: ArtifactRef) -> ArtifactRef | None:
    """Return the documents added after a model was trained; None, with a note, if there are none or it is unknown.

    Raises:
        UserError: the corpus was never ingested.
    """
    if waits := waits_for_run(run.store, run.corpus):
        run.note(f"{waits}; the model's drift cannot be measured before")
        return None
    inputs = split_inputs(read_state(run.store, run.corpus))
    # including the trainings of its base models
    datasets = {ref for made in trainings_of(run.store, checkpoint) for ref in made.input_refs("dataset")}
    selections = {ref for dataset in datasets for ref in manifest_of(run.store, dataset).input_refs("curated")}
    known = RefSet.of(sorted(selections))
    if not selections:
        run.note("the model's training documents are unknown, so its drift cannot be measured")
        return None
    curated = inputs["curated"]
    assert isinstance(curated, ArtifactRef)
    with Corpus() as corpus:
        want_new(corpus, run.store, curated, known)
        came_since = corpus.sql("from wanted limit 1").fetchall()
    if not came_since:
        run.note("no document was added since this model was trained, so its drift cannot be measured")
        return None
    return fresh(run, NoSettings(), known=known, **inputs)
