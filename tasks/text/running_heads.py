"""Running heads: headers, footers and page numbers that repeat from page to page, taken out.

A line of a document's pages counts as running when it stands at the same edge of most pages (or of most left or right
ones) once its numbers are disregarded, when it is a number that keeps step with the pages, or when it is the outermost
and begins or ends with such a number ("Chapter 3: Wool 41"). Lines go from the edge inwards and only as long as each is
running; at most three on an edge, never the middle of a page, and none at all where more lines than that repeat: then
it is a form, whose text they are. Linear in the length of the pages; the same pages always give the same result.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

MIN_PAGES = 4
MIN_SHARE = 0.6  # of all pages, or of the left or right ones
MIN_REPEATS = 3
MAX_LINES = 3  # on an edge of a page
MAX_HEAD_CHARS = 200  # longer lines are text

_DIGITS = re.compile(r"\d+")
_ROMAN = re.compile(r"(?=[ivxlc])(?:xc|xl|l?x{0,3})(?:ix|iv|v?i{0,3})|c(?:xc|xl|l?x{0,3})(?:ix|iv|v?i{0,3})")
_ROMAN_VALUES = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100}
# "12", "- 12 -", "xiv", "[3]", "Page 3", "3 / 20", "Seite 3 von 20"
_PAGE_NUMBER = re.compile(
    r"[-–—\[(|·.\s]*(?:(?:page|seite|p\.|s\.)\s*)?(\d{1,5}|[ivxlc]{1,8})(?:\s*(?:/|of|von|sur|de)\s*\d{1,5})?[-–—\])|·.\s]*"
)

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Edge:
    """One edge of a page: indices of its lines from the edge inwards, and what each is counted as."""

    lines: tuple[int, ...]
    keys: tuple[Key, ...]
    most: int  # lines that may go
    numbered: tuple[Key, ...] = ()  # the outermost line counted by the numbers at its ends


def strip_running_heads(texts: Sequence[str], numbers: Sequence[int] | None = None) -> list[str]:
    """Remove running heads from the pages of a document.

    Args:
        texts: The texts of its pages in order.
        numbers: The numbers of these pages, from 1; needed where pages are missing.

    Returns:
        The texts, as many as there were.
    """
    if len(texts) < MIN_PAGES:
        return list(texts)
    numbers = list(numbers or range(1, len(texts) + 1))
    split = [text.split("\n") for text in texts]
    gone: list[set[int]] = [set() for _ in texts]
    for bottom in (False, True):
        edges = [_edge(lines, number, bottom) for lines, number in zip(split, numbers, strict=True)]
        running = _running_keys(edges, numbers)
        for place, edge in enumerate(edges):
            gone[place].update(_running_lines(edge, running))
    return [
        "\n".join(line for place, line in enumerate(lines) if place not in removed) if removed else text
        for text, lines, removed in zip(texts, split, gone, strict=True)
    ]


def _edge(lines: Sequence[str], number: int, bottom: bool) -> _Edge:
    """The top or bottom of a page; one line more than may go, to see whether the repetition ends."""
    filled = [place for place, line in enumerate(lines) if line.strip()]
    most = min(MAX_LINES, (len(filled) - 1) // 2)  # a line between the two edges stays in any case
    if most < 1:
        return _Edge((), (), 0)
    chosen = tuple(filled[::-1][: most + 1] if bottom else filled[: most + 1])
    keys = tuple(_key(lines[place], number) for place in chosen)
    return _Edge(chosen, keys, most, _numbered(lines[chosen[0]], number))


def _key(line: str, number: int) -> Key:
    """Return the key of a line: its words without numbers, or the distance of its number from the page's."""
    line = line.strip()
    if len(line) > MAX_HEAD_CHARS:
        return "", 0
    line = line.lower()
    alone = _PAGE_NUMBER.fullmatch(line)
    value = _value(alone[1]) if alone else None
    if value is not None:
        return "#", value - number
    words = line.split()
    for place in (0, -1):
        if _roman_value(words[place]) is not None:
            words[place] = "#"
    folded = _DIGITS.sub("#", " ".join(words))
    # numbers and signs alone are a table's more often than a head's
    return (folded, 0) if any(map(str.isalpha, folded)) else ("", 0)


def _numbered(line: str, number: int) -> tuple[Key, ...]:
    """Return the distances of the numbers at the two ends of a line from the page's."""
    line = line.strip().lower()
    words = line.split() if len(line) <= MAX_HEAD_CHARS else []
    if len(words) < 2:
        return ()
    values = (("first", _value(words[0])), ("last", _value(words[-1])))
    return tuple((end, value - number) for end, value in values if value is not None)


def _value(word: str) -> int | None:
    """Value of an Arabic or Roman numeral."""
    return int(word) if word.isdecimal() and len(word) <= 5 else _roman_value(word)


def _roman_value(word: str) -> int | None:
    """Value of a Roman numeral below 200 in small letters, None for anything else."""
    if not _ROMAN.fullmatch(word):
        return None
    values = [_ROMAN_VALUES[letter] for letter in word]
    followers = [*values[1:], 0]
    return sum(-value if value < after else value for value, after in zip(values, followers, strict=True))


def _running_keys(edges: Sequence[_Edge], numbers: Sequence[int]) -> set[Key]:
    """Keys that stand at an edge of most pages, or of most left or right pages."""
    running: set[Key] = set()
    page_numbers: Counter[Key] = Counter()
    for parity in (None, 0, 1):
        chosen = [edge for edge, number in zip(edges, numbers, strict=True) if parity in (None, number % 2)]
        counts = Counter(key for edge in chosen for key in dict.fromkeys(edge.keys + edge.numbered) if key[0])
        enough = max(MIN_REPEATS, MIN_SHARE * len(chosen))
        running.update(key for key, count in counts.items() if count >= enough)
        if parity is None:
            page_numbers.update({key: n for key, n in counts.items() if key[0] == "#" and n >= MIN_REPEATS})
    # a preface counts for itself: together its numbers and those of the rest must cover the pages
    if page_numbers.total() >= MIN_SHARE * len(edges):
        running.update(page_numbers)
    return running


def _running_lines(edge: _Edge, running: set[Key]) -> tuple[int, ...]:
    """Indices of the lines of an edge that go."""
    n = int(any(key in running for key in edge.numbered))
    while n < len(edge.keys) and edge.keys[n] in running:
        n += 1
    if n > edge.most and edge.most == MAX_LINES:
        return ()  # it goes on repeating: this is text
    return edge.lines[: min(n, edge.most)]
