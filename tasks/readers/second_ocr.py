"""A second reading of single lines, by PP-OCR through rapidocr (extra `ocr`), whose package holds the models.

It is slower than Tesseract and joins words that stand close, but of the lines of which Tesseract is unsure (code,
accents, mathematics) it misreads half as much.
"""

from __future__ import annotations

import unicodedata
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from tasks.readers.records import OcrUnavailable

if TYPE_CHECKING:
    from PIL import Image

ENGINE = "rapidocr"
# A line outside of these, in pixels, is not print, or becomes very wide when scaled to the height that the model reads.
_LEAST_SIDE = 8
_MOST_WIDTH = 100  # times the height
_SCRIPTS = ("LATIN", "GREEK", "CJK", "HIRAGANA", "KATAKANA")  # of the model, as Unicode names their letters
_MARGIN = 8  # one in so many parts of the height is left around a line, whose box ends at its ink


def version_of_second() -> str | None:
    """Return the version of rapidocr, or None if it is not installed."""
    try:
        return version(ENGINE)
    except PackageNotFoundError:
        return None


def read_again(grey: Image.Image, box: tuple[int, int, int, int], text: str) -> tuple[str, float] | None:
    """Read a line of an image again.

    Args:
        grey: 8-bit grey image.
        box: left, top, width and height of the line in pixels.
        text: the first reading.

    Returns:
        Text and confidence, 0 to 1; None if rapidocr is not installed, reads nothing, or does not know the script of
        the first reading.

    Raises:
        OcrUnavailable: rapidocr is installed and cannot be loaded.
    """
    x, y, width, height = box
    if min(width, height) < _LEAST_SIDE or width > _MOST_WIDTH * height or version_of_second() is None:
        return None
    if any(letter.isalpha() and not unicodedata.name(letter, "").startswith(_SCRIPTS) for letter in text):
        return None
    import numpy as np  # only here: most pages have no doubtful line

    around = max(2, height // _MARGIN)
    edges = max(0, x - around), max(0, y - around), x + width + around, y + height + around
    line = grey.crop((*edges[:2], min(grey.width, edges[2]), min(grey.height, edges[3])))
    found = _engine()(np.asarray(line.convert("RGB")), use_det=False, use_cls=False)
    return (found.txts[0].strip(), float(found.scores[0])) if found.txts and found.txts[0].strip() else None


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
