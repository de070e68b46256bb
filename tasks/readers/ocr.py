"""OCR of page images with Tesseract, in process, through tesserocr.

Images are passed in memory and the engine is reused: starting the program for each page, with a file of the image and
the language data read again, costs a third of the recognition on top. A page with low confidence is rotated upright and
read again. Tesseract is native code that may crash or abort, so this runs in worker processes (`tasks.ingest.worker`).
"""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tasks.readers.decode import clean
from tasks.readers.records import ExtractionProblem, ExtractOptions

if TYPE_CHECKING:
    from PIL import Image

MAX_SIDE = 32_000  # Tesseract refuses images with a side above 32,767 pixels.
DOUBTFUL_CONFIDENCE = 0.6  # Below this the orientation of the page is checked.
ANY_TURN_CONFIDENCE = 0.5  # Below this all rotations are tried, if the orientation cannot be detected.
PLAIN_CONFIDENCE = 0.75  # Upright pages reach this; rotated ones hardly ever do.
SURE_ORIENTATION = 1.0  # Tesseract's own scale; it calls 15 reasonably confident, but 1 is better than no rotation.
ENGINES_KEPT = 2  # Each has the data of its languages in memory: 15 MB for English, much more for several.

# A Gaussian with a standard deviation of half a pixel, against the noise of scanners and JPEG before binarisation: the
# median error of 15 scanned pages falls from 1.06 to 1.00 %, the worst from 8.5 to 8.3 %. More blur, a median filter,
# contrast, sharpening, enlarging and Sauvola's threshold did not help, or made some pages much worse.
_SMOOTHING = (1, 7, 1, 7, 52, 7, 1, 7, 1)

_WORD_LEVEL = "5"
_TABLE_COLUMNS = 12
_ORIENTATION_ONLY = 0  # The page segmentation mode that reads no text.
_BETWEEN_CJK = re.compile(r"(?<=[\u3040-\u30ff\u3400-\u9fff]) (?=[\u3040-\u30ff\u3400-\u9fff])")


class OcrUnavailable(ExtractionProblem):
    """Raised when Tesseract or a requested language is not installed."""

    def __init__(self, reason: str) -> None:
        super().__init__("failed", "no_ocr_engine", reason)


class OcrError(Exception):
    """Raised when Tesseract fails on an image."""


def ocr_image(image: Image.Image, options: ExtractOptions, dpi: int | None = None) -> tuple[str, float | None]:
    """Read the text in an image.

    Args:
        image: The image; others than 8-bit grey ("L") are converted.
        options: The languages and the page segmentation mode.
        dpi: Resolution in dots per inch, if known; otherwise Tesseract estimates it.

    Returns:
        The text (lines end in a line feed, an empty line separates paragraphs) and the mean confidence of its words,
        0 to 1; None if there are no words.

    Raises:
        OcrUnavailable: Tesseract or a language is missing.
        OcrError: Tesseract failed on this image.
    """
    grey = image if image.mode == "L" else image.convert("L")
    text, confidence = _read(grey, options, dpi)
    if confidence is not None and confidence >= DOUBTFUL_CONFIDENCE:
        return text, confidence
    turn = _clockwise_turn(grey, dpi)
    if turn:
        turned_text, turned_confidence = _read_turned(grey, turn, options, dpi)
        if (turned_confidence or 0.0) > (confidence or 0.0):
            return turned_text, turned_confidence
    elif confidence is not None and confidence < ANY_TURN_CONFIDENCE:
        # too few letters to detect the orientation: the first rotation with a high confidence is taken
        for other in (180, 90, 270):
            turned_text, turned_confidence = _read_turned(grey, other, options, dpi)
            if (turned_confidence or 0.0) >= PLAIN_CONFIDENCE:
                return turned_text, turned_confidence
    return text, confidence


def _read_turned(grey: Image.Image, turn: int, options: ExtractOptions, dpi: int | None) -> tuple[str, float | None]:
    return _read(grey.rotate(-turn, expand=True, fillcolor=255), options, dpi)


