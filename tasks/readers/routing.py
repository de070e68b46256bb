"""Which way a PDF page goes: its text layer is what it shows, or its picture has to be read.

Looked at with a few calls into PDFium, because most pages are ordinary and must not pay for the others: whether text is
drawn at all is asked of a sample of characters, and pictures are looked for only where there is little text or text
that nobody sees.
"""

from __future__ import annotations

import itertools
from ctypes import byref
from dataclasses import dataclass
from typing import Literal

import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_c

from tasks.readers.legibility import count_visible, is_legible, is_plain

SHORT_TEXT = 100  # Visible characters; a page with fewer may be a scan with a stamp or a page number typed on it.
HEADING_TEXT = 600  # As many may be a header and a footer typed on a scan, if the picture is plainly one.
SCAN_COVERAGE = 0.5  # Share of a page that images must cover for it to be taken for a scan.
PLAIN_SCAN_COVERAGE = 0.8
PLAIN_SCAN_DPI = 100  # Backgrounds of slides are coarser, or in colour.
GREY_BITS = 8
OBJECTS_LOOKED_AT = 2000  # Enough to find a scan; a page of vector graphics may have millions.
OBJECTS_OF_A_SCAN = 60  # A picture and the lines of its header.
CHARACTERS_LOOKED_AT = 3
CHARACTERS_COUNTED = 100

Route = Literal["layer", "hidden layer", "picture", "picture or hidden layer", "better", "both"]


@dataclass(frozen=True, slots=True)
class Routing:
    """Which way a page goes.

    Attributes:
        route: "layer": the text layer is the text. "hidden layer": so it is, though it is not drawn: an earlier OCR
            of the scan on the page. "picture": there is no layer. "picture or hidden layer": a layer that is not
            drawn, and no scan that it could belong to; it counts if the picture says the same. "better": the layer
            is garbled; the better of both counts. "both": the layer is typed on a scan.
        engine: What to name as the reader of the layer.
    """

    route: Route
    engine: str = "pypdfium2"


_LAYER = Routing("layer")
_PICTURE = Routing("picture")


def route_page(page: pdfium.PdfPage, layer: pdfium.PdfTextPage, text: str, n_characters: int) -> Routing:
    """Decide about one page.

    Args:
        page: The page.
        layer: Its text page.
        text: The text layer with the control characters in it.
        n_characters: What `layer` counts.

    Raises:
        pypdfium2.PdfiumError: An object on the page is damaged.
    """
    hidden = n_characters > 0 and _is_hidden(layer, n_characters)
    if not hidden and len(text) > 2 * HEADING_TEXT and is_plain(text):
        return _LAYER
    visible = count_visible(text)
    if visible == 0:
        # Annotations are drawn too: a page may consist of them alone.
        drawn = pdfium_c.FPDFPage_CountObjects(page) > 0 or pdfium_c.FPDFPage_GetAnnotCount(page) > 0
        return _PICTURE if drawn else _LAYER
    if hidden:
        engine = "pypdfium2 (invisible layer)"
        if image_coverage(page) < SCAN_COVERAGE:
            return Routing("picture or hidden layer", engine)
        return Routing("hidden layer" if is_legible(text) else "better", engine)
    if not is_legible(text):
        return Routing("better")
    if visible < SHORT_TEXT and image_coverage(page) >= SCAN_COVERAGE:
        return Routing("both")
    if visible < HEADING_TEXT and _is_plain_scan(page):
        return Routing("both")
    return _LAYER


def image_coverage(page: pdfium.PdfPage) -> float:
    """Return the share of a page's area that images cover; overlaps count twice."""
    width, height = page.get_size()
    covered = 0.0
    try:
        for item in itertools.islice(page.get_objects(max_depth=3), OBJECTS_LOOKED_AT):
            if item.type == pdfium_c.FPDF_PAGEOBJ_IMAGE:
                left, bottom, right, top = item.get_bounds()
                covered += max(0.0, min(right, width) - max(left, 0)) * max(0.0, min(top, height) - max(bottom, 0))
    except pdfium.PdfiumError:
        return 0.0  # A damaged object: the text layer is what there is.
    return covered / max(width * height, 1.0)


def _is_hidden(layer: pdfium.PdfTextPage, n_characters: int) -> bool:
    """Whether most of the text is not drawn (render mode 3), as the text that OCR lays over a scan is not."""
    # One hidden character among a few spread over the page makes it worthwhile to count.
    if not any(_hidden_characters(layer, n_characters, CHARACTERS_LOOKED_AT)):
        return False
    counted = _hidden_characters(layer, n_characters, CHARACTERS_COUNTED)
    return 2 * sum(counted) > len(counted)


def _hidden_characters(layer: pdfium.PdfTextPage, n_characters: int, n_wanted: int) -> list[bool]:
    """For characters spread over the page, whether they are not drawn; those that PDFium made up are left out."""
    step = max(1, n_characters // n_wanted)
    objects = (pdfium_c.FPDFText_GetTextObject(layer, index) for index in range(step // 2, n_characters, step))
    return [
        pdfium_c.FPDFTextObj_GetTextRenderMode(item) == pdfium_c.FPDF_TEXTRENDERMODE_INVISIBLE
        for item in objects
        if item
    ]


def _is_plain_scan(page: pdfium.PdfPage) -> bool:
    """Whether a grey or black and white picture, fine enough to be read, covers the page, with little else on it."""
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
