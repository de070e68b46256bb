"""Route a PDF page to its text layer, to OCR, or to both, and merge their texts.

Routing makes few calls into PDFium, as most pages have an ordinary text layer: a sample of characters shows whether the
text is drawn, and images are examined only on pages with little or invisible text.

A font without a usable mapping to Unicode displays correctly, but its text is garbage: private-use, unassigned and
control characters, wrong letters, two scripts in one word. These are counted line by line, without a dictionary or a
model, which works in any language. A false alarm costs a page of OCR, so real text is well above the thresholds.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from ctypes import byref
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_c

from tasks.readers.records import INVISIBLE_LAYER

SHORT_TEXT = 100  # Visible characters; a page with fewer may be a scan with a stamp or a page number typed on it.
HEADING_TEXT = 600  # Visible characters that may be a header and a footer typed on a scan.
SCAN_COVERAGE = 0.5  # Share of a page that images must cover for it to be taken for a scan.
PLAIN_SCAN_COVERAGE = 0.8
PLAIN_SCAN_DPI = 100  # Backgrounds of slides are coarser, or in colour.
GREY_BITS = 8
OBJECTS_LOOKED_AT = 2000  # Enough to find a scan; a page of vector graphics may have millions.
OBJECTS_OF_A_SCAN = 60  # A picture and the lines of its header.
CHARACTERS_LOOKED_AT = 3  # The first sample for invisible text,
CHARACTERS_COUNTED = 100  # and the second, if one of the first is invisible.

Route = Literal["layer", "hidden layer", "picture", "picture or hidden layer", "better", "both"]


@dataclass(frozen=True, slots=True)
class Routing:
    """Route of a page: text layer, OCR, or both.

    Attributes:
        route: "layer": the text layer. "hidden layer": an invisible layer, from an earlier OCR of the scan on the
            page. "picture": OCR, as there is no layer. "picture or hidden layer": an invisible layer without a scan;
            it is used if OCR agrees with it. "better": the layer is garbled; the better of both. "both": the layer is
            typed on a scan; merged.
        engine: Name of the reader of the layer.
    """

    route: Route
    engine: str = "pypdfium2"


def route_page(page: pdfium.PdfPage, layer: pdfium.PdfTextPage, text: str, n_characters: int) -> Routing:
    """Choose the route of a page.

    Args:
        page: The page.
        layer: Its text page, of `n_characters`.
        text: The text layer, including control characters.

    Raises:
        pypdfium2.PdfiumError: An object on the page is damaged.
    """
    hidden = n_characters > 0 and _is_hidden(layer, n_characters)
    if not hidden and len(text) > 2 * HEADING_TEXT and _is_plain(text):
        return Routing("layer")
    visible = _count_visible(text)
    if visible == 0:
        # annotations are drawn too: a page may consist of them alone
        drawn = pdfium_c.FPDFPage_CountObjects(page) > 0 or pdfium_c.FPDFPage_GetAnnotCount(page) > 0
        return Routing("picture" if drawn else "layer")
    if hidden:
        engine = INVISIBLE_LAYER
        if _image_coverage(page) < SCAN_COVERAGE:
            return Routing("picture or hidden layer", engine)
        return Routing("hidden layer" if is_legible(text) else "better", engine)
    if not is_legible(text):
        return Routing("better")
    if visible < SHORT_TEXT and _image_coverage(page) >= SCAN_COVERAGE:
        return Routing("both")
    if visible < HEADING_TEXT and _is_plain_scan(page):
        return Routing("both")
    return Routing("layer")


def _image_coverage(page: pdfium.PdfPage) -> float:
    """Return the share of a page's area that images cover; overlaps count twice."""
    width, height = page.get_size()
    covered = 0.0
    try:
        for item in itertools.islice(page.get_objects(max_depth=3), OBJECTS_LOOKED_AT):
            if item.type == pdfium_c.FPDF_PAGEOBJ_IMAGE:
                left, bottom, right, top = item.get_bounds()
                covered += max(0.0, min(right, width) - max(left, 0)) * max(0.0, min(top, height) - max(bottom, 0))
    except pdfium.PdfiumError:
        return 0.0  # a damaged object: the text layer is used
    return covered / max(width * height, 1.0)


def _is_hidden(layer: pdfium.PdfTextPage, n_characters: int) -> bool:
    """Return True if most of the text is not drawn (render mode 3), like the OCR text over a scan."""
    if not any(_hidden_characters(layer, n_characters, CHARACTERS_LOOKED_AT)):
        return False
    counted = _hidden_characters(layer, n_characters, CHARACTERS_COUNTED)
    return 2 * sum(counted) > len(counted)


