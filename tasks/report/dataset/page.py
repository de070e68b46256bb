"""The report of a dataset as one HTML file.

It shows a person what the model will read: where the tokens come from, how they lie in sequences, and the text itself
cut into tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from storage.catalog import Catalog, read_state
from storage.store import open_store
from tasks.report.corpus.queries import collect
from tasks.report.dataset import entries, sections
from tasks.report.dataset.card import data_card
from tasks.report.dataset.figures import DatasetFigures
from tasks.report.dataset.provenance import STAGES, provenance
from tasks.report.dataset.queries import collect_dataset
from tasks.report.dataset.style import CSS
from tasks.report.dataset.summary import dataset_summary
from tasks.report.frame import report_page
from tasks.report.wording import amount, counted, percent, share, size_of
from tasks.report.written import Outcome, Page

CARD = "data-card.md"

SECTIONS = {
    "notes": "Look at first",
    "tokens": "Tokens",
    "lengths": "Documents",
    "sequences": "Sequences",
    "mix": "Mix",
    "tokeniser": "Tokeniser",
    "vocabulary": "Vocabulary",
    "sample": "As the model reads it",
}


def write(outcome: Outcome) -> Page | None:
    """Write the page and the data card of a run's dataset."""
    run = outcome.run
    if outcome.made("dataset") is None:
        return None
    state = {stage: refs for stage, refs in read_state(run.store, run.corpus).items() if stage in STAGES}

    def draw() -> list[str]:
        page, summary, card = outcome.draw_in_subprocess(draw_dataset)
        return [page, f"{summary}\n\nThe data card: `{outcome.folder / CARD}`", card]

    return outcome.draw_once("dataset", f"Dataset of {run.corpus}", state, draw, CARD)


def draw_dataset(store: str, cache: str, corpus: str, progress: Callable[[int, int], None]) -> list[str]:
    """Return page, summary and card of a dataset; called in a subprocess.

    Args:
        store, cache: address of the store, and folder for local copies.
    """
    opened = open_store(store, Path(cache))
    files = collect(Catalog(opened, corpus))
    # a second catalogue, because the first returns the memory of its tables only when it is closed
    catalog = Catalog(opened, corpus)
    figures = collect_dataset(catalog, corpus)
    card = data_card(figures, files, provenance(catalog), corpus)
    return [dataset_page(figures, corpus), dataset_summary(figures), card]


def dataset_page(figures: DatasetFigures, corpus: str) -> str:
    """The page.

    Args:
        corpus: its name.
    """
    made = {
        "notes": sections.notes_section(figures),
        "tokens": sections.tokens_section(figures),
        "lengths": sections.lengths_section(figures),
        "sequences": sections.sequences_section(figures),
        "mix": sections.mix_section(figures),
        "tokeniser": sections.tokeniser_section(figures),
        "vocabulary": entries.vocabulary_section(figures),
        "sample": entries.samples_section(figures),
    }
    title = f"Corpus {corpus}: what the model will read"
    bar = sections.overview(figures)
    return report_page(title, _lead(figures), _facts(figures), SECTIONS, made, overview=bar, style=CSS)


def _lead(figures: DatasetFigures) -> str:
    total, train, held_out = figures.total, figures.split("train"), figures.split("validation")
    if not total.documents:
        return "There is no document in this dataset."
    return (
        f"{counted(total.documents, 'document')} give {counted(total.tokens, 'token')}: {train.tokens:,} to train on, "
        f"{held_out.tokens:,} ({share(held_out.tokens, total.tokens)}) held out."
    )


def _facts(figures: DatasetFigures) -> dict[str, str]:
    total, packed = figures.total, figures.packed
    train = next((account for account in packed.accounts if account.split == "train"), None)
    return {
        "Tokens": amount(total.tokens),
        "Text": size_of(total.n_bytes),
        "Bytes a token": sections.ratio(total),
        "Tokeniser": f"{figures.tokenizer.kind}, {figures.tokenizer.vocab_size:,} ids",
        "Sequences": f"{train.sequences if train else 0:,} × {packed.seq_len:,} ids",
        "Fill": percent(train.fill) if train else "–",
    }
