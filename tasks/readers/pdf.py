"""Text from PDFs, page by page: from the text layer if it is sound, else by OCR of the rendered page.

PDFium reads first, since it is fast and tolerant; pypdf reads documents that PDFium cannot open, and pages of small
documents with a garbled layer. Each page is routed separately (`tasks.readers.text_layer`), because scans with a few
typed pages, and the reverse, are common. No page depends on another, so several processes can share a document.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from ctypes import c_ushort, string_at
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_c

from tasks.readers.decode import clean, one_line
from tasks.readers.layout import find_blocks
from tasks.readers.ocr import OcrError, OcrUnavailable, Reading, ocr_image
from tasks.readers.pdf_lines import read_pieces
from tasks.readers.reading_order import rows_in_order
from tasks.readers.records import Block, ExtractionProblem, ExtractOptions, Method, PageText
from tasks.readers.ruled import read_grids
from tasks.readers.text_layer import Routing, agree, count_legible, is_legible, merge_lines, route_page

if TYPE_CHECKING:
    import pypdf
    from PIL import Image

_POINTS_PER_INCH = 72
SECOND_OPINION_BYTES = 2 * 1024**2
SOUND_SHARE = 0.85
MOST_PIECES = 5000  # of a page whose layout is told
_BROTLI = re.compile(rb"/Filter\s*\[?\s*/BrotliDecode")  # PDFium shows pages with such streams empty
# pypdf writes the name of a glyph that it cannot map.
_GLYPH_NAME = re.compile(r"(?<!\w)/(?:[A-Za-z]{1,3}\d+|[A-Za-z]_[A-Za-z])")


def extract_pdf(
    data: bytes,
    options: ExtractOptions,
    passwords: Sequence[str] = (),
    pages: Sequence[int] | None = None,
    ocr_pages: int | None = None,
) -> Generator[PageText, None, str | None]:
    """Read a PDF.

    Args:
        data: The file.
        options: OCR options and the page limit.
        passwords: Tried in turn, after the empty one, if the document is encrypted.
        pages: Only these pages (from 1); None for all.
        ocr_pages: After this many pages by OCR, a further page that needs OCR is yielded unread with the method
            "deferred"; None for no limit.

    Yields:
        One record for each page, in order. A page that cannot be read has an `error`.

    Returns:
        The title in the document's metadata, or None.

    Raises:
        ExtractionProblem: The document needs a password ("encrypted"), cannot be opened ("corrupt"), or has
            only images while OCR is missing ("no_ocr_engine").
    """
    in_brotli = _BROTLI.search(data) is not None
    document = None if in_brotli else _open(data, passwords)
    n_pages = 0 if document is None else len(document)
    if document is None or n_pages == 0:
        # without PDFium's message: it does not always set an error code, and then reports that of an earlier document
        first_opinion = "PDFium: cannot read streams in Brotli" if in_brotli else "PDFium: cannot open it"
        if document is not None:
            first_opinion = "PDFium: no page found"
            document.close()
        reader, n_pages, title = _open_with_pypdf(data, first_opinion, passwords)
        for index in _wanted_pages(n_pages, options, pages):
            yield _read_page_with_pypdf(reader, index)
        yield from _note_page_limit(n_pages, options, pages, "pypdf")
        return title
    with closing(document):
        if document.get_formtype() != pdfium_c.FORMTYPE_NONE:
            document.init_forms()  # else the values of form fields are not rendered for OCR
        try:
            title = one_line(document.get_metadata_value("Title")) or None
        except UnicodeDecodeError:  # a lone surrogate
            title = None
        second_opinion = cache(partial(_second_opinion, data, passwords))
        any_text, n_read_by_ocr = False, 0
        ocr_missing: OcrUnavailable | None = None
        for index in _wanted_pages(n_pages, options, pages):
            may_read = ocr_pages is None or n_read_by_ocr < ocr_pages
            try:
                page, used_ocr = _read_page(document, index, options, may_read, second_opinion)
            except OcrUnavailable as error:
                ocr_missing = error
                page = PageText(index + 1, "", "none", "pypdfium2", error=str(error), error_code=error.code)
                used_ocr = False
            n_read_by_ocr += used_ocr
            any_text = any_text or page.method == "deferred" or bool(page.text.strip())
            yield page
        yield from _note_page_limit(n_pages, options, pages, "pypdfium2")
    if ocr_missing and not any_text:
        raise ocr_missing
    return title


def _open(data: bytes, passwords: Sequence[str]) -> pdfium.PdfDocument | None:
    """Open a document, with the passwords if it is encrypted; None if PDFium cannot."""
    for password in (None, *(passwords if b"/Encrypt" in data else ())):
        try:
            return pdfium.PdfDocument(data, password=password)
        except pdfium.PdfiumError:
            continue
    return None


def _read_page(
    document: pdfium.PdfDocument,
    index: int,
    options: ExtractOptions,
    may_read: bool,
    second_opinion: Callable[[], pypdf.PdfReader | None],
) -> tuple[PageText, bool]:
    """Read one page by its text layer or OCR; return it with whether OCR ran."""
    blank = PageText(index + 1, "", "none", "pypdfium2")
    try:
        page = document[index]
    except pdfium.PdfiumError as error:
        return replace(blank, error=f"page cannot be loaded: {error}"), False
    with closing(page):
        try:
            text, routing, blocks = _read_layer(page, options.markdown)
        except pdfium.PdfiumError as error:
            return replace(blank, error=f"text layer cannot be read: {error}"), False
        cleaned = clean(text)
        for block in blocks:
            block.text = clean(block.text)
        method: Method = "text" if cleaned.strip() else "none"
        layer = PageText(index + 1, cleaned, method, routing.engine, blocks=[vars(block) for block in blocks])
        if routing.route in ("picture", "better"):
            reader = second_opinion()
            other = _read_page_with_pypdf(reader, index).text if reader else ""
            if _is_sound(other):
                layer = PageText(index + 1, other, "text", "pypdf")
                if routing.route == "better":
                    return layer, False
        if not options.ocr or routing.route in ("layer", "hidden layer"):
            return layer, False
        if not may_read:
            return replace(layer, method="deferred"), False
        return _read_by_ocr(page, layer, text, routing, options), True


def _read_layer(page: pdfium.PdfPage, markdown: bool) -> tuple[str, Routing, list[Block]]:
    """Return the text layer of a page, without PDFium's marks but not yet cleaned, its route and its blocks."""
    with closing(page.get_textpage()) as layer:
        n_characters = layer.count_chars()
        text = _text(layer, n_characters)
        grids = read_grids(page) if markdown else []
        pieces, others = read_pieces(layer, text, grids)
        rows, moved = rows_in_order(pieces)
        blocks = find_blocks(rows, grids) if markdown and len(pieces) <= MOST_PIECES else []
        if blocks and others:
            blocks.append(Block("lines", "\n".join(others)))
        if moved:
            text = "\r\n".join([*(" ".join(piece.text for piece in row) for row in rows), *others])
        # PDFium writes U+FFFE (in other calls U+0002) for the line-end hyphen of a word that it joined. A later stage,
        # which sees the whole document, decides whether the hyphen belongs to the word.
        text = text.replace("\ufffe", "-\n").replace("\u0002", "-\n")
        routing = route_page(page, layer, text, n_characters)
        # sizes and places of an invisible layer are those that an OCR engine guessed
        return text, routing, blocks if routing.route == "layer" else []


