"""The flows `compare` and `ablate`: two models on the same documents.

`ablate` trains the second model: the same network, seed and steps without a source of its documents. This training is
an MLflow run, but it is not registered and not recorded for the corpus, so that it cannot be promoted.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from flows.context import flow, open_run
from flows.evaluate import evaluate_model
from flows.generate import make_completions
from flows.options import AblateOptions, CompareOptions
from flows.train import latest_training
from storage.catalog import Catalog, waits_for_run
from storage.digest import sha256_json
from storage.errors import UserError
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, Manifest, RefSet
from tasks.core.run import Run
from tasks.core.settings import Settings, load_settings
from tasks.curate.evalset import frozen_evalset
from tasks.evaluation.texts import evaluation_texts
from tasks.generation.prompts import read_prompts, sample_prompts
from tasks.registry.models import checkpoint_of, ensure_training_run
from tasks.registry.promote import trained_on
from tasks.tokens.dataset import dataset, settings_without
from tasks.training.ablate import AblateSettings, documents_of
from tasks.training.ablate import ablate as ablate_stage
from tasks.training.train import TrainStageSettings, train


@flow(CompareOptions)
def compare(options: CompareOptions) -> dict[str, Any]:
    """Compare two models on the corpus's frozen evaluation set: figures, slices, documents, completions."""
    settings = options.load()
    with open_run(options, settings.limits) as run:
        names = (options.a, options.b)
        models = [(f"version {name}" if name.isdecimal() else name, checkpoint_of(run, name)) for name in names]
        evalset = evaluation_texts(run, options.on, options.column)
        return _compare(run, models, evalset, settings, options.prompts)


@flow(AblateOptions)
def ablate(options: AblateOptions) -> dict[str, Any]:
    """Train a model again without a source of its documents, and compare the two; nothing is registered."""
    with open_run(options, load_settings().limits) as run:
        if waits := waits_for_run(run.store, run.corpus):
            raise UserError(waits)
        left_out = documents_of(Catalog(run.store, run.corpus), options.without)
        checkpoint = checkpoint_of(run, options.model) if options.model else latest_training(run)
        if checkpoint.stage != train.name:
            raise UserError(
                f"{options.model!r} was not trained in this home, so it cannot be trained again: give another model"
            )
        evalset = frozen_evalset(run)  # before the training, because it raises if there is none
        trained = manifest_of(run.store, checkpoint)
        data = manifest_of(run.store, trained.input_refs("dataset")[0])
        selection = ablate_stage(
            run,
            AblateSettings(sha256_json(sorted(left_out.doc_ids))),
            curated=data.input_refs("curated")[0],
            without=left_out.doc_ids,
        )
        counts = manifest_of(run.store, selection).counts
        if not counts["removed"]:
            model = options.model or "the last model"
            raise UserError(f"{model} was trained on no document {left_out.words}: give another source")
        if not counts["train"]:
            raise UserError(f"every training document is {left_out.words}: nothing is left to train on")
        if counts["copies"]:
            run.note(
                f"{counts['copies']} documents of other sources were dropped as copies of those left out, and stay "
                "dropped"
            )
        run.tags = {**run.tags, "sheepfold.without": left_out.words}
        challenger = _train_on(run, selection, trained, data)
        ensure_training_run(run, challenger)
        models = [(f"without {options.without.strip()}", challenger), (options.model or "with it", checkpoint)]
        compared = _compare(run, models, evalset, Settings(), options.prompts)
        return {
            "without": left_out.words,
            "documents_left_out": counts["removed"],
            "documents_trained_on": counts["train"],
            **compared,
            "notes": [*compared["notes"], *run.notes],
            "stages": [asdict(item) for item in run.reports.values()],
        }


def _compare(
    run: Run, models: list[tuple[str, ArtifactRef]], evalset: ArtifactRef, settings: Settings, prompts: str | None
) -> dict[str, Any]:
    """Evaluate two models on the same documents, complete the same prompts, and write the page."""
    from tasks.report.comparison import collect_pair, pair_document, pair_table, write_pair_page
    from tasks.report.evaluation import Measured

    asked = read_prompts(Path(prompts).expanduser()) if prompts else sample_prompts(run.store, evalset)
    sides: list[Measured] = []
    warnings = []
    for name, checkpoint in models:
        evaluation, _ = evaluate_model(run, checkpoint, evalset, settings.evaluate)
        written = make_completions(run, settings, checkpoint, asked)
        sides.append(Measured(name, checkpoint, evalset, evaluation, completions=written))
        if trained_on(run.store, checkpoint, evalset):
            warnings.append(f"{name} was trained on some of these documents, so its figures are too good")
    figures = collect_pair(run.store, sides[0], sides[1], warnings)
    page = write_pair_page(run.home.reports_of(run.corpus), figures, run.corpus)
    return {**pair_document(figures), "page": str(page), "table": pair_table(figures)}


def _train_on(run: Run, selection: ArtifactRef, trained: Manifest, data: Manifest) -> ArtifactRef:
    """Repeat a training on another selection of the same documents.

    Args:
        trained, data: Manifests of the training and of its dataset.
    """
    sets = {name: RefSet(tuple(data.input_refs(name)), data.inputs[name]["digest"]) for name in ("tokens", "groups")}
    cut = dataset(
        run,
        settings_without(run.store, data, selection),
        curated=selection,
        tokenizer=data.input_refs("tokenizer")[0],
        **sets,
    )
    if "base" in trained.inputs:
        run.note("both continue a model that may have been trained on the documents left out")
    given = {name: trained.input_refs(name)[0] for name in ("tokenizer", "base") if name in trained.inputs}
    return train(run, TrainStageSettings(**trained.settings), dataset=cut, **given, tags=run.tags)
