"""Rows of conversations, in the forms in which they are published: each is a document that reads as what was said."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pytest
from extraction import extract_document
from pyarrow import parquet

from tasks.readers.records import Extraction, ExtractOptions
from tasks.text.conversations import find_conversations

SAID = [("user", "Who counts?"), ("assistant", "Bob.\n\nHe does.")]


def lines(*rows: dict[str, Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def read(data: bytes, suffix: str = ".jsonl") -> dict[str, str]:
    outcome = extract_document(data, suffix, ExtractOptions())
    assert (outcome.kind, outcome.status) == ("table", "ok"), outcome
    return {row.locator: row.pages[0].text if row.status == "ok" else row.reason for row in outcome.members}


def messages(text: str) -> tuple[list[tuple[str, str]], bool]:
    (found,) = find_conversations(text)
    return [tuple(message) for message in found.messages], found.synthetic


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": role, "content": text} for role, text in SAID]},
        {
            "conversations": [
                {"from": name, "value": text} for name, (_, text) in zip(("human", "gpt"), SAID, strict=True)
            ]
        },
        {"prompt": SAID[0][1], "completion": SAID[1][1]},
        {"question": SAID[0][1], "answer": SAID[1][1], "id": 7},
        {"instruction": SAID[0][1], "input": "", "output": SAID[1][1]},
    ],
    ids=["messages", "conversations", "prompt", "question", "instruction"],
)
def test_a_row_is_read_in_each_published_form(row: dict[str, Any]) -> None:
    assert messages(read(lines(row))["1"]) == (SAID, False)


def test_an_input_belongs_to_its_instruction() -> None:
    text = read(lines({"instruction": "Count.", "input": "a b", "output": "Two."}))["1"]
    assert messages(text)[0] == [("user", "Count.\n\na b"), ("assistant", "Two.")]


def test_a_table_of_parquet_has_messages_too() -> None:
    file = io.BytesIO()
    said = [{"role": role, "content": text} for role, text in SAID]
    parquet.write_table(pa.table({"messages": [said], "synthetic": [True]}), file)
    assert messages(read(file.getvalue(), ".parquet")["1"]) == (SAID, True)


@pytest.mark.parametrize(
    ("given", "synthetic"), [(True, True), ("yes", True), ("false", False), (0, False), (None, False)]
)
def test_a_row_that_a_program_wrote_is_marked(given: Any, synthetic: bool) -> None:
    text = read(lines({"prompt": "a", "completion": "b", "synthetic": given}))["1"]
    assert messages(text)[1] is synthetic


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"messages": [{"role": "user", "content": "a"}]}, "line 2 has no question with an answer behind it"),
        ({"messages": 7}, "line 2 has no list of messages in 'messages' but int"),
        ({"messages": [{"role": "sheep", "content": "a"}]}, "expected a role (user"),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "expected a role (user"),
        (
            {"messages": [{"role": "user", "content": "\ud83d"}, {"role": "assistant", "content": "b"}]},
            "a message holds",
        ),
        ({"other": 1}, "line 2 has no list of messages"),
    ],
    ids=["unanswered", "number", "role", "parts", "surrogate", "missing"],
)
def test_a_row_that_is_no_conversation_costs_itself_alone(row: dict[str, Any], told: str) -> None:
    good = {"messages": [{"role": role, "content": text} for role, text in SAID]}
    found = read(lines(good, row, good))
    assert told in found["2"]
    assert messages(found["1"]) == messages(found["3"]) == (SAID, False)


def test_a_column_of_text_is_read_as_text() -> None:
    outcome: Extraction = extract_document(lines({"text": "A text.", "messages": []}), ".jsonl", ExtractOptions())
    assert [row.pages[0].text for row in outcome.members] == ["A text."]
