"""The report of an evaluation as one HTML file that needs nothing else: no network, no script, no other files.

It shows a person how good a model is beside its baselines, where it is good and where not, and what it writes.
"""

from __future__ import annotations

from tasks.evaluation_report import charts, sections, texts
from tasks.evaluation_report.figures import EvaluationFigures
from tasks.evaluation_report.words import facts, lead
from tasks.pages.frame import report_page

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
FOOTER = "Made by sheepfold from the evaluation's artefact; the same figures are at the model's page in MLflow."


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
