"""What `why --text`, `evaluate --tasks` and `lm-eval` print, and what they refuse."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from runs import invoke

from flows.show import exam_table, print_spans

PLACE = {
    "path": "a/b.txt",
    "kind": "text",
    "licence": "MIT",
    "doc_id": "d",
    "doc_start": 10,
    "doc_length": 40,
    "before": "what is\nbefore ",
    "passage": "the  passage",
    "after": " and after",
}
SPAN = {"words": 9, "start": 3, "text": "The passage", "documents": 2, "found_in": [PLACE]}


def test_a_span_is_shown_with_its_document_place_and_passage(capsys: pytest.CaptureFixture[str]) -> None:
    print_spans({"characters": 50, "covered": 0.8, "spans": [SPAN], "more_spans": 1})
    assert capsys.readouterr().out.strip().splitlines() == [
        "80% of 50 characters stand in the training text:",
        "",
        "9 words, at character 3, in 2 documents:",
        "  The passage",
        "    a/b.txt (text, licence MIT), characters 10 to 50:",
        "      ...what is before [the passage] and after...",
        "",
        "and 1 shorter span",
    ]


def test_a_text_without_spans_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    print_spans({"characters": 50, "covered": 0.0, "spans": [], "more_spans": 0})
    assert capsys.readouterr().out.strip() == "no span of this text stands in the training text"


@pytest.mark.parametrize("arguments", [[], ["0", "--text", "a text"]], ids=["neither", "both"])
def test_why_asks_for_a_thing_or_a_text(tmp_path: Path, arguments: list[str]) -> None:
    done = invoke(tmp_path / "home", "why", *arguments)
    assert done.exit_code == 1
    assert "give either a THING or --text TEXT" in done.stderr


def test_an_accuracy_stands_beside_guessing_and_with_its_interval() -> None:
    figures = {"accuracy": 0.5, "accuracy_low": 0.25, "accuracy_high": 0.75, "chance": 0.25, "questions": 12}
    metrics = {f"exam/exact_match/{name}": value for name, value in figures.items()}
    assert exam_table(metrics).splitlines()[2] == "| exact match | 12 | 50.0% | 25.0% to 75.0% |  |  | 25.0% |"


def test_a_broken_file_of_questions_is_named_before_anything_is_made(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text('{"type": "multiple_choice"}\n')
    done = invoke(tmp_path / "home", "evaluate", "--tasks", str(file))
    assert done.exit_code == 1
    assert "line 1: there is no `prompt`, expected a text" in done.stderr
    assert not (tmp_path / "home").exists()


@pytest.mark.skipif(find_spec("lm_eval") is not None, reason="the harness is installed")
def test_a_missing_harness_is_told_with_what_to_do(tmp_path: Path) -> None:
    done = invoke(tmp_path / "home", "lm-eval", "--tasks", "flock")
    assert done.exit_code == 1
    assert "lm-evaluation-harness is not installed" in done.stderr
    assert "sheepfold[lm-eval]" in done.stderr