def engine_version() -> str | None:
    """Return Tesseract's version, for example "5.5.4", or None if it cannot be loaded."""
    try:
        first = str(_tesserocr().tesseract_version()).split("\n", 1)[0]
    except OcrUnavailable:
        return None
    return first.removeprefix("tesseract").strip().removeprefix("v")


def ocr_ready(languages: str) -> bool:
    """Return True if Tesseract and the data of all of these languages (codes joined by "+") are installed."""
    return engine_version() is not None and find_tessdata(languages) is not None


def _read(grey: Image.Image, options: ExtractOptions, dpi: int | None) -> tuple[str, float | None]:
    _tesserocr()
    folder = find_tessdata(options.ocr_languages)
    if folder is None:
        raise OcrUnavailable(_explain_missing(options.ocr_languages))
    engine = _engine(folder, options.ocr_languages, options.ocr_page_segmentation)
    try:
        _set_image(engine, grey, dpi)
        if not engine.Recognize():
            raise OcrError(f"Tesseract gave up on an image of {grey.width} x {grey.height} pixels")
        table = engine.GetTSVText(0)
    except RuntimeError as error:
        _engine.cache_clear()  # its state is unknown; the next page gets a new engine
        raise OcrError(f"Tesseract failed on an image of {grey.width} x {grey.height} pixels: {error}") from None
    finally:
        engine.Clear()
    return _words(table)


def _set_image(engine: Any, grey: Image.Image, dpi: int | None) -> None:
    from PIL import ImageFilter

    smooth = grey.filter(ImageFilter.Kernel((3, 3), _SMOOTHING))
    engine.SetImageBytes(smooth.tobytes(), smooth.width, smooth.height, 1, smooth.width)
    if dpi:
        engine.SetSourceResolution(dpi)


@cache
def _tesserocr() -> ModuleType:
    """Import tesserocr on first use; `plan` does not need it."""
    try:
        import tesserocr
    except ImportError as error:
        raise OcrUnavailable(
            f"OCR needs the Python package tesserocr, which cannot be loaded ({error}); install it (pip install "
            "tesserocr) or switch OCR off"
        ) from None
    module: ModuleType = tesserocr
    return module


@lru_cache(maxsize=ENGINES_KEPT)
def _engine(folder: Path, languages: str, page_segmentation: int) -> Any:
    """Return an engine, cached for many pages; Tesseract learns nothing from page to page."""
    try:
        engine = _tesserocr().PyTessBaseAPI(path=f"{folder}/", lang=languages, psm=page_segmentation)
    except RuntimeError as error:
        raise OcrUnavailable(
            f"Tesseract cannot use the data for {languages} in {folder} ({error}); reinstall them or name another "
            "language"
        ) from None
    engine.SetVariable("debug_file", os.devnull)
    return engine


def _words(table: str) -> tuple[str, float | None]:
    """Return text and mean confidence from Tesseract's TSV output."""
    paragraphs: dict[tuple[str, str], dict[str, list[str]]] = {}
    confidences: list[float] = []
    for row in table.split("\n"):
        # Level, page, block, paragraph, line, word, left, top, width, height, confidence, text.
        cells = row.split("\t", _TABLE_COLUMNS - 1)
        if cells[0] != _WORD_LEVEL or len(cells) < _TABLE_COLUMNS:
            continue
        word, confidence = cells[11].strip(), float(cells[10])
        if word and confidence >= 0:
            lines = paragraphs.setdefault((cells[2], cells[3]), {})
            lines.setdefault(cells[4], []).append(word)
            confidences.append(confidence)
    if not confidences:
        return "", None
    text = "\n\n".join(
        "\n".join(_BETWEEN_CJK.sub("", " ".join(line)) for line in lines.values()) for lines in paragraphs.values()
    )
    return clean(text), round(sum(confidences) / len(confidences) / 100, 4)


