"""OCR of page images with Tesseract, in process, through tesserocr; by the system's program where that is missing.

In process, images are passed in memory and the engine is reused: the program reads the language data again for each
page, which costs a third of the recognition on top. A page with low confidence is rotated upright and read again; a
doubtful page, or line, is read by a second engine too (`tasks.readers.second_ocr`). Tesseract is native code that may
crash or abort, so this runs in worker processes (`tasks.ingest.worker`).
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tasks.readers.decode import clean
from tasks.readers.records import ExtractionProblem, ExtractOptions, PageText
from tasks.readers.second_ocr import ENGINE, SecondOcrError, can_read, read_line, read_page, version_of_second
from tasks.readers.text_layer import count_legible

if TYPE_CHECKING:
    from PIL import Image

MAX_SIDE = 32_000  # Tesseract refuses images with a side above 32,767 pixels.
DOUBTFUL_CONFIDENCE = 0.6  # Below this the orientation of the page is checked.
ANY_TURN_CONFIDENCE = 0.5  # Below this all rotations are tried, if the orientation cannot be detected.
PLAIN_CONFIDENCE = 0.75  # Upright pages reach this; rotated ones hardly ever do.
DOUBTFUL_PAGE = 0.85  # Below this the second engine reads the whole page,
DOUBTFUL_WORD = 0.8  # else the lines with a word below this,
MOST_READ_AGAIN = 100  # the most doubtful ones of a page: it takes a tenth of a second for each.
READABLE_SHARE = 0.9  # of the lines have letters that the second engine knows, where it reads the whole page
LEAST_LENGTH = 0.5  # of its reading of a line, relative to Tesseract's
WIDE = 0.6  # share of the width of the text: wider than a column
SURE_ORIENTATION = 1.0  # Tesseract's own scale; it calls 15 reasonably confident, but 1 is better than no rotation.
ENGINES_KEPT = 2  # Each has the data of its languages in memory: 15 MB for English, much more for several.

# A Gaussian with a standard deviation of half a pixel, against the noise of scanners and JPEG before binarisation: the
# median error of 15 scanned pages falls from 1.06 to 1.00 %, the worst from 8.5 to 8.3 %. More blur, a median filter,
# contrast, sharpening, enlarging and Sauvola's threshold did not help, or made some pages much worse.
_SMOOTHING = (1, 7, 1, 7, 52, 7, 1, 7, 1)

_LINE_LEVEL = "4"
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


@dataclass
class Line:
    """A line of an image.

    Attributes:
        paragraph: Numbers of its block and of its paragraph in it.
        box: Left, top, width and height in pixels.
        words: Its words.
        confidences: Of the words, 0 to 1.
        again: True if the second engine read it; then it has that reading as its only word.
    """

    paragraph: tuple[str, str]
    box: tuple[int, int, int, int]
    words: list[str]
    confidences: list[float]
    again: bool = False

    def text(self) -> str:
        """Return the words with spaces between them, of Chinese and Japanese without."""
        return clean(_BETWEEN_CJK.sub("", " ".join(self.words)))


@dataclass(frozen=True)
class Reading:
    """Text that was read in an image.

    Attributes:
        text: Lines end in a line feed, an empty line separates paragraphs.
        confidence: Mean over Tesseract's words, or over the second engine's characters, 0 to 1; None if there are none.
        engine: The names of the engines, joined by " + ".
        again: Numbers, from 1, of the lines that the second engine read.
        problem: Why it could not be asked; else empty.
    """

    text: str
    confidence: float | None
    engine: str = "tesseract"
    again: tuple[int, ...] = ()
    problem: str = ""

    def page(self, number: int) -> PageText:
        """Return the record of a page that has no other text."""
        error = self.problem or None
        return PageText(number, self.text, "ocr", self.engine, self.confidence, error, lines_again=list(self.again))


def ocr_image(image: Image.Image, options: ExtractOptions, dpi: int | None = None) -> Reading:
    """Read the text in an image.

    Args:
        image: The image; others than 8-bit grey ("L") are converted.
        options: The languages, the page segmentation mode, and whether a second engine reads what is doubtful.
        dpi: Resolution in dots per inch, if known; otherwise Tesseract estimates it.

    Raises:
        OcrUnavailable: Tesseract or a language is missing.
        OcrError: Tesseract failed on this image.
    """
    grey = image if image.mode == "L" else image.convert("L")
    upright, found = _read_upright(grey, options, dpi)
    lines = _head_and_foot_outside(found)
    first = _reading(lines)
    if not options.ocr_second or version_of_second() is None:
        return first
    try:
        return _read_again(upright, lines, first, dpi)
    except SecondOcrError as error:
        return replace(first, problem=f"what Tesseract doubted was not read again: {error}")


def _reading(lines: Sequence[Line]) -> Reading:
    rows: list[Line | None] = []  # None is an empty line
    for _, paragraph in groupby(lines, key=lambda line: line.paragraph):
        rows += [None] * bool(rows)
        rows += paragraph
    again = tuple(number for number, line in enumerate(rows, 1) if line and line.again)
    text = "\n".join(line.text() if line else "" for line in rows)
    return Reading(text, _confidence(lines), f"tesseract + {ENGINE}" if again else "tesseract", again)


def _read_upright(grey: Image.Image, options: ExtractOptions, dpi: int | None) -> tuple[Image.Image, list[Line]]:
    """Return the image, rotated if that makes it legible, and its lines."""
    lines = _read(grey, options, dpi)
    confidence = _confidence(lines)
    if confidence is not None and confidence >= DOUBTFUL_CONFIDENCE:
        return grey, lines
    turn = _clockwise_turn(grey, dpi)
    # too few letters to detect the orientation: the first rotation with a high confidence is taken
    unknown = not turn and confidence is not None and confidence < ANY_TURN_CONFIDENCE
    for other in (180, 90, 270) if unknown else filter(None, (turn,)):
        turned = grey.rotate(-other, expand=True, fillcolor=255)
        turned_lines = _read(turned, options, dpi)
        reached = _confidence(turned_lines) or 0.0
        if reached >= PLAIN_CONFIDENCE or (turn and reached > (confidence or 0.0)):
            return turned, turned_lines
    return grey, lines


def _head_and_foot_outside(lines: Sequence[Line]) -> list[Line]:
    """Return the lines with a wide block above or below all others first or last.

    Tesseract may take it for a part of one of the columns.
    """
    blocks: dict[str, list[int]] = {}  # left, top, right and bottom
    for line in lines:
        left, top, width, height = line.box
        own = blocks.setdefault(line.paragraph[0], [left, top, left + width, top + height])
        own[:] = min(own[0], left), min(own[1], top), max(own[2], left + width), max(own[3], top + height)
    if len(blocks) < 2:
        return list(lines)
    text_width = max(box[2] for box in blocks.values()) - min(box[0] for box in blocks.values())

    def place(block: str) -> int:
        left, top, right, bottom = blocks[block]
        others = [box for name, box in blocks.items() if name != block]
        if right - left < WIDE * text_width:
            return 0
        return (top >= max(box[3] for box in others)) - (bottom <= min(box[1] for box in others))

    places = {block: place(block) for block in blocks}
    return sorted(lines, key=lambda line: places[line.paragraph[0]])


def _read_again(grey: Image.Image, lines: Sequence[Line], first: Reading, dpi: int | None) -> Reading:
    """Return the reading with what the second engine is more certain of: the whole of a doubtful page, or its lines."""
    sure, readable = first.confidence or 0.0, [line for line in lines if can_read(line.text())]
    if sure < DOUBTFUL_PAGE and len(readable) >= READABLE_SHARE * len(lines):
        found, confidence = read_page(grey, dpi)
        text = clean(found)
        if count_legible(text) * confidence > count_legible(first.text) * sure:
            again = tuple(number for number, line in enumerate(text.split("\n"), 1) if line)
            return Reading(text, round(confidence, 4), ENGINE, again)
    doubtful = [line for line in readable if min(line.confidences) < DOUBTFUL_WORD]
    for line in sorted(doubtful, key=lambda line: min(line.confidences))[:MOST_READ_AGAIN]:
        text, confidence = read_line(grey, line.box)
        is_surer = confidence > sum(line.confidences) / len(line.confidences)
        if is_surer and len(text) >= LEAST_LENGTH * len(line.text()):
            line.words, line.confidences, line.again = [text], [confidence] * len(line.words), True
    return _reading(lines)


def _confidence(lines: Iterable[Line]) -> float | None:
    confidences = [value for line in lines for value in line.confidences]
    return round(sum(confidences) / len(confidences), 4) if confidences else None


def engine_version() -> str | None:
    """Return Tesseract's version, for example "5.5.4", or None without it."""
    library = _tesserocr()
    try:
        told = _program("--version", seconds=20) if library is None else library.tesseract_version()
    except (OcrUnavailable, OcrError):
        return None
    return str(told).split("\n", 1)[0].removeprefix("tesseract").strip().removeprefix("v")


