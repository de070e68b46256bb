"""The page of an evaluation: written after it, put beside the training in MLflow, shown in the UI."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from storage.digest import sha256_json

if TYPE_CHECKING:
    from tasks.evaluation_report.collect import Measured
    from tasks.session import Session

PAGE = "evaluation.html"


def write_evaluation_page(session: Session, corpus: str, measured: Measured) -> tuple[Path, str]:
    """The page of a model's evaluation in the reports of the home; drawn anew only after a change.

    Returns:
        The page, and a summary in Markdown.
    """
    reports = session.home.reports_of(corpus)
    page, summary = reports / PAGE, reports / "evaluation.md"
    beside = sorted({path.name for path in reports.glob("*.html")} & {"corpus.html", "dataset.html", "training.html"})
    mark = f"<!-- {sha256_json([asdict(measured), beside])} -->\n"
    known = summary.read_text(encoding="utf-8") if summary.is_file() else ""
    if page.is_file() and known.endswith(mark):
        return page, known
    from tasks.evaluation_report.collect import collect_evaluation  # with it comes what draws
    from tasks.evaluation_report.page import evaluation_page
    from tasks.evaluation_report.summary import evaluation_summary

    figures = collect_evaluation(session.store, measured, beside)
    reports.mkdir(parents=True, exist_ok=True)
    replace(page, evaluation_page(figures, corpus))
    text = f"{evaluation_summary(figures)}\n\n{mark}"
    summary.write_text(text, encoding="utf-8")  # last: its mark says that both are there
    return page, text


def replace(path: Path, text: str) -> None:
    """Write a file that is never half there."""
    new = path.with_suffix(f"{path.suffix}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
