"""The model card of a registered version, and the page of its gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from storage.lineage import ancestor, manifest_of
from storage.manifest import ArtifactRef, Manifest
from storage.registry import ModelVersion, registered_versions
from storage.store import Store
from tasks.evaluation.compare import compare_evaluations
from tasks.evaluation.gates import GATES, Verdict, clear_loss, corpus_facts, curated_of, read_verdicts
from tasks.evaluation.tables import baselines_of, read_evaluation
from tasks.report.page import Outcome, Page, draw_page, render
from tasks.report.queries import Row
from tasks.training.bundle import WEIGHTS_FILE

TITLES = {gate.name: gate.title for gate in GATES}
_SLICES = 60


def write(outcome: Outcome) -> Page | None:
    """Write the page of the gates of a registered version; returns None if none was promoted."""
    run, promoted = outcome.run, outcome.promoted
    if promoted is None:
        return None
    versions = [item for item in registered_versions(run.store) if item.name == promoted.version.name]
    names = {alias: item.version for item in versions for alias in item.aliases}
    number = promoted.version.version

    def draw() -> list[str]:
        return gates_page(collect_gates(run.store, promoted.gates, number, versions, names), run.corpus)

    drawn_from = [asdict(promoted.gates), number, [asdict(item) for item in versions], names]
    return outcome.draw_once("gates", f"Gates of version {number}", drawn_from, draw)


def collect_gates(
    store: Store, gates: ArtifactRef, version: str, versions: Sequence[ModelVersion], names: Mapping[str, str]
) -> Row:
    """Read everything that the page shows.

    Args:
        gates: artefact of the verdicts.
        version: number of the judged version.
        versions: all registered versions.
        names: version by alias.

    Returns:
        The arguments, `verdicts` in the order of the gates, and the `comparison` with the champion (None if there was
        none, or its evaluation is not in the store).
    """
    inputs = manifest_of(store, gates)
    comparison = None
    if "champion" in inputs.inputs:
        own, other = (inputs.input_refs(name)[0] for name in ("evaluation", "champion"))
        if all(store.find(ref.stage, ref.key) is not None for ref in (own, other)):
            comparison = compare_evaluations(store, own, other)
    verdicts = read_verdicts(store.folder(gates))
    return Row(version=version, verdicts=verdicts, comparison=comparison, versions=versions, names=names)


def gates_page(found: Row, corpus: str) -> list[str]:
    """Return the page and its Markdown summary from the result of `collect_gates`."""
    slices = found.comparison.slices if found.comparison else []
    largest_loss = sorted(slices, key=lambda item: (-clear_loss(item), -item.a.bytes))[:_SLICES]
    return draw_page(
        "gates.html",
        title=f"Corpus {corpus}: gates of version {found.version}",
        titles=TITLES,
        slices=largest_loss,
        **vars(found),
    )


# model card


def model_card(
    store: Store,
    checkpoint: ArtifactRef,
    evaluation: ArtifactRef,
    verdicts: Sequence[Verdict],
    name: str,
    links: Mapping[str, str] | None = None,
) -> str:
    """Return the model card as Markdown.

    Args:
        evaluation: evaluation at registration.
        links: addresses by title.
    """
    made, found = manifest_of(store, checkpoint), read_evaluation(store, evaluation)
    (evalset,) = manifest_of(store, evaluation).input_refs("evalset")
    curated = curated_of(store, checkpoint)
    return render(
        "model_card.md",
        made=made,
        size=next(entry.size for entry in made.files if entry.name == WEIGHTS_FILE),
        parameters=parameters_of(made),
        metrics=found.metrics,
        slices=found.slices,
        baselines=baselines_of(found.metrics),
        evalset=evalset,
        verdicts=verdicts,
        curated=curated,
        dataset=ancestor(store, checkpoint, "dataset"),
        corpus=corpus_facts(store, curated),
        name=name,
        links=links or {},
    )


def parameters_of(made: Manifest) -> int:
    """Return the number of parameters of a trained network."""
    from model import ModelConfig, count_parameters

    return count_parameters(ModelConfig.from_dict(made.settings["model"]))["total"]
