"""The report of a dataset as one HTML file that needs nothing else: no network, no script, no other files.

It shows a person what the model will read: where the tokens come from, how they lie in sequences, and the text itself
cut into tokens.
"""

from __future__ import annotations

from tasks.dataset_report import entries, sections
from tasks.dataset_report.figures import DatasetFigures
from tasks.dataset_report.style import CSS
from tasks.inspection.labels import legible
from tasks.inspection.layout import fact_list, html_page, links
from tasks.inspection.svg import element, escape
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
    title = f"Corpus {legible(corpus)}: what the model will read"
    body = "".join(made[name] for name in SECTIONS)
    footer = "Made by sheepfold from the tables of the last completed run; ask them anything with sheepfold sql."
    return html_page(title, ("notes", "Skip to what to look at"), _header(figures, title), body, footer, style=CSS)


def _header(figures: DatasetFigures, title: str) -> str:
    return (
        f"<h1>{escape(title)}</h1>"
        + element("p", escape(_lead(figures)), class_="lead")
        + fact_list(_facts(figures))
        + sections.overview(figures)
        + links(SECTIONS)
    )


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
        "Sequences": f"{train.sequences if train else 0:,} of {packed.seq_len:,}",
        "Fill": percent(train.fill) if train else "–",
    }
