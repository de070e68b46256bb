"""The report of a corpus as a page and as Markdown: whole for any corpus, and what comes from files is only text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from corpus_report_samples import CORPUS, HOSTILE, LONG, Sample, rich
from html_tags import Tags, assert_alone, sections_of

from storage.catalog import Catalog
from tasks.report.corpus import collect, corpus_page, notices
from tasks.report.page import Notice


def without_files(folder: Path) -> Catalog:
    return Sample(folder).catalog()


def all_failed(folder: Path) -> Catalog:
    sample = Sample(folder)
    sample.file(HOSTILE, "failed", "crashed", HOSTILE, size=5)
    sample.file("b.pdf", "rejected", "encrypted", "needs a password", size=5)
    return sample.catalog()


def not_curated(folder: Path) -> Catalog:
    sample = Sample(folder)
    sample.document("a", "a.txt", curated=False)
    return sample.catalog()


def all_dropped(folder: Path) -> Catalog:
    sample = Sample(folder)
    sample.document("a", "a.txt", dropped="too_short", reason="3 characters")
    return sample.catalog()


def everything(folder: Path) -> Catalog:
    return rich(folder).catalog()


CORPORA = [without_files, all_failed, not_curated, all_dropped, everything]


@pytest.mark.parametrize("make", CORPORA)
def test_the_page_of_any_corpus_is_whole_and_stands_alone_and_its_summary_is_short(tmp_path: Path, make: type) -> None:
    figures = collect(make(tmp_path))
    page, summary = corpus_page(figures, CORPUS)
    assert_alone(page)
    assert len(summary.splitlines()) <= 40


def test_names_and_texts_of_files_are_only_text(tmp_path: Path) -> None:
    page, _ = corpus_page(collect(everything(tmp_path)), CORPUS)
    tags = Tags(page)
    words = "".join(tags.words)
    assert "img" not in tags.names and "script" not in tags.names
    assert "<img src=x onerror=hit=1>" in words and "\u202e" not in page and "<U+202E>" in words


def test_a_long_path_is_cut_in_its_middle_and_whole_in_its_hint(tmp_path: Path) -> None:
    sample = Sample(tmp_path)
    sample.file(LONG, "failed", "timeout", "took too long")
    page, _ = corpus_page(collect(sample.catalog()), CORPUS)
    assert f'title="{LONG}"' in page
    assert LONG not in "".join(Tags(page).words)
    assert re.search(r">folder/[^<]*…[^<]*/end\.txt<", page)


def test_the_same_corpus_gives_the_same_page(tmp_path: Path) -> None:
    catalog = everything(tmp_path)
    assert corpus_page(collect(catalog), CORPUS) == corpus_page(collect(Catalog(catalog.store, CORPUS)), CORPUS)


def test_the_page_says_how_many_documents_are_not_encoded(tmp_path: Path) -> None:
    sample = Sample(tmp_path)
    sample.document("a", "a.txt", tokens=20)
    sample.document("b", "b.txt")
    words = "".join(Tags(corpus_page(collect(sample.catalog()), CORPUS)[0]).words)
    assert "1 document is not tokenised yet" in words


def found(catalog: Catalog) -> list[Notice]:
    return notices(collect(catalog))


def test_worries_come_gravest_first_and_point_at_a_section(tmp_path: Path) -> None:
    figures = collect(everything(tmp_path))
    listed = notices(figures)
    levels = [notice.level for notice in listed]
    assert levels == sorted(levels, key=["lost", "check", "note"].index)
    assert {notice.path for notice in listed if notice.level == "lost"} == {"locked.pdf", "slow.pdf"}
    assert {notice.section for notice in listed} <= set(sections_of(corpus_page(figures, CORPUS)[0]))
    assert any("confidence below" in notice.title and notice.title.startswith("8 pages") for notice in listed)


@pytest.mark.parametrize(
    ("make", "title"),
    [
        (without_files, "No file was found"),
        (all_failed, "No file contains text"),
        (not_curated, "Nothing was curated yet"),
        (all_dropped, "Curation dropped every document"),
    ],
)
def test_a_corpus_that_came_to_nothing_says_so(tmp_path: Path, make: type, title: str) -> None:
    assert title in [notice.title for notice in found(make(tmp_path))]


def test_a_sound_corpus_is_no_reason_to_worry(tmp_path: Path) -> None:
    sample = Sample(tmp_path)
    for n in range(20):
        sample.document(f"d{n}", f"{n}.txt", split="validation" if n == 7 else "train")
    assert found(sample.catalog()) == []
    assert "None: every file was read" in corpus_page(collect(sample.catalog()), CORPUS)[0]


def test_one_rule_that_drops_much_and_a_giant_cluster_are_worries(tmp_path: Path) -> None:
    sample = Sample(tmp_path)
    for n in range(20):
        gone = {"dropped": "language", "reason": "its language is de"} if n % 2 else {}
        sample.document(f"d{n}", f"{n}.txt", split="validation" if n == 8 else "train", cluster="same", **gone)
    titles = [notice.title for notice in found(sample.catalog())]
    assert "10 documents dropped by one rule: language" in titles
    assert "One cluster of near-duplicates holds 20 of 20 documents" in titles


def test_the_summary_counts_what_the_page_counts(tmp_path: Path) -> None:
    _, summary = corpus_page(collect(everything(tmp_path)), CORPUS)
    assert summary.startswith("12 files were found, 2 of them parts of archives, tables or long texts.")
    assert "| Documents in use | 4 |" in summary
    assert "| Tokens | none yet |" in summary


def test_no_word_of_a_file_is_markup_in_the_summary(tmp_path: Path) -> None:
    sample = Sample(tmp_path)
    sample.document("a", "a.txt", language="<b>|*x*", kind="pdf")
    sample.file("b", "failed", "<script>|[x](y)", "")
    _, summary = corpus_page(collect(sample.catalog()), CORPUS)
    assert not re.search(r"(?<!\\)[<\[*`]", summary)
    tables = [line for line in summary.splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 3 for line in tables)
