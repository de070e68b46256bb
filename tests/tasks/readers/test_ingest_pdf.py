"""PDFs: text layer, OCR where there is none, and errors that stay on their page."""

from __future__ import annotations

import io

import brotli
import pypdf
import pytest
from extraction import extract_document
from ingest_samples import encrypted_pdf, picture_of, saved, text_pdf
from pdf_samples import page_pdf, text_lines
from PIL import Image
from pypdf.generic import NameObject, StreamObject

from tasks.readers import pdf
from tasks.readers.ocr import OcrUnavailable, Reading
from tasks.readers.records import ExtractionProblem, ExtractOptions
from tasks.text.cleaning import normalise_text

OPTIONS = ExtractOptions()
WITHOUT_OCR = ExtractOptions(ocr=False)


@pytest.fixture
def no_engine(monkeypatch):
    """As if Tesseract were not installed."""

    def refuse(*arguments, **keywords):
        raise OcrUnavailable("OCR needs Tesseract")

    monkeypatch.setattr(pdf, "ocr_image", refuse)


def joined(*files: bytes) -> bytes:
    """One PDF with the pages of several."""
    writer = pypdf.PdfWriter()
    for file in files:
        writer.append(io.BytesIO(file))
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def scan(text: str) -> bytes:
    return saved(picture_of(text), "PDF", resolution=150)


def test_text_pages_blank_pages_and_the_title_are_read():
    found = extract_document(text_pdf(["first page", "", "third page"], title="A Title"), ".pdf", OPTIONS)
    assert (found.status, found.kind, found.media_type, found.title) == ("ok", "pdf", "application/pdf", "A Title")
    assert [(page.page, page.text.strip(), page.method, page.error) for page in found.pages] == [
        (1, "first page", "text", None),
        (2, "", "none", None),
        (3, "third page", "text", None),
    ]


def test_a_scanned_page_between_text_pages_is_read_by_ocr(tesseract):
    data = joined(text_pdf(["typed on this page"]), scan("scanned words"), text_pdf(["typed again"]))
    pages = extract_document(data, ".pdf", OPTIONS).pages
    assert [page.method for page in pages] == ["text", "ocr", "text"]
    assert pages[1].text.strip() == "scanned words"
    assert pages[1].engine == "tesseract" and 0.5 < pages[1].confidence <= 1


def test_a_page_of_one_colour_is_blank_not_ocr(no_engine):
    data = saved(Image.new("L", (600, 800), 200), "PDF")
    (page,) = extract_document(data, ".pdf", OPTIONS).pages
    assert (page.text, page.method, page.error) == ("", "none", None)


def test_without_the_engine_an_image_only_document_fails_with_the_reason(no_engine):
    found = extract_document(scan("scanned words"), ".pdf", OPTIONS)
    assert (found.status, found.reason_code) == ("failed", "no_ocr_engine")
    assert "Tesseract" in found.reason


def test_without_the_engine_a_mixed_document_is_ok_and_the_page_notes_it(no_engine):
    found = extract_document(joined(text_pdf(["typed on this page"]), scan("scanned")), ".pdf", OPTIONS)
    assert (found.status, found.reason_code, found.reason) == ("ok", "no_ocr_engine", "page 2: OCR needs Tesseract")
    assert [bool(page.error) for page in found.pages] == [False, True]


def test_with_ocr_switched_off_an_image_only_document_has_no_text():
    found = extract_document(scan("scanned words"), ".pdf", WITHOUT_OCR)
    assert (found.status, found.reason_code) == ("rejected", "no_text")
    assert "switched off" in found.reason


def test_blank_pages_only_is_no_text():
    found = extract_document(text_pdf(["", ""]), ".pdf", OPTIONS)
    assert (found.status, found.reason_code) == ("rejected", "no_text")


@pytest.mark.parametrize("algorithm", ["RC4-40", "RC4-128", "AES-128", "AES-256-R5", "AES-256"])
def test_the_empty_password_opens_and_any_other_is_rejected(algorithm):
    opened = extract_document(encrypted_pdf("open to all", "", algorithm), ".pdf", OPTIONS)
    assert opened.status == "ok" and opened.pages[0].text.strip() == "open to all"
    locked = extract_document(encrypted_pdf("for few eyes", "secret", algorithm), ".pdf", OPTIONS)
    assert (locked.status, locked.reason_code, locked.pages) == ("rejected", "encrypted", [])


def test_an_encrypted_document_of_the_corpus_is_rejected_whatever_was_read_before(corpus):
    for name in ("issue3371.pdf", "issue6010_1.pdf", "issue19484_2.pdf"):
        first = extract_document((corpus / "nasty" / name).read_bytes(), ".pdf", OPTIONS)
        assert (first.status, first.reason_code) == ("rejected", "encrypted"), name
        extract_document(b"%PDF-1.4 junk", ".pdf", OPTIONS)
        assert extract_document((corpus / "nasty" / name).read_bytes(), ".pdf", OPTIONS) == first


@pytest.mark.parametrize("algorithm", ["RC4-128", "AES-256"])
def test_the_passwords_are_tried_in_turn(algorithm):
    locked = encrypted_pdf("for few eyes", "secret", algorithm)
    opened = list(pdf.extract_pdf(locked, OPTIONS, passwords=["wrong", "secret"]))
    assert [page.text.strip() for page in opened] == ["for few eyes"]
    with pytest.raises(ExtractionProblem, match="neither the empty password nor the 1 given"):
        list(pdf.extract_pdf(locked, OPTIONS, passwords=["wrong"]))


