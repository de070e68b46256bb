"""Files of questions: JSON Lines, one question on a line, of two types.

    {"type": "multiple_choice", "id": "1", "prompt": "The sky is", "choices": ["blue", "green"], "answer": 0}
    {"type": "exact_match", "id": "2", "prompt": "2 + 2 =", "answer": ["4", "four"]}

A choice stands behind the prompt, with a space between them where neither has white space there; an empty choice or
prompt is none. `exact_match` may also say `max_new_tokens` (32), `stop`, texts that end an answer (a line feed), and
`ignore_case` (false). A line without `id` is named by its number. All that is wrong with a file is told at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.errors import UserError

TYPES = ("multiple_choice", "exact_match")
TOLD = 20  # broken lines that are named


class QuestionsError(UserError):
    """A file of questions that cannot be used."""


@dataclass(frozen=True)
class MultipleChoice:
    """A question that is answered by the likeliest of its choices.

    Attributes:
        answer: number of the right choice, from 0.
    """

    id: str
    prompt: str
    choices: tuple[str, ...]
    answer: int

    def texts(self) -> list[str]:
        """The whole text with each choice."""
        return [self.prompt + self._joint(choice) + choice for choice in self.choices]

    def _joint(self, choice: str) -> str:
        return " " if self.prompt and not self.prompt[-1].isspace() and not choice[0].isspace() else ""


@dataclass(frozen=True)
class ExactMatch:
    """A question that is answered by what greedy generation writes behind its prompt.

    Attributes:
        answers: texts that are right; white space around them does not matter.
        max_new_tokens: longest answer, in tokens.
        stop: an answer ends before the first of these texts in it.
        ignore_case: whether capitals matter not.
    """

    id: str
    prompt: str
    answers: tuple[str, ...]
    max_new_tokens: int = 32
    stop: tuple[str, ...] = ("\n",)
    ignore_case: bool = False

    def accepts(self, text: str) -> bool:
        """Whether an answer is right."""
        return self._plain(text) in {self._plain(answer) for answer in self.answers}

    def _plain(self, text: str) -> str:
        folded = " ".join(text.split())
        return folded.casefold() if self.ignore_case else folded


Question = MultipleChoice | ExactMatch


class _Broken(ValueError):
    """What is wrong with a line."""


def read_questions(path: Path) -> list[Question]:
    """Read a file of questions.

    Raises:
        QuestionsError: if it holds none, or a line is no question; every broken line is named, with what was expected.
    """
    if not path.is_file():
        raise QuestionsError(f"no file {path} with questions: give a JSON Lines file, one question on each line")
    questions: list[Question] = []
    problems: list[str] = []
    taken: dict[str, int] = {}
    for number, line in _lines(path):
        try:
            question = _question(line, number)
            if question.id in taken:
                raise _Broken(f"id {question.id!r} is that of line {taken[question.id]} too, expected one of its own")
        except _Broken as error:
            problems.append(f"line {number}: {error}")
            continue
        taken[question.id] = number
        questions.append(question)
    if problems:
        more = f"\n  and {len(problems) - TOLD} more" if len(problems) > TOLD else ""
        listed = "".join(f"\n  {problem}" for problem in problems[:TOLD])
        raise QuestionsError(f"{path} has {len(problems)} broken line(s):{listed}{more}")
    if not questions:
        raise QuestionsError(f"{path} holds no questions: give one JSON object with `type` on each line")
    return questions


def as_record(question: Question) -> dict[str, Any]:
    """A question as a line of a file has it, everything spelt out; `question_of` reads it."""
    if isinstance(question, MultipleChoice):
        fields = {"choices": list(question.choices), "answer": question.answer}
        return {"type": "multiple_choice", "id": question.id, "prompt": question.prompt, **fields}
    return {
        "type": "exact_match",
        "id": question.id,
        "prompt": question.prompt,
        "answer": list(question.answers),
        "max_new_tokens": question.max_new_tokens,
        "stop": list(question.stop),
        "ignore_case": question.ignore_case,
    }


def question_of(record: dict[str, Any]) -> Question:
    """The question of a record that `as_record` made."""
    return _of_type(record, "")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not empty, with their numbers."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            bare = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if bare.strip():
                yield number, bare


def _question(line: bytes, number: int) -> Question:
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _Broken(f"byte {error.start + 1} of it is not UTF-8") from None
    except ValueError as error:
        raise _Broken(f"not JSON ({error}), expected one object") from None
    except RecursionError:
        raise _Broken("lists or objects lie too deep in each other, expected one object") from None
    if not isinstance(record, dict):
        raise _Broken(f"{_shown(record)}, expected an object")
    return _of_type(record, str(number))


def _of_type(record: dict[str, Any], default_id: str) -> Question:
    kind = record.get("type")
    if kind not in TYPES:
        found = f"`type` is {_shown(kind)}" if "type" in record else "there is no `type`"
        raise _Broken(f"{found}, expected {' or '.join(TYPES)}")
    known = {"type", "id", "prompt", "answer"}
    known |= {"choices"} if kind == "multiple_choice" else {"max_new_tokens", "stop", "ignore_case"}
    unknown = sorted(record.keys() - known)
    if unknown:
        raise _Broken(f"{kind} has no field `{unknown[0]}`; its fields are {', '.join(sorted(known))}")
    name = record.get("id", default_id)
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise _Broken(f"`id` is {_shown(name)}, expected text or a whole number")
    prompt = _text(record, "prompt")
    return (
        _multiple_choice(record, str(name), prompt) if kind == "multiple_choice" else _exact(record, str(name), prompt)
    )


def _multiple_choice(record: dict[str, Any], name: str, prompt: str) -> MultipleChoice:
    choices = record.get("choices")
    if not isinstance(choices, list) or len(choices) < 2:
        raise _Broken(f"`choices` is {_shown(choices)}, expected a list of two texts or more")
    texts = [_checked(choice, f"choice {number}") for number, choice in enumerate(choices)]
    for number, text in enumerate(texts):
        if not text.strip():
            raise _Broken(f"choice {number} is empty, expected a text")
        if text in texts[:number]:
            raise _Broken(f"choice {number} is {_shown(text)} like choice {texts.index(text)}, expected another text")
    answer = record.get("answer")
    if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer < len(texts):
        raise _Broken(f"`answer` is {_shown(answer)}, expected the number of a choice, 0 to {len(texts) - 1}")
    return MultipleChoice(name, prompt, tuple(texts), answer)


def _exact(record: dict[str, Any], name: str, prompt: str) -> ExactMatch:
    answers = _texts(record, "answer")
    if not answers or not all(answer.strip() for answer in answers):
        raise _Broken(f"`answer` is {_shown(record.get('answer'))}, expected a text or a list of texts, none empty")
    most = record.get("max_new_tokens", 32)
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise _Broken(f"`max_new_tokens` is {_shown(most)}, expected a whole number of 1 or more")
    stop = _texts(record, "stop") if "stop" in record else ["\n"]
    if not all(stop):
        raise _Broken("`stop` holds an empty text, which would end every answer; expected texts")
    ignore_case = record.get("ignore_case", False)
    if not isinstance(ignore_case, bool):
        raise _Broken(f"`ignore_case` is {_shown(ignore_case)}, expected true or false")
    return ExactMatch(name, prompt, tuple(answers), most, tuple(stop), ignore_case)


def _text(record: dict[str, Any], field: str) -> str:
    if field not in record:
        raise _Broken(f"there is no `{field}`, expected a text")
    return _checked(record[field], f"`{field}`")


def _texts(record: dict[str, Any], field: str) -> list[str]:
    value = record.get(field)
    if isinstance(value, list):
        return [_checked(item, f"an item of `{field}`") for item in value]
    return [_checked(value, f"`{field}`", "a text or a list of texts")]


def _checked(value: Any, what: str, expected: str = "a text") -> str:
    if not isinstance(value, str):
        raise _Broken(f"{what} is {_shown(value)}, expected {expected}")
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise _Broken(f"{what} holds a lone surrogate (\\ud800 to \\udfff), which is no character")
    return value


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 60 else f"{text[:57]}..."
