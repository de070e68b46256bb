"""Cost of misread text for a network: equal trainings on the same pages, as they are and as OCR reads them.

    python -m benchmarks.ocr_learning [--documents FOLDER] [--pages 500] [--dpi 200] [--grade 3]
        [--steps 400,800,1600] [--folder FOLDER]

Pages of PDFs are a corpus four times: as true text; and with four of five pages as damaged pictures, read by Tesseract
alone, by both engines, and by both as is the default: misread words mended, and passages whose estimated error exceeds
`policy.max_error_rate` cut. `sheepfold train` reads each and trains the smallest network for equal numbers of steps, so
of tokens. The models are judged on true text of other pages of the same PDFs. Efficiency is the share of these steps
after which the training on true text has as few bits per byte, interpolated between its lengths. Intervals are of the
paired bootstrap over pages.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pypdfium2 as pdfium

from benchmarks.ocr_value import DOCUMENTS, GRADES, LEAST, SEED, text_pages
from benchmarks.recipe import Texts, ours
from tasks.core.settings import PROPOSED
from tasks.evaluation.compare import paired_bootstrap

Page = tuple[Path, int, str]  # file, index from 0, text of the layer

HELD, CLEAN = 6, 5  # every so many pages is for judging, and of the others one remains text
AS_READ: dict[str, object] = {"refine.mend": False, "policy.max_error_rate": 1}
RECIPE = {"model.preset": "modern-200k", **{f"train.{name}": value for name, value in PROPOSED.items()}}
# folder, settings
ARMS: dict[str, tuple[str, dict[str, object]]] = {
    "true text": ("text", {}),
    "Tesseract": ("pictures", {"extract.ocr_second": False, **AS_READ}),
    "both engines": ("pictures", AS_READ),
    "both, mended and cut": ("pictures", {}),
}


def write(pages: Sequence[Page], folder: Path, grade: int, dpi: int) -> None:
    """Write the pages as text, and most of them as damaged pictures."""
    for name in ("text", "pictures"):
        (folder / name / "train").mkdir(parents=True, exist_ok=True)
    for number, (path, index, text) in enumerate(pages):
        stem = f"train/{path.stem}-{index + 1:04}"
        (folder / "text" / f"{stem}.txt").write_text(text, encoding="utf-8")
        if number % CLEAN == 0:
            (folder / "pictures" / f"{stem}.txt").write_text(text, encoding="utf-8")
            continue
        with closing(pdfium.PdfDocument(path)) as document, closing(document[index]) as page:
            picture = page.render(scale=dpi / 72, grayscale=True).to_pil()
        damaged = GRADES[grade].apply(picture, np.random.default_rng([SEED, number, grade]))
        damaged.save(folder / "pictures" / f"{stem}.jpg", quality=90, dpi=(dpi, dpi))


def rows(folder: Path, held: Sequence[str], steps: Sequence[int]) -> Iterator[str]:
    """Train, and yield the rows of the table."""
    n_bytes = np.array([len(text.encode()) for text in held])
    truth: list[np.ndarray] = []  # nats of each page, by steps
    for arm, (source, settings) in ARMS.items():
        texts = Texts(arm, (), held, folder / source, folder / f"home-{source}")
        found = [ours(texts, 0.0, 1, {**RECIPE, **settings, "train.max_steps": n_steps}).nats for n_steps in steps]
        truth = truth or found
        bits, reached = ([float(nats.sum() / math.log(2) / n_bytes.sum()) for nats in side] for side in (found, truth))
        for place, n_steps in enumerate(steps):
            change = paired_bootstrap(found[place], truth[place], n_bytes)
            # bits per byte of the training on true text fall with the logarithm of its steps
            alike = math.exp(np.interp(-bits[place], -np.array(reached), np.log(steps))) / n_steps
            efficiency = f"below {alike:.2f}" if bits[place] > reached[0] else f"{alike:.2f}"
            more = f"{change.value:+.4f} ({change.low:+.4f} to {change.high:+.4f})"
            yield f"| {arm} | {n_steps:,} | {bits[place]:.4f} | {more} | {efficiency} |"


def main() -> None:
    """Write the corpora, train and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=Path, default=DOCUMENTS)
    parser.add_argument("--pages", type=int, default=500)
    parser.add_argument("--dpi", type=int, default=200)
    parser.add_argument("--grade", type=int, default=3, help=f"of damage, 0 to {len(GRADES) - 1}")
    parser.add_argument("--steps", default="400,800,1600")
    parser.add_argument("--folder", type=Path, help="for the corpora and homes; an earlier one goes on")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        enough = [page for page in text_pages(asked.documents) if len(page[2]) >= LEAST]
        pages = random.Random(SEED).sample(enough, min(asked.pages, len(enough)))
        write([page for number, page in enumerate(pages) if number % HELD], folder, asked.grade, asked.dpi)
        held = [text for *_, text in pages[::HELD]]
        print("| training text | steps | bits per byte of true text | more than on true text | efficiency |")
        print("|---|---:|---:|---|---:|")
        for row in rows(folder, held, sorted(map(int, asked.steps.split(",")))):
            print(row, flush=True)


if __name__ == "__main__":
    main()
