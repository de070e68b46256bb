"""Pages of known text, damaged in grades and read by OCR: what is misread, and how well it is found without the truth.

    python -m benchmarks.ocr_value [--documents FOLDER] [--pages 30] [--dpi 200]

Pages of PDFs are rendered, made coarser, blurred and noisy, and read by Tesseract. The character error of a passage is
its Levenshtein distance from the part of the page's text layer that is most like it, over its length. Passages are then
told apart by the estimate of the stage `legibility`, whose model is fitted on all other pages, by Tesseract's
confidence in the page, and by both, as the stage does. The area under the curve is 1 if every bad passage comes before
every good one, and 0.5 by chance. Needs rapidfuzz.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pypdfium2 as pdfium
from PIL import Image, ImageFilter
from rapidfuzz.distance import Levenshtein
from rapidfuzz.fuzz import partial_ratio_alignment
from sklearn.metrics import roc_auc_score

from tasks.curate.legibility import PART, Characters, believed, page_places, room
from tasks.readers.ocr import ocr_image
from tasks.readers.pdf import extract_pdf
from tasks.readers.records import ExtractOptions

DOCUMENTS = Path(__file__).resolve().parents[2] / "shared" / "corpus" / "documents"
LEAST = 800  # characters of a page that is read
BAD = (0.05, 0.1, 0.2, 0.3)  # character errors from which a passage is bad
SEED = 0


@dataclass(frozen=True)
class Damage:
    """A grade of damage.

    Attributes:
        scale: Resolution that is left, relative to that of the page.
        noise: Standard deviation of the noise, in grey levels of 255.
        specks: Share of black pixels.
    """

    scale: float = 1.0
    noise: float = 0.0
    specks: float = 0.0

    def apply(self, picture: Image.Image, generator: np.random.Generator) -> Image.Image:
        """Return a damaged picture of the same size."""
        if self == GRADES[0]:
            return picture
        small = picture.resize([round(side * self.scale) for side in picture.size], Image.Resampling.BILINEAR)
        grey = np.asarray(small.filter(ImageFilter.GaussianBlur(0.5 / self.scale)), dtype=float)
        grey = grey + generator.normal(0, self.noise, grey.shape)
        grey[generator.random(grey.shape) < self.specks] = 0
        return Image.fromarray(grey.clip(0, 255).astype(np.uint8)).resize(picture.size, Image.Resampling.BICUBIC)


GRADES = (Damage(), Damage(0.75, 4, 0.0005), Damage(0.68, 8, 0.001), Damage(0.6, 12, 0.002), Damage(0.54, 16, 0.003))


@dataclass(frozen=True)
class Passage:
    """A passage of a page that was read.

    Attributes:
        error: Character error.
        estimate: Estimated share of misread characters, by the characters alone.
        both: The same, with the confidence of the page.
    """

    grade: int
    error: float
    estimate: float
    both: float
    confidence: float


def passages(documents: Path, n_pages: int, dpi: int) -> Iterator[Passage]:
    """Yield the passages of damaged pages."""
    chosen, others = _choose(documents, n_pages)
    known = Characters.fit([text[start : start + PART] for text in others for start in range(0, len(text), PART)])
    options = ExtractOptions(ocr_second=False)  # by whose confidence the stage estimates errors
    for number, (path, index, text) in enumerate(chosen):
        truth = _spaced(text)
        with closing(pdfium.PdfDocument(path)) as document, closing(document[index]) as page:
            picture = page.render(scale=dpi / 72, grayscale=True).to_pil()
        for grade, damage in enumerate(GRADES):
            generator = np.random.default_rng([SEED, number, grade])
            reading = ocr_image(damage.apply(picture, generator), options, dpi)
            read, confidence = reading.text, reading.confidence
            if confidence is None:
                continue
            found = list(known.passages(read))
            bounded = believed(found, page_places(read, [(read, room("ocr", "", confidence))]))
            for (start, length, estimate), (*_, both) in zip(found, bounded, strict=True):
                error = _error(_spaced(read[start : start + length]), truth)
                yield Passage(grade, error, estimate, both, confidence)


def text_pages(documents: Path) -> list[tuple[Path, int, str]]:
    """Return file, index from 0 and text of all pages with a text layer."""
    options = ExtractOptions(ocr=False, markdown=False)
    return [
        (path, page.page - 1, page.text)
        for path in sorted(documents.glob("*.pdf"))
        for page in extract_pdf(path.read_bytes(), options)
        if page.method == "text"
    ]


def _choose(documents: Path, n_pages: int) -> tuple[list[tuple[Path, int, str]], list[str]]:
    """Return pages to read, with their texts, and the texts of all other pages."""
    pages = text_pages(documents)
    enough = [page for page in pages if len(page[2]) >= LEAST]
    chosen = random.Random(SEED).sample(enough, min(n_pages, len(enough) // 2))
    taken = {page[:2] for page in chosen}
    return chosen, [text for path, index, text in pages if (path, index) not in taken]


def _spaced(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("-\n", ""))


def _error(read: str, truth: str) -> float:
    """Return the character error of a passage beside the part of a page that is most like it."""
    place = partial_ratio_alignment(read, truth) if len(read) <= len(truth) else None
    return Levenshtein.distance(read, truth[place.dest_start : place.dest_end] if place else truth) / len(read)


def _table(found: Sequence[Passage]) -> Iterator[str]:
    yield "| grade | passages | character error: median / worst | estimate: median | confidence |"
    yield "|---|---|---|---|---|"
    for grade in range(len(GRADES)):
        own = [passage for passage in found if passage.grade == grade]
        errors = [passage.error for passage in own]
        estimate, confidence = (statistics.median(getattr(p, name) for p in own) for name in ("both", "confidence"))
        yield (
            f"| {grade} | {len(own)} | {statistics.median(errors):.3f} / {max(errors):.3f} | {estimate:.3f} | "
            f"{confidence:.3f} |"
        )
    yield "\n| bad from a character error of | share | by the characters | by confidence | by both |"
    yield "|---|---|---|---|---|"
    for limit in BAD:
        bad = [passage.error >= limit for passage in found]
        areas = (
            roc_auc_score(bad, [passage.estimate for passage in found]),
            roc_auc_score(bad, [-passage.confidence for passage in found]),
            roc_auc_score(bad, [passage.both for passage in found]),
        )
        yield f"| {limit:.2f} | {statistics.mean(bad):.2f} | " + " | ".join(f"{area:.3f}" for area in areas) + " |"


def main() -> None:
    """Read, judge and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=Path, default=DOCUMENTS)
    parser.add_argument("--pages", type=int, default=30)
    parser.add_argument("--dpi", type=int, default=200)
    chosen = parser.parse_args()
    started = time.perf_counter()
    found = list(passages(chosen.documents, chosen.pages, chosen.dpi))
    print("\n".join(_table(found)))
    print(f"\n{chosen.pages} pages, {len(found)} passages, {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
