"""Files that once gave a wrong row, or another row each time."""

from __future__ import annotations

import io
from pathlib import Path

import pypdf
import pytest
from extraction import extract_document
from ingest_samples import picture_of, saved, text_pdf
from PIL import Image, PngImagePlugin
from pypdf.generic import ByteStringObject, NameObject

from tasks.readers.ocr import ocr_image
from tasks.readers.records import ExtractionProblem, ExtractOptions
from tasks.sources.address import WalkSettings, resolve_sources
from tasks.sources.listing import HashMemo, list_sources

WITHOUT_OCR = ExtractOptions(ocr=False)


def test_a_reason_names_no_address_of_this_process() -> None:
    found = extract_document(b"\x89PNG\r\n\x1a\n", ".png", WITHOUT_OCR)
    assert (found.status, found.reason_code) == ("failed", "corrupt")
    assert "0x" not in found.reason
    assert ExtractionProblem("failed", "corrupt", "<object at 0x7f00aa> is odd").reason == "<object> is odd"


def test_a_title_that_is_no_text_costs_only_the_title() -> None:
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(text_pdf(["readable words on a page"])))
    writer.add_metadata({"/Producer": "a test"})
    assert writer._info is not None
    writer._info[NameObject("/Title")] = ByteStringObject(b"\xfe\xff\xd8\x00")
    buffer = io.BytesIO()
    writer.write(buffer)
    found = extract_document(buffer.getvalue(), ".pdf", WITHOUT_OCR)
    assert found.status == "ok"
    assert "readable words" in found.pages[0].text


def test_pages_beyond_the_limit_are_not_taken_for_damaged_ones() -> None:
    found = extract_document(text_pdf(["", "", ""]), ".pdf", ExtractOptions(ocr=False, max_pages=2))
    assert (found.status, found.reason_code) == ("rejected", "no_text")
    assert "3 pages; those after 2 were not read" in found.reason


def test_an_image_with_a_bomb_beside_the_picture_is_too_large_and_not_damaged() -> None:
    notes = PngImagePlugin.PngInfo()
    notes.add_text("comment", "x" * 3_000_000, zip=True)
    buffer = io.BytesIO()
    Image.new("L", (20, 20)).save(buffer, "PNG", pnginfo=notes)
    found = extract_document(buffer.getvalue(), ".png", WITHOUT_OCR)
    assert (found.status, found.reason_code) == ("rejected", "too_large")


def test_a_file_over_the_limit_is_settled_by_its_size_alone_unless_it_is_a_corpus(tmp_path: Path) -> None:
    for name, size in (("a.jsonl", 101), ("b.txt", 100), ("c.txt", 2**40)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    sources = resolve_sources([str(tmp_path), f"documents:{tmp_path / 'a.jsonl'}"])
    walked = list_sources(sources, WalkSettings(), 100, tmp_path / "cache", HashMemo(tmp_path / "memo.db"))
    found = {Path(row.path).name: (row.status, row.sha256) for row in walked.files}
    assert {name: status for name, (status, _) in found.items()} == {"a.jsonl": "", "b.txt": "", "c.txt": "rejected"}
    assert found["c.txt"][1] is None
    assert set(walked.locations) == {found["a.jsonl"][1], found["b.txt"][1]}


@pytest.mark.parametrize("turn", [90, 180, 270])
def test_a_line_of_text_is_read_whichever_way_it_lies(tesseract: str, turn: int) -> None:
    upright = Image.open(io.BytesIO(saved(picture_of("Several plain words"), "PNG"))).convert("L")
    read = ocr_image(upright.rotate(turn, expand=True, fillcolor=255), ExtractOptions())
    assert "plain words" in read.text
    assert read.confidence is not None and read.confidence > 0.7
