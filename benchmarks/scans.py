"""Errors of OCR on scanned pages with known text, by Tesseract alone and with the second engine.

    python -m benchmarks.scans [FOLDER]

The folder has pictures, `*-<number>dpi.jpg`, each beside a text file with the same name. An error is a character that
has to be inserted, removed or replaced (Levenshtein), relative to the characters of the text; line ends are spaces.
Needs rapidfuzz.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from statistics import median

from PIL import Image
from rapidfuzz.distance import Levenshtein

from tasks.readers.ocr import ocr_image
from tasks.readers.records import ExtractOptions

SCANS = Path(__file__).resolve().parents[2] / "shared" / "corpus" / "scans"


def main() -> None:
    """Print a row for each page, and the median and the worst."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else SCANS
    print("| page | Tesseract | both engines | lines read again | time, both / Tesseract |\n|---|---|---|---|---|")
    errors: tuple[list[float], list[float]] = [], []
    ratios = []
    for path in sorted(folder.glob("*dpi.jpg")):
        truth = _spaced(path.with_suffix(".txt").read_text())
        dpi = int(re.findall(r"(\d+)dpi", path.name)[-1])
        with Image.open(path) as file:
            picture = file.convert("L")
        readings, seconds = [], []
        for second in (False, True):
            started = time.perf_counter()
            readings.append(ocr_image(picture, ExtractOptions(ocr_second=second), dpi))
            seconds.append(time.perf_counter() - started)
        for of, reading in zip(errors, readings, strict=True):
            of.append(Levenshtein.distance(_spaced(reading.text), truth) / len(truth))
        ratios.append(seconds[1] / seconds[0])
        alone, both = (f"{of[-1]:.2%}" for of in errors)
        print(f"| {path.stem} | {alone} | {both} | {len(readings[1].again)} | {ratios[-1]:.2f} |", flush=True)
    for name, of in (("median", median), ("worst", max)):
        print(f"| {name} | {of(errors[0]):.2%} | {of(errors[1]):.2%} | | {of(ratios):.2f} |")


def _spaced(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    main()
