"""The report of a dataset as a page and as Markdown: whole for any dataset, and what comes from texts is only text."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from corpus_report_samples import CORPUS
from dataset_report_samples import HOSTILE, Prepared, byte_level, rich
from html_tags import Tags, assert_alone

from storage.catalog import Catalog
from tasks.report.dataset import collect_dataset, dataset_page
from tasks.tokens.tokenizer_kinds import AsciiTokenizer

Make = Callable[[Path], Catalog]


def everything(folder: Path) -> Catalog:
    return rich(folder).catalog()


def one_character(folder: Path) -> Catalog:
    made = Prepared(folder)
    made.text("a", "x")
    return made.catalog()


def all_unknown(folder: Path) -> Catalog:
    made = Prepared(folder, AsciiTokenizer())
    made.text("a", "漢" * 40)
    made.text("v", "字" * 40, "validation")
    return made.catalog()


def nothing(folder: Path) -> Catalog:
    return Prepared(folder).catalog()


DATASETS: list[Make] = [everything, one_character, all_unknown, nothing]


def page_of(catalog: Catalog) -> str:
    return dataset_page(collect_dataset(catalog, CORPUS), CORPUS)[0]


@pytest.mark.parametrize("make", DATASETS)
def test_the_page_of_any_dataset_is_whole_and_stands_alone_and_its_summary_is_short(tmp_path: Path, make: Make) -> None:
    figures = collect_dataset(make(tmp_path), CORPUS)
    page, summary = dataset_page(figures, CORPUS)
    assert_alone(page)
    assert len(summary.splitlines()) <= 40


def test_tokens_names_and_texts_are_only_text(tmp_path: Path) -> None:
    page = page_of(everything(tmp_path))
    words = "".join(Tags(page).words)
    assert "onerror" in words, "the text is there, cut into tokens"
    assert "<img src=x onerror=hit=1>" in words, "as a name of a file"
    assert not set(page) & {"\u202e", "\x00"}
    assert "<U+202E>" in words


def test_spaces_ends_of_lines_and_special_ids_can_be_seen(tmp_path: Path) -> None:
    made = Prepared(tmp_path)
    made.text("a", "a b\tc\n")
    page = page_of(made.catalog())
    (sample,) = re.findall(r'<div class="sample".*?</div>', page, flags=re.S)
    shown = re.findall(r"<span[^>]*>([^<]*)</span>", sample)
    assert shown == ["&lt;bos&gt;", "a", "␣", "b", "⇥", "c", "⏎\n", "&lt;eos&gt;"]


def test_bytes_that_are_no_text_are_shown_by_their_number(tmp_path: Path) -> None:
    made = Prepared(tmp_path, byte_level("no such letter", vocab_size=260))
    made.text("a", "é")
    page = page_of(made.catalog())
    (sample,) = re.findall(r'<div class="sample".*?</div>', page, flags=re.S)
    assert r">\xc3</span>" in sample and r">\xa9</span>" in sample


def test_a_text_that_spells_a_special_token_is_not_shown_as_one(tmp_path: Path) -> None:
    made = Prepared(tmp_path, byte_level("<|eos|> said the text", vocab_size=262))
    made.text("a", "<|eos|>")
    page = page_of(made.catalog())
    (sample,) = re.findall(r'<div class="sample".*?</div>', page, flags=re.S)
    assert sample.count('class="special"') == 2, "its own beginning and end"


def test_the_account_stands_on_the_page(tmp_path: Path) -> None:
    made = rich(tmp_path)
    figures = collect_dataset(made.catalog(), CORPUS)
    words = " ".join(Tags(dataset_page(figures, CORPUS)[0]).words)
    train = figures.packed.accounts[0]
    for value in (train.ids, train.kept, train.padded, train.places, train.labels):
        assert f"{value:,}" in words


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "Sequences have 8 positions."),
        ({"stride": 4}, "Sequences have 8 positions, and a chunk begins every 4 ids."),
        ({"packing": "concat", "drop_last": True}, "Sequences have 8 positions, and a short last sequence is dropped."),
    ],
)
def test_the_page_says_how_documents_became_sequences(tmp_path: Path, change: dict, words: str) -> None:
    figures = collect_dataset(rich(tmp_path).catalog(), CORPUS)
    vars(figures.packed).update(change)
    assert f"{words}</p>" in dataset_page(figures, CORPUS)[0]


def test_no_word_of_a_text_is_markup_in_the_summary(tmp_path: Path) -> None:
    _, summary = dataset_page(collect_dataset(everything(tmp_path), CORPUS), CORPUS)
    assert HOSTILE not in summary
    assert not re.search(r"(?<!\\)[<\[*`]", summary)
    tables = [line for line in summary.splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 3 for line in tables)
