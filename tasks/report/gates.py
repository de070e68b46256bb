"""The page of the gates: why a model became champion or did not, and how the registered versions before it fared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from storage.registry import ModelVersion, registered_versions
from storage.store import Store
from tasks.evaluation.compare import compare_evaluations
from tasks.evaluation.gates import GATES, clear_loss, read_verdicts
from tasks.report.page import draw_page
from tasks.report.queries import Row
from tasks.report.written import Outcome, Page

TITLES = {gate.name: gate.title for gate in GATES}
_SLICES, _VERSIONS = 60, 100


def write(outcome: Outcome) -> Page | None:
    """Write the page of the gates' verdicts on a registered version."""
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
    """Read what the page shows.

    Args:
        gates: the verdicts.
        version: number of the version that they are about.
        versions: all registered ones.
        names: version by alias.

    Returns:
        The arguments, `verdicts` in the order of the gates, and the `comparison` with the champion that it met (None
        where it met none, or its figures are gone).
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
    """Return the page, and its summary in Markdown.

    Args:
        found: what `collect_gates` returns.
        corpus: its name.
    """
    slices = found.comparison.slices if found.comparison else []
    largest_loss = sorted(slices, key=lambda item: (-clear_loss(item), -item.a.bytes))[:_SLICES]
    return draw_page(
        "gates.html",
        title=f"Corpus {corpus}: may version {found.version} be champion?",
        titles=TITLES,
        slices=largest_loss,
        listed=list(reversed(found.versions[-_VERSIONS:])),
        **vars(found),
    )
