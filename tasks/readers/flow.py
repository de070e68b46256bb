"""Collects the text of a marked-up document: words, lines and paragraphs, whatever white space the source has.

The formats tell what they meet (text, the end of a line, the end of a paragraph, the next cell), and this puts
down line feeds as they are needed: never a blank line at the beginning, never two in a row.
"""

from __future__ import annotations

import re

_BLANK_RUNS = re.compile(r"\n{3,}")


class TextFlow:
    """The text of a document in reading order."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._breaks = 2  # Line feeds that stand at the end so far; the beginning needs none.
        self._wanted = 0  # Line feeds that must stand before the next text.
        self._space = False  # Whether the last text ended in white space, which only counts if more follows.

    def text(self, text: str) -> None:
        """Add text in which white space is only a separator."""
        words = _fold(text)
        if words in ("", " "):
            self._space = self._space or bool(words)
            return
        if words[0] == " ":
            self._space, words = True, words[1:]
        self._put(words.rstrip(" "))
        self._space = words[-1] == " "

    def preformatted(self, text: str) -> None:
        """Add text in which white space counts."""
        if text:
            self._put(text)
            self._breaks = len(text) - len(text.rstrip("\n"))

    def cell(self) -> None:
        """End a cell of a table; the next one of the row follows after a tab."""
        if self._breaks == 0 and self._wanted == 0:
            self._pieces.append("\t")
            self._space = False

    def line(self) -> None:
        """End the line."""
        self._wanted, self._space = max(self._wanted, 1), False

    def paragraph(self) -> None:
        """End the paragraph."""
        self._wanted, self._space = 2, False

    def result(self) -> str:
        """Return the whole text."""
        whole = "".join(self._pieces)
        lines = (line.rstrip(" \t") for line in whole.split("\n"))
        return _BLANK_RUNS.sub("\n\n", "\n".join(lines)).strip("\n")

    def _put(self, text: str) -> None:
        missing = self._wanted - self._breaks
        if missing > 0:
            self._pieces.append("\n" * missing)
        elif self._space and self._breaks == 0 and self._wanted == 0:
            self._pieces.append(" ")
        self._pieces.append(text)
        self._wanted = self._breaks = 0
        self._space = False


def _fold(text: str) -> str:
    """The text with one space for each run of white space; a no-break space is none."""
    for character in "\t\n\r\f":
        text = text.replace(character, " ")
    # Each round halves the longest run, so this is n log n at worst, and much faster than an expression.
    while "  " in text:
        text = text.replace("  ", " ")
    return text