def _text(layer: pdfium.PdfTextPage, n_characters: int) -> str:
    """Return all text of a page, like `get_text_range`, but without a new buffer type for each page.

    `get_text_bounded` drops the line break after a superscript, which joins two words.
    """
    # PDFium omits some characters from the text; a range must not end on one, or it reads beyond it
    first, last = 0, n_characters - 1
    while first <= last and pdfium_c.FPDFText_GetTextIndexFromCharIndex(layer, first) < 0:
        first += 1
    while first <= last and (end := pdfium_c.FPDFText_GetTextIndexFromCharIndex(layer, last)) < 0:
        last -= 1
    if first > last:
        return ""
    # room for the final zero, in powers of two, because ctypes makes a type for each size
    buffer = (c_ushort * (1 << (end + 2).bit_length()))()
    n_written = pdfium_c.FPDFText_GetText(layer, first, last - first + 1, buffer)
    return string_at(buffer, 2 * max(0, n_written - 1)).decode("utf-16-le", "surrogatepass")


def _read_by_ocr(
    page: pdfium.PdfPage, layer: PageText, raw_text: str, routing: Routing, options: ExtractOptions
) -> PageText:
    """Render a page and read it by OCR; returns the layer if it is better or OCR fails."""
    try:
        read = _ocr_rendered(page, options)
    except OcrUnavailable as error:
        if not layer.text.strip():
            raise
        return replace(layer, error=str(error), error_code=error.code)
    except (OcrError, pdfium.PdfiumError, ValueError) as error:
        return replace(layer, error=f"page cannot be read by OCR: {error}")
    if read is None:  # blank
        return PageText(layer.page, "", "none", "pypdfium2") if routing.route == "picture or hidden layer" else layer
    text, confidence = read.text, read.confidence
    if not text.strip() and routing.route in ("picture", "both"):
        return layer
    if routing.route == "both":
        return _merged(layer, read)
    if routing.route == "picture or hidden layer" and agree(layer.text, text):
        return layer
    if routing.route == "better" and count_legible(text) * (confidence or 0.0) <= count_legible(raw_text):
        return layer
    return read.page(layer.page)


