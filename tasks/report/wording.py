"""Numbers, names and texts as reports write them."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from markupsafe import Markup, escape

_SIGNS = {" ": "␣", "\n": "⏎", "\t": "⇥"}
MAX_WORDS = 160  # characters of a text that comes from elsewhere
_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def share(part: float, whole: float) -> str:
    """A part in per cent; what is not nothing is not written as nothing, what is not all not as all."""
    if not whole:
        return "0 %"
    value = 100 * part / whole
    if 0 < value < 0.1:
        return "< 0.1 %"
    if 99.5 <= value < 100:
        return "> 99 %"
    return f"{value:.0f} %" if value >= 9.95 or value == 0 else f"{value:.1f} %"


def counted(n: int, noun: str) -> str:
    """A number of things."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def amount(value: float, places: int = 3) -> str:
    """A number in so many digits, with a letter for thousands and more."""
    step, letter = next(((step, letter) for step, letter in _STEPS if abs(value) >= step * 0.9995), (1.0, ""))
    return f"{_short(value / step, places)}{letter}"


def cut(text: str, length: int) -> str:
    """A text that is no longer than that; its end goes."""
    return text if len(text) <= length else text[: length - 1] + "…"


def cut_middle(text: str, length: int) -> str:
    """A path that is no longer than that; folders in the middle go, because the name stands at the end."""
    if len(text) <= length:
        return text
    tail = (length - 1) * 2 // 3
    return text[: length - 1 - tail] + "…" + text[-tail:]


def integer(value: float) -> str:
    """A whole number with commas."""
    return f"{value:,.0f}".replace("-", "−")


def number(value: float) -> str:
    """A value in at most four digits."""
    return _short(value, 4)


def _short(value: float, places: int) -> str:
    digits, letter, power = f"{value:.{places}g}".partition("e")
    return (f"{digits}e{int(power)}" if letter else digits).replace("-", "−")


def decimals(value: float | None, places: int = 4, sign: bool = False) -> str:
    """A value with so many decimal places; a dash for NaN and None."""
    if value is None or value != value:
        return "–"
    return f"{value:{'+' if sign else ''},.{places}f}".replace("-", "−")


def visible(text: str) -> str:
    """The text with a sign for every character that cannot be seen or that rearranges its neighbours."""
    return "".join(map(_sign, text))


def legible(text: str) -> str:
    """Text of a document or the name of a file, to be read: a sign only for what would hide or rearrange its line."""
    composed = unicodedata.normalize("NFC", text)
    return (
        composed if composed.isprintable() else "".join(char if char == " " else _sign(char, "") for char in composed)
    )


def lines(text: str) -> Markup:
    """Legible text that keeps its line feeds."""
    return Markup("\n").join(map(shown, text.split("\n")))


def shown(value: object) -> Markup:
    """A value as pages show it: legible and escaped; markup as it is, nothing for None."""
    if isinstance(value, Markup):
        return value
    return escape("" if value is None else legible(str(value)))


def _sign(char: str, mark: str = "◌") -> str:
    if char in _SIGNS:
        return _SIGNS[char]
    if char < " " or "\x7f" <= char <= "\x9f":
        return f"\\x{ord(char):02x}"  # few fonts have Unicode's pictures of them
    kind = unicodedata.category(char)
    if kind in ("Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"):
        return f"<U+{ord(char):04X}>"
    return f"{mark}{char}" if kind.startswith("M") else char  # a combining mark would sit on whatever stands before it


# Markdown in which no word of a document or a file takes effect


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
