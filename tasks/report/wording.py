"""Formats of numbers, names and texts in reports."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from markupsafe import Markup, escape

_SIGNS = {" ": "␣", "\n": "⏎", "\t": "⇥"}
MAX_WORDS = 160  # longest text from documents or files, in characters
_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def share(part: float, whole: float) -> str:
    """Return a share in per cent; never rounds a small share to 0 % or a large one to 100 %."""
    if not whole:
        return "0 %"
    value = 100 * part / whole
    if 0 < value < 0.1:
        return "< 0.1 %"
    if 99.5 <= value < 100:
        return "> 99 %"
    return f"{value:.0f} %" if value >= 9.95 or value == 0 else f"{value:.1f} %"


def counted(n: int, noun: str) -> str:
    """Return a number with its noun, such as "3 files"."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def amount(value: float, places: int = 3) -> str:
    """Return a number in `places` significant digits, with the suffix k, M, G or T."""
    step, letter = next(((step, letter) for step, letter in _STEPS if abs(value) >= step * 0.9995), (1.0, ""))
    return f"{_short(value / step, places)}{letter}"


def cut(text: str, length: int) -> str:
    """Shorten a text to `length` characters at its end."""
    return text if len(text) <= length else text[: length - 1] + "…"


def cut_middle(text: str, length: int) -> str:
    """Shorten a path to `length` characters in the middle, which keeps the file name."""
    if len(text) <= length:
        return text
    tail = (length - 1) * 2 // 3
    return text[: length - 1 - tail] + "…" + text[-tail:]


def integer(value: float) -> str:
    """Return a whole number with thousands separators."""
    return f"{value:,.0f}".replace("-", "−")


def number(value: float) -> str:
    """Return a value in at most four significant digits."""
    return _short(value, 4)


def _short(value: float, places: int) -> str:
    digits, letter, power = f"{value:.{places}g}".partition("e")
    return (f"{digits}e{int(power)}" if letter else digits).replace("-", "−")


def decimals(value: float | None, places: int = 4, sign: bool = False) -> str:
    """Return a value with `places` decimal places; a dash for NaN and None."""
    if value is None or value != value:
        return "–"
    return f"{value:{'+' if sign else ''},.{places}f}".replace("-", "−")


def visible(text: str) -> str:
    """Replace every invisible or reordering character by a visible sign, spaces included."""
    return "".join(map(_sign, text))


def legible(text: str) -> str:
    """Replace invisible and reordering characters by signs, but keep spaces and combining marks."""
    composed = unicodedata.normalize("NFC", text)
    return (
        composed if composed.isprintable() else "".join(char if char == " " else _sign(char, "") for char in composed)
    )


def lines(text: str) -> Markup:
    """Return `legible` text with its line feeds."""
    return Markup("\n").join(map(shown, text.split("\n")))


def shown(value: object) -> Markup:
    """Return a value as escaped `legible` text; markup is kept, None becomes empty."""
    if isinstance(value, Markup):
        return value
    return escape("" if value is None else legible(str(value)))


def _sign(char: str, mark: str = "◌") -> str:
    if char in _SIGNS:
        return _SIGNS[char]
    if char < " " or "\x7f" <= char <= "\x9f":
        return f"\\x{ord(char):02x}"  # few fonts have Unicode's control pictures
    kind = unicodedata.category(char)
    if kind in ("Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"):
        return f"<U+{ord(char):04X}>"
    return f"{mark}{char}" if kind.startswith("M") else char  # a base character for a combining mark


# text of documents in Markdown


def plain(text: str, length: int = MAX_WORDS) -> str:
    """Escape text for Markdown."""
    return "".join(f"\\{char}" if char in "\\`*_[]<>|#!&~" else char for char in cut(legible(text), length))


def cell(text: str, length: int = MAX_WORDS) -> str:
    """Return text for a cell of a Markdown table in a terminal: one line, vertical bars escaped."""
    return legible(cut(" ".join(text.split()), length)).replace("|", "\\|")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table whose first column is text and whose others are numbers; cells are Markdown already."""
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]
