"""The flows `compare` and `ablate`: two models on the same documents; the second is trained for it.

An ablation trains a model again without a source of its documents: the same network, seed and steps. It is a run in
MLflow like any training, but no version in the registry, and the corpus's own training stays what it was, so that
nothing can promote it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.context import flow, open_run
from flows.evaluate import evaluate_model, evaluation_texts
from flows.generate import continue_prompts
from flows.models import checkpoint_of, ensure_training_run
from flows.options import AblateOptions, CompareOptions
from flows.state import frozen_evalset, latest_training
from storage.atomic import write_file
from storage.catalog import Catalog, waits_for_run
from storage.digest import sha256_json
from storage.errors import UserError
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, Manifest, RefSet
from storage.schemas import GROUPS_FILE, SELECTION_FILE
from storage.store import Store
from storage.tables import stream_rows
from tasks.ablation import AblateSettings, documents_of
from tasks.ablation import ablate as ablate_stage
from tasks.generation.prompts import read_prompts, sample_prompts
from tasks.promotion import trained_on
from tasks.run import Run
from tasks.settings import Settings
from tasks.tokens.dataset import DatasetIndexSettings, dataset
from tasks.tokens.mix import MixSettings
from tasks.training import TrainStageSettings, train

if TYPE_CHECKING:
    from tasks.evaluation_report.pairs import PairFigures, Side

_KEY = 8  # letters of each key in the name of a page


@dataclass(frozen=True)
class Compared:
    """A comparison and the page that shows it."""

    figures: PairFigures
    page: Path

    def document(self) -> dict[str, Any]:
        """Return the result as `--json` prints it, and its Markdown table."""
        from flows.show import pair_table
        from tasks.evaluation_report.pairs import pair_document

        return {**pair_document(self.figures), "page": str(self.page), "table": pair_table(self.figures)}


@flow(CompareOptions)
def compare(options: CompareOptions) -> dict[str, Any]:
    """Compare two models on the corpus's frozen evaluation set: figures, slices, documents, completions."""
    settings = options.load()
    with open_run(options) as run:
        checkpoints = [checkpoint_of(run, name) for name in (options.a, options.b)]  # a wrong name costs nothing
        names = [f"version {name}" if name.isdecimal() else name for name in (options.a, options.b)]
        found = _compare(run, names, checkpoints, settings, options.on or "", options.column or "", options.prompts)
        return found.document()


@flow(AblateOptions)
def ablate(options: AblateOptions) -> dict[str, Any]:
    """Train a model again without a source of its documents, and compare the two; nothing is registered."""
    with open_run(options) as run:
        return _ablate(run, options)


def _compare(
    run: Run,
    names: Sequence[str],
    checkpoints: Sequence[ArtifactRef],
    settings: Settings,
    on: str = "",
    column: str = "",
    prompts: str | None = None,
) -> Compared:
    from tasks.evaluation_report.pair_page import pair_page
    from tasks.evaluation_report.pairs import Side, collect_pair

    evalset = evaluation_texts(run, on, column)
    asked = read_prompts(Path(prompts).expanduser()) if prompts else sample_prompts(run.store, evalset)
    sides: list[Side] = []
    for name, checkpoint in zip(names, checkpoints, strict=True):
        evaluation, _ = evaluate_model(run, checkpoint, evalset, settings.evaluate)
        sides.append(Side(name, checkpoint, evaluation, continue_prompts(run, settings, checkpoint, asked)))
    doubts = [
        f"{side.name} was trained on some of these documents, so its figures flatter it"
        for side in sides
        if trained_on(run.store, side.checkpoint, evalset)
    ]
    figures = collect_pair(run.store, sides[0], sides[1], evalset, doubts)
    page = run.home.reports_of(run.corpus) / f"{_page_name(sides, evalset)}.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    write_file(page, pair_page(figures, run.corpus).encode())
    return Compared(figures, page)


def _page_name(sides: list[Side], evalset: ArtifactRef) -> str:
    """Name a page by the models, the documents, and how they were measured and sampled."""
    how = [ref.key for side in sides for ref in (side.evaluation, side.completions) if ref is not None]
    keys = [*(side.checkpoint.key for side in sides), evalset.key, sha256_json(how)]
    return "-".join(["comparison", *(key[:_KEY] for key in keys)])


