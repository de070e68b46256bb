"""Conversations in the rows of a file, in the forms in which they are published, as documents that people can read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tasks.readers.records import ExtractionProblem
from tasks.readers.rows import TEXT, Columns, Row, encoding_fault
from tasks.text.conversations import ASSISTANT, ROLES, SYSTEM, USER, Message, conversation_text

SYNTHETIC_COLUMN = "synthetic"  # true in a row that a program wrote
LISTS = ("messages", "conversations", "conversation")  # columns with a list of messages
PAIRS = (  # columns of a question, what is added to it, and an answer
    ("prompt", "", "completion"),
    ("prompt", "", "response"),
    ("question", "", "answer"),
    ("instruction", "input", "output"),
    ("instruction", "context", "response"),
)
_SPEAKER, _SAID = ("role", "from"), ("content", "value")


def conversation_columns(columns: Columns) -> list[str]:
    """Return the columns of conversations, the first of them needed in every row; none if there are none."""
    for name in LISTS:
        if name in columns and columns[name] != TEXT:
            return [name]
    for asked, added, answered in PAIRS:
        if columns.get(asked) == columns.get(answered) == TEXT:
            return [asked, *([added] if added in columns else []), answered]
    return []


def spoken_text(row: Row, columns: Sequence[str]) -> str:
    """Return the text of a row's conversation.

    Args:
        columns: those of `conversation_columns`.

    Raises:
        ExtractionProblem: the row is refused, or has no conversation that ends with an answer.
    """
    if row.problem is not None:
        raise row.problem
    if len(columns) == 1:
        messages = [_message(row, item) for item in _listed(row, columns[0])]
    else:
        *asked, answered = columns
        question = "\n\n".join(filter(None, (_text(row, name) for name in asked)))
        messages = [Message(USER, question), Message(ASSISTANT, _text(row, answered))]
    said = [message for message in messages if message.content.strip()]
    if len(said) < 2 or said[-1].role != ASSISTANT or all(message.role == SYSTEM for message in said[:-1]):
        raise ExtractionProblem("skipped", "empty", f"{row.place} has no question with an answer behind it")
    synthetic = str(row.values.get(SYNTHETIC_COLUMN, "")).casefold() in ("true", "yes", "1")  # CSV has texts
    return conversation_text(said, synthetic)


def _listed(row: Row, column: str) -> list[Any]:
    found = row.values.get(column)
    if isinstance(found, list):
        return found
    reason = f"{row.place} has no list of messages in {column!r} but {type(found).__name__}"
    raise ExtractionProblem("rejected", "no_column", reason)


def _message(row: Row, item: Any) -> Message:
    values = item if isinstance(item, dict) else {}
    speaker, said = (next((values[name] for name in names if name in values), None) for names in (_SPEAKER, _SAID))
    role = ROLES.get(speaker.casefold()) if isinstance(speaker, str) else None
    if role is None or not isinstance(said, str):
        reason = f"{row.place}: a message is {str(item)[:80]!r}, expected a role ({', '.join(ROLES)}) and a content"
        raise ExtractionProblem("rejected", "unsupported", reason)
    if fault := encoding_fault(said):
        raise ExtractionProblem("failed", "corrupt", f"{row.place}: a message {fault}")
    return Message(role, said)


def _text(row: Row, column: str) -> str:
    return row.text(column, empty=True) if row.values.get(column) is not None else ""
