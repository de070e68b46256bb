"""Write the blocks of a document's pages as one Markdown text.

A block is a heading, a running head or the rest of a paragraph only beside the other blocks of the document: headings
are larger or bolder than most of its text, running heads repeat from page to page, and a paragraph that ends within a
sentence goes on in the next column or on the next page.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tasks.readers.records import LINE_BREAK, Block
from tasks.text.cleaning import join_hyphenation, running_lines

FLOWING = ("paragraph", "item")  # blocks whose line ends mean nothing
LARGER = 1.1  # size of a heading, relative to that of most text
LONGEST_HEADING, MOST_LINES = 200, 9  # characters, lines
MOST_OF_TEXT = 0.3  # share of the text in headings, from which sizes do not tell them
DEEPEST = 6

_LETTER = re.compile(r"[^\W\d_]")
_CLOSED = re.compile(r"[.!?:]['\")\]\u201d\u2019]*$")
_NUMBERED = re.compile(r"(?:\d{1,3}\.)*\d{1,3}\.?\s+\S|[A-Z]\.\s+\S|(?:Chapter|Section|Part|Appendix)\b", re.I)
_BULLET = re.compile(r"[\u2022\u25e6\u25aa\u2023\u00b7\u25cf\u25cb\u25a0\u25a1\u2219\uf0b7*\u2013\u2014-]\s+")
_CJK = "[\u3001-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uff01-\uffee]"  # written without spaces
_CJK_LINE_END = re.compile(f"(?<={_CJK})\n(?={_CJK})")
_FENCE = re.compile(r"^\s*(`{3,})", re.M)
_JOINT = "\n\x00\n"


def document_markdown(pages: Sequence[tuple[int, Sequence[Block]]]) -> str:
    """Return the Markdown of a document.

    Args:
        pages: Number of each page, from 1, and its blocks in reading order.
    """
    placed = list(_without_running_heads(pages))
    levels = _heading_levels([block for _, block in placed])
    groups: list[list[Block]] = []
    before = 0
    for page, block in placed:
        # the next page or column
        elsewhere = bool(groups) and (page != before or block.y1 > groups[-1][-1].y0)
        if elsewhere and _goes_on(groups[-1][-1], block, levels):
            groups[-1].append(block)
        else:
            groups.append([block])
        before = page
    merged = [replace(group[0], text="\n".join(block.text for block in group)) for group in groups]
    # hyphens are judged by the compounds of the whole document
    mended = (*FLOWING, "lines")
    flowing = _JOINT.join(block.text if block.kind in mended else "" for block in merged)
    joined = join_hyphenation(flowing).split(_JOINT)
    return "\n".join(_written(merged, joined, levels))


def _without_running_heads(pages: Sequence[tuple[int, Sequence[Block]]]) -> Iterator[tuple[int, Block]]:
    """Yield the page and each of its blocks without the lines that repeat at the edges of the pages."""
    # the lines of tables and code repeat for other reasons
    lines = {
        id(block): block.text.split("\n") if block.kind not in ("table", "code") else [f"\x00{number}"]
        for number, blocks in pages
        for block in blocks
    }
    ordered = [sorted(blocks, key=lambda block: -block.y1) for _, blocks in pages]
    texts = ["\n".join("\n".join(lines[id(block)]) for block in blocks) for blocks in ordered]
    running = running_lines(texts, [number for number, _ in pages])
    for (number, blocks), by_height, gone in zip(pages, ordered, running, strict=True):
        first, kept = 0, {}
        for block in by_height:
            own = lines[id(block)]
            kept[id(block)] = [line for place, line in enumerate(own, first) if place not in gone]
            first += len(own)
        for block in blocks:
            if kept[id(block)] == lines[id(block)]:
                yield number, block
            elif kept[id(block)]:
                yield number, replace(block, text="\n".join(kept[id(block)]))


def _goes_on(last: Block, block: Block, levels: dict[tuple[float, bool], int]) -> bool:
    """Return True if a paragraph is the rest of the one before."""
    if block.kind != "paragraph" or last.kind not in FLOWING:
        return False
    if abs(block.size - last.size) > 0.05 * last.size or _level(last, levels) or _level(block, levels):
        return False
    return not _CLOSED.search(last.text) and block.text[:1].islower()


def _heading_levels(blocks: Sequence[Block]) -> dict[tuple[float, bool], int]:
    """Return the level of a heading for each size and weight that is larger or bolder than most text."""
    sizes: Counter[float] = Counter()
    bold: Counter[bool] = Counter()
    for block in blocks:
        if block.kind in FLOWING:
            sizes[_rounded(block.size)] += len(block.text)
            bold[block.bold] += len(block.text)
    if not sizes:
        return {}
    body = max(sizes, key=lambda size: (sizes[size], -size))
    may_be_bold = bold[True] < MOST_OF_TEXT * bold.total()
    styles: Counter[tuple[float, bool]] = Counter()
    for block in blocks:
        size = _rounded(block.size)
        larger = size >= LARGER * body
        bolder = block.bold and may_be_bold and size >= 0.95 * body
        if (larger or bolder) and _may_be_heading(block, larger):
            styles[size, block.bold and not larger] += len(block.text)
    if styles.total() > MOST_OF_TEXT * sizes.total():
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


def _written(blocks: Sequence[Block], joined: Sequence[str], levels: dict[tuple[float, bool], int]) -> Iterator[str]:
    """Yield the lines of the Markdown."""
    before: Block | None = None
    for block, flowing in zip(blocks, joined, strict=True):
        if before and not (before.kind == block.kind == "item"):
            yield ""
        before = block
        flowing = _CJK_LINE_END.sub("", flowing)
        line = " ".join(flowing.split())  # a line separator is a space, too
        if level := _level(block, levels):
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
