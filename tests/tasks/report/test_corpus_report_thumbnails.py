"""Pictures of pages: what can be drawn is drawn small and grey, what cannot has a reason, nothing is left behind."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import signal
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from corpus_report_samples import CORPUS, Sample
from PIL import Image

from tasks.report.corpus import collect, corpus_page
from tasks.report.drawing import MAX_SIZE
from tasks.report.thumbnails import Thumbnail, Thumbnails


def pdf(width: float = 200, height: float = 100, drawing: str = "0 0 100 100 re f") -> bytes:
    """One page; by default its left half is black."""
    stream = drawing.encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {width} {height}] /Contents 4 0 R >>".encode(),
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
    ]
    out = bytearray(b"%PDF-1.4\n")
    places = []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    start = len(out)
    out += b"xref\n0 5\n0000000000 65535 f \n" + table
    return bytes(out + b"trailer << /Size 5 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % start)


def encoded(image: Image.Image, kind: str, **more: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **more)
    return out.getvalue()


def huge_png(side: int) -> bytes:
    """A PNG that states a size which nobody should decode."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


class Shelf:
    """Files in a folder, and what draws them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.locations: dict[str, str] = {}
        self.thumbnails = Thumbnails(self.locations, page_seconds=60.0)  # of a busy machine

    def put(self, data: bytes) -> str:
        sha256 = hashlib.sha256(data).hexdigest()
        path = self.folder / sha256[:8]
        path.write_bytes(data)
        self.locations[sha256] = str(path)
        return sha256

    def draw(self, data: bytes, media_type: str = "application/pdf", page: int = 1) -> Thumbnail:
        return self.thumbnails.draw(self.put(data), media_type, page)


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    made = Shelf(tmp_path)
    with made.thumbnails:
        yield made


def picture(drawn: Thumbnail) -> Image.Image:
    assert drawn.reason == ""
    head, _, body = drawn.uri.partition(",")
    assert head == "data:image/jpeg;base64"
    image = Image.open(io.BytesIO(base64.b64decode(body, validate=True)))
    assert image.size == (drawn.width, drawn.height) and image.mode == "L"
    assert image.width <= MAX_SIZE[0] and image.height <= MAX_SIZE[1]
    return image


def test_a_page_of_a_pdf_is_drawn_grey_and_in_proportion(shelf: Shelf) -> None:
    image = picture(shelf.draw(pdf()))
    assert image.size == (420, 210)
    assert image.getpixel((50, 100)) < 20 and image.getpixel((350, 100)) > 235


@pytest.mark.parametrize("size", [(14_400, 14_400), (3, 14_400), (14_400, 3), (0.001, 0.001)])
def test_a_page_of_any_size_has_a_picture_or_a_reason(shelf: Shelf, size: tuple[float, float]) -> None:
    drawn = shelf.draw(pdf(*size))
    assert drawn.reason or picture(drawn)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP", "BMP", "GIF"])
def test_images_are_drawn(shelf: Shelf, kind: str) -> None:
    image = picture(shelf.draw(encoded(Image.new("RGB", (900, 300), "white"), kind), f"image/{kind.lower()}"))
    assert image.size == (420, 140)


def test_a_page_of_a_tiff_is_its_frame(shelf: Shelf) -> None:
    frames = [Image.new("L", (40, 40), shade) for shade in (255, 0)]
    data = encoded(frames[0], "TIFF", save_all=True, append_images=frames[1:])
    assert picture(shelf.draw(data, "image/tiff", 2)).getpixel((20, 20)) < 20
    assert shelf.draw(data, "image/tiff", 3).reason


@pytest.mark.parametrize(
    ("data", "media_type", "page", "reason"),
    [
        (b"no pdf at all", "application/pdf", 1, "PDFium cannot open it"),
        (pdf(), "application/pdf", 9, "PDFium finds 1 page"),
        (pdf()[:90], "application/pdf", 1, "PDFium cannot open it"),
        (b"no image", "image/png", 1, "UnidentifiedImageError"),
        (huge_png(17_000), "image/png", 1, "DecompressionBomb"),
        (b"plain text", "text/plain", 1, "text/plain has no picture"),
        (b"who knows", None, 1, "a file of unknown type has no picture"),
    ],
)
def test_what_cannot_be_drawn_has_a_reason_and_the_next_page_is_drawn(
    shelf: Shelf, data: bytes, media_type: str, page: int, reason: str
) -> None:
    drawn = shelf.draw(data, media_type, page)
    assert drawn.uri == "" and reason in drawn.reason
    assert picture(shelf.draw(pdf()))


def test_a_file_that_changed_or_went_is_not_drawn(shelf: Shelf) -> None:
    sha256 = shelf.put(pdf())
    path = Path(shelf.locations[sha256])
    path.write_bytes(pdf(300, 300))
    assert shelf.thumbnails.draw(sha256, "application/pdf", 1).reason == "its file has changed since"
    path.unlink()
    assert "No such file" in shelf.thumbnails.draw(sha256, "application/pdf", 1).reason
    os.mkfifo(path)
    assert "cannot be read" in shelf.thumbnails.draw(sha256, "application/pdf", 1).reason
    assert shelf.thumbnails.draw("0" * 64, "application/pdf", 1).reason == "its file was not found"
    assert shelf.thumbnails.draw(None, "application/pdf", 1).reason == "its file was not found"


def test_a_member_of_an_archive_has_no_picture(shelf: Shelf) -> None:
    sha256 = shelf.put(pdf())
    assert shelf.thumbnails.draw(sha256, "application/pdf", 1, "bag.zip").reason == "it lies in an archive"


def test_a_page_that_takes_too_long_is_given_up_and_the_next_one_drawn(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    with shelf.thumbnails as thumbnails:
        assert picture(shelf.draw(pdf()))
        child = thumbnails._child
        assert child is not None
        os.kill(child._process.pid, signal.SIGSTOP)  # hangs for ever
        thumbnails._page_seconds = 0.1
        assert shelf.draw(pdf()).reason == "drawing it took more than 0.1 s"
        thumbnails._page_seconds = 60.0
        assert picture(shelf.draw(pdf()))
        assert child._process.returncode == -signal.SIGKILL


def test_a_process_that_dies_costs_one_page(shelf: Shelf) -> None:
    assert picture(shelf.draw(pdf()))
    child = shelf.thumbnails._child
    assert child is not None
    os.kill(child._process.pid, signal.SIGKILL)
    child._process.wait()
    assert shelf.draw(pdf()).reason == "the process that draws pages died of it"
    assert picture(shelf.draw(pdf()))


def test_nothing_runs_on_after_the_end(shelf: Shelf) -> None:
    assert picture(shelf.draw(pdf()))
    child = shelf.thumbnails._child
    assert child is not None
    shelf.thumbnails.close()
    with pytest.raises(ProcessLookupError):
        os.kill(child._process.pid, 0)


def test_the_report_shows_pictures_and_reasons(shelf: Shelf, tmp_path: Path) -> None:
    sample = Sample(tmp_path / "store")
    ocr = {"method": "ocr", "engine": "tesseract", "confidence": 0.3}
    there = {"sha256": shelf.put(pdf()), "media_type": "application/pdf"}
    sample.document("a", "a.pdf", pages=[ocr], file=there)
    sample.document("b", "b.pdf", pages=[ocr], file={"sha256": "0" * 64, "media_type": "application/pdf"})
    page = corpus_page(collect(sample.catalog()), CORPUS, shelf.thumbnails)
    assert page.count('<img src="data:image/jpeg;base64,') == 1
    assert "no picture: its file was not found" in page