def _merged(layer: PageText, read: Reading) -> PageText:
    """Return a page of both texts."""
    text = merge_lines(layer.text, read.text)
    lines, own = text.split("\n"), read.text.split("\n")
    before = len(lines) - len(own)  # those that OCR read come last
    again = [before + number for number in read.again if lines[before + number - 1] == own[number - 1]]
    return replace(
        read.page(layer.page), text=text, method="both", engine=f"{layer.engine} + {read.engine}", lines_again=again
    )


def _ocr_rendered(page: pdfium.PdfPage, options: ExtractOptions) -> Reading | None:
    """Return what OCR reads in a rendered page; None if it is blank."""
    from tasks.readers.image import fitting_size, is_uniform  # only here: most PDFs need no OCR

    width, height = page.get_size()
    scale = options.ocr_dpi / _POINTS_PER_INCH
    pixels = (max(1, math.ceil(width * scale)), max(1, math.ceil(height * scale)))
    fitting = fitting_size(pixels, options.ocr_max_pixels)
    scale *= min(fitting[0] / pixels[0], fitting[1] / pixels[1])
    # the image shares the bitmap's memory, so the bitmap must outlive it
    with closing(page.render(scale=scale, grayscale=True)) as bitmap:
        picture: Image.Image = bitmap.to_pil()
        if is_uniform(picture):
            return None
        return ocr_image(picture, options, dpi=max(70, round(scale * _POINTS_PER_INCH)))


def _second_opinion(data: bytes, passwords: Sequence[str]) -> pypdf.PdfReader | None:
    """Return a pypdf reader for single pages of a document that PDFium opened; None if it is large or unreadable."""
    if len(data) > SECOND_OPINION_BYTES:
        return None  # pypdf takes seconds for pages of large documents
    try:
        return _open_with_pypdf(data, "", passwords)[0]
    except ExtractionProblem:
        return None


def _is_sound(text: str) -> bool:
    """Return True for legible text of mostly letters and digits, without names of glyphs."""
    visible = "".join(text.split())
    plain = sum(map(str.isalnum, visible))
    return plain >= SOUND_SHARE * max(1, len(visible)) and not _GLYPH_NAME.search(text) and is_legible(text)


def _wanted_pages(n_pages: int, options: ExtractOptions, pages: Sequence[int] | None) -> list[int] | range:
    """Return the indexes (from 0) of the pages to read, in order."""
    n_read = min(n_pages, options.max_pages)
    if pages is None:
        return range(n_read)
    return sorted({page - 1 for page in pages if 0 < page <= n_read})


def _note_page_limit(
    n_pages: int, options: ExtractOptions, pages: Sequence[int] | None, engine: str
) -> Iterator[PageText]:
    """Yield a record for the pages beyond the limit, if there are any."""
    number = options.max_pages + 1
    if n_pages > options.max_pages and (pages is None or number in pages):
        error = f"{n_pages} pages; those after {options.max_pages} were not read (extract.max_pages)"
        yield PageText(number, "", "none", engine, error=error, error_code="too_many")


def _open_with_pypdf(
    data: bytes, first_opinion: str, passwords: Sequence[str]
) -> tuple[pypdf.PdfReader, int, str | None]:
    import pypdf  # only here: it takes a quarter of a second, and most workers do not need it

    try:
        reader = pypdf.PdfReader(io.BytesIO(data), strict=False)
        locked = reader.is_encrypted and not any(reader.decrypt(password) for password in ("", *passwords))
        n_pages = 0 if locked else len(reader.pages)
        title = one_line(reader.metadata.title if n_pages and reader.metadata else None) or None
        second_opinion = "no page found"
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001
        n_pages, second_opinion = 0, f"{type(error).__name__}: {error}"
    if n_pages:
        return reader, n_pages, title
    # from the bytes, because pypdf's exceptions for passwords vary, and PDFium's error code is unreliable
    if b"/Encrypt" in data:
        tried = "the empty password does not lead"
        if passwords:
            tried = f"neither the empty password nor the {len(passwords)} given lead"
        reason = f"the PDF is encrypted; {tried} to its pages; give its password or save it without one"
        raise ExtractionProblem("rejected", "encrypted", reason)
    raise ExtractionProblem("failed", "corrupt", f"the PDF cannot be read: {first_opinion}; pypdf: {second_opinion}")


def _read_page_with_pypdf(reader: pypdf.PdfReader, index: int) -> PageText:
    blank = PageText(index + 1, "", "none", "pypdf")
    try:
        text = clean(reader.pages[index].extract_text())
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - as above; the other pages may still be sound
        return replace(blank, error=f"page cannot be read: {type(error).__name__}: {error}")
    if text.strip():
        return replace(blank, text=text, method="text")
    return replace(blank, error="no text layer, and PDFium cannot render the page for OCR")
