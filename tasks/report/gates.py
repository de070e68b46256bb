"""The verdicts on a model as one HTML file that needs nothing else: no network, no script, no other files.

It shows a person why a model became champion or did not: each gate with its number and limit, where the model differs
from the champion, and how the registered versions before it fared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from storage.registry import ModelVersion, registered_versions
from storage.store import Store
from tasks.evaluation.compare import Comparison, SlicePair, compare_evaluations
from tasks.evaluation.gates import GATES, Verdict, clear_loss, failed, read_verdicts
from tasks.report.evaluation import charts
from tasks.report.evaluation.charts import interval, interval_words
from tasks.report.frame import report_page
from tasks.report.inspect.labels import legible
from tasks.report.inspect.layout import section
from tasks.report.inspect.svg import element, escape
from tasks.report.inspect.tables import Cell, scrolled, table
from tasks.report.markdown import plain
from tasks.report.markdown import table as markdown_table
from tasks.report.written import Outcome, Page

SECTIONS = {"gates": "Gates", "slices": "Beside the champion", "versions": "Versions"}
TITLES = {gate.name: gate.title for gate in GATES}
FOOTER = "Made by sheepfold from the verdicts in the store; the same stand at the version's page in MLflow."
CSS = """
.badge.failed { background: var(--contrary); border-color: var(--contrary); color: var(--on-ink); }
.badge.passed { border-color: var(--ink); color: var(--ink); }
"""
_SLICES = 60
_VERSIONS = 100
_BITS = "sheepfold.bits_per_byte"


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

    @property
    def reason(self) -> str:
        """The verdict on this version in a sentence."""
        found = next((item for item in self.versions if item.version == self.version), None)
        return found.tags.get("sheepfold.verdict", "") if found is not None else ""

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
    """The page.

    Args:
        corpus: its name.
    """
    made = {
        "gates": _gates_section(figures),
        "slices": _slices_section(figures),
        "versions": _versions_section(figures),
    }
    title = f"Corpus {corpus}: may version {figures.version} be champion?"
    return report_page(title, _lead(figures), _facts(figures), SECTIONS, made, style=charts.CSS + CSS, footer=FOOTER)


def gates_summary(figures: GateFigures) -> str:
    """The verdicts in a few lines of Markdown, for the run's own page."""
    rows = [
        [TITLES.get(item.gate, plain(item.gate)), item.verdict, plain(item.sentence, 400)] for item in figures.verdicts
    ]
    return "\n".join([plain(_lead(figures), 600), "", *markdown_table(["gate", "verdict", "why"], rows)]) + "\n"


def _lead(figures: GateFigures) -> str:
    names = figures.names_of(figures.version)
    stands = (
        f"Version {figures.version} is {' and '.join(names)}" if names else f"Version {figures.version} has no name"
    )
    return f"{stands}: {figures.reason}." if figures.reason else f"{stands}."


def _facts(figures: GateFigures) -> dict[str, str]:
    held = failed(figures.verdicts)
    counts = {name: sum(item.verdict == name for item in figures.verdicts) for name in ("passed", "failed", "skipped")}
    known = {"Gates passed": f"{counts['passed']}", "Failed": f"{counts['failed']}", "Skipped": f"{counts['skipped']}"}
    if held:
        known["Held by"] = ", ".join(TITLES.get(item.gate, item.gate) for item in held)
    if figures.comparison is not None:
        known["Bits per byte, less the champion's"] = interval_words(figures.comparison.difference)
    known["Champion"] = f"version {figures.names['champion']}" if "champion" in figures.names else "none"
    return known


def _gates_section(figures: GateFigures) -> str:
    head = "".join(
        element("th", name, scope="col", class_="left" if name in ("gate", "verdict", "why") else None)
        for name in ("gate", "verdict", "measured", "limit", "why")
    )
    rows = ""
    for item in figures.verdicts:
        badge = element("span", item.verdict, class_=f"badge {item.verdict}")
        rows += element(
            "tr",
            element("th", escape(TITLES.get(item.gate, item.gate)), scope="row", class_="name")
            + element("td", badge, class_="left")
            + element("td", escape(_number(item.number)))
            + element("td", escape(_number(item.limit)))
            + element("td", escape(legible(item.sentence)), class_="wrap left"),
        )
    body = scrolled(element("table", element("thead", element("tr", head)) + element("tbody", rows)), "Gates")
    why = (
        "A model that fails one of them does not become champion. What cannot be measured, or has no limit, is skipped."
    )
    return section("gates", "Gates", why, body)


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "–"
    return f"{value:.6g}".replace("-", "−").replace("inf", "∞")


def _slices_section(figures: GateFigures) -> str:
    why = (
        "Bits per byte of this model and of the champion that it met, by slice of the evaluation set, the largest loss "
        "first. Left of the middle this model is better; colour where the 95 % interval leaves out 0."
    )
    if figures.comparison is None:
        words = next((item.sentence for item in figures.verdicts if item.gate == "worst_slice"), "nothing was compared")
        return section("slices", "Beside the champion", why, element("p", escape(words)))
    slices = sorted(figures.comparison.slices, key=lambda item: (-clear_loss(item), -item.a.bytes))[:_SLICES]
    reach = max((abs(value) for item in slices for value in _bounds(item)), default=0.0)
    head = "".join(
        element("th", name, scope="col", class_=class_)
        for name, class_ in (
            ("slice", "left"),
            ("this model", None),
            ("champion", None),
            ("difference", "left"),
            ("95 % interval", "left"),
            ("documents", None),
        )
    )
    rows = "".join(_slice(item, reach) for item in slices)
    shown = element("table", element("thead", element("tr", head)) + element("tbody", rows))
    return section("slices", "Beside the champion", why, scrolled(shown, "Slices", tall=len(slices) > 20))


def _bounds(item: SlicePair) -> list[float]:
    found = (item.difference.low, item.difference.value, item.difference.high)
    return [value for value in found if math.isfinite(value)]


def _slice(item: SlicePair, reach: float) -> str:
    name = legible(f"{item.dimension} {item.value or '(none)'}")
    return element(
        "tr",
        element("th", escape(name), scope="row", class_="name")
        + element("td", _bits(item.a.bits_per_byte))
        + element("td", _bits(item.b.bits_per_byte))
        + element("td", interval(item.difference, reach), class_="interval")
        + element("td", escape(interval_words(item.difference)), class_="left")
        + element("td", f"{item.a.documents:,}"),
    )


def _bits(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4f}"


def _versions_section(figures: GateFigures) -> str:
    rows: list[list[Cell | str | float]] = [
        [
            item.version,
            Cell(", ".join(figures.names_of(item.version)) or "–", "left"),
            _registered_bits(item),
            Cell(legible(item.tags.get("sheepfold.gates", "–")), "wrap left"),
            Cell(legible(item.tags.get("sheepfold.withdrawn") or item.tags.get("sheepfold.verdict", "–")), "wrap left"),
        ]
        for item in reversed(figures.versions[-_VERSIONS:])
    ]
    head = ["version", "names", "bits per byte", "gates", "why"]
    why = (
        "Every registered version, the newest first; bits per byte as it was registered, on the evaluation set of then."
    )
    return section("versions", "Versions", why, scrolled(table(head, rows, ""), "Versions", tall=len(rows) > 20))


def _registered_bits(item: ModelVersion) -> str:
    value = item.tags.get(_BITS)
    return "–" if value is None else f"{float(value):.4f}"
