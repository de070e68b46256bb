"""Pages in the reports of a home: never half there, and drawn anew only where what they show has changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from storage.digest import sha256_json


def replace(path: Path, text: str) -> None:
    """Write a file that is never half there."""
    new = path.with_suffix(f"{path.suffix}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def draw_once(reports: Path, name: str, drawn_from: Any, draw: Callable[[], tuple[str, str]]) -> tuple[Path, str]:
    """A page and its summary, drawn if they are not there or were drawn from something else.

    Args:
        reports: folder of the corpus's pages; made if it is missing.
        name: of both files, `name`.html and `name`.md.
        drawn_from: all that decides what they show, as JSON knows it.
        draw: the page, and its summary in Markdown.

    Returns:
        The page's place, and the summary.
    """
    page, summary = (reports / f"{name}.{suffix}" for suffix in ("html", "md"))
    mark = f"<!-- {sha256_json(drawn_from)} -->\n"
    known = summary.read_text(encoding="utf-8") if summary.is_file() else ""
    if page.is_file() and known.endswith(mark):
        return page, known
    html, markdown = draw()
    reports.mkdir(parents=True, exist_ok=True)
    replace(page, html)
    text = f"{markdown.rstrip()}\n\n{mark}"
    summary.write_text(text, encoding="utf-8")  # last: its mark says that both are there
    return page, text
