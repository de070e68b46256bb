"""The page of the gates: why a model became champion or did not, and how the registered versions before it fared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from storage.registry import ModelVersion, registered_versions
from storage.store import Store
from tasks.evaluation.compare import Comparison, compare_evaluations
from tasks.evaluation.gates import GATES, Verdict, clear_loss, read_verdicts
from tasks.report.page import draw_page
from tasks.report.written import Outcome, Page

TITLES = {gate.name: gate.title for gate in GATES}
_SLICES, _VERSIONS = 60, 100


@dataclass(frozen=True)
class GateFigures:
    """Figures of the page of the gates.

    Attributes:
        version: number of the version that was judged.
        verdicts: in the order of the gates.
        comparison: with the champion that it met; None where it met none, or its figures are gone.
        versions: all registered versions.
        names: version by alias.
    """

    version: str
    verdicts: Sequence[Verdict]
    comparison: Comparison | None
    versions: Sequence[ModelVersion]
    names: Mapping[str, str]

    def names_of(self, version: str) -> list[str]:
        """The aliases of a version."""
        return sorted(alias for alias, number in self.names.items() if number == version)


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
) -> GateFigures:
    """Read what the page shows.

    Args:
        gates: the verdicts.
        version: number of the version that they are about.
    """
    inputs = manifest_of(store, gates)
    comparison = None
    if "champion" in inputs.inputs:
        own, other = (inputs.input_refs(name)[0] for name in ("evaluation", "champion"))
        if all(store.find(ref.stage, ref.key) is not None for ref in (own, other)):
            comparison = compare_evaluations(store, own, other)
    return GateFigures(version, read_verdicts(store.folder(gates)), comparison, versions, names)


def gates_page(figures: GateFigures, corpus: str) -> list[str]:
    """Return the page, and its summary in Markdown.

    Args:
        corpus: its name.
    """
    slices = figures.comparison.slices if figures.comparison else []
    largest_loss = sorted(slices, key=lambda item: (-clear_loss(item), -item.a.bytes))[:_SLICES]
    return draw_page(
        "gates.html",
        title=f"Corpus {corpus}: may version {figures.version} be champion?",
        figures=figures,
        titles=TITLES,
        slices=largest_loss,
        versions=list(reversed(figures.versions[-_VERSIONS:])),
    )
