"""Hygiene: the text of a document in one canonical form, whatever its extractor and its maker did to it.

In go the texts of a document's pages, out comes one text that always encodes to UTF-8. Every step first asks a cheap
question (is it ASCII? does the character occur at all?), because most text is clean and should cost next to nothing.
All steps are linear, and the whole is a projection: normalising twice changes nothing, so what was normalised once
compares equal for ever. Text is never read for meaning: "<|endoftext|>" in a document is eleven letters and signs.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic.dataclasses import dataclass

from tasks.core.option import STRICT, option
from tasks.curate.beyond_ascii import beyond_ascii
from tasks.curate.hyphenation import join_hyphenation
from tasks.curate.mojibake import repair_mojibake
from tasks.curate.running_heads import strip_running_heads

PAGE_BREAK = "\n\n"
PRINT = ("pdf", "image")
# Code may mean what looks broken (a test of an encoder, a table of names), and OCR reads what stands on the page.
REPAIRED = ("pdf", "text")
MAX_REPAIRS = 8  # text broken nine times over is hardly text

_REPLACED = {"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st", "\u00ad": "", "\ufeff": ""}
_ASCII_CONTROLS = bytes({*range(0x20), 0x7F} - {*b"\t\n"})
# control characters, lone surrogates (no UTF-8 holds them) and two code points that are no characters
_OTHER_CONTROLS = re.compile("[\x80-\x9f\ud800-\udfff\ufffe\uffff]")
# all but Latin letters, punctuation, arrows, operators, boxes and ligatures: those are in NFC whatever is beside them
_MAY_COMPOSE = re.compile("[^\x80-\u02ff\u2002-\u20cf\u2190-\u2328\u2500-\u27ff\ufb00-\ufb06\ufeff]")
_BLANK_LINES = re.compile(r"\n{3,}")
# a soft hyphen at a line end is where a word was divided; elsewhere it only could be
_SOFT_BREAK = re.compile("\u00ad[ \t\u00a0]*\n[ \t]*(?=[^\\W\\d_])")
_SPACES_AT_END = (" \n", "\t\n", "\u00a0\n")


@dataclass(frozen=True, config=STRICT)
class NormaliseSettings:
    """Optional steps of text normalisation."""

    strip_running_heads: bool = option(False, "Remove headers, footers and page numbers that repeat from page to page.")
    repair_mojibake: bool = option(True, "Repair text that was decoded with the wrong encoding; never in code.")


def document_text(pages: Sequence[Mapping[str, Any]], kind: str, settings: NormaliseSettings) -> str:
    """The canonical text of a document.

    Args:
        pages: Its pages in order, with `page` (the number) and `text`.
        kind: `pdf`, `image`, `text` or `code`.
        settings: What is done beyond the canonical form.

    Returns:
        The texts of the pages that have any, with a blank line between two, or none where a word goes on from one
        page to the next.
    """
    filled = [page for page in pages if page["text"]]
    texts = [str(page["text"]) for page in filled]
    if settings.strip_running_heads and kind in PRINT:
        texts = strip_running_heads(texts, [int(page["page"]) for page in filled])
    joined = join_pages(texts) if kind in PRINT else PAGE_BREAK.join(texts)
    return normalise_text(joined, kind, repair=settings.repair_mojibake)


def join_pages(texts: Sequence[str]) -> str:
    """Pages as one text; where a hyphen ends one and a small letter begins the next, as two lines of one page."""
    parts: list[str] = []
    for text in texts:
        text = text.strip("\r\n\f ") if len(texts) > 1 else text
        if parts and text:
            before = parts[-1]
            divided = before[-2:-1].isalpha() and before[-1] in "-\u2010" and text[0].islower()
            parts.append("\n" if divided else PAGE_BREAK)
        if text:
            parts.append(text)
    return "".join(parts)


def normalise_text(text: str, kind: str, *, repair: bool = True) -> str:
    """Canonical form of a document's text.

    NFC, Unix line ends, no control characters, no spaces at line ends. Prose (not code, where such a thing may be
    meant) also loses ligatures and soft hyphens, and print (PDFs, images) the hyphenation of its lines. Mojibake is
    repaired in PDFs and text, never in code or in what OCR read. Normalising twice changes nothing.

    Args:
        text: Any text, lone surrogates included.
        kind: `pdf`, `image`, `text` or `code`.
        repair: Whether mojibake is repaired.
    """
    if not repair or kind not in REPAIRED or text.isascii():
        return _canonical(text, kind)
    text = _canonical(repair_mojibake(text), kind)
    for _ in range(MAX_REPAIRS):  # what is left out or composed may bring the pieces of a sequence together
        repaired = repair_mojibake(text)
        if repaired == text:
            break
        text = _canonical(repaired, kind)
    return text


def _canonical(text: str, kind: str) -> str:
    """The canonical form, without a look at mojibake."""
    rest = beyond_ascii(text)
    text = _without_controls(_unix_line_ends(text), rest)
    if kind != "code":
        if "\u00ad" in rest:
            text = _SOFT_BREAK.sub("", text)
        for old, new in _REPLACED.items():
            if old in rest:
                text = text.replace(old, new)
    # only now: what stood between a letter and its accent is gone
    if _MAY_COMPOSE.search(rest):
        text = compose(text)
    if any(spaces in text for spaces in _SPACES_AT_END) or text[-1:] in (" ", "\t", "\u00a0"):
        text = strip_line_ends(text)
    if kind in PRINT:
        text = join_hyphenation(text)
    if kind != "code" and "\n\n\n" in text:
        text = _BLANK_LINES.sub("\n\n", text)
    return "" if text.isspace() else text.strip("\n")


def _unix_line_ends(text: str) -> str:
    """Text whose lines end in a line feed alone; a form feed and NEL end lines too."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text.replace("\f", "\n").replace("\x85", "\n")


def _without_controls(text: str, rest: str) -> str:
    """Text without control characters, lone surrogates and code points that are no characters.

    Args:
        rest: what of the text is beyond ASCII.
    """
    if _OTHER_CONTROLS.search(rest):
        text = _OTHER_CONTROLS.sub("", text)
    encoded = text.encode()
    kept = encoded.translate(None, _ASCII_CONTROLS)  # these bytes are never part of a longer sequence
    return text if len(kept) == len(encoded) else kept.decode()


def compose(text: str) -> str:
    """Text in NFC; only the lines that are not yet are worked on, for no line end takes part in a composition."""
    if unicodedata.is_normalized("NFC", text):
        return text
    lines = text.split("\n")
    return "\n".join(line if line.isascii() else unicodedata.normalize("NFC", line) for line in lines)


def strip_line_ends(text: str) -> str:
    """Text without spaces, tabs and no-break spaces at the ends of its lines; linear, as no pattern for it would be."""
    return "\n".join([line.rstrip(" \t\u00a0") for line in text.split("\n")])
