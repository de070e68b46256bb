"""The pages about evaluations: whole for any figures, true figures, words that stay words."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from evaluation_report_samples import bare, changed, pair, rich, sums
from html_tags import Tags, assert_alone

from tasks.evaluation.compare import Difference
from tasks.evaluation.tables import Slice
from tasks.report.comparison import pair_document, pair_page, pair_table
from tasks.report.evaluation import (
    Completion,
    Mark,
    evaluation_page,
    notices,
)
from tasks.report.page import macro
from tasks.report.queries import Row


def words_of(page: str) -> str:
    return " ".join(Tags(page).words)


def written(completion: Completion) -> str:
    return macro("macros.html", "written", completion)


def interval(difference: Difference, reach: float) -> str:
    return macro("macros.html", "interval", difference, reach)


def lead(figures: Row) -> str:
    """The first sentences of the page."""
    return evaluation_page(figures, "fold")[1].splitlines()[0]


def measured(figures: Row, **metrics: float) -> Row:
    """The figures with some metrics of other values."""
    found = {**figures.evaluation.metrics, **{f"val/{name}": value for name, value in metrics.items()}}
    return changed(figures, evaluation=replace(figures.evaluation, metrics=found))


@pytest.mark.parametrize("figures", [rich(), bare()], ids=["rich", "bare"])
def test_the_page_is_whole_fetches_nothing_and_runs_nothing(figures: Row) -> None:
    page, summary = evaluation_page(figures, "fold")
    assert_alone(page)
    assert len(summary.splitlines()) <= 60


def test_the_page_of_two_models_is_whole_fetches_nothing_and_runs_nothing() -> None:
    page = pair_page(pair(), "fold")
    assert_alone(page)
    figures = page[page.index('aria-label="Figures"') :].partition("</table>")[0]
    for words in ("perplexity", "2.0000", "2.3000", "−0.3000"):
        assert words in figures


def test_words_of_documents_are_only_words() -> None:
    for page in (evaluation_page(rich(), "<b>fold")[0], pair_page(pair(), "<b>fold")):
        assert "<img" not in page and "<b>fold" not in page
        assert not set(page) & {"\u202e", "\x00"}
        assert "<img src=x onerror=hit=1>" in words_of(page)
    page, summary = evaluation_page(rich(), "fold")
    assert "Once" in words_of(page) and "Once" not in summary
    for text in (summary, pair_table(pair())):
        assert not set(text) & {"\u202e", "\x00"}


def test_every_baseline_stands_beside_the_model_and_beside_each_slice() -> None:
    page, _ = evaluation_page(rich(), "fold")
    table = page[page.index('id="baselines-table"') :].partition("</table>")[0]
    for name, bits in (("this model", 2.0), ("5-gram", 2.4), ("unigram", 4.0), ("uniform", 6.0)):
        assert name in table and f"{bits:.4f}" in table
    assert "the champion (version 3)" in table and "2.3000" in table
    kinds = page[page.index('aria-label="By kind"') :].partition("</table>")[0]
    for bits in (2.0, 2.3, 2.4, 4.0, 6.0, 3.0, 3.6):
        assert f"{bits:.4f}" in kinds


def test_a_slice_of_little_text_has_no_figure() -> None:
    found = rich().evaluation
    slices = [Slice("kind", "pdf", sums(2.5)), Slice("kind", "xml", sums(7.7, 1_999, 1))]
    page, _ = evaluation_page(changed(rich(), evaluation=replace(found, slices=slices)), "fold")
    kinds = page[page.index('aria-label="By kind"') :].partition("</table>")[0]
    assert "2.5000" in kinds and "xml" in kinds and "2.0 kB" in kinds
    assert "7.7" not in kinds


def test_spans_of_training_text_are_marked_and_those_that_overlap_are_one() -> None:
    marks = [Mark(4, 8, 14, ["a.txt"]), Mark(10, 4, 9, ["b.txt"]), Mark(20, 2, 8)]
    text = "0123456789abcdefghijklmnop"
    markup = written(Completion("p", text, marks))
    inside = [part.partition("</mark>")[0].partition(">")[2] for part in markup.split("<mark")[1:]]
    assert inside == ["456789abcd", "kl"]
    assert "".join(Tags(markup).words).startswith(f"p{text}")
    assert "3 memorised spans, the longest of 14 words, in a.txt." in markup


def test_a_completion_that_nobody_traced_says_nothing_of_training_text() -> None:
    assert "training text" not in written(Completion("p", "text"))
    assert "No memorised span of eight words" in written(Completion("p", "text", marks=[]))


def test_a_prompt_that_could_not_be_continued_is_told_as_such() -> None:
    failed = Completion("p", "", [], "the prompt is too long")
    markup = written(failed)
    assert "Not completed: the prompt is too long." in markup and "No memorised span" not in markup
    compared = changed(pair(), completions=[(Completion("p", "text"), failed)])
    assert "- previous: (not completed: the prompt is too long)" in pair_table(compared)
    (found,) = pair_document(compared)["completions"]
    assert (found["a_error"], found["b_error"]) == (None, "the prompt is too long")


def test_other_documents_are_named_and_what_it_read_of_them_is_told() -> None:
    assert "30 documents it was not trained on (" in lead(rich())
    assert "30 documents of letters (" in lead(other_texts(texts="letters"))
    seen = other_texts(texts="the train split", read=True)
    assert "30 documents of the train split, some of which it was trained on (" in lead(seen)
    assert "The model was trained on some of these documents" in [notice.title for notice in notices(seen)]


def other_texts(**named: object) -> Row:
    """An evaluation on other documents than the frozen ones."""
    return changed(rich(), measured=replace(rich().measured, **named))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("difference", "said"),
    [
        (Difference(-0.2, -0.3, -0.1, 9), "A needs 0.2000 fewer bits per byte than B (95 % interval"),
        (Difference(0.2, 0.1, 0.3, 9), "A needs 0.2000 more bits per byte than B (95 % interval"),
        (Difference(0.2, -0.1, 0.3, 9), "more bits per byte than B, which is not significant"),
        (Difference(0.0, 0.0, 0.0, 9), "A and B do not differ on any document."),
        (Difference(0.2, -math.inf, math.inf, 1), "measured on one document, which is too few to compare them"),
    ],
    ids=["better", "worse", "open", "same", "one document"],
)
def test_a_difference_is_said_with_what_its_interval_allows(difference: Difference, said: str) -> None:
    assert said in macro("differences.html", "verdict", difference, "A", "B")


def test_an_interval_is_coloured_only_where_it_leaves_out_zero() -> None:
    assert 'class="range better"' in interval(Difference(-0.2, -0.3, -0.1, 9), 0.3)
    assert 'class="range worse"' in interval(Difference(0.2, 0.1, 0.3, 9), 0.3)
    assert 'class="range"' in interval(Difference(0.2, -0.1, 0.3, 9), 0.3)
    assert "left:0.00%;width:100.00%" in interval(Difference(0.2, -math.inf, math.inf, 1), 0.3)
    words = macro("differences.html", "words", Difference(-0.2, -0.3, 0.1, 9))
    assert words == "−0.2000 (−0.3000 to +0.1000)"


def test_what_makes_figures_doubtful_is_told() -> None:
    weak = measured(rich(), bits_per_byte=4.5, documents=3.0)
    found = "\n".join(notice.title for notice in notices(weak))
    for title in ("no better than the 5-gram baseline", "only 3 documents", "loses 12 Bytes"):
        assert title in found
    assert "50 % of the completions contain a 13-gram" in found
    assert notices(bare())[0].title == "The evaluation has only 1 document"
    assert "the 5-gram baseline reaches 2.4000" in lead(rich())


def test_the_document_for_machines_is_json_without_infinity() -> None:
    document = json.loads(json.dumps(pair_document(pair()), allow_nan=False))
    assert document["difference"]["clear"] is True
    assert document["metrics"]["val/only_one"] == {"a": 1.0, "b": None}
    single = document["slices"][2]["difference"]
    assert (single["low"], single["high"], single["clear"]) == (None, None, False)


def test_the_table_shows_figures_slices_documents_and_both_texts() -> None:
    text = pair_table(pair())
    assert "| bits per byte | 2.0000 | 2.3000 |" in text
    assert "−0.2000 (−0.3000 to −0.1000)" in text
    assert "−2,400" in text
    assert "- previous:" in text
