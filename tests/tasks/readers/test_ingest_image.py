"""Images and OCR: every mode and frame, upright, of bounded size, with a confidence."""

from __future__ import annotations

import io
import random
import struct
import tracemalloc
import zlib

import pytest
from extraction import extract_document
from ingest_samples import picture_of, saved
from PIL import Image

from tasks.readers import image as image_module
from tasks.readers.image import extract_image, is_uniform, to_grey
from tasks.readers.records import ExtractOptions

OPTIONS = ExtractOptions()


def error_rate(found: str, expected: str) -> float:
    """Edit distance by characters over the expected length; white space counts as one space."""
    found, expected = " ".join(found.split()), " ".join(expected.split())
    previous = list(range(len(expected) + 1))
    for row, left in enumerate(found, start=1):
        current = [row]
        for column, right in enumerate(expected, start=1):
            current.append(min(previous[column] + 1, current[-1] + 1, previous[column - 1] + (left != right)))
        previous = current
    return previous[-1] / len(expected)


@pytest.mark.parametrize("name", ["phototest.tif", "phototest-rotated-R.png"])
def test_a_photographed_page_reads_well_upright_or_on_its_side(corpus, tesseract, name):
    found = extract_document((corpus / "images" / name).read_bytes(), "", OPTIONS)
    assert error_rate(found.pages[0].text, (corpus / "images" / "phototest.txt").read_text()) < 0.05
    assert found.pages[0].confidence > 0.9


def test_every_frame_of_a_tiff_is_a_page(tesseract):
    frames = [picture_of(word) for word in ("alpha", "bravo", "charlie")]
    data = saved(frames[0], "TIFF", save_all=True, append_images=frames[1:])
    pages = extract_document(data, ".tif", OPTIONS).pages
    assert [(page.page, page.text.strip()) for page in pages] == [(1, "alpha"), (2, "bravo"), (3, "charlie")]


@pytest.mark.parametrize("file_format", ["GIF", "WEBP"])
def test_of_an_animation_only_the_first_frame_is_read(tesseract, file_format):
    frames = [picture_of("alpha").convert("RGB"), picture_of("bravo").convert("RGB")]
    data = saved(frames[0], file_format, save_all=True, append_images=frames[1:])
    assert [page.text.strip() for page in extract_document(data, "", OPTIONS).pages] == ["alpha"]


def sixteen_bits() -> bytes:
    """A 12-bit scan in 16 bits."""
    return saved(picture_of("readable").convert("I").point(lambda value: value * 16).convert("I;16"), "TIFF")


def transparent() -> bytes:
    """Black text on nothing; the colour of the nothing is black too."""
    letters = picture_of("readable").point(lambda value: 255 - value)
    return saved(Image.merge("LA", [Image.new("L", letters.size, 0), letters]), "PNG")


@pytest.mark.parametrize(
    "make",
    [
        lambda: saved(picture_of("readable"), "PNG"),
        lambda: saved(picture_of("readable").convert("1"), "TIFF"),
        lambda: saved(picture_of("readable").convert("RGB").convert("CMYK"), "JPEG"),
        lambda: saved(picture_of("readable").convert("P"), "GIF"),
        lambda: saved(picture_of("readable").convert("RGBA"), "WEBP"),
        lambda: saved(picture_of("readable").convert("RGB"), "BMP"),
        sixteen_bits,
        transparent,
    ],
    ids=["grey", "bilevel", "cmyk", "palette", "alpha", "bmp", "sixteen-bits", "transparent"],
)
def test_any_mode_is_read(tesseract, make):
    found = extract_document(make(), "", OPTIONS)
    assert found.status == "ok" and found.pages[0].text.strip() == "readable"


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_that_the_camera_noted_is_undone(orientation):
    upright = picture_of("F", (120, 80))
    undo = {5: 5, 6: 8, 7: 7, 8: 6}.get(orientation, orientation)
    turned = upright.transpose(image_module._TRANSPOSE[undo]) if undo > 1 else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    opened = Image.open(io.BytesIO(saved(turned, "PNG", exif=exif)))
    assert to_grey(opened, 10**6).tobytes() == upright.tobytes()


def test_a_large_image_is_scaled_down_to_the_cap():
    grey = to_grey(Image.open(io.BytesIO(saved(picture_of("x", (3000, 2000)), "JPEG"))), 600_000)
    assert 500_000 < grey.width * grey.height <= 600_000


def test_an_image_too_large_to_decode_is_rejected(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
    for side in (120, 1000):  # Pillow warns about the one and refuses the other.
        found = extract_document(saved(picture_of("x", (side, side)), "PNG"), "", OPTIONS)
        assert (found.status, found.reason_code) == ("rejected", "too_large")


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "TIFF", "WEBP", "GIF", "BMP"])
@pytest.mark.parametrize("share", [0.02, 0.5])
def test_a_truncated_image_is_corrupt(file_format, share):
    noise = Image.effect_noise((300, 300), 90)
    data = saved(noise, file_format)
    found = extract_document(data[: max(20, int(len(data) * share))], "", OPTIONS)
    assert (found.status, found.reason_code) == ("failed", "corrupt"), found


def test_a_broken_frame_leaves_the_others(tesseract):
    frames = [picture_of("alpha"), picture_of("bravo")]
    data = bytearray(saved(frames[0], "TIFF", save_all=True, append_images=frames[1:], compression="tiff_lzw"))
    # pixels of the first frame: they lie between the header and the first directory
    data[8:400] = random.Random(0).randbytes(392)
    pages = extract_document(bytes(data), "", OPTIONS).pages
    assert pages[0].error and pages[1].text.strip() == "bravo"


def test_an_image_of_one_colour_is_not_sent_to_ocr(monkeypatch):
    monkeypatch.setattr(image_module, "ocr_image", None)
    found = extract_document(saved(Image.new("L", (50, 50), 9), "PNG"), "", OPTIONS)
    assert (found.status, found.reason_code) == ("rejected", "no_text")
    assert is_uniform(Image.new("L", (5, 5)))


def test_frames_put_off_come_out_the_same_when_they_are_asked_for(tesseract):
    frames = [picture_of(word) for word in ("alpha", "bravo", "charlie")]
    data = saved(frames[0], "TIFF", save_all=True, append_images=frames[1:])
    first = list(extract_image(data, OPTIONS, ocr_pages=1))
    assert [page.method for page in first] == ["ocr", "deferred", "deferred"]
    later = list(extract_image(data, OPTIONS, pages=[2, 3]))
    assert [*first[:1], *later] == list(extract_image(data, OPTIONS))


def test_an_image_of_300_megapixels_is_refused_without_being_decoded():
    """One bit a pixel: a file of 37 kB that would unpack to 300 MB."""
    header = b"\x89PNG\r\n\x1a\n"

    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    size = struct.pack(">IIBBBBB", 20_000, 15_000, 1, 0, 0, 0, 0)
    data = header + chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(bytes(2501 * 15_000))) + chunk(b"IEND", b"")
    tracemalloc.start()
    found = extract_document(data, ".png", OPTIONS)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (found.status, found.reason_code) == ("rejected", "too_large")
    assert "300000000 pixels" in found.reason
    assert peak < 20_000_000
