"""The page of a training: written after it, put beside it in MLflow, shown in the UI."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flows.page_files import draw_once
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
    manifest = session.store.find(training.stage, training.key)
    beside = sorted(path.name for path in reports.glob("*.html") if path.name != "training.html")
    drawn_from = [training.key, manifest.created if manifest else "", dict(sorted(metrics.items())), beside]

    def draw() -> tuple[str, str]:
        from tasks.train_report.collect import collect_training  # with it comes what draws
        from tasks.train_report.page import training_page
        from tasks.train_report.summary import training_summary

        figures = collect_training(session.store, training, metrics, beside)
        return training_page(figures, corpus), training_summary(figures)

    return draw_once(reports, "training", drawn_from, draw)
