"""Files of questions: what is read, and that every broken line is named with what was expected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.exams.questions import (
    ExactMatch,
    MultipleChoice,
    QuestionsError,
    as_record,
    question_of,
    read_questions,
)

CHOICE: dict[str, Any] = {"type": "multiple_choice", "prompt": "The sky is", "choices": ["blue", "green"], "answer": 0}
WRITE: dict[str, Any] = {"type": "exact_match", "prompt": "2 + 2 =", "answer": "4"}


def file_with(folder: Path, *lines: Any) -> Path:
    path = folder / "questions.jsonl"
    texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"\n".join(texts))
    return path


def test_questions_of_both_types_are_read_in_order(tmp_path: Path) -> None:
    spelt = {**WRITE, "id": "b", "answer": ["4", "four"], "max_new_tokens": 5, "stop": ".", "ignore_case": True}
    path = file_with(tmp_path, b"\xef\xbb\xbf" + json.dumps(CHOICE).encode(), b"  ", {**WRITE, "id": 7}, spelt)
    assert read_questions(path) == [
        MultipleChoice("1", "The sky is", ("blue", "green"), 0),
        ExactMatch("7", "2 + 2 =", ("4",)),
        ExactMatch("b", "2 + 2 =", ("4", "four"), 5, (".",), True),
    ]


@pytest.mark.parametrize("record", [CHOICE, WRITE, {**WRITE, "stop": [], "ignore_case": True}])
def test_a_question_survives_being_kept(tmp_path: Path, record: dict[str, Any]) -> None:
    (question,) = read_questions(file_with(tmp_path, record))
    assert question_of(json.loads(json.dumps(as_record(question)))) == question


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'{"type": "multiple', "line 2: not JSON .* expected one object"),
        (b'{"a": "\xff"}', "line 2: byte 8 of it is not UTF-8"),
        ([1], r"line 2: \[1\], expected an object"),
        ({}, "line 2: there is no `type`, expected multiple_choice or exact_match"),
        ({**CHOICE, "type": "essay"}, '`type` is "essay", expected multiple_choice or exact_match'),
        (
            {**CHOICE, "choises": []},
            "multiple_choice has no field `choises`; its fields are answer, choices, id, prompt",
        ),
        ({**WRITE, "choices": []}, "exact_match has no field `choices`"),
        ({"type": "exact_match", "answer": "4"}, "there is no `prompt`, expected a text"),
        ({**CHOICE, "prompt": 3}, "`prompt` is 3, expected a text"),
        ({**CHOICE, "id": True}, "`id` is true, expected text or a whole number"),
        ({**CHOICE, "choices": ["blue"]}, r'`choices` is \["blue"\], expected a list of two texts or more'),
        ({**CHOICE, "choices": ["blue", None]}, "choice 1 is null, expected a text"),
        ({**CHOICE, "choices": ["blue", " "]}, "choice 1 is empty"),
        ({**CHOICE, "choices": ["blue", "blue"]}, 'choice 1 is "blue" like choice 0, expected another text'),
        ({**CHOICE, "answer": 2}, "`answer` is 2, expected the number of a choice, 0 to 1"),
        ({**CHOICE, "answer": "blue"}, '`answer` is "blue", expected the number of a choice'),
        ({**CHOICE, "answer": False}, "`answer` is false, expected the number of a choice"),
        ({**WRITE, "answer": []}, r"`answer` is \[\], expected a text or a list of texts, none empty"),
        ({**WRITE, "answer": 4}, "`answer` is 4, expected a text or a list of texts"),
        ({**WRITE, "answer": ["4", 4]}, "an item of `answer` is 4, expected a text"),
        ({**WRITE, "max_new_tokens": 0}, "`max_new_tokens` is 0, expected a whole number of 1 or more"),
        ({**WRITE, "stop": [""]}, "`stop` holds an empty text"),
        ({**WRITE, "ignore_case": 1}, "`ignore_case` is 1, expected true or false"),
        ({**WRITE, "prompt": "\ud800"}, "`prompt` holds a lone surrogate"),
        ({**WRITE, "id": "1"}, "id '1' is that of line 1 too, expected one of its own"),
    ],
)
def test_a_broken_line_is_named_with_what_was_expected(tmp_path: Path, line: Any, told: str) -> None:
    with pytest.raises(QuestionsError, match=told) as caught:
        read_questions(file_with(tmp_path, CHOICE, line))
    assert "line 2: " in str(caught.value)


def test_all_broken_lines_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(QuestionsError) as caught:
        read_questions(file_with(tmp_path, {**CHOICE, "answer": 9}, CHOICE, b"?", *([{}] * 30)))
    told = str(caught.value)
    assert "has 32 broken line(s)" in told
    assert "line 1: `answer` is 9" in told
    assert "line 3: not JSON" in told
    assert told.endswith("and 12 more")


def test_a_file_that_is_not_there_or_empty_is_told(tmp_path: Path) -> None:
    with pytest.raises(QuestionsError, match=r"no file .*none\.jsonl with questions"):
        read_questions(tmp_path / "none.jsonl")
    with pytest.raises(QuestionsError, match="holds no questions"):
        read_questions(file_with(tmp_path, b"\n"))


def test_a_space_joins_a_choice_to_its_prompt_where_there_is_none() -> None:
    def texts(prompt: str) -> list[str]:
        return MultipleChoice("1", prompt, ("blue", " blue"), 0).texts()

    assert texts("is") == ["is blue", "is blue"]
    assert texts("is ") == ["is blue", "is  blue"]
    assert texts("") == ["blue", " blue"]


def test_white_space_of_an_answer_does_not_matter_and_capitals_do_unless_it_is_said() -> None:
    strict, mild = (ExactMatch("1", "", ("New York", "NYC"), ignore_case=ignored) for ignored in (False, True))
    assert strict.accepts(" New\tYork\n")
    assert not strict.accepts("new york")
    assert mild.accepts("new york")
    assert not mild.accepts("york")
