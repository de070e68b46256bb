"""Markdown in which no word of a document or a file takes effect."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.report.wording import cut, legible

MAX_WORDS = 160  # characters of a text that comes from elsewhere


def plain(text: str, length: int = MAX_WORDS) -> str:
    """Words that may come from documents, as Markdown shows them: no markup of theirs takes effect."""
    return "".join(f"\\{char}" if char in "\\`*_[]<>|#!&~" else char for char in cut(legible(text), length))


def cell(text: str, length: int = MAX_WORDS) -> str:
    """Words that may come from documents, as a cell of a table in a terminal: on one line, and without a bar."""
    return legible(cut(" ".join(text.split()), length)).replace("|", "\\|")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table whose first column is text and whose others are numbers; cells are Markdown already."""
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]
