"""The report of a dataset as one HTML file.

It shows a person what the model will read: where the tokens come from, how they lie in sequences, and the text itself
cut into tokens.
"""

from __future__ import annotations

from tasks.dataset_report import entries, sections
from tasks.dataset_report.figures import DatasetFigures
from tasks.dataset_report.style import CSS
from tasks.pages.frame import report_page
from tasks.pages.wording import amount, counted, percent, share, size_of

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
