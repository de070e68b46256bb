"""Extraction method of a PDF page: its text layer, an earlier OCR layer, OCR of its image, or two of them."""

from __future__ import annotations

import pytest
from ingest_samples import picture_of
from pdf_samples import page_pdf, text_lines
from PIL import Image

from tasks.readers import pdf
from tasks.readers.pdf import extract_pdf
from tasks.readers.records import ExtractOptions, PageText
from tasks.readers.text_layer import LINES_COMPARED, merge_lines

OPTIONS = ExtractOptions(ocr_dpi=150)
PROSE = [
    "The cost of a run follows the change and not the size",
    "of the corpus, so that one more document is cheap.",
] * 4
# Every letter three places on, as a font without a mapping gives it.
GARBLED = [
    "Wkh frvw ri d uxq iroorzv wkh fkdqjh dqg qrw wkh vlch",
    "ri wkh frusxv, vr wkdw rqh pruh grfxphqw lv fkhds.",
] * 4


@pytest.fixture
def no_ocr(monkeypatch):
    """Makes a call of OCR an error."""
    monkeypatch.setattr(pdf, "ocr_image", None)


def scan_of(*lines: str) -> Image.Image:
    return picture_of("\n".join(lines), (1275, 1650), font_size=30)


def read(data: bytes, options: ExtractOptions = OPTIONS) -> PageText:
    (page,) = extract_pdf(data, options)
    return page


def test_an_earlier_ocr_layer_over_a_scan_is_kept_and_named(no_ocr):
    page = read(page_pdf(text_lines(PROSE, mode=3), scan_of(*PROSE)))
    assert (page.method, page.engine) == ("text", "pypdfium2 (invisible layer)")
    assert page.text.split("\n")[0].strip() == PROSE[0]


def test_an_illegible_ocr_layer_over_a_scan_is_read_anew(tesseract):
    page = read(page_pdf(text_lines(GARBLED, mode=3), scan_of(*PROSE)))
    assert (page.method, page.engine) == ("ocr", "tesseract")
    assert "cost of a run follows" in page.text


def test_invisible_text_on_an_empty_page_is_not_what_it_shows(no_ocr):
    page = read(page_pdf(text_lines(PROSE, mode=3)))
    assert (page.text, page.method, page.error) == ("", "none", None)


def test_invisible_text_beside_other_visible_text_gives_way_to_the_picture(tesseract):
    hidden = text_lines(["zebra " * 8] * 9, mode=3)
    page = read(page_pdf(hidden + text_lines(["Only this is shown"], top=300)))
    assert (page.method, page.text) == ("ocr", "Only this is shown")


def test_a_garbled_layer_is_replaced_by_what_the_picture_says(tesseract):
    # Drawn in white where it does no harm, for a PDF of a few lines has no font without a mapping.
    page = read(
        page_pdf("1 g " + text_lines(GARBLED) + "0 g " + text_lines(PROSE[:2], top=300, mode=1), scan_of(*PROSE))
    )
    assert page.method == "ocr" and "cost of a run follows" in page.text


def test_a_garbled_layer_stays_where_the_picture_says_no_more():
    page = read(page_pdf(text_lines(GARBLED)))
    assert page.method == "text" and page.text.split("\n")[0].strip() == GARBLED[0]


def test_a_header_typed_on_a_scan_is_kept_with_the_text_of_the_scan_each_line_once(tesseract):
    header = text_lines(["Archive copy No. 4711, page 3 of 12"], top=760)
    page = read(page_pdf(header, scan_of("", "", *PROSE[:2])))
    assert page.method == "both" and page.engine == "pypdfium2 + tesseract"
    assert page.text.count("Archive copy No. 4711") == 1 and page.text.count("cost of a run") == 1


def test_lines_typed_on_a_scan_are_kept_however_many_there_are():
    typed = [f"{number:03}" for number in range(LINES_COMPARED + 100)]
    merged = merge_lines("\n".join(typed), "The text of the scan\n007").split("\n")
    assert sorted(merged) == sorted([*typed, "The text of the scan"])


def test_without_ocr_every_layer_is_kept(no_ocr):
    page = read(page_pdf(text_lines(PROSE, mode=3)), ExtractOptions(ocr=False))
    assert page.method == "text" and page.engine == "pypdfium2 (invisible layer)"


def test_a_page_put_off_brings_its_layer_along(no_ocr):
    data = page_pdf(text_lines(GARBLED))
    (page,) = extract_pdf(data, OPTIONS, ocr_pages=0)
    assert page.method == "deferred" and page.text.startswith(GARBLED[0])


@pytest.mark.full
def test_born_digital_pages_of_the_corpus_need_no_ocr(corpus, no_ocr):
    for name in ("R-intro.pdf", "ltnews.pdf", "babel.pdf"):
        pages = list(extract_pdf((corpus / "documents" / name).read_bytes(), ExtractOptions()))
        assert not [page.page for page in pages if page.error]
