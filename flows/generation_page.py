"""The page of a generation: written after it and shown in the UI."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from storage.digest import sha256_json
from tasks.generation.stage import generate

if TYPE_CHECKING:
    from tasks.session import Session


def write_generation_page(session: Session, corpus: str) -> tuple[Path, str]:
    """The page of this run's generation in the reports of the home; drawn anew only after a change.

    Returns:
        The page, and a preview in Markdown.
    """
    (made,) = session.produced[generate.name]
    manifest = session.store.find(made.stage, made.key)
    reports = session.home.reports_of(corpus)
    page, preview = (reports / f"generation.{suffix}" for suffix in ("html", "md"))
    mark = f"<!-- {sha256_json([made.key, manifest.created if manifest else ''])} -->\n"
    known = preview.read_text(encoding="utf-8") if preview.is_file() else ""
    if page.is_file() and known.endswith(mark):
        return page, known
    from tasks.generation.page import generation_page  # with it comes what draws
    from tasks.generation.preview import collect_generation, preview_markdown

    figures = collect_generation(session.store, made)
    reports.mkdir(parents=True, exist_ok=True)
    new = page.with_suffix(".html.new")
    new.write_text(generation_page(figures, corpus), encoding="utf-8")
    new.replace(page)
    text = f"{preview_markdown(figures)}\n{mark}"
    preview.write_text(text, encoding="utf-8")  # last: its mark says that both are there
    return page, text
