"""Text from photographs and scans: Pillow opens them, OCR reads them.

Every frame of a TIFF is a page; of an animation only the first frame is read. Any image (colour, CMYK, 16 bits, a
palette, transparent) is converted for OCR to 8-bit grey on white, rotated by its EXIF orientation, and of bounded size.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Generator, Sequence
from typing import cast

from PIL import Image, UnidentifiedImageError

from tasks.readers.ocr import MAX_SIDE, OcrError, ocr_image
from tasks.readers.records import ExtractionProblem, ExtractOptions, PageText, stable_text

FORMATS = ("PNG", "JPEG", "TIFF", "WEBP", "BMP", "GIF")
PLAUSIBLE_DPI = range(70, 1201)  # else Tesseract's estimate is used: many programs write 1 dpi into any image


def extract_image(
    data: bytes,
    options: ExtractOptions,
    pages: Sequence[int] | None = None,
    ocr_pages: int | None = None,
) -> Generator[PageText, None, None]:
    """Read an image, one page per frame of a TIFF; the arguments are those of `tasks.readers.pdf.extract_pdf`.

    Yields:
        The pages; a damaged frame has an `error`, and the other frames are read.

    Raises:
        ExtractionProblem: The file cannot be opened ("corrupt"), is too large to decode safely ("too_large"),
            or OCR is not available ("no_ocr_engine").
    """
    # Pillow only warns about images of 90 to 180 million pixels; those must not be decoded either
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            image = Image.open(io.BytesIO(data), formats=FORMATS)
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise ExtractionProblem("rejected", "too_large", f"image too large: {error}") from None
        except UnidentifiedImageError:
            reason = "image cannot be opened: its first bytes name a format that the rest is not of"
            raise ExtractionProblem("failed", "corrupt", reason) from None
        except (OSError, ValueError, SyntaxError) as error:
            if "Decompressed data too large" in str(error):
                raise ExtractionProblem("rejected", "too_large", f"image not opened: {error}") from None
            raise ExtractionProblem("failed", "corrupt", f"image cannot be opened: {error}") from None
        with image:
            yield from _frames(image, options, pages, ocr_pages)


def _frames(
    image: Image.Image, options: ExtractOptions, pages: Sequence[int] | None, ocr_pages: int | None
) -> Generator[PageText, None, None]:
    wanted = range(1, options.max_pages + 2) if pages is None else frozenset(pages)
    last = options.max_pages + 1 if pages is None else max(pages, default=0)
    n_read_by_ocr = 0
    page = 0
    while page < last and (page == 0 or image.format == "TIFF"):
        try:
            image.seek(page)
        except EOFError:
            return
        except (OSError, ValueError, SyntaxError, KeyError, TypeError, Image.DecompressionBombWarning) as error:
            # each frame has the offset of the next: the rest cannot be found
            yield _failed(page + 1, f"frame cannot be found: {error}")
            return
        page += 1
        if page > options.max_pages:
            beyond = f"the image has more than {options.max_pages} frames; the rest was not read (extract.max_pages)"
            yield PageText(page, "", "none", "pillow", error=beyond, error_code="too_many")
            return
        if page not in wanted:
            continue
        if options.ocr and ocr_pages is not None and n_read_by_ocr >= ocr_pages:
            yield PageText(page, "", "deferred", "pillow")
            continue
        record = _read_frame(image, page, options)
        n_read_by_ocr += record.engine != "pillow"
        yield record


def _read_frame(image: Image.Image, page: int, options: ExtractOptions) -> PageText:
    try:
        grey = to_grey(image, options.ocr_max_pixels)
    except MemoryError:
        raise
    # Pillow's decoders raise many types for damaged data (struct.error, KeyError, zlib.error, ...)
    except Exception as error:  # noqa: BLE001
        return _failed(page, f"image data cannot be decoded: {error}")
    if not options.ocr or is_uniform(grey):
        return PageText(page, "", "none", "pillow")
    dpi = _stated_dpi(image) if grey.size in (image.size, image.size[::-1]) else None
    try:
        return ocr_image(grey, options, dpi).page(page)
    except OcrError as error:
        return PageText(page, "", "none", "tesseract", error=str(error))


def to_grey(image: Image.Image, max_pixels: int) -> Image.Image:
    """Return an 8-bit grey copy ("L") of an image, upright, on white, scaled down to at most `max_pixels`."""
    if image.format == "JPEG" and image.width * image.height > max_pixels:
        image.draft("L", fitting_size(image.size, max_pixels))
    image.load()
    grey = _to_eight_bits(image)
    # from the original, because the conversion drops the EXIF data
    orientation = image.getexif().get(0x0112, 1)
    if orientation in _TRANSPOSE:
        grey = grey.transpose(_TRANSPOSE[orientation])
    size = fitting_size(grey.size, max_pixels)
    if size != grey.size:
        grey = grey.resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0)
    return grey


_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def _to_eight_bits(image: Image.Image) -> Image.Image:
    if image.mode == "L" and "transparency" not in image.info:
        return image.copy()
    if image.mode.startswith(("I", "F")):
        values = image.convert("F")
        low, high = cast("tuple[float, float]", values.getextrema())
        scale = 255.0 / (high - low) if high > low else 0.0
        # scaled by the actual range: a 12-bit scan stored in 16 bits would be nearly black by the nominal one
        return values.point(lambda value: value * scale + (-low * scale)).convert("L")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(white, layer).convert("L")
    return image.convert("L")


def fitting_size(size: tuple[int, int], max_pixels: int) -> tuple[int, int]:
    """Return (width, height) scaled down to at most `max_pixels` and sides that Tesseract accepts."""
    width, height = size
    scale = min(1.0, math.sqrt(max_pixels / (width * height)), MAX_SIDE / max(size))
    return (width, height) if scale == 1.0 else (max(1, int(width * scale)), max(1, int(height * scale)))


def is_uniform(grey: Image.Image) -> bool:
    """Return True if an 8-bit grey image has only one shade, so that there is nothing to read."""
    low, high = cast("tuple[int, int]", grey.getextrema())
    return low == high


def _stated_dpi(image: Image.Image) -> int | None:
    try:
        dpi = round(float(image.info["dpi"][0]))
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None
    return dpi if dpi in PLAUSIBLE_DPI else None


def _failed(page: int, error: str) -> PageText:
    return PageText(page, "", "none", "pillow", error=stable_text(error))
