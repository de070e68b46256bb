"""The page of a training: written after it, put beside it in MLflow, shown in the UI."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from storage.digest import sha256_json
from tasks.training import train

if TYPE_CHECKING:
    from tasks.session import Session


def write_training_page(session: Session, corpus: str, metrics: Mapping[str, float]) -> tuple[Path, str]:
    """The page of this run's training in the reports of the home; drawn anew only after a change.

    Args:
        metrics: figures of its evaluation; empty where it was not evaluated.

    Returns:
        The page, and a summary in Markdown.
    """
    (training,) = session.produced[train.name]
    reports = session.home.reports_of(corpus)
    page, summary = (reports / f"training.{suffix}" for suffix in ("html", "md"))
    manifest = session.store.find(training.stage, training.key)
    beside = sorted(path.name for path in reports.glob("*.html") if path != page)
    drawn_from = [training.key, manifest.created if manifest else "", dict(sorted(metrics.items())), beside]
    mark = f"<!-- {sha256_json(drawn_from)} -->\n"
    known = summary.read_text(encoding="utf-8") if summary.is_file() else ""
    if page.is_file() and known.endswith(mark):
        return page, known
    from tasks.train_report.collect import collect_training  # with it comes what draws
    from tasks.train_report.page import training_page
    from tasks.train_report.summary import training_summary

    figures = collect_training(session.store, training, metrics, beside)
    reports.mkdir(parents=True, exist_ok=True)
    new = page.with_suffix(".html.new")
    new.write_text(training_page(figures, corpus), encoding="utf-8")
    new.replace(page)
    text = f"{training_summary(figures)}\n\n{mark}"
    summary.write_text(text, encoding="utf-8")  # last: its mark says that both are there
    return page, text
