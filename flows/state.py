"""The state of a corpus: artefacts of its last completed run."""

from __future__ import annotations

from dataclasses import asdict

from storage.catalog import LISTED, corpus_ref, read_state
from storage.manifest import ArtifactRef
from storage.store import StoreError
from tasks.core.run import Run
from tasks.ingest.snapshot import snapshot
from tasks.training.train import train
from tasks.upkeep.forget_sweep import refuse_forgotten


def latest_training(run: Run) -> ArtifactRef:
    """Return the checkpoint of the corpus's last completed training.

    Raises:
        StoreError: if there is none.
    """
    found = read_state(run.store, run.corpus).get(train.name)
    if not found:
        raise StoreError(f"corpus {run.corpus!r} has no training yet: run `sheepfold train SOURCE` or `run` first")
    return found[0]


def remember_evaluation(run: Run, checkpoint: ArtifactRef, evaluation: ArtifactRef) -> None:
    """Record an evaluation of the corpus's latest training for its ref; figures of other models are not its own."""
    if read_state(run.store, run.corpus).get(train.name) == [checkpoint]:
        run.remember(evaluate=evaluation)


def publish(run: Run) -> None:
    """Let the corpus's ref follow the artefacts of this run; the catalogue's views follow the ref.

    Only ingestion makes a corpus; an evaluation or completions under an unknown name do not.

    Raises:
        UserError: if a document that this run may have read was forgotten while it ran.
    """
    if run.forgotten is not None:
        refuse_forgotten(run.store, run.forgotten)
    name = corpus_ref(run.corpus)
    with run.store.lock(name):  # another run may publish between our reading and writing
        state = run.store.read_ref(name) or {}
        for stage, refs in run.produced.items():
            state[stage] = [asdict(ref) for ref in refs]
        if run.produced.get(snapshot.name):
            state.pop(LISTED, None)
        if snapshot.name in state:
            run.store.write_ref(name, state)
