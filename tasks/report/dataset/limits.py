"""What is known to be weak about a dataset, as sentences: each follows from a figure and states it."""

from __future__ import annotations

from collections.abc import Iterator

from tasks.report.corpus.figures import Figures
from tasks.report.corpus.queries import DOUBTFUL
from tasks.report.corpus.reasons import reason_of
from tasks.report.dataset.figures import DatasetFigures
from tasks.report.dataset.notes import notes
from tasks.report.wording import counted, percent, share


def limits(figures: DatasetFigures, files: Figures) -> list[str]:
    """The sentences; there is always one."""
    found = [*_of_reading(files), *_of_languages(figures), *_of_documents(figures, files)]
    found += [f"{note.title}. {note.remedy}".strip() for note in notes(figures)]
    return found or ["No figure of this dataset is out of the ordinary."]


def _of_reading(files: Figures) -> Iterator[str]:
    """How well the files were read."""
    pages = sum(kind.n for kind in files.pages)
    by_ocr = [kind for kind in files.pages if kind.method in ("ocr", "both")]
    n = sum(kind.n for kind in by_ocr)
    if n:
        judged = [(kind.confidence, kind.n) for kind in by_ocr if kind.confidence is not None]
        mean = sum(value * weight for value, weight in judged) / (sum(weight for _, weight in judged) or 1)
        doubtful = f"; {files.doubtful_pages:,} of them below {share(DOUBTFUL, 1)} hold wrong letters"
        doubtful = doubtful if files.doubtful_pages else ""
        yield (
            f"{n:,} of {counted(pages, 'page')} ({share(n, pages)}) were read by OCR, with a mean confidence of "
            f"{percent(mean)}{doubtful}."
        )
    errors = sum(kind.errors for kind in files.pages)
    if errors:
        yield f"{counted(errors, 'page')} could not be read, or only in part; their documents lack that text."
    partly = [item for item in files.outcomes if item.status == "ok" and item.code]
    for item in partly:
        yield f"{counted(item.n, 'file')} read only in part: {reason_of(item.code).meaning}."
    for item in files.outcomes:
        if item.status in ("failed", "rejected"):
            meaning = reason_of(item.code).meaning
            yield f"{counted(item.n, 'file')} gave no text: {meaning}."
    if files.capped:
        yield f"{counted(files.capped, 'group')} of look-alikes were too large to compare: duplicates may be left."


def _of_languages(figures: DatasetFigures) -> Iterator[str]:
    prose = sum(item.tokens for item in figures.languages)
    unknown = next((item for item in figures.languages if item.name == "und"), None)
    if unknown:
        yield (
            f"The language of {counted(unknown.documents, 'document')} of prose ({share(unknown.tokens, prose)} of its "
            "tokens) could not be determined."
        )
    known = [item for item in figures.languages if item.name not in ("und", "zxx")]
    if len(known) > 1:
        rest = ", ".join(f"{item.name} {share(item.tokens, prose)}" for item in known[1:6])
        yield f"Prose is {share(known[0].tokens, prose)} {known[0].name}; of other languages: {rest}."
    elif known:
        yield f"All prose whose language is known is {known[0].name}."


def _of_documents(figures: DatasetFigures, files: Figures) -> Iterator[str]:
    total = figures.total
    unknown = next((item for item in figures.licences if item.name == "unknown"), None)
    if unknown:
        yield (
            f"No licence was found for {counted(unknown.documents, 'document')} "
            f"({share(unknown.tokens, total.tokens)} of the tokens)."
        )
    left = [item for item in files.private if not item.redacted]
    if left:
        kinds = ", ".join(f"{item.kind} {item.spans:,}" for item in left)
        yield f"What looks like personal data of these kinds was left in the text: {kinds}."
    held_out = figures.split("validation")
    if held_out.documents:
        yield (
            f"Figures of quality rest on {counted(held_out.documents, 'held-out document')} with "
            f"{counted(held_out.tokens, 'token')}."
        )
