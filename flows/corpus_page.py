"""The page that shows what became of a corpus: written after ingestion, put beside the training, shown in the UI."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from storage.catalog import Catalog, read_state
from storage.digest import sha256_json

if TYPE_CHECKING:
    from tasks.session import Session


def write_corpus_page(session: Session, corpus: str) -> Path:
    """The page of a corpus, in the reports of the home; drawn anew only if the corpus has changed.

    Args:
        session: the one that ingested it; its files may still be looked at for pictures of pages.
    """
    from tasks.corpus_report import corpus_report
    from tasks.corpus_report.thumbnails import Thumbnails

    path = session.home.reports / f"{corpus}.html"
    mark = f"<!-- {sha256_json(read_state(session.store, corpus))} -->\n"
    if _end(path, len(mark)) == mark.encode():
        return path
    resources = session.resources
    with Thumbnails(resources.paths, resources.passwords) as thumbnails:
        page = corpus_report(Catalog(session.store, corpus), corpus, thumbnails)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(f"{page}\n{mark}", encoding="utf-8")
    new.replace(path)
    return path


def _end(path: Path, n_bytes: int) -> bytes:
    """The last bytes of a file; empty if it is not there."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - n_bytes))
            return file.read()
    except FileNotFoundError:
        return b""


def corpus_summary(session: Session, corpus: str) -> str:
    """The same in a few lines of Markdown."""
    from tasks.corpus_report import corpus_summary as summarise

    return summarise(Catalog(session.store, corpus))
