"""What `sheepfold ablate` does: train a model again without a source of its documents, and compare the two.

Both are measured on the frozen evaluation set, and the new one is trained as the other was: the same network, seed and
steps. It is a run in MLflow like any training, but no version in the registry, and the corpus's own training stays what
it was, so that nothing can promote it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flows import pipeline
from flows.actions import checkpoint_of, ensure_training_run
from flows.compare import Compared, compare_checkpoints
from storage.catalog import Catalog, waits_for_run
from storage.errors import UserError
from storage.home import Home
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, Manifest, RefSet
from storage.store import Store
from storage.tables import stream_rows
from tasks.ablation import AblateSettings, ablate, documents_of
from tasks.curate.curate import SELECTION_FILE
from tasks.resources import Resources
from tasks.session import Session, StageReport, artifact
from tasks.settings import Settings
from tasks.tokens.dataset import GROUPS_FILE, DatasetIndexSettings, dataset
from tasks.tokens.mix import MixSettings
from tasks.training import TrainStageSettings, train


@dataclass(frozen=True)
class Ablation:
    """A model without a source, beside the one with it.

    Attributes:
        without: what was left out, in words.
        documents: of it that the other model was trained on.
        trained_on: documents that are left.
        compared: the new model first.
        stages: what was computed for it, and what was there.
        notes: what makes the difference doubtful.
    """

    without: str
    documents: int
    trained_on: int
    compared: Compared
    stages: list[StageReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def ablate_direct(home: str, without: str, corpus: str, model: str = "", prompts: str = "") -> Ablation:
    """Ablate by name, without Prefect; see `ablate_source`."""
    place = Home.from_environment(home or None).create()
    with Resources(place) as resources:
        return ablate_source(Session(place, resources, corpus=corpus), without, corpus, model, prompts)


def ablate_source(session: Session, without: str, corpus: str, model: str = "", prompts: str = "") -> Ablation:
    """Train without a source and compare.

    Args:
        without: see `tasks.ablation.documents_of`.
        model: what it is compared with; empty for the corpus's last training.
        prompts: a file of prompts that both continue.

    Raises:
        UserError: if the source or the model is not there, or the model was not trained on the source, or on nothing
            else.
    """
    if waits := waits_for_run(session.store, corpus):
        raise UserError(waits)
    left_out = documents_of(Catalog(session.store, corpus), without)
    checkpoint = checkpoint_of(session, model) if model else pipeline.latest_training(session, corpus)
    pipeline.frozen_evalset(session, corpus)  # before an hour of training: without one there is nothing to compare on
    if checkpoint.stage != "train":
        raise UserError(f"{model!r} was not trained in this home, so it cannot be trained again: name another model")
    trained = manifest_of(session.store, checkpoint)
    made = manifest_of(session.store, trained.input_refs("dataset")[0])
    (curated,) = made.input_refs("curated")
    settings = AblateSettings.of(left_out.doc_ids)
    session.resources.left_out = {settings.documents: left_out.doc_ids}
    selection = artifact(session.run(ablate, settings, curated=curated))
    counts = manifest_of(session.store, selection).counts
    if not counts["removed"]:
        raise UserError(
            f"{model or 'the last model'} was trained on no document {left_out.words}: nothing would change"
        )
    if not counts["train"]:
        raise UserError(f"every training document is {left_out.words}: nothing is left to train on")
    if counts["copies"]:
        session.note(
            f"{counts['copies']} documents elsewhere had been dropped as copies of what is left out, and stay dropped"
        )
    session.resources.run_tags = {**session.resources.run_tags, "sheepfold.without": left_out.words}
    challenger = _train_on(session, selection, trained, made)
    ensure_training_run(session, challenger)
    names = (f"without {without.strip()}", model or "with it")
    compared = compare_checkpoints(session, names, (challenger, checkpoint), corpus, Settings(), prompts=prompts)
    return Ablation(left_out.words, counts["removed"], counts["train"], compared, session.report_list(), session.notes)


def _train_on(session: Session, selection: ArtifactRef, trained: Manifest, data: Manifest) -> ArtifactRef:
    """Train as before, on another selection of the same documents.

    Args:
        trained, data: the training before, and its dataset.
    """
    inputs = {name: data.input_refs(name) for name in ("tokens", "groups")}
    cut = session.run(
        dataset,
        _dataset_settings(session.store, selection, data),
        curated=selection,
        tokenizer=data.input_refs("tokenizer")[0],
        **{name: RefSet(tuple(refs), data.inputs[name]["digest"]) for name, refs in inputs.items()},
    )
    if "base" in trained.inputs:
        session.note("both continue a model that may have been trained on what is left out")
    given = {name: trained.input_refs(name)[0] for name in ("tokenizer", "base") if name in trained.inputs}
    return artifact(session.run(train, TrainStageSettings(**trained.settings), dataset=cut, **given))


def _dataset_settings(store: Store, selection: ArtifactRef, data: Manifest) -> DatasetIndexSettings:
    """How the rest is cut and mixed: as before, but a mix names no group of which nothing is left."""
    mix = data.settings["mix"]
    if mix is not None:
        mix = MixSettings(**mix).without(_emptied(store, selection, data))
    return DatasetIndexSettings(**{**data.settings, "mix": mix})


def _emptied(store: Store, selection: ArtifactRef, data: Manifest) -> set[str]:
    """Groups of a dataset none of whose documents a selection trains on."""
    rows = stream_rows(store.folder(selection) / SELECTION_FILE, ["doc_id", "split", "kept"])
    left = {row["doc_id"] for row in rows if row["kept"] and row["split"] == "train"}
    groups: dict[str, bool] = {}  # whether something of it is left
    for ref in data.input_refs("groups"):
        for row in stream_rows(store.folder(ref) / GROUPS_FILE, ["doc_id", "group"]):
            groups[row["group"]] = groups.get(row["group"], False) or row["doc_id"] in left
    return {name for name, some in groups.items() if not some}
