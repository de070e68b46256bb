"""Text from PDFs, page by page: the text layer where there is one, OCR of the rendered page where there is
none.

PDFium reads first, since it is fast and forgiving; pypdf is the second opinion on documents that PDFium
cannot open. Each page is routed by itself, because scans with a few typed pages, and the reverse, are common.
"""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Generator, Iterator
from contextlib import closing

import pypdf
import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_c
from PIL import Image

from tasks.ingest.image import fitting_size, is_uniform
from tasks.ingest.ocr import OcrError, OcrUnavailable, ocr_image
from tasks.ingest.records import ExtractionProblem, ExtractOptions, PageText
from tasks.ingest.text import clean

SHORT_TEXT = 100  # Visible characters; a page with fewer may be a scan with a stamp or a page number typed on it.
SCAN_COVERAGE = 0.5  # Share of a page that images must cover for it to be taken for a scan.
LEGIBLE_SHARE = 0.5  # Below this share of real characters the fonts have no usable mapping to text.
OBJECTS_LOOKED_AT = 2000  # Enough to find a scan; a page of vector graphics may have millions.

_POINTS_PER_INCH = 72
# PDFium puts U+FFFE where it joined a word hyphenated at a line end (in other calls U+0002).
_HYPHEN_MARKS = re.compile("[\u0002\ufffe]")
_ILLEGIBLE = re.compile("[\ufffd\ue000-\uf8ff\u0080-\u009f\U000f0000-\U0010ffff]")
_VISIBLE = re.compile(r"\S")


def extract_pdf(data: bytes, options: ExtractOptions) -> Generator[PageText, None, str | None]:
    """Reads a PDF.

    Args:
        data: The file.
        options: OCR options and the page limit.

    Yields:
        One record for each page, in order. A page that cannot be read has an `error`; the others go on.

    Returns:
        The title that the document's metadata states, or None.

    Raises:
        ExtractionProblem: The document needs a password ("encrypted"), cannot be opened ("corrupt"), or has
            only images while OCR is missing ("no_ocr_engine").
    """
    try:
        document = pdfium.PdfDocument(data)
    except pdfium.PdfiumError:
        # Its message is left out: PDFium sets no error code in some cases, and the message then tells of the
        # document before this one.
        return (yield from _extract_with_pypdf(data, options, "PDFium: cannot open it"))
    with closing(document):
        n_pages = len(document)
        if n_pages == 0:
            return (yield from _extract_with_pypdf(data, options, "PDFium: no page found"))
        if document.get_formtype() != pdfium_c.FORMTYPE_NONE:
            document.init_forms()  # Else what was typed into a form is not drawn, and lost to OCR.
        title = _tidy_title(document.get_metadata_value("Title"))
        any_text = False
        ocr_missing: OcrUnavailable | None = None
        for index in range(min(n_pages, options.max_pages)):
            try:
                page = _read_page(document, index, options)
            except OcrUnavailable as error:
                ocr_missing = error
                page = PageText(index + 1, "", "none", "pypdfium2", error=str(error))
            any_text = any_text or bool(page.text.strip())
            yield page
        yield from _note_page_limit(n_pages, options, "pypdfium2")
    if ocr_missing and not any_text:
        raise ocr_missing
    return title


def _read_page(document: pdfium.PdfDocument, index: int, options: ExtractOptions) -> PageText:
    """One page by its text layer or by OCR."""
    number = index + 1
    try:
        page = document[index]
    except pdfium.PdfiumError as error:
        return PageText(number, "", "none", "pypdfium2", error=f"page cannot be loaded: {error}")
    with closing(page):
        try:
            text = _text_layer(page)
        except pdfium.PdfiumError as error:
            return PageText(number, "", "none", "pypdfium2", error=f"text layer cannot be read: {error}")
        if not options.ocr or not _needs_ocr(page, text):
            return PageText(number, text, "text" if text.strip() else "none", "pypdfium2")
        return _read_by_ocr(page, number, text, options)


def _text_layer(page: pdfium.PdfPage) -> str:
    """The text layer of a page, without PDFium's marks."""
    with closing(page.get_textpage()) as layer:
        # Not get_text_bounded: that one drops the line break after a superscript and so glues two words
        # together.
        text = layer.get_text_range(errors="surrogatepass")
    return clean(_HYPHEN_MARKS.sub("", text))


def _needs_ocr(page: pdfium.PdfPage, text: str) -> bool:
    """Whether the text layer is missing, illegible, or no more than a stamp on a scan."""
    visible = len(_VISIBLE.findall(text))
    if visible == 0:
        # Annotations are drawn too: a page may consist of them alone.
        return pdfium_c.FPDFPage_CountObjects(page) > 0 or pdfium_c.FPDFPage_GetAnnotCount(page) > 0
    if visible - len(_ILLEGIBLE.findall(text)) < LEGIBLE_SHARE * visible:
        return True
    return visible < SHORT_TEXT and _image_coverage(page) >= SCAN_COVERAGE


