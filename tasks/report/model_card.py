"""The model card: what a registered version is, how good, judged how, made from what, and what not to expect of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from storage.lineage import ancestor, manifest_of
from storage.manifest import ArtifactRef, Manifest
from storage.store import Store
from tasks.evaluation.gates import Verdict, corpus_facts, curated_of
from tasks.evaluation.tables import baselines_of, read_evaluation
from tasks.report.page import render
from tasks.training.bundle import WEIGHTS_FILE

FEW_DOCUMENTS = 20  # held-out documents below which the figures say little
_SLICES = 6


def model_card(
    store: Store,
    checkpoint: ArtifactRef,
    evaluation: ArtifactRef,
    verdicts: Sequence[Verdict],
    name: str,
    links: Mapping[str, str] | None = None,
) -> str:
    """Return the description of a version, in Markdown.

    Args:
        evaluation: the figures that it was registered with.
        verdicts: of the gates.
        name: of the registered model.
        links: addresses by what they lead to.
    """
    made, found = manifest_of(store, checkpoint), read_evaluation(store, evaluation)
    (evalset,) = manifest_of(store, evaluation).input_refs("evalset")
    curated = curated_of(store, checkpoint)
    judged = [item for item in found.slices if item.dimension in ("kind", "language") and item.sums.tokens]
    weakest = sorted(judged, key=lambda item: -item.sums.bits_per_byte)[:_SLICES]
    languages = [item.value for item in found.slices if item.dimension == "language" and item.value]
    return render(
        "model_card.md",
        made=made,
        size=next(entry.size for entry in made.files if entry.name == WEIGHTS_FILE),
        parameters=parameters_of(made),
        metrics=found.metrics,
        baselines=baselines_of(found.metrics),
        evalset=evalset,
        verdicts=verdicts,
        curated=curated,
        dataset=ancestor(store, checkpoint, "dataset"),
        corpus=corpus_facts(store, curated),
        few=FEW_DOCUMENTS,
        weak=[item for item in weakest if item.sums.bits_per_byte > found.metrics["val/bits_per_byte"]],
        languages=languages[:_SLICES],
        name=name,
        links=links or {},
    )


def parameters_of(made: Manifest) -> int:
    """Return the number of parameters of a training's network."""
    from model import ModelConfig, count_parameters

    return count_parameters(ModelConfig.from_dict(made.settings["model"]))["total"]
