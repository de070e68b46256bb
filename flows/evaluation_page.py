"""The page of an evaluation: written after it, put beside the training in MLflow, shown in the UI."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from flows.page_files import draw_once

if TYPE_CHECKING:
    from tasks.evaluation_report.collect import Measured
    from tasks.session import Session

BESIDE = {"corpus.html", "dataset.html", "training.html", "generation.html"}
_KEY = 8  # letters of an evaluation's key in the name of a page


def write_evaluation_page(session: Session, corpus: str, measured: Measured) -> tuple[Path, str]:
    """The page of a model's evaluation in the reports of the home; drawn anew only after a change.

    One on other documents than the frozen ones, or that read them otherwise, has a page of its own.

    Returns:
        The page, and a summary in Markdown.
    """
    reports = session.home.reports_of(corpus)
    beside = sorted({path.name for path in reports.glob("*.html")} & BESIDE)

    def draw() -> tuple[str, str]:
        from tasks.evaluation_report.collect import collect_evaluation  # with it comes what draws
        from tasks.evaluation_report.page import evaluation_page
        from tasks.evaluation_report.summary import evaluation_summary

        figures = collect_evaluation(session.store, measured, beside)
        return evaluation_page(figures, corpus), evaluation_summary(figures)

    name = f"evaluation-{measured.evaluation.key[:_KEY]}" if measured.texts else "evaluation"
    return draw_once(reports, name, [asdict(measured), beside], draw)
