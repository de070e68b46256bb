"""The report of a corpus as one HTML file.

In goes a catalogue, out comes text. A person should see at a glance what became of their files, and what to worry about
first; so the page begins with one bar of all files and a list of worries, and every section after it proves them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from storage.catalog import Catalog, read_state
from storage.store import open_store
from tasks.report.corpus import sections
from tasks.report.corpus.figures import Figures
from tasks.report.corpus.page_pictures import pages_section
from tasks.report.corpus.queries import collect
from tasks.report.corpus.style import CSS
from tasks.report.corpus.summary import corpus_summary
from tasks.report.corpus.thumbnails import Thumbnails
from tasks.report.frame import report_page
from tasks.report.wording import amount, share, size_of
from tasks.report.written import Outcome, Page

SECTIONS = {
    "worries": "Look at first",
    "files": "Every file",
    "kinds": "What they are",
    "split": "Split and tokens",
    "dropped": "Dropped, cut, redacted",
    "duplicates": "Duplicates",
    "pages": "Pages",
    "measures": "Measures",
    "archives": "Archives",
}


def write(outcome: Outcome) -> Page | None:
    """Write the page of a run's corpus: its files, documents and what was refused."""
    run, sources = outcome.run, outcome.sources
    if outcome.made("snapshot") is None:
        return None
    files = ({}, []) if sources is None else (dict(sources.paths), list(sources.passwords))

    def draw() -> list[str]:
        return outcome.draw_in_subprocess(draw_corpus, paths=files[0], passwords=files[1])

    return outcome.draw_once("corpus", f"Corpus {run.corpus}", read_state(run.store, run.corpus), draw)


def draw_corpus(
    store: str,
    cache: str,
    corpus: str,
    paths: Mapping[str, str],
    passwords: Sequence[str],
    progress: Callable[[int, int], None],
) -> list[str]:
    """Return page and summary of a corpus; called in a subprocess.

    Args:
        store, cache: address of the store, and folder for local copies.
        paths: place of each file, by sha256.
        passwords: tried on encrypted PDFs when a picture of a page is drawn.
    """
    figures = collect(Catalog(open_store(store, Path(cache)), corpus))
    with Thumbnails(paths, passwords) as thumbnails:
        return [corpus_page(figures, corpus, thumbnails), corpus_summary(figures)]


def corpus_page(figures: Figures, corpus: str, thumbnails: Thumbnails | None = None) -> str:
    """The page.

    Args:
        corpus: its name.
        thumbnails: draws the pages that OCR was least sure of; without it they are listed without pictures.
    """
    made = {
        "worries": sections.worries_section(figures),
        "files": sections.files_section(figures),
        "kinds": sections.kinds_section(figures),
        "split": sections.split_section(figures),
        "dropped": sections.dropped_section(figures),
        "duplicates": sections.duplicates_section(figures),
        "pages": pages_section(figures, thumbnails),
        "measures": sections.measures_section(figures),
        "archives": sections.archives_section(figures),
    }
    title = f"Corpus {corpus}: what became of the files"
    bar = sections.overview(figures)
    return report_page(title, _lead(figures), _facts(figures), SECTIONS, made, overview=bar, style=CSS)


def _lead(figures: Figures) -> str:
    n, members = figures.n_rows, figures.n_members
    if not n:
        return "No file was found."
    among = f", {members:,} of them inside archives and tables" if members else ""
    lost = figures.fate("failed") + figures.fate("rejected")
    words = f"{n:,} {'file was' if n == 1 else 'files were'} seen{among}. "
    words += f"{figures.n_documents:,} gave text, {figures.kept:,} of these are in use. "
    return words + (
        f"{lost:,} ({share(lost, n)}) failed or were refused." if lost else "None failed, none was refused."
    )


def _facts(figures: Figures) -> dict[str, str]:
    text = sum(side.size for side in figures.sides)
    tokens = sum(figures.estimate.tokens(side) for side in figures.sides)
    about = "" if figures.estimate.basis == "counted" else "≈ "
    pages = sum(kind.n for kind in figures.pages)
    by_ocr = sum(kind.n for kind in figures.pages if kind.method in ("ocr", "both"))
    languages = [tally.name for tally in figures.languages if tally.name not in ("und", "zxx") and tally.kept]
    shown = ", ".join(languages[:3]) + (f" and {len(languages) - 3} more" if len(languages) > 3 else "")
    return {
        "Files": f"{figures.n_rows:,} ({size_of(figures.size)})",
        "Documents in use": f"{figures.kept:,}",
        "Text in use": size_of(text),
        "Tokens": f"{about}{amount(tokens)}" if tokens else "none",
        "Pages": f"{pages:,}, {by_ocr:,} by OCR",
        "Languages": shown or "none known",
    }
