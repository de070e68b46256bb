"""A second reading of lines and pages, by PP-OCR through rapidocr (extra `ocr`), whose package holds the models.

It is several times slower than Tesseract and joins words that stand close. But of the lines of which Tesseract is
unsure it misreads half as much, and of damaged pages, of which Tesseract loses lines and their order, a quarter.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from tasks.readers.pdf_lines import Piece
from tasks.readers.reading_order import Row, rows_in_order
from tasks.readers.records import OcrUnavailable

if TYPE_CHECKING:
    from PIL import Image

ENGINE = "rapidocr"
# A line outside of these, in pixels, is not print, or becomes very wide when scaled to the height that the model reads.
_LEAST_SIDE = 8
_MOST_WIDTH = 100  # times the height
_MARGIN = 8  # one in so many parts of the height is left around a line, whose box ends at its ink
_SCRIPTS = ("LATIN", "GREEK", "CJK", "HIRAGANA", "KATAKANA")  # of the model, as Unicode names their letters
_SIZE = 0.7  # of a font, relative to the height of its line
_POINTS_PER_INCH = 72
_USUAL_DPI = 300


def version_of_second() -> str | None:
    """Return the version of rapidocr, or None if it is not installed."""
    try:
        return version(ENGINE)
    except PackageNotFoundError:
        return None


def can_read(text: str) -> bool:
    """Return True if rapidocr is installed and knows the scripts of a text."""
    known = (unicodedata.name(letter, "").startswith(_SCRIPTS) for letter in text if letter.isalpha())
    return version_of_second() is not None and all(known)


def read_line(grey: Image.Image, box: tuple[int, int, int, int]) -> tuple[str, float]:
    """Read a line of an 8-bit grey image; return text and confidence, 0 to 1.

    Args:
        box: left, top, width and height of the line in pixels.

    Raises:
        OcrUnavailable: rapidocr cannot be loaded.
    """
    import numpy as np  # only here: most pages have no doubtful line

    x, y, width, height = box
    if min(width, height) < _LEAST_SIDE or width > _MOST_WIDTH * height:
        return "", 0.0
    around = max(2, height // _MARGIN)
    edges = max(0, x - around), max(0, y - around), x + width + around, y + height + around
    line = grey.crop((*edges[:2], min(grey.width, edges[2]), min(grey.height, edges[3])))
    found = _engine()(np.asarray(line.convert("RGB")), use_det=False, use_cls=False)
    return (found.txts[0].strip(), float(found.scores[0])) if found.txts else ("", 0.0)


def read_page(grey: Image.Image, dpi: int | None) -> tuple[str, float]:
    """Find and read the lines of an 8-bit grey image; return text and mean confidence, 0 to 1.

    The lines are in reading order by their places; an empty line separates paragraphs.

    Raises:
        OcrUnavailable: rapidocr cannot be loaded.
    """
    import numpy as np

    found = _engine()(np.asarray(grey.convert("RGB")), use_det=True, use_cls=False, use_rec=True)
    if not found.txts:
        return "", 0.0
    points = _POINTS_PER_INCH / (dpi or _USUAL_DPI)
    pieces = []
    for corners, text in zip(found.boxes, found.txts, strict=True):
        left, top, right, bottom = (points * float(edge) for edge in (*corners.min(0), *corners.max(0)))
        below = grey.height * points  # Y of PDF grows upwards
        pieces.append(Piece(text.strip(), left, below - bottom, right, below - top, _SIZE * (bottom - top)))
    return "\n".join(_spaced(rows_in_order(pieces)[0])), float(np.mean(found.scores))


def _spaced(rows: list[Row]) -> Iterator[str]:
    """Yield the texts of rows, and an empty one before a row that is not just below the one before."""
    before: Piece | None = None
    for row in rows:
        gap = before.bottom - row[0].top if before else 0.0
        if before and not -before.size < gap < before.size:
            yield ""
        before = row[0]
        yield " ".join(piece.text for piece in row)


@cache
def _engine() -> Any:
    try:
        from rapidocr import RapidOCR
    except ImportError as error:
        raise OcrUnavailable(
            f"rapidocr, which reads doubtful lines of scans again, is installed and cannot be loaded ({error}); "
            "install it anew (pip install 'sheepfold[ocr]'), remove it, or set extract.ocr_second=false",
        ) from None
    one = {f"EngineConfig.onnxruntime.{name}_op_num_threads": 1 for name in ("intra", "inter")}  # one page per worker
    return RapidOCR(params={"Global.log_level": "error", **one})