def _image_coverage(page: pdfium.PdfPage) -> float:
    """The share of a page's area that images cover; overlaps count twice."""
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


def _read_by_ocr(page: pdfium.PdfPage, number: int, text: str, options: ExtractOptions) -> PageText:
    """Renders a page and reads the picture; the text layer stays where it says more or OCR cannot be had."""
    layer = PageText(number, text, "text" if text.strip() else "none", "pypdfium2")
    try:
        read = _ocr_rendered(page, options)
    except OcrUnavailable as error:
        if not layer.text:
            raise
        return _with_error(layer, str(error))
    except (OcrError, pdfium.PdfiumError, ValueError) as error:
        return _with_error(layer, f"page cannot be read by OCR: {error}")
    if read is None:
        return layer
    found, confidence = read
    legible = len(_VISIBLE.findall(_ILLEGIBLE.sub("", text)))
    if len(_VISIBLE.findall(found)) < legible:
        return layer
    return PageText(number, found, "ocr", "tesseract", confidence)


def _ocr_rendered(page: pdfium.PdfPage, options: ExtractOptions) -> tuple[str, float | None] | None:
    """Text and confidence of a rendered page; None if it is blank."""
    width, height = page.get_size()
    scale = options.ocr_dpi / _POINTS_PER_INCH
    pixels = (max(1, math.ceil(width * scale)), max(1, math.ceil(height * scale)))
    fitting = fitting_size(pixels, options.ocr_max_pixels)
    scale *= min(fitting[0] / pixels[0], fitting[1] / pixels[1])
    # The image shares the bitmap's memory, so the bitmap must outlive it.
    with closing(page.render(scale=scale, grayscale=True)) as bitmap:
        picture: Image.Image = bitmap.to_pil()
        if is_uniform(picture):
            return None
        return ocr_image(picture, options, dpi=max(70, round(scale * _POINTS_PER_INCH)))


def _with_error(page: PageText, error: str) -> PageText:
    """The same page with an error."""
    return PageText(page.page, page.text, page.method, page.engine, page.confidence, error)


def _extract_with_pypdf(
    data: bytes, options: ExtractOptions, first_opinion: str
) -> Generator[PageText, None, str | None]:
    """Reads a PDF that PDFium could not open; only text layers, for pypdf cannot render."""
    reader, n_pages, title = _open_with_pypdf(data, first_opinion)
    for index in range(min(n_pages, options.max_pages)):
        yield _read_page_with_pypdf(reader, index)
    yield from _note_page_limit(n_pages, options, "pypdf")
    return title


def _open_with_pypdf(data: bytes, first_opinion: str) -> tuple[pypdf.PdfReader, int, str | None]:
    """The reader, the number of pages and the title."""
    try:
        reader = pypdf.PdfReader(io.BytesIO(data), strict=False)
        locked = reader.is_encrypted and not reader.decrypt("")
        n_pages = 0 if locked else len(reader.pages)
        title = _tidy_title(reader.metadata.title if n_pages and reader.metadata else None)
        second_opinion = "no page found"
    except MemoryError:
        raise
    # Damaged files make pypdf raise nearly anything, RecursionError too.
    except Exception as error:  # noqa: BLE001
        n_pages, second_opinion = 0, f"{type(error).__name__}: {error}"
    if n_pages:
        return reader, n_pages, title
    # Told from the bytes: what pypdf raises for a password varies, and PDFium's error code is not to be trusted.
    if b"/Encrypt" in data:
        raise ExtractionProblem(
            "rejected", "encrypted", "the PDF is encrypted; the empty password does not lead to its pages"
        )
    raise ExtractionProblem("failed", "corrupt", f"the PDF cannot be read: {first_opinion}; pypdf: {second_opinion}")


def _read_page_with_pypdf(reader: pypdf.PdfReader, index: int) -> PageText:
    """One page by pypdf's text extraction."""
    number = index + 1
    try:
        text = clean(reader.pages[index].extract_text())
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - as above; the other pages may still be sound
        problem = f"page cannot be read: {type(error).__name__}: {error}"
        return PageText(number, "", "none", "pypdf", error=problem)
    if text.strip():
        return PageText(number, text, "text", "pypdf")
    return PageText(number, "", "none", "pypdf", error="no text layer, and PDFium cannot render the page for OCR")


def _note_page_limit(n_pages: int, options: ExtractOptions, engine: str) -> Iterator[PageText]:
    """A record that says that pages were left out, if any were."""
    if n_pages > options.max_pages:
        yield PageText(
            options.max_pages + 1,
            "",
            "none",
            engine,
            error=f"{n_pages} pages; those after {options.max_pages} were not read (max_pages)",
        )


def _tidy_title(title: object) -> str | None:
    """A title on one line, or None."""
    return " ".join(clean(str(title)).split()) or None if title else None
