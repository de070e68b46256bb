"""The report of an evaluation as one HTML file that needs nothing else: no network, no script, no other files.

It shows a person how good a model is beside its baselines, where it is good and where not, and what it writes.
"""

from __future__ import annotations

from dataclasses import asdict

from tasks.report.evaluation import charts, sections, texts
from tasks.report.evaluation.collect import collect_evaluation
from tasks.report.evaluation.figures import EvaluationFigures
from tasks.report.evaluation.summary import evaluation_summary
from tasks.report.evaluation.words import facts, lead
from tasks.report.frame import report_page
from tasks.report.written import Outcome, Page

SECTIONS = {
    "first": "Look at first",
    "baselines": "Baselines",
    "curves": "Calibration and context",
    "slices": "Slices",
    "documents": "Documents",
    "contamination": "Seen before",
    "completions": "What it writes",
    "lineage": "Lineage",
}
LINKED = {"corpus.html", "dataset.html", "training.html", "generation.html"}
_KEY = 8  # characters of an evaluation's key in the name of a page
FOOTER = "Made by sheepfold from the evaluation's artefact; the same figures are at the model's page in MLflow."


def write(outcome: Outcome) -> Page | None:
    """Write the page of a model's evaluation; an evaluation on other documents has a page of its own."""
    run, measured = outcome.run, outcome.measured
    if measured is None:
        return None
    beside = sorted(outcome.pages() & LINKED)

    def draw() -> list[str]:
        figures = collect_evaluation(run.store, measured, beside)
        return [evaluation_page(figures, run.corpus), evaluation_summary(figures)]

    name = f"evaluation-{measured.evaluation.key[:_KEY]}" if measured.texts else "evaluation"
    return outcome.draw_once(name, f"Evaluation of {measured.model}", [asdict(measured), beside], draw)


def evaluation_page(figures: EvaluationFigures, corpus: str) -> str:
    """The page.

    Args:
        corpus: its name.
    """
    made = {
        "first": sections.first_section(figures),
        "baselines": sections.baselines_section(figures),
        "curves": sections.curves_section(figures),
        "slices": sections.slices_section(figures),
        "documents": sections.documents_section(figures),
        "contamination": sections.contamination_section(figures),
        "completions": sections.completions_section(figures),
        "lineage": sections.lineage_section(figures),
    }
    title = f"Corpus {corpus}: the evaluation"
    style = charts.CSS + texts.CSS
    return report_page(title, lead(figures), facts(figures), SECTIONS, made, style=style, footer=FOOTER)
