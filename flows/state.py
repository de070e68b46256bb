"""The state of a corpus: artefacts of its last completed run, and the tokeniser and evaluation set that refs pin."""

from __future__ import annotations

from dataclasses import asdict

from storage.catalog import LISTED, corpus_ref, read_state
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from storage.store import StoreError
from tasks.curate.evalset import freeze_evalset
from tasks.forgetting.sweep import refuse_forgotten
from tasks.ingest.snapshot import snapshot
from tasks.run import Run
from tasks.stage import Stage
from tasks.training import train


def pinned(run: Run, kind: str, stage: Stage) -> ArtifactRef | None:
    """Return the artefact that the ref `kind/CORPUS` pins, if it is whole and is not to be made again."""
    value = run.store.read_ref(f"{kind}/{run.corpus}")
    if value is None or stage.name in run.refresh:
        return None
    found = run.store.find(stage.name, value["key"])
    return found.ref if found is not None else None


def pin(run: Run, kind: str, ref: ArtifactRef) -> None:
    """Let the ref `kind/CORPUS` pin an artefact; a plan pins nothing."""
    if not run.plan:
        run.store.write_ref(f"{kind}/{run.corpus}", asdict(ref))


def frozen_evalset(run: Run) -> ArtifactRef:
    """Return the evaluation set of the corpus.

    Raises:
        StoreError: if the corpus was never prepared.
    """
    found = pinned(run, "evalset", freeze_evalset)
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


def latest_training(run: Run) -> ArtifactRef:
    """Return the checkpoint of the corpus's last completed training.

    Raises:
        StoreError: if there is none.
    """
    found = read_state(run.store, run.corpus).get(train.name)
    if not found:
        raise StoreError(f"corpus {run.corpus!r} has no training yet: run `sheepfold train SOURCE` or `run` first")
    return found[0]


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


def publish_evaluation(run: Run, checkpoint: ArtifactRef, evaluation: ArtifactRef) -> None:
    """Let the corpus's ref follow an evaluation of its latest training; figures of other models are not its own."""
    if read_state(run.store, run.corpus).get(train.name) == [checkpoint]:
        run.remember(evaluate=evaluation)
        publish(run)
