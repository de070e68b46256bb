"""The page that shows what became of a corpus: written after ingestion, put beside the training, shown in the UI.

Drawn in a process of its own where the corpus is large: the catalogue of 200,000 documents takes hundreds of MB.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from storage.atomic import write_file
from storage.catalog import Catalog, read_state
from storage.digest import sha256_json
from storage.lineage import manifest_of
from storage.store import open_store
from tasks.apart import TABLE_BYTES_PER_FILE
from tasks.ingest.snapshot import snapshot

if TYPE_CHECKING:
    from tasks.session import Session


def write_corpus_page(session: Session, corpus: str) -> tuple[Path, str]:
    """The page of a corpus in the reports of the home, and its summary in Markdown; drawn anew only after a change.

    Args:
        session: the one that ingested it; its files may still be looked at for pictures of pages.
    """
    state = read_state(session.store, corpus)
    page, summary = (session.home.reports_of(corpus) / f"corpus.{suffix}" for suffix in ("html", "md"))
    mark = f"<!-- {sha256_json(state)} -->\n"
    if page.is_file() and _text(summary).endswith(mark):
        return page, _text(summary)
    page.parent.mkdir(parents=True, exist_ok=True)
    resources = session.resources
    n_files = manifest_of(session.store, state[snapshot.name][0]).counts["rows"]
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="ascii") as locations:
        # ASCII holds names that are not UTF-8, too
        locations.writelines(json.dumps(item) + "\n" for item in resources.paths.items())
        locations.flush()
        text = resources.apart.call(
            draw_corpus_page,
            lambda done, total: None,
            n_files * TABLE_BYTES_PER_FILE,
            store=session.home.store,
            cache=str(session.home.cache),
            corpus=corpus,
            locations=locations.name,
            passwords=list(resources.passwords),
            out=str(page),
        )
    summary.write_text(f"{text}\n\n{mark}", encoding="utf-8")  # last: its mark says that both are there
    return page, text


def draw_corpus_page(
    store: str,
    cache: str,
    corpus: str,
    locations: str,
    passwords: list[str],
    out: str,
    progress: Callable[[int, int], None],
) -> str:
    """Write the page; returns the summary.

    Args:
        store: address of the store.
        cache: folder for copies of what it holds.
        locations: JSON lines with the sha256 and the place of each file.
        passwords: tried on encrypted PDFs when a picture of a page is drawn.
        out: where the page goes.
    """
    from tasks.corpus_report import collect, draw_report, draw_summary
    from tasks.corpus_report.thumbnails import Thumbnails

    figures = collect(Catalog(open_store(store, Path(cache)), corpus))
    with Thumbnails(_Places(Path(locations)), passwords) as thumbnails:
        page = draw_report(figures, corpus, thumbnails)
    write_file(Path(out), page.encode())
    progress(1, 1)
    return draw_summary(figures)


class _Places(Mapping[str, str]):
    """Places of files by their sha256, looked up in a file: a dozen of 200,000 are ever asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _items(self) -> Iterator[tuple[str, str]]:
        with self._path.open(encoding="ascii") as lines:
            for line in lines:
                sha256, place = json.loads(line)
                yield sha256, place

    def __getitem__(self, wanted: str) -> str:
        for sha256, place in self._items():
            if sha256 == wanted:
                return place
        raise KeyError(wanted)

    def __iter__(self) -> Iterator[str]:
        return (sha256 for sha256, _ in self._items())

    def __len__(self) -> int:
        return sum(1 for _ in self._items())


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""
