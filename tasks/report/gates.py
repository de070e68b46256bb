"""The page of the gates: why a model became champion or did not, and how the registered versions before it fared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from storage.registry import ModelVersion, registered_versions
from storage.store import Store
from tasks.evaluation.compare import Comparison, compare_evaluations
from tasks.evaluation.gates import GATES, Verdict, clear_loss, failed, read_verdicts
from tasks.report.evaluation import interval, interval_reach, interval_words
from tasks.report.markdown import plain, table
from tasks.report.page import render
from tasks.report.written import Outcome, Page

SECTIONS = {"gates": "Gates", "slices": "Beside the champion", "versions": "Versions"}
TITLES = {gate.name: gate.title for gate in GATES}
_SLICES, _VERSIONS = 60, 100


@dataclass(frozen=True)
class GateFigures:
    """What the page shows.

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

    @property
    def lead(self) -> str:
        """The names of this version, and the verdict on it in a sentence."""
        names = self.names_of(self.version)
        stands = f"Version {self.version} {'is ' + ' and '.join(names) if names else 'has no name'}"
        found = next((item for item in self.versions if item.version == self.version), None)
        reason = found.tags.get("sheepfold.verdict", "") if found is not None else ""
        return f"{stands}: {reason}." if reason else f"{stands}."


def write(outcome: Outcome) -> Page | None:
    """Write the page of the gates' verdicts on a registered version."""
    run, promoted = outcome.run, outcome.promoted
    if promoted is None:
        return None
    versions = [item for item in registered_versions(run.store) if item.name == promoted.version.name]
    names = {alias: item.version for item in versions for alias in item.aliases}
    number = promoted.version.version

    def draw() -> list[str]:
        figures = collect_gates(run.store, promoted.gates, number, versions, names)
        return [gates_page(figures, run.corpus), gates_summary(figures)]

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


def gates_page(figures: GateFigures, corpus: str) -> str:
    """Return the page.

    Args:
        corpus: its name.
    """
    held, comparison = failed(figures.verdicts), figures.comparison
    counts = Counter(item.verdict for item in figures.verdicts)
    facts = {
        "Gates passed": str(counts["passed"]),
        "Failed": str(counts["failed"]),
        "Skipped": str(counts["skipped"]),
    }
    if held:
        facts["Held by"] = ", ".join(TITLES.get(item.gate, item.gate) for item in held)
    if comparison is not None:
        facts["Bits per byte, less the champion's"] = interval_words(comparison.difference)
    facts["Champion"] = f"version {figures.names['champion']}" if "champion" in figures.names else "none"
    slices = sorted(comparison.slices, key=lambda item: (-clear_loss(item), -item.a.bytes)) if comparison else []
    not_compared = (item.sentence for item in figures.verdicts if item.gate == "worst_slice")
    return render(
        "gates.html",
        title=f"Corpus {corpus}: may version {figures.version} be champion?",
        lead=figures.lead,
        facts=facts,
        sections=SECTIONS,
        figures=figures,
        titles=TITLES,
        slices=slices[:_SLICES],
        reach=interval_reach(item.difference for item in slices[:_SLICES]),
        interval=interval,
        interval_words=interval_words,
        not_compared=next(not_compared, "nothing was compared"),
        versions=list(reversed(figures.versions[-_VERSIONS:])),
    )


def gates_summary(figures: GateFigures) -> str:
    """Return the verdicts in a few lines of Markdown, for the run's own page."""
    rows = [
        [TITLES.get(item.gate, plain(item.gate)), item.verdict, plain(item.sentence, 400)] for item in figures.verdicts
    ]
    return "\n".join([plain(figures.lead, 600), "", *table(["gate", "verdict", "why"], rows)]) + "\n"
