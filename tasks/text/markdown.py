"""Write the blocks of a document's pages as one Markdown text.

What a block is shows only beside the other blocks of the document: headings are larger or bolder than most of its text,
footnotes are smaller and stand below it, running heads repeat from page to page, and a paragraph that ends within a
sentence goes on in the next column or on the next page, after the footnotes and captions between.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

from tasks.readers.records import LINE_BREAK, Block
from tasks.text.cleaning import join_hyphenation, running_lines

FLOWING = ("paragraph", "item")  # blocks whose line ends mean nothing
LARGER, SMALLER = 1.1, 0.92  # sizes of a heading and of a footnote, relative to that of most text
LONGEST_HEADING, MOST_LINES = 200, 9  # characters, lines
MOST_OF_TEXT = 0.3  # share of the text in headings, from which sizes do not tell them
DEEPEST = 6

_LETTER = re.compile(r"[^\W\d_]")
_CAPTION = re.compile(
    r"(?:Fig(?:ure|\.)|Tab(?:le|elle|leau|\.)|Abb(?:ildung|\.)|Plate|Scheme|Listing|Exhibit)\s*"
    r"(?:\d+|[IVX]+)(?:[.-]\d+)*\s*(?:[.:|\u2013\u2014](?!\d)|$)",
    re.I,
)
_NOTE = re.compile(r"(?:\d{1,3}|[*\u2020\u2021\u00a7\u00b6]{1,3}|[a-z][.)])\s*\S")
_CLOSED = re.compile(r"[.!?:]['\")\]\u201d\u2019]*$")
_NUMBERED = re.compile(r"(?:\d{1,3}\.)*\d{1,3}\.?\s+\S|[A-Z]\.\s+\S|(?:Chapter|Section|Part|Appendix)\b", re.I)
_BULLET = re.compile(r"[\u2022\u25e6\u25aa\u2023\u00b7\u25cf\u25cb\u25a0\u25a1\u2219\uf0b7*\u2013\u2014-]\s+")
_CJK = "[\u3001-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uff01-\uffee]"  # written without spaces
_CJK_LINE_END = re.compile(f"(?<={_CJK})\n(?={_CJK})")
_FENCE = re.compile(r"^\s*(`{3,})", re.M)
_JOINT = "\n\x00\n"


@dataclass(slots=True)
class _Placed:
    """A block on a page.

    Attributes:
        page, number: Its page, and its number on it, from 1.
        block: With its text without running heads.
        role: What it is beside the others; "" for what `block.kind` says.
        level: Of a heading, from 1.
    """

    page: int
    number: int
    block: Block
    role: Literal["", "heading", "caption", "footnote", "running_head"] = ""
    level: int = 0


def document_markdown(pages: Sequence[tuple[int, Sequence[Block]]]) -> tuple[str, list[dict[str, Any]]]:
    """Return the Markdown of a document, and the roles of its blocks.

    Args:
        pages: Number of each page, from 1, and its blocks in reading order.

    Returns:
        The text, and the blocks that are more than their kind says: `page`, `number` on it, from 1, `kind` ("heading",
        "caption", "footnote" or "running_head") and `level` of a heading, from 1, else 0.
    """
    placed = list(_without_running_heads(pages))
    shown = [item for item in placed if item.role != "running_head"]
    _find_roles(shown)
    groups = list(_paragraphs(shown))
    merged = [replace(group[0].block, text="\n".join(item.block.text for item in group)) for group in groups]
    # hyphens are judged by the compounds of the whole document
    mended = (*FLOWING, "lines")
    flowing = _JOINT.join(block.text if block.kind in mended else "" for block in merged)
    joined = join_hyphenation(flowing).split(_JOINT)
    text = "\n".join(_written(merged, joined, [group[0].level for group in groups]))
    told = [item for item in placed if item.role]
    return text, [{"page": i.page, "number": i.number, "kind": i.role, "level": i.level} for i in told]


def _without_running_heads(pages: Sequence[tuple[int, Sequence[Block]]]) -> Iterator[_Placed]:
    """Yield the blocks without the lines that repeat at the edges of the pages."""
    # the lines of tables and code repeat for other reasons
    lines = {
        id(block): block.text.split("\n") if block.kind not in ("table", "code") else [f"\x00{number}"]
        for number, blocks in pages
        for block in blocks
    }
    ordered = [sorted(blocks, key=lambda block: -block.y1) for _, blocks in pages]
    texts = ["\n".join("\n".join(lines[id(block)]) for block in blocks) for blocks in ordered]
    running = running_lines(texts, [number for number, _ in pages])
    for (page, blocks), by_height, gone in zip(pages, ordered, running, strict=True):
        first, kept = 0, {}
        for block in by_height:
            own = lines[id(block)]
            kept[id(block)] = [line for place, line in enumerate(own, first) if place not in gone]
            first += len(own)
        for number, block in enumerate(blocks, 1):
            if kept[id(block)] == lines[id(block)]:
                yield _Placed(page, number, block)
            elif kept[id(block)]:
                yield _Placed(page, number, replace(block, text="\n".join(kept[id(block)])))
            else:
                yield _Placed(page, number, block, "running_head")


def _find_roles(placed: Sequence[_Placed]) -> None:
    """Tell headings, captions and footnotes."""
    sizes: Counter[float] = Counter()
    for item in placed:
        if item.block.kind in FLOWING:
            sizes[_rounded(item.block.size)] += len(item.block.text)
    if not sizes:
        return
    body = max(sizes, key=lambda size: (sizes[size], -size))
    for _, own in groupby(placed, key=lambda item: item.page):
        _find_footnotes(list(own), body)
    for item in placed:
        block = item.block
        is_usual = block.kind in FLOWING and block.size < LARGER * body
        if not item.role and is_usual and _CAPTION.match(block.text):
            item.role = "caption"
    levels = _heading_levels([item.block for item in placed if not item.role], body)
    for item in placed:
        if not item.role and (level := _level(item.block, levels)):
            item.role, item.level = "heading", level


def _find_footnotes(page: Sequence[_Placed], body: float) -> None:
    """Tell the small text below all other text of its column that begins with the mark of a note, and what follows."""
    usual = [item.block for item in page if item.block.size > SMALLER * body]
    before = False
    for item in page:
        note = item.block
        is_small = note.kind in FLOWING and 0 < note.size <= SMALLER * body
        if is_small and (before or _NOTE.match(note.text)):
            beside = [other for other in usual if other.x0 < note.x1 and other.x1 > note.x0]
            if beside and all(other.y0 > note.y1 - note.size / 2 for other in beside):
                item.role = "footnote"
        before = item.role == "footnote"


def _paragraphs(placed: Iterable[_Placed]) -> Iterator[list[_Placed]]:
    """Yield blocks with those in which they go on; what stands between them comes after."""
    current: list[_Placed] = []
    asides: list[list[_Placed]] = []
    for item in placed:
        if item.role in ("caption", "footnote"):
            asides.append([item])
            continue
        # a footnote may go on, too
        going = next((group for group in (current, *asides[-1:]) if group and _goes_on(group[-1], item)), None)
        if going is not None:
            going.append(item)
        else:
            yield from [current, *asides] if current else asides
            current, asides = [item], []
    yield from [current, *asides] if current else asides


def _goes_on(last: _Placed, item: _Placed) -> bool:
    """Return True if a paragraph is the rest of one on another page or in another column."""
    one, other = last.block, item.block
    if item.page == last.page and other.y1 <= one.y0:
        return False
    if other.kind != "paragraph" or one.kind not in FLOWING or last.role in ("heading", "caption") or item.role:
        return False
    return abs(other.size - one.size) <= 0.05 * one.size and not _CLOSED.search(one.text) and other.text[:1].islower()


def _heading_levels(blocks: Sequence[Block], body: float) -> dict[tuple[float, bool], int]:
    """Return the level of a heading for each size and weight that is larger or bolder than most text.

    Args:
        body: Size of most text.
    """
    flowing = [block for block in blocks if block.kind in FLOWING]
    n_chars = sum(len(block.text) for block in flowing)
    may_be_bold = sum(len(block.text) for block in flowing if block.bold) < MOST_OF_TEXT * n_chars
    styles: Counter[tuple[float, bool]] = Counter()
    for block in blocks:
        size = _rounded(block.size)
        larger = size >= LARGER * body
        bolder = block.bold and may_be_bold and size >= 0.95 * body
        if (larger or bolder) and _may_be_heading(block, larger):
            styles[size, block.bold and not larger] += len(block.text)
    if styles.total() > MOST_OF_TEXT * n_chars:
        return {}
    ordered = sorted(styles, key=lambda style: (-style[0], not style[1]))
    return {style: min(level, DEEPEST) for level, style in enumerate(ordered, 1)}


def _rounded(size: float) -> float:
    return round(2 * size) / 2


def _level(block: Block, levels: dict[tuple[float, bool], int]) -> int:
    """Return the level of a heading, 0 for other blocks."""
    size = _rounded(block.size)
    if (size, False) in levels:
        return levels[size, False] if _may_be_heading(block, True) else 0
    return levels.get((size, True), 0) if block.bold and _may_be_heading(block, False) else 0


def _may_be_heading(block: Block, larger: bool) -> bool:
    """Return True if the text may be a heading; what is only bold may be a sentence."""
    text = block.text
    if block.kind not in FLOWING or len(text) > LONGEST_HEADING or len(text.splitlines()) > MOST_LINES:
        return False
    if block.bold and text.strip(".").isdecimal():
        return True  # the number of a chapter
    unfinished = text.endswith((",", ";") if larger else (",", ";", "."))
    return bool(_LETTER.search(text)) and (not unfinished or bool(_NUMBERED.match(text)))


def _written(blocks: Sequence[Block], joined: Sequence[str], levels: Sequence[int]) -> Iterator[str]:
    """Yield the lines of the Markdown."""
    before: Block | None = None
    for block, flowing, level in zip(blocks, joined, levels, strict=True):
        if before and not (before.kind == block.kind == "item"):
            yield ""
        before = block
        flowing = _CJK_LINE_END.sub("", flowing)
        line = " ".join(flowing.split())  # a line separator is a space, too
        if level:
            yield f"{'#' * level} {line}"
        elif block.kind == "code":
            fence = "`" * (1 + max((len(mark) for mark in _FENCE.findall(block.text)), default=2))
            yield f"{fence}\n{block.text}\n{fence}"
        elif block.kind == "lines":
            yield flowing
        elif block.kind == "table":
            yield block.text
        elif block.kind == "item" and (bullet := _BULLET.match(line)):
            yield f"- {line[bullet.end() :]}"
        else:
            yield from (" ".join(part.split()) for part in flowing.split(LINE_BREAK))
