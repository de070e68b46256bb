"""The page of the gates: written after a promotion, put beside the training in MLflow, shown in the UI."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from flows.page_files import draw_once
from storage.registry import Registry

if TYPE_CHECKING:
    from tasks.registry.promote import Promotion
    from tasks.session import Session


def write_gates_page(session: Session, corpus: str, promoted: Promotion) -> tuple[Path, str]:
    """The page of what the gates said of a model, in the reports of the home; drawn anew only after a change.

    Returns:
        The page, and a summary in Markdown.
    """
    registry = Registry(session.resources.tracking, corpus)
    versions, names = registry.versions(), registry.aliases()

    def draw() -> tuple[str, str]:
        from tasks.gates.page import collect_gates, gates_page, gates_summary  # with it comes what draws

        figures = collect_gates(session.store, promoted.gates, promoted.version.version, versions, names)
        return gates_page(figures, corpus), gates_summary(figures)

    number = promoted.version.version
    drawn_from = [asdict(promoted.gates), number, [asdict(item) for item in versions], names]
    return draw_once(session.home.reports_of(corpus), "gates", drawn_from, draw)
