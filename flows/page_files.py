"""Pages of reports, drawn again only if the data they show have changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from storage.atomic import write_file
from storage.digest import sha256_json


def draw_once(reports: Path, name: str, drawn_from: Any, draw: Callable[[], tuple[str, str]]) -> tuple[Path, str]:
    """Return a page and its summary; draw them if they are missing or were drawn from other data.

    Args:
        reports: folder of the corpus's pages; created if it is missing.
        name: base name of both files, `name`.html and `name`.md.
        drawn_from: everything that decides what they show, as JSON data.
        draw: returns the page, and its summary in Markdown.

    Returns:
        The page's path, and the summary.
    """
    page, summary = (reports / f"{name}.{suffix}" for suffix in ("html", "md"))
    mark = f"<!-- {sha256_json(drawn_from)} -->\n"
    known = summary.read_text(encoding="utf-8") if summary.is_file() else ""
    if page.is_file() and known.endswith(mark):
        return page, known
    html, markdown = draw()
    reports.mkdir(parents=True, exist_ok=True)
    write_file(page, html.encode())
    text = f"{markdown.rstrip()}\n\n{mark}"
    summary.write_text(text, encoding="utf-8")  # last: its mark says that both are there
    return page, text