def ocr_ready(languages: str) -> bool:
    """Return True if Tesseract and the data of all of these languages (codes joined by "+") are installed."""
    return engine_version() is not None and find_tessdata(languages) is not None


def _read(grey: Image.Image, options: ExtractOptions, dpi: int | None) -> list[Line]:
    folder = find_tessdata(options.ocr_languages)
    if folder is None:
        raise OcrUnavailable(_explain_missing(options.ocr_languages))
    if _tesserocr() is None:
        return _lines(_read_by_program(grey, folder, options.ocr_languages, options.ocr_page_segmentation, dpi))
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
    return _lines(table)


def _set_image(engine: Any, grey: Image.Image, dpi: int | None) -> None:
    smooth = _smooth(grey)
    engine.SetImageBytes(smooth.tobytes(), smooth.width, smooth.height, 1, smooth.width)
    if dpi:
        engine.SetSourceResolution(dpi)


def _smooth(grey: Image.Image) -> Image.Image:
    from PIL import ImageFilter

    return grey.filter(ImageFilter.Kernel((3, 3), _SMOOTHING))


@cache
def _tesserocr() -> ModuleType | None:
    """Import tesserocr on first use; `plan` does not need it. None where it cannot be loaded."""
    try:
        import tesserocr
    except ImportError:
        return None
    module: ModuleType = tesserocr
    return module


