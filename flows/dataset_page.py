"""The page and the data card of a dataset: written after preparation, put beside the training, shown in the UI.

Drawn in a process of its own where the corpus is large: the catalogue of 200,000 documents takes hundreds of MB.
"""

from __future__ import annotations

from collections.abc import Callable
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


def write_dataset_page(session: Session, corpus: str) -> tuple[Path, Path, str]:
    """The page and the data card of a corpus's dataset in the reports of the home; drawn anew only after a change.

    Returns:
        The page, the card, and a summary in Markdown.

    Raises:
        StoreError: if the corpus was not prepared yet.
    """
    from tasks.dataset_report.provenance import STAGES  # with it comes what draws

    reports = session.home.reports_of(corpus)
    page, card, summary = (reports / name for name in ("dataset.html", "data-card.md", "dataset.md"))
    state = {stage: refs for stage, refs in read_state(session.store, corpus).items() if stage in STAGES}
    mark = f"<!-- {sha256_json(state)} -->\n"
    known = summary.read_text(encoding="utf-8") if summary.is_file() else ""
    if page.is_file() and card.is_file() and known.endswith(mark):
        return page, card, known
    reports.mkdir(parents=True, exist_ok=True)
    n_files = manifest_of(session.store, state[snapshot.name][0]).counts["rows"] if state else 0
    text = session.resources.apart.call(
        draw_dataset_page,
        lambda done, total: None,
        n_files * TABLE_BYTES_PER_FILE,
        store=session.home.store,
        cache=str(session.home.cache),
        corpus=corpus,
        page=str(page),
        card=str(card),
    )
    summary.write_text(f"{text}\n\n{mark}", encoding="utf-8")  # last: its mark says that all three are there
    return page, card, summary.read_text(encoding="utf-8")


def draw_dataset_page(
    store: str, cache: str, corpus: str, page: str, card: str, progress: Callable[[int, int], None]
) -> str:
    """Write the page and the card; returns the summary.

    Args:
        store: address of the store.
        cache: folder for copies of what it holds.
        page, card: where they go.
    """
    from tasks.corpus_report.queries import collect
    from tasks.dataset_report import collect_dataset, data_card, dataset_page, dataset_summary, provenance

    opened = open_store(store, Path(cache))
    files = collect(Catalog(opened, corpus))
    # another catalogue, because the first gives the memory of its tables back only when it is closed
    catalog = Catalog(opened, corpus)
    figures = collect_dataset(catalog, corpus)
    write_file(Path(page), dataset_page(figures, corpus).encode())
    write_file(Path(card), data_card(figures, files, provenance(catalog), corpus).encode())
    progress(1, 1)
    return dataset_summary(figures)
