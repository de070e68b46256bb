"""A second reading of lines and pages, by PP-OCR through rapidocr (extra `ocr`), whose package holds the models.

It is several times slower than Tesseract and joins words that stand close. But of the lines of which Tesseract is
unsure it misreads half as much, and of damaged pages, of which Tesseract loses lines and their order, a quarter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.readers.pdf_lines import Piece
from tasks.readers.reading_order import Row, rows_by_place, rows_in_order

if TYPE_CHECKING:
    from PIL import Image

ENGINE = "rapidocr"
MOST_LINES = 200  # of a page; a line takes a tenth of a second, and a page may take a minute
# A line outside of these, in pixels, is not print, is written downwards, or becomes very wide at the model's height.
_LEAST_SIDE = 8
_MOST_HEIGHT, _MOST_WIDTH = 1.5, 100  # times the other side
_MOST_STRETCHED = 20  # one side of a page relative to the other: the model that finds lines enlarges the shorter one
_MARGIN = 8  # one in so many parts of the height is left around a line, whose box ends at its ink
# Letters that it can write: Latin up to Extended-B, Chinese and Japanese. Of Greek it knows none with accents.
_READABLE = re.compile(r"[\W\d_\u0000-\u024f\u3005-\u30ff\u3400-\u9fff]*")
_SIZE, _INSET = 0.7, 0.1  # of a font, and of what a box has too much on each side, relative to the height of the line
_POINTS_PER_INCH = 72
_USUAL_DPI = 300


class SecondOcrError(Exception):
    """Raised when rapidocr cannot be loaded, or fails on an image."""


def version_of_second() -> str | None:
    """Return the version of rapidocr, or None if it is not installed."""
    try:
        return version(ENGINE)
    except PackageNotFoundError:
        return None


def can_read(text: str) -> bool:
    """Return True if rapidocr knows the letters of a text."""
    return _READABLE.fullmatch(text) is not None


def read_line(grey: Image.Image, box: tuple[int, int, int, int]) -> tuple[str, float]:
    """Read a line of an 8-bit grey image; return text and confidence, 0 to 1.

    Args:
        box: left, top, width and height of the line in pixels.

    Raises:
        SecondOcrError: rapidocr cannot be loaded, or fails.
    """
    x, y, width, height = box
    around = max(2, height // _MARGIN)
    edges = max(0, x - around), max(0, y - around), x + width + around, y + height + around
    return _recognise(grey.crop((*edges[:2], min(grey.width, edges[2]), min(grey.height, edges[3]))))


def read_page(grey: Image.Image, dpi: int | None) -> tuple[str, float]:
    """Find and read the lines of an 8-bit grey image; return text and mean confidence of its characters, 0 to 1.

    The lines are in reading order by their places; an empty line separates paragraphs. More than `MOST_LINES` lines are
    not read.

    Raises:
        SecondOcrError: rapidocr cannot be loaded, or fails.
    """
    from PIL import Image

    if max(grey.size) > _MOST_STRETCHED * min(grey.size):
        return "", 0.0
    found = _run(grey, use_det=True, use_rec=False)
    boxes = [] if found.boxes is None else found.boxes
    if len(boxes) > MOST_LINES:
        return "", 0.0
    points = _POINTS_PER_INCH / (dpi or _USUAL_DPI)
    pieces, scores = [], []
    for corners in boxes:  # clockwise from the upper left
        one, two, three, four = (tuple(map(float, corner)) for corner in corners)
        size = round(max(abs(two[0] - one[0]), 1)), round(max(abs(four[1] - one[1]), 1))
        quad = (*one, *four, *three, *two)
        text, score = _recognise(grey.transform(size, Image.Transform.QUAD, quad, Image.Resampling.BILINEAR))
        if not text:
            continue
        height = points * size[1]
        left, right = points * min(one[0], four[0]) + _INSET * height, points * max(two[0], three[0]) - _INSET * height
        bottom = points * (grey.height - (three[1] + four[1]) / 2)  # PDF's y grows upwards
        pieces.append(Piece(text, left, bottom, right, bottom + height, _SIZE * height))
        scores += [score] * len(text)
    if not pieces:
        return "", 0.0
    by_place = [piece for row in rows_by_place(pieces) for piece in sorted(row, key=lambda piece: piece.left)]
    return "\n".join(_spaced(rows_in_order(by_place)[0])), sum(scores) / len(scores)


def _spaced(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the texts of rows, and an empty one before a row that is not just below the one before."""
    before: Piece | None = None
    for row in rows:
        gap = before.bottom - row[0].top if before else 0.0
        if before and not -before.size < gap < before.size:
            yield ""
        before = row[0]
        yield " ".join(piece.text for piece in row)


def _recognise(line: Image.Image) -> tuple[str, float]:
    width, height = line.size
    if min(line.size) < _LEAST_SIDE or width > _MOST_WIDTH * height or height > _MOST_HEIGHT * width:
        return "", 0.0
    found = _run(line, use_det=False, use_rec=True)
    return (found.txts[0].strip(), float(found.scores[0])) if found.txts else ("", 0.0)


def _run(picture: Image.Image, **use: bool) -> Any:
    import numpy as np  # only here: most pages are not read again

    try:
        return _engine()(np.asarray(picture.convert("RGB")), use_cls=False, **use)
    except MemoryError:
        raise
    except (ImportError, StopIteration) as error:
        raise SecondOcrError(
            f"{ENGINE} is installed and cannot be loaded ({error}); install it anew (pip install 'sheepfold[ocr]'), or "
            "set extract.ocr_second=false"
        ) from error
    # rapidocr, OpenCV and ONNX Runtime raise many types, none of their own above all
    except Exception as error:
        raise SecondOcrError(f"{ENGINE} failed on it ({type(error).__name__})") from error


@cache
def _engine() -> Any:
    import cv2
    from rapidocr import RapidOCR

    cv2.setNumThreads(1)  # a worker reads one page at a time, and there is one for each core
    # found by path, which makes rapidocr neither hash nor download them
    models = Path(str(distribution(ENGINE).locate_file(ENGINE))) / "models"
    paths = {f"{part.title()}.model_path": str(next(models.glob(f"*_{part}_*.onnx"))) for part in ("det", "rec")}
    threads = {f"EngineConfig.onnxruntime.{name}_op_num_threads": 1 for name in ("intra", "inter")}
    return RapidOCR(params={"Global.log_level": "error", **paths, **threads})