def _ablate(run: Run, options: AblateOptions) -> dict[str, Any]:
    """Train without a source and compare.

    Raises:
        UserError: if the source or the model is not there, or the model was not trained on the source, or on nothing
            else.
    """
    if waits := waits_for_run(run.store, run.corpus):
        raise UserError(waits)
    left_out = documents_of(Catalog(run.store, run.corpus), options.without)
    checkpoint = checkpoint_of(run, options.model) if options.model else latest_training(run)
    frozen_evalset(run)  # before an hour of training: without one there is nothing to compare on
    if checkpoint.stage != train.name:
        raise UserError(
            f"{options.model!r} was not trained in this home, so it cannot be trained again: name another model"
        )
    trained = manifest_of(run.store, checkpoint)
    data = manifest_of(run.store, trained.input_refs("dataset")[0])
    (curated,) = data.input_refs("curated")
    selection = ablate_stage(run, AblateSettings.of(left_out.doc_ids), curated=curated, without=left_out.doc_ids)
    counts = manifest_of(run.store, selection).counts
    if not counts["removed"]:
        model = options.model or "the last model"
        raise UserError(f"{model} was trained on no document {left_out.words}: nothing would change")
    if not counts["train"]:
        raise UserError(f"every training document is {left_out.words}: nothing is left to train on")
    if counts["copies"]:
        run.note(
            f"{counts['copies']} documents elsewhere had been dropped as copies of what is left out, and stay dropped"
        )
    run.tags = {**run.tags, "sheepfold.without": left_out.words}
    challenger = _train_on(run, selection, trained, data)
    ensure_training_run(run, challenger)
    names = (f"without {options.without.strip()}", options.model or "with it")
    compared = _compare(run, names, (challenger, checkpoint), Settings(), prompts=options.prompts)
    return {
        "without": left_out.words,
        "documents_left_out": counts["removed"],
        "documents_trained_on": counts["train"],
        **compared.document(),
        "notes": [*compared.figures.notes, *run.notes],
        "stages": [asdict(item) for item in run.reports.values()],
    }


def _train_on(run: Run, selection: ArtifactRef, trained: Manifest, data: Manifest) -> ArtifactRef:
    """Train as before, on another selection of the same documents.

    Args:
        trained, data: The training before, and its dataset.
    """
    inputs = {name: data.input_refs(name) for name in ("tokens", "groups")}
    cut = dataset(
        run,
        _dataset_settings(run.store, selection, data),
        curated=selection,
        tokenizer=data.input_refs("tokenizer")[0],
        **{name: RefSet(tuple(refs), data.inputs[name]["digest"]) for name, refs in inputs.items()},
    )
    if "base" in trained.inputs:
        run.note("both continue a model that may have been trained on what is left out")
    given = {name: trained.input_refs(name)[0] for name in ("tokenizer", "base") if name in trained.inputs}
    return train(run, TrainStageSettings(**trained.settings), dataset=cut, **given, tags=run.tags)


def _dataset_settings(store: Store, selection: ArtifactRef, data: Manifest) -> DatasetIndexSettings:
    """Return how the rest is cut and mixed: as before, but a mix names no group of which nothing is left."""
    settings = DatasetIndexSettings(**data.settings)
    if settings.mix is None:
        return settings
    mix = MixSettings(**data.settings["mix"]).without(_emptied(store, selection, data))
    return replace(settings, mix=mix)


def _emptied(store: Store, selection: ArtifactRef, data: Manifest) -> set[str]:
    """Return the groups of a dataset none of whose documents a selection trains on."""
    rows = stream_rows(store.folder(selection) / SELECTION_FILE, ["doc_id", "split", "kept"])
    left = {row["doc_id"] for row in rows if row["kept"] and row["split"] == "train"}
    groups: dict[str, bool] = {}  # True if something of it is left
    for ref in data.input_refs("groups"):
        for row in stream_rows(store.folder(ref) / GROUPS_FILE, ["doc_id", "group"]):
            groups[row["group"]] = groups.get(row["group"], False) or row["doc_id"] in left
    return {name for name, some in groups.items() if not some}