def _clockwise_turn(grey: Image.Image, dpi: int | None) -> int:
    """Return the clockwise rotation in degrees (90, 180, 270) that turns an image upright; 0 if none or unknown.

    It is unknown with too few letters or without the `osd` data.
    """
    folder = find_tessdata("osd")
    if folder is None:
        return 0
    try:
        engine = _engine(folder, "osd", _ORIENTATION_ONLY)
    except OcrUnavailable:  # data of another version: orientation stays unknown
        return 0
    try:
        _set_image(engine, grey, dpi)
        found = engine.DetectOrientationScript()
    except RuntimeError:
        return 0
    finally:
        engine.Clear()
    if not found or found["orient_conf"] < SURE_ORIENTATION:
        return 0
    return int(-found["orient_deg"] % 360)


# Debian and Ubuntu (a folder for each major version), Fedora and openSUSE, Arch and Alpine, builds from source,
# Homebrew on both kinds of Mac, MacPorts; conda is added below.
USUAL_PLACES = (
    "/usr/share/tesseract-ocr/[0-9]*/tessdata",
    "/usr/share/tesseract-ocr/tessdata",
    "/usr/share/tesseract/tessdata",
    "/usr/share/tessdata",
    "/usr/local/share/tessdata",
    "/opt/homebrew/share/tessdata",
    "/opt/local/share/tessdata",
)
_SUFFIX = ".traineddata"


def find_tessdata(languages: str) -> Path | None:
    """Return a folder with the data of all languages (codes joined by "+"); None if no single folder has all."""
    names = languages.split("+")
    folders = _folders(os.environ.get("TESSDATA_PREFIX"))
    return next((folder for folder in folders if not _missing(folder, names)), None)


def _missing(folder: Path, names: list[str]) -> list[str]:
    return [name for name in names if not (folder / f"{name}{_SUFFIX}").is_file()]


def _explain_missing(languages: str) -> str:
    """Return the error message for missing language data."""
    prefix = os.environ.get("TESSDATA_PREFIX")
    folders = _folders(prefix)
    if not any(any(folder.glob(f"*{_SUFFIX}")) for folder in folders):
        where = f"the folder that TESSDATA_PREFIX names ({prefix})" if prefix else "the usual folders"
        return (
            f"OCR needs Tesseract's language data, and none was found in {where}; install it (Debian, Ubuntu: "
            "apt install tesseract-ocr; Fedora: dnf install tesseract; macOS: brew install tesseract), set "
            "TESSDATA_PREFIX to the folder with the .traineddata files, or switch OCR off"
        )
    names = languages.split("+")
    best = min(folders, key=lambda folder: len(_missing(folder, names)))
    missing = _missing(best, names)
    return (
        f"Tesseract has no data for the language {', '.join(missing)} in {best} (asked for: {languages}); install it "
        f"(Debian, Ubuntu: apt install tesseract-ocr-{missing[0].lower().replace('_', '-')}; Fedora: dnf install "
        f"tesseract-langpack-{missing[0]}; macOS: brew install tesseract-lang) or name another language"
    )


@cache
def _folders(prefix: str | None) -> tuple[Path, ...]:
    if prefix:
        # Tesseract 3 expected the parent folder, and many installations still set it
        return tuple(filter(Path.is_dir, (Path(prefix), Path(prefix) / "tessdata")))
    # the newest version first
    found = [folder for place in USUAL_PLACES for folder in sorted(Path("/").glob(place.lstrip("/")), reverse=True)]
    if "CONDA_PREFIX" in os.environ:
        found.append(Path(os.environ["CONDA_PREFIX"]) / "share" / "tessdata")
    return tuple(filter(Path.is_dir, found)) or _folder_of_the_program()


def _folder_of_the_program() -> tuple[Path, ...]:
    """Return the folder that the `tesseract` program reports; () without the program."""
    try:
        done = subprocess.run(["tesseract", "--list-langs"], capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    named = re.search(r'languages in "?([^"\n]*?)"? \(\d+\)', (done.stdout + done.stderr).decode("utf-8", "replace"))
    return (Path(named[1]),) if named and Path(named[1]).is_dir() else ()
