"""Text from the picture of a page: Tesseract, through pytesseract, one process per page.

In goes an 8-bit grey image, out come the text and the mean confidence of its words. Both are rebuilt from one
run's table of words, where two runs (one for the text, one for the confidence) would take twice the time. A
page that reads badly is asked for its orientation once and read again upright.
"""

from __future__ import annotations

import csv
import io
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pytesseract
from PIL import Image

from tasks.ingest.records import ExtractionProblem, ExtractOptions
from tasks.ingest.text import clean

MAX_SIDE = 32_000  # Tesseract refuses images with a side above 32,767 pixels.
DOUBTFUL_CONFIDENCE = 0.6  # Below this a page may be lying on its side.
SURE_ORIENTATION = 1.0  # Tesseract's own scale; it calls 15 reasonably confident, but 1 already beats no idea.

_WORD_LEVEL = "5"
_BETWEEN_CJK = re.compile(r"(?<=[\u3040-\u30ff\u3400-\u9fff]) (?=[\u3040-\u30ff\u3400-\u9fff])")


class OcrUnavailable(ExtractionProblem):
    """Raised when Tesseract or one of the languages asked for is not installed."""

    def __init__(self, reason: str) -> None:
        super().__init__("failed", "no_ocr_engine", reason)


class OcrError(Exception):
    """Raised when Tesseract is there but could not read an image."""


@dataclass(frozen=True, slots=True)
class _Word:
    """A word of Tesseract's table: where it belongs, how sure it is (0 to 100), the word."""

    paragraph: tuple[str, str]
    line: str
    confidence: float
    text: str


def ocr_image(image: Image.Image, options: ExtractOptions, dpi: int | None = None) -> tuple[str, float | None]:
    """Reads the text in an image.

    Args:
        image: The image; best 8-bit grey ("L").
        options: The languages.
        dpi: Its resolution in dots per inch, if known; otherwise Tesseract estimates it from the text's size.

    Returns:
        The text (lines end in a line feed, paragraphs are an empty line apart) and the mean confidence of its
        words, 0 to 1; None if there are no words.

    Raises:
        OcrUnavailable: Tesseract or a language is missing.
        OcrError: Tesseract failed on this image.
    """
    text, confidence = _read(image, options, dpi)
    if confidence is not None and confidence >= DOUBTFUL_CONFIDENCE:
        return text, confidence
    turn = _clockwise_turn(image, dpi)
    if turn:
        upright = image.rotate(-turn, expand=True, fillcolor=255 if image.mode == "L" else None)
        again, sure = _read(upright, options, dpi)
        if (sure or 0.0) > (confidence or 0.0):
            return again, sure
    return text, confidence


def engine_version() -> str | None:
    """Returns Tesseract's version, for example "5.3.0", or None where it is not installed."""
    match = re.search(r"tesseract v?(\S+)", _run_tesseract("--version") or "")
    return match[1] if match else None


def ocr_ready(languages: str) -> bool:
    """Whether Tesseract is installed, with all of these languages (codes joined by "+")."""
    try:
        _check_languages(languages)
    except (OcrUnavailable, pytesseract.TesseractNotFoundError):
        return False
    return True


def _read(image: Image.Image, options: ExtractOptions, dpi: int | None) -> tuple[str, float | None]:
    """Runs Tesseract once."""
    # pytesseract writes the image in the format that this attribute names; PNG, its default, costs as much as
    # a tenth of the recognition just to compress a file that is read once.
    image = image.copy()
    image.format = "PPM"
    config = f"--dpi {dpi}" if dpi else ""
    try:
        _check_languages(options.ocr_languages)
        table = pytesseract.image_to_data(image, lang=options.ocr_languages, config=config)
    except pytesseract.TesseractNotFoundError:
        raise OcrUnavailable(
            "OCR needs Tesseract, and no program named 'tesseract' was found on the PATH; install it "
            "(Debian, Ubuntu: apt install tesseract-ocr; macOS: brew install tesseract) or switch OCR off"
        ) from None
    except pytesseract.TesseractError as error:
        message = str(error.message)[-300:]
        raise OcrError(f"Tesseract failed with status {error.status}: {message}") from None
    words = list(_words(table))
    if not words:
        return "", None
    return clean(_layout(words)), round(sum(word.confidence for word in words) / len(words) / 100, 4)


@cache
def _check_languages(languages: str) -> None:
    """Raises `OcrUnavailable` if one is not installed. Tesseract itself goes on silently with those that are."""
    listed = _run_tesseract("--list-langs")
    if listed is None:
        raise pytesseract.TesseractNotFoundError
    missing = [name for name in languages.split("+") if name not in listed.splitlines()]
    if missing:
        raise OcrUnavailable(
            f"Tesseract has no data for the language {', '.join(missing)} (asked for: {languages}); install it "
            f"(Debian, Ubuntu: apt install tesseract-ocr-{missing[0]}; macOS: brew install tesseract-lang) "
            "or name another language"
        )


def _run_tesseract(argument: str) -> str | None:
    """What Tesseract prints, some versions to standard error; None if it is not installed."""
    command = [pytesseract.pytesseract.tesseract_cmd, argument]
    try:
        done = subprocess.run(command, capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (done.stdout + done.stderr).decode("utf-8", "replace")


def _words(table: str) -> Iterator[_Word]:
    """The words in Tesseract's tab-separated table."""
    for row in csv.DictReader(io.StringIO(table), delimiter="\t", quoting=csv.QUOTE_NONE):
        text = (row.get("text") or "").strip()
        if row["level"] == _WORD_LEVEL and text and float(row["conf"]) >= 0:
            yield _Word((row["block_num"], row["par_num"]), row["line_num"], float(row["conf"]), text)


def _layout(words: list[_Word]) -> str:
    """Words to lines and paragraphs."""
    paragraphs: dict[tuple[str, str], dict[str, list[str]]] = {}
    for word in words:
        paragraphs.setdefault(word.paragraph, {}).setdefault(word.line, []).append(word.text)
    return "\n\n".join(
        "\n".join(_BETWEEN_CJK.sub("", " ".join(line)) for line in lines.values()) for lines in paragraphs.values()
    )


def _clockwise_turn(image: Image.Image, dpi: int | None) -> int:
    """By how many degrees (90, 180, 270) the image must be turned clockwise to stand upright; 0 if it does.

    Also 0 where nobody can tell: too few letters, or the data for it is not installed.
    """
    try:
        found = pytesseract.image_to_osd(
            image, config=f"--dpi {dpi}" if dpi else "", output_type=pytesseract.Output.DICT
        )
    except (pytesseract.TesseractError, pytesseract.TesseractNotFoundError):
        return 0
    return int(found["rotate"]) if found.get("orientation_conf", 0.0) >= SURE_ORIENTATION else 0
