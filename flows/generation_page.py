"""The page of a generation: written after it and shown in the UI."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flows.page_files import draw_once
from tasks.generation.stage import generate

if TYPE_CHECKING:
    from tasks.session import Session


def write_generation_page(session: Session, corpus: str) -> tuple[Path, str]:
    """The page of this run's generation in the reports of the home; drawn anew only after a change.

    Returns:
        The page, and a summary in Markdown.
    """
    (made,) = session.produced[generate.name]
    manifest = session.store.find(made.stage, made.key)
    reports = session.home.reports_of(corpus)

    def draw() -> tuple[str, str]:
        from tasks.generation.page import generation_page  # with it comes what draws
        from tasks.generation.preview import collect_generation, generation_summary

        figures = collect_generation(session.store, made)
        return generation_page(figures, corpus), generation_summary(figures)

    return draw_once(reports, "generation", [made.key, manifest.created if manifest else ""], draw)
