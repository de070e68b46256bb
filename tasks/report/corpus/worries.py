"""What a person should look at first, the gravest first: drawn from the figures by plain rules."""

from __future__ import annotations

from collections.abc import Iterator

from tasks.report.corpus.figures import Figures, Outcome
from tasks.report.corpus.queries import DOUBTFUL
from tasks.report.corpus.reasons import group_of, reason_of
from tasks.report.wording import counted, share
from tasks.report.worries import Level, Worry, ordered

FEW_HELD_OUT = 0.02  # share of the text below which a measured loss says little
MUCH_DROPPED = 0.25  # share of the documents that one threshold may drop before it is to be looked at
GIANT_CLUSTER = 0.05  # share of the documents in one cluster
FEW = 20  # documents below which shares say nothing


def worries(figures: Figures) -> list[Worry]:
    """All there is to worry about; empty if there is nothing."""
    found = [*_of_files(figures), *_of_pages(figures), *_of_curation(figures), *_of_split(figures), *_of_text(figures)]
    return ordered(found)


def _of_files(figures: Figures) -> Iterator[Worry]:
    if not figures.n_rows:
        yield Worry("lost", 1, "No file was found", "Look at the sources, patterns and ignore files.", "", "files")
    elif not figures.n_documents:
        yield Worry("lost", figures.n_rows, "No file gave any text", "The reasons are below.", "", "files")
    for item in figures.outcomes:
        reason = reason_of(item.code)
        if not item.code or reason.weight == "by design":
            continue
        level: Level = "lost" if reason.weight == "lost" else "check"
        what = "read only in part" if item.status == "ok" else "not read"
        title = f"{counted(item.n, 'file')} {what}: {reason.meaning}"
        yield Worry(level, item.n, title, reason.remedy, item.path, "files")


def _of_pages(figures: Figures) -> Iterator[Worry]:
    errors = sum(kind.errors for kind in figures.pages)
    if errors:
        first = figures.page_errors[0].path if figures.page_errors else ""
        title = f"{counted(errors, 'page')} could not be read, or only in part"
        yield Worry("check", errors, title, "The errors are listed with the pages.", first, "pages")
    if figures.doubtful_pages:
        worst = figures.worst_pages[0].path if figures.worst_pages else ""
        title = f"{counted(figures.doubtful_pages, 'page')} read by OCR with a confidence below {share(DOUBTFUL, 1)}"
        remedy = "Look at their pictures in the report: a better scan, another language for OCR, or leave them out."
        yield Worry("check", figures.doubtful_pages, title, remedy, worst, "pages")


def _of_curation(figures: Figures) -> Iterator[Worry]:
    if figures.n_documents and not figures.sides and not figures.dropped:
        yield Worry("check", 1, "Nothing was curated yet", "Run sheepfold ingest to the end.", "", "split")
    elif figures.n_documents and not figures.kept:
        title, remedy = "Curation dropped every document", "Look at the thresholds: the reasons are below."
        yield Worry("lost", figures.n_documents, title, remedy, "", "dropped")
    for item in figures.dropped:
        if _is_much(item, figures):
            title = f"{counted(item.n, 'document')} dropped by one rule: {item.code.replace('_', ' ')}"
            remedy = f"Is that meant? The first: {item.reason}."
            yield Worry("check", item.n, title, remedy, item.path, "dropped")
    if figures.capped:
        title = f"{counted(figures.capped, 'group')} of look-alikes too large to be compared in full"
        yield Worry("note", figures.capped, title, "Raise dedup.max_bucket if duplicates are left.", "", "duplicates")
    largest = figures.clusters[0] if figures.clusters else None
    if largest and figures.n_documents >= FEW and largest.size > GIANT_CLUSTER * figures.n_documents:
        title = f"One cluster of near-duplicates holds {largest.size:,} of {figures.n_documents:,} documents"
        remedy = "A template or a cover page may make different documents look alike."
        yield Worry("check", largest.size, title, remedy, largest.paths[0], "duplicates")


def _is_much(item: Outcome, figures: Figures) -> bool:
    return (
        group_of(item.code) == "policy"
        and figures.n_documents >= FEW
        and item.n > MUCH_DROPPED * figures.n_documents
        and figures.kept > 0
    )


def _of_split(figures: Figures) -> Iterator[Worry]:
    if not figures.kept:
        return
    held_out = figures.fate("validation")
    total = sum(side.size for side in figures.sides)
    size = sum(side.size for side in figures.sides if side.name == "validation")
    if not held_out:
        yield Worry(
            "check", 1, "No document is held out", "Without one, no loss on unseen text can be told.", "", "split"
        )
    elif total and size < FEW_HELD_OUT * total:
        title = f"Only {share(size, total)} of the text is held out ({counted(held_out, 'document')})"
        yield Worry("note", 1, title, "Raise curate.validation_share for a steadier loss.", "", "split")
    elif total and size > total / 2:
        title = f"{share(size, total)} of the text is held out, because a few long documents fell there"
        yield Worry("check", 1, title, "Another curate.salt splits otherwise.", "", "split")


def _of_text(figures: Figures) -> Iterator[Worry]:
    left = [item for item in figures.private if not item.redacted]
    if left:
        spans = sum(item.spans for item in left)
        kinds = ", ".join(item.kind for item in left)
        title = f"{counted(spans, 'span')} of personal data left in the text: {kinds}"
        yield Worry("note", spans, title, "Add the kinds to refine.redact if they must go.", "", "dropped")
    unknown = next((item.kept for item in figures.languages if item.name == "und"), 0)
    prose = sum(item.kept for item in figures.languages)
    if prose >= FEW and unknown > prose / 4:
        title = f"The language of {unknown:,} of {prose:,} documents could not be told"
        yield Worry(
            "note", unknown, title, "They are short, or no prose; policy.languages can leave them out.", "", "kinds"
        )
