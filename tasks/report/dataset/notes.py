"""What a person should look at in a dataset, the gravest first: drawn from the figures by plain rules."""

from __future__ import annotations

from collections.abc import Iterator

from tasks.report.dataset.figures import DatasetFigures
from tasks.report.wording import counted, share
from tasks.report.worries import Worry, ordered

MUCH_LOST = 0.001  # share of the text that no id gives back
LOW_FILL = 0.9
MANY_UNUSED = 0.2  # share of the entries that were merged from several bytes
FEW_HELD_OUT = 0.02
LARGE_DOCUMENT = 0.2  # share of the training tokens in one document
FEW = 10  # documents below which each has a large share
MANY_PASSES = 4.0  # of one group in an epoch


def notes(figures: DatasetFigures) -> list[Worry]:
    """All there is to look at; empty if there is nothing."""
    return ordered([*_of_sums(figures), *_of_text(figures), *_of_sequences(figures), *_of_vocabulary(figures)])


def _of_sums(figures: DatasetFigures) -> Iterator[Worry]:
    for check in figures.checks:
        if not check.holds:
            title = f"A sum does not come out ({check.split}): {check.words}: {check.found[0]:,} and {check.found[1]:,}"
            remedy = "Run sheepfold verify, and prepare with --refresh dataset."
            yield Worry("lost", 1, title, remedy, "", "sequences")
    if figures.not_encoded:
        title = f"{counted(figures.not_encoded, 'document')} of the corpus are not in this dataset"
        yield Worry("check", figures.not_encoded, title, "Run sheepfold prepare to take them in.", "", "tokens")


def _of_text(figures: DatasetFigures) -> Iterator[Worry]:
    total = figures.total
    if total.lost_bytes:
        part = total.lost_bytes / total.n_bytes
        title = f"{counted(total.lost_bytes, 'byte')} of the text ({share(total.lost_bytes, total.n_bytes)}) are lost"
        remedy = "They became the unknown token. A byte-level tokeniser (kind bpe or bytes) loses nothing."
        yield Worry("check" if part > MUCH_LOST else "note", total.lost_bytes, title, remedy, "", "tokeniser")
    held_out = figures.split("validation")
    if not held_out.tokens:
        yield Worry(
            "check", 1, "No token is held out", "Without one, no loss on unseen text can be told.", "", "tokens"
        )
    elif held_out.tokens < FEW_HELD_OUT * total.tokens:
        title = f"Only {share(held_out.tokens, total.tokens)} of the tokens are held out"
        yield Worry("note", 1, title, "Raise curate.validation_share for a steadier loss.", "", "tokens")
    train = figures.split("train")
    longest = figures.lengths.longest_train
    if train.documents >= FEW and longest > LARGE_DOCUMENT * train.tokens:
        title = f"One document holds {share(longest, train.tokens)} of the training tokens"
        yield Worry("note", 1, title, "The model will sound like it.", "", "lengths")


def _of_sequences(figures: DatasetFigures) -> Iterator[Worry]:
    for words in figures.packed.notes:
        yield Worry("note", 2, words[:1].upper() + words[1:], "", "", "sequences")
    for account in figures.packed.accounts:
        if account.places and account.fill < LOW_FILL and account.split == "train":
            title = f"{share(account.padded, account.places)} of the places in training sequences are padding"
            remedy = "Documents are short beside the sequences: dataset.packing=pack fills them."
            yield Worry("note", 1, title, remedy, "", "sequences")
    for group in figures.packed.groups:
        if group.passes > MANY_PASSES:
            title = f"The group {group.name} is read {group.passes:.1f} times in an epoch"
            yield Worry("note", 1, title, "A model learns it by heart; more text of its kind helps more.", "", "mix")


def _of_vocabulary(figures: DatasetFigures) -> Iterator[Worry]:
    used = figures.vocabulary
    if used.unused_merges > MANY_UNUSED:
        title = f"{share(used.unused_merges, 1)} of the tokens of more than a byte never occur in training text"
        remedy = "A smaller tokenizer.vocab_size would do; such tokens keep random embeddings."
        yield Worry("note", 1, title, remedy, "", "vocabulary")