@lru_cache(maxsize=ENGINES_KEPT)
def _engine(folder: Path, languages: str, page_segmentation: int) -> Any:
    """Return an engine of tesserocr, cached for many pages; Tesseract learns nothing from page to page."""
    library = _tesserocr()
    assert library is not None
    try:
        engine = library.PyTessBaseAPI(path=f"{folder}/", lang=languages, psm=page_segmentation)
    except RuntimeError as error:
        raise OcrUnavailable(
            f"Tesseract cannot use the data for {languages} in {folder} ({error}); reinstall them or name another "
            "language"
        ) from None
    engine.SetVariable("debug_file", os.devnull)
    return engine


def _program(*arguments: str, given: bytes = b"", seconds: float | None = None) -> str:
    """Return what the `tesseract` program prints; it is killed with the worker, whose process group it is in."""
    threads = {"OMP_THREAD_LIMIT": "1"}  # on busy cores its threads wait for each other many times longer
    try:
        done = subprocess.run(
            ["tesseract", *arguments], input=given, capture_output=True, env={**os.environ, **threads}, timeout=seconds
        )
    except (FileNotFoundError, PermissionError) as error:
        raise OcrUnavailable(
            "OCR needs the Python package tesserocr, which cannot be loaded, or the program tesseract, which cannot be "
            f"started ({error}); install one (pip install tesserocr, apt install tesseract-ocr) or switch OCR off"
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OcrError(f"the program tesseract cannot be run: {error}") from None
    if done.returncode < 0:  # killed, most likely for its memory, or aborted: as if it had happened in this process
        raise MemoryError(f"the program tesseract was ended by signal {-done.returncode}")
    told = done.stderr.decode("utf-8", "replace").strip()
    if "Could not initialize tesseract" in told:
        raise OcrUnavailable(f"Tesseract cannot use its language data: {told}; reinstall them or name another language")
    if done.returncode:
        raise OcrError(f"the program tesseract ended with {done.returncode}: {(told.splitlines() or [''])[-1]}")
    return done.stdout.decode("utf-8", "replace")


def _read_by_program(grey: Image.Image, folder: Path, languages: str, page_segmentation: int, dpi: int | None) -> str:
    """Return what the program prints of an image: a TSV table, or its orientation."""
    smooth = _smooth(grey)
    resolution = ["--dpi", str(dpi)] if dpi else []
    options = ["--tessdata-dir", str(folder), "-l", languages, "--psm", str(page_segmentation), *resolution]
    image = b"P5 %d %d 255\n" % smooth.size + smooth.tobytes()
    return _program("stdin", "stdout", *options, "-c", "tessedit_create_tsv=1", given=image)


def _lines(table: str) -> list[Line]:
    """Return the lines with words in Tesseract's TSV output."""
    lines: list[Line] = []
    for row in table.split("\n"):
        # Level, page, block, paragraph, line, word, left, top, width, height, confidence, text.
        cells = row.split("\t", _TABLE_COLUMNS - 1)
        if cells[0] == _LINE_LEVEL:
            left, top, width, height = map(int, cells[6:10])
            lines.append(Line((cells[2], cells[3]), (left, top, width, height), [], []))
        elif cells[0] == _WORD_LEVEL and len(cells) == _TABLE_COLUMNS:
            word, confidence = cells[11].strip(), float(cells[10])
            if word and confidence >= 0:
                lines[-1].words.append(word)
                lines[-1].confidences.append(confidence / 100)
    return [line for line in lines if line.words]


def _clockwise_turn(grey: Image.Image, dpi: int | None) -> int:
    """Return the clockwise rotation in degrees (90, 180, 270) that turns an image upright; 0 if none or unknown.

    It is unknown with too few letters or without the `osd` data.
    """
    folder = find_tessdata("osd")
    if folder is None:
        return 0
    if _tesserocr() is None:
        return _turn_by_program(grey, folder, dpi)
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


def _turn_by_program(grey: Image.Image, folder: Path, dpi: int | None) -> int:
    try:
        told = _read_by_program(grey, folder, "osd", _ORIENTATION_ONLY, dpi)
    except (OcrError, OcrUnavailable):  # too few letters, or data of another version
        return 0
    found = {name: value for name, _, value in (line.partition(": ") for line in told.splitlines())}
    sure = float(found.get("Orientation confidence", 0)) >= SURE_ORIENTATION
    return int(found.get("Rotate", 0)) if sure else 0


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