def _hidden_characters(layer: pdfium.PdfTextPage, n_characters: int, n_wanted: int) -> list[bool]:
    """Return for characters spread over the page whether each is invisible, without those that PDFium generated."""
    step = max(1, n_characters // n_wanted)
    objects = (pdfium_c.FPDFText_GetTextObject(layer, index) for index in range(step // 2, n_characters, step))
    invisible = pdfium_c.FPDF_TEXTRENDERMODE_INVISIBLE
    return [pdfium_c.FPDFTextObj_GetTextRenderMode(item) == invisible for item in objects if item]


def _is_plain_scan(page: pdfium.PdfPage) -> bool:
    """Return True if a grey image of a resolution fit for OCR covers the page, with few other objects."""
    if not 0 < pdfium_c.FPDFPage_CountObjects(page) <= OBJECTS_OF_A_SCAN:
        return False
    width, height = page.get_size()
    metadata = pdfium_c.FPDF_IMAGEOBJ_METADATA()
    for item in page.get_objects(filter=[pdfium_c.FPDF_PAGEOBJ_IMAGE], max_depth=2):
        left, bottom, right, top = item.get_bounds()
        if (
            (right - left) * (top - bottom) >= PLAIN_SCAN_COVERAGE * width * height
            and pdfium_c.FPDFImageObj_GetImageMetadata(item, page, byref(metadata))
            and 0 < metadata.bits_per_pixel <= GREY_BITS
            and min(metadata.horizontal_dpi, metadata.vertical_dpi) >= PLAIN_SCAN_DPI
        ):
            return True
    return False


LEGIBLE_SHARE = 0.7  # Below this share of legible characters a text layer is garbled.

# The eight most frequent letters of European languages make up 64 % of English and 50 % and more of all languages in
# Latin script and of source code, and about 30 % of letters that are mapped wrongly.
COMMON_LETTERS = b"etaoinsrETAOINSR"
COMMON_SHARE = 0.3
PLAINLY_COMMON_SHARE = 0.45
LETTERS_JUDGED = 30  # Fewer letters are no sufficient sample.

_ACCENTED_SHARE = 0.6  # Vietnamese has 0.3; Cyrillic bytes read as Latin-1 have nearly 1.
_SIGNS_SHARE = 0.2
_SYMBOL_SHARE = 0.6
_SYMBOL_KINDS = 12
_CONTROL_COST = 2  # Neighbours that count as illegible too: a font that maps one glyph to its number maps all so.
_JUNCTION_COST = 2  # Characters that count as illegible where two scripts meet in a word.

_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NOT_LETTERS = bytes(set(range(256)) - set(_LETTERS))
_NOT_COMMON = bytes(set(range(256)) - set(COMMON_LETTERS))
_CONTROLS = bytes(code for code in range(32) if code not in b"\t\n\r\f")
_JUNK = re.compile(
    "[\x00-\x08\x0b\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ue000-\uf8ff\ufff0-\ufffb\ufffd-\uffff\U000f0000-\U0010ffff]"
)
_CONTROL = re.compile("[\x00-\x08\x0b\x0e-\x1f]")
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")
_ACCENTED = re.compile("[\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u00ff]")
_SIGNS = re.compile("[\u00a1-\u00a6\u00a8\u00aa\u00ac\u00ae\u00af\u00b2-\u00b6\u00b8-\u00ba\u00bc-\u00bf]")
_SYMBOLS = re.compile(r"[!-,/:-<>-@\[-^`{}~]")
_LEADERS = re.compile(r"[.=|_-]")  # Leaders, rules and frames of tables: not counted as symbols.
_WORDS = re.compile(r"[A-Za-z]{3,}")  # Not the letters of formulae.
_LATIN = "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f"
_OTHER = "\u0400-\u052f\u0531-\u058f\u0590-\u05ff\u0600-\u06ff\u0900-\u0e7f\u10a0-\u10ff"
_GREEK = "\u0370-\u03ff"
# Lookbehinds of fixed width keep this linear. A single Greek letter beside a Latin one is a formula.
_JUNCTION = re.compile(
    f"(?<=[{_LATIN}])[{_OTHER}]|(?<=[{_OTHER}])[{_LATIN}]"
    f"|(?<=[{_LATIN}]{{2}})[{_GREEK}]{{2}}|(?<=[{_GREEK}]{{2}})[{_LATIN}]{{2}}"
)


def _count_visible(text: str) -> int:
    return sum(map(len, text.split()))


def is_legible(text: str) -> bool:
    """Return True if a text layer, including control characters, is not garbled; an empty one is not."""
    if _is_plain(text) or _is_plainly_words(text):
        return True
    return count_legible(text) >= LEGIBLE_SHARE * _count_visible(text)


def _is_plain(text: str) -> bool:
    """Return True if a fast check finds the text legible, as on most pages in Latin script."""
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        return False
    letters = len(encoded.translate(None, _NOT_LETTERS))
    return (
        letters >= max(LETTERS_JUDGED, 0.3 * len(text))
        and len(encoded.translate(None, _NOT_COMMON)) >= PLAINLY_COMMON_SHARE * letters
        and len(encoded) <= 1.1 * len(text)  # at most a tenth of the characters are beyond ASCII
        and len(encoded.translate(None, _CONTROLS)) >= 0.98 * len(encoded)
    )


def _is_plainly_words(text: str) -> bool:
    """Return True if the words are legible, on pages with many figures, leaders or symbols."""
    if _JUNK.search(text) or _JUNCTION.search(text):
        return False
    words = "".join(_WORDS.findall(text)).encode()
    others = len(text) - sum(map(text.count, ". _-=|\r\n"))  # leaders may be most of a page
    if len(words) < max(3 * LETTERS_JUDGED, 0.2 * others) or len(_ACCENTED.findall(text)) > 0.3 * len(words):
        return False
    return len(words.translate(None, _NOT_COMMON)) >= PLAINLY_COMMON_SHARE * len(words)


def count_legible(text: str) -> int:
    """Return the number of visible characters in legible lines; short lines are judged together."""
    unassigned = _unassigned(text)
    legible = 0
    for line in _judged_together(text):
        visible = _count_visible(line)
        junk = len(_JUNK.findall(line)) + _JUNCTION_COST * len(_JUNCTION.findall(line))
        junk += _CONTROL_COST * len(_CONTROL.findall(line))
        if unassigned:
            junk += len(unassigned.findall(line))
        if 2 * junk <= visible and not _is_garbled(line, visible):
            legible += max(0, visible - junk)
    return legible


def _judged_together(text: str) -> Iterator[str]:
    """Yield the lines with enough letters for a judgement, then all others joined."""
    short = []
    for line in text.splitlines():
        if _count_letters(line) >= LETTERS_JUDGED:
            yield line
        else:
            short.append(line)
    yield "\n".join(short)


def _count_letters(line: str) -> int:
    return len(line.encode("ascii", "ignore").translate(None, _NOT_LETTERS))


def _is_garbled(line: str, visible: int) -> bool:
    """Return True if the distribution of the characters is not that of text."""
    words = "".join(_WORDS.findall(line)).encode()
    letters = len(words)
    if letters >= LETTERS_JUDGED and len(words.translate(None, _NOT_COMMON)) < COMMON_SHARE * letters:
        return True
    if not line.isascii():
        accented = len(_ACCENTED.findall(line))
        if accented >= LETTERS_JUDGED // 2 and accented >= _ACCENTED_SHARE * (accented + _count_letters(line)):
            return True
        signs = len(_SIGNS.findall(line))
        if signs >= LETTERS_JUDGED // 2 and signs >= _SIGNS_SHARE * visible:
            return True
    symbols = _SYMBOLS.findall(line)
    return (
        len(symbols) >= LETTERS_JUDGED
        and len(symbols) >= _SYMBOL_SHARE * (visible - len(_LEADERS.findall(line)))
        and len(set(symbols)) >= _SYMBOL_KINDS
    )


def _unassigned(text: str) -> re.Pattern[str] | None:
    """Return a pattern for the characters of the text that Unicode has not assigned; None if there are none."""
    beyond = sorted(set(_BEYOND_ASCII.findall(text)))
    found = [char for char in beyond if unicodedata.category(char) == "Cn" and not _JUNK.match(char)]
    return re.compile("[" + re.escape("".join(found)) + "]") if found else None


SAME_LINE = 0.75  # Similarity above which two lines are readings of the same line.
LINES_COMPARED = 400  # Lines of a layer that each line from OCR is compared with.
AGREEING_WORDS = 0.6

_WORD = re.compile(r"\w+")


def merge_lines(layer: str, read: str) -> str:
    """Merge the lines of a text layer with those that OCR read; a line in both appears once, from the layer."""
    whole = [line for line in layer.split("\n") if line.strip()]
    typed = whole[:LINES_COMPARED]
    left = {index: _without_spaces(line) for index, line in enumerate(typed)}
    lines = []
    for line in read.split("\n"):
        match = _find_similar(_without_spaces(line), left)
        if match is not None:
            line = typed[match]
            del left[match]
        lines.append(line)
    rest = [typed[index] for index in left if left[index]]
    return "\n".join([*rest, *whole[LINES_COMPARED:], *lines])


def agree(layer: str, read: str) -> bool:
    """Return True if OCR read most words of a layer."""
    wanted = Counter(_WORD.findall(layer.casefold()))
    found = Counter(_WORD.findall(read.casefold()))
    return bool(wanted) and (wanted & found).total() >= AGREEING_WORDS * wanted.total()


def _without_spaces(line: str) -> str:
    return "".join(line.casefold().split())


def _find_similar(bare: str, candidates: dict[int, str]) -> int | None:
    """Return the index of the first candidate similar enough to be the same line, or None."""
    if not bare:
        return None
    matcher = SequenceMatcher(None, autojunk=False)
    matcher.set_seq2(bare)
    for index, candidate in candidates.items():
        if 2 * abs(len(candidate) - len(bare)) > len(candidate) + len(bare):
            continue
        matcher.set_seq1(candidate)
        if matcher.quick_ratio() >= SAME_LINE and matcher.ratio() >= SAME_LINE:
            return index
    return None