def test_pypdf_tries_the_passwords_too(monkeypatch):
    monkeypatch.setattr(pdf, "_open", lambda data, passwords: None)
    opened = list(pdf.extract_pdf(encrypted_pdf("for few eyes", "secret", "AES-256"), OPTIONS, passwords=["secret"]))
    assert [(page.text.strip(), page.engine) for page in opened] == [("for few eyes", "pypdf")]


def test_only_the_pages_asked_for_are_read():
    data = text_pdf(["one", "two", "three", "four"])
    pages = list(pdf.extract_pdf(data, OPTIONS, pages=[4, 2, 9]))
    assert [(page.page, page.text.strip()) for page in pages] == [(2, "two"), (4, "four")]


def test_pages_put_off_come_out_the_same_when_they_are_asked_for(tesseract):
    data = joined(scan("scanned words"), scan("more words"), text_pdf(["typed on this page"]), scan("last words"))
    at_once = list(pdf.extract_pdf(data, OPTIONS))
    first = list(pdf.extract_pdf(data, OPTIONS, ocr_pages=1))
    assert [page.method for page in first] == ["ocr", "deferred", "text", "deferred"]
    put_off = [page.page for page in first if page.method == "deferred"]
    later = list(pdf.extract_pdf(data, OPTIONS, pages=put_off))
    assert (
        sorted([*(page for page in first if page.method != "deferred"), *later], key=lambda page: page.page) == at_once
    )


def test_junk_that_claims_to_be_a_pdf_is_corrupt():
    found = extract_document(b"%PDF-1.4\n" + b"junk\n" * 100, ".pdf", OPTIONS)
    assert (found.status, found.reason_code) == ("failed", "corrupt")
    assert "pypdf" in found.reason


def test_a_pdf_whose_cross_references_are_nowhere_to_be_found_is_still_read():
    whole = text_pdf(["first page", "second page"])
    found = extract_document(whole[: whole.index(b"startxref")].replace(b"0000", b"9999"), ".pdf", OPTIONS)
    assert [page.text.strip() for page in found.pages] == ["first page", "second page"]


def test_pypdf_reads_what_pdfium_cannot_open(monkeypatch):
    def refuse(data, password=None):
        raise pdf.pdfium.PdfiumError("no")

    monkeypatch.setattr(pdf.pdfium, "PdfDocument", refuse)
    found = extract_document(text_pdf(["first page"], title="T"), ".pdf", OPTIONS)
    assert (found.status, found.title) == ("ok", "T")
    assert [(page.text.strip(), page.engine) for page in found.pages] == [("first page", "pypdf")]


def test_an_error_on_one_page_leaves_the_others(corpus):
    found = extract_document((corpus / "nasty" / "Pages-tree-refs.pdf").read_bytes(), ".pdf", OPTIONS)
    assert any(page.error for page in found.pages) and any(not page.error for page in found.pages)
    assert [page.page for page in found.pages] == list(range(1, len(found.pages) + 1))


def test_pages_beyond_the_limit_are_left_out_and_said_to_be():
    found = extract_document(text_pdf(["a b c"] * 5), ".pdf", ExtractOptions(max_pages=3))
    assert [page.error is not None for page in found.pages] == [False, False, False, True]
    assert "5 pages" in found.pages[3].error


def test_a_giant_page_is_rendered_within_the_pixel_cap(monkeypatch):
    seen = []

    def read(image, *rest, **more):
        seen.append(image.size)
        return Reading("read", 0.9)

    monkeypatch.setattr(pdf, "ocr_image", read)
    data = saved(picture_of("x", (4000, 3000)), "PDF", resolution=20)  # 14,400 by 10,800 points
    found = extract_document(data, ".pdf", ExtractOptions(ocr_max_pixels=1_000_000))
    assert found.pages[0].text == "read"
    assert 900_000 < seen[0][0] * seen[0][1] <= 1_010_000


def test_marks_of_pdfium_and_lone_surrogates_never_reach_the_text(corpus):
    found = extract_document((corpus / "documents" / "R-exts.pdf").read_bytes(), ".pdf", WITHOUT_OCR)
    text = "".join(page.text for page in found.pages)
    text.encode("utf-8")
    assert not set(text) & {"\r", "\x02", "\ufffe"}
    assert "information" in normalise_text(found.pages[7].text, "pdf")  # hyphenated at a line end on that page


@pytest.mark.full
def test_an_image_only_document_of_the_corpus_reads_well(corpus, tesseract):
    found = extract_document((corpus / "scans" / "image-only.pdf").read_bytes(), ".pdf", OPTIONS)
    assert [page.method for page in found.pages] == ["ocr"] * 4
    assert min(page.confidence for page in found.pages) > 0.8


def test_streams_in_brotli_are_read():
    lines = ["The cost of a run follows the change and not the size", "of the corpus."]
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(page_pdf("")))
    stream = StreamObject()
    stream._data = brotli.compress(text_lines(lines).encode())
    stream[NameObject("/Filter")] = NameObject("/BrotliDecode")
    writer.pages[0][NameObject("/Contents")] = writer._add_object(stream)
    file = io.BytesIO()
    writer.write(file)
    (page,) = pdf.extract_pdf(file.getvalue(), WITHOUT_OCR)
    assert page.text.split("\n") == lines and page.engine == "pypdf"
