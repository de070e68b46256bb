"""The printer of everything that is looked up."""

from __future__ import annotations

import pytest

from flows.cli_common import SHOWN, print_document, print_rows

SPAN = {
    "words": 9,
    "text": "The passage",
    "found_in": [{"path": "a/b.txt", "before": "what is\nbefore", "doc_start": 10}],
}


def test_nested_values_are_indented_and_stay_on_their_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_document({"memorised": {"covered": 0.8, "spans": [SPAN]}, "names": ["fold"], "left": []})
    assert capsys.readouterr().out.splitlines() == [
        "memorised",
        "  covered: 0.8",
        "  spans",
        "    -",
        "      words: 9",
        "      text: The passage",
        "      found_in",
        "        -",
        "          path: a/b.txt",
        "          before: what is before",
        "          doc_start: 10",
        "names",
        "  - fold",
        "left: none",
    ]


@pytest.mark.parametrize(
    "document",
    [
        [{"stage": "train", "rows": 1000}, {"stage": "dataset", "rows": None}],
        {"train": {"rows": 1000}, "dataset": {"rows": None}},
    ],
)
def test_what_has_rows_is_a_table(capsys: pytest.CaptureFixture[str], document: object) -> None:
    print_document(document)
    *_, train, dataset = (line.split() for line in capsys.readouterr().out.splitlines())
    assert (train, dataset) == (["train", "1,000"], ["dataset", "none"])


def test_of_a_long_list_the_first_entries_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    print_document({"files": [f"{number}.txt" for number in range(SHOWN + 2)]})
    *_, last, rest = capsys.readouterr().out.splitlines()
    assert (last, rest) == (f"  - {SHOWN - 1}.txt", "  and 2 more (--json has all)")


def test_a_table_of_many_names_says_that_it_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    print_document({"tasks": {f"task-{number}": {"acc": 0.5} for number in range(SHOWN + 2)}})
    *_, last, rest = capsys.readouterr().out.splitlines()
    assert last.split() == [f"task-{SHOWN - 1}", "0.5"]
    assert rest == "  and 2 more (--json has all)"


def test_all_rows_of_a_query_are_shown_and_no_word_of_theirs_takes_effect(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{"text": "[/b] \x1b[31mred :smile:", "n": 10_000}, {"text": None, "n": 2}] * SHOWN)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * SHOWN + 2
    assert lines[2].split() == ["[/b]", "\\x1b[31mred", ":smile:", "10000"]
