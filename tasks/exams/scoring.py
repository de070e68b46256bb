"""What a model answers to questions.

Choices are compared from where the first of them departs from the others or from the prompt: up to there all have the
same ids, and a tokeniser that joins the end of a prompt with the beginning of one choice gives that choice no
advantage. A first id that nothing stands before, which no network predicts, is charged as if all were equally likely.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.bundle import Bundle
from tasks.exams.questions import ExactMatch, MultipleChoice

if TYPE_CHECKING:
    from model.likelihood import Likelihood

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Choice:
    """What a model makes of the choices of a question.

    Attributes:
        logprobs: natural log-probability of each choice behind the prompt.
        by_bytes: the same for each byte of it, so that long choices are not at a disadvantage.
    """

    logprobs: tuple[float, ...]
    by_bytes: tuple[float, ...]

    @property
    def prediction(self) -> int:
        """The likeliest choice; of equally likely ones the first."""
        return max(range(len(self.logprobs)), key=self.logprobs.__getitem__)

    @property
    def prediction_by_bytes(self) -> int:
        """The likeliest choice by byte."""
        return max(range(len(self.by_bytes)), key=self.by_bytes.__getitem__)


def score_choices(bundle: Bundle, questions: Sequence[MultipleChoice], on_step: Progress | None = None) -> list[Choice]:
    """Log-likelihood of every choice of every question."""
    encoded = iter(encode(bundle, [text for item in questions for text in (item.prompt, *item.texts())]))
    asked = []
    for question in questions:
        prompt, *whole = [next(encoded) for _ in range(len(question.choices) + 1)]
        common = min(common_length(prompt, ids) for ids in whole)
        asked += [(ids, common) for ids in whole]
    logprobs = iter(score_ids(bundle, asked, on_step))
    return [_choice(question, [next(logprobs).logprob for _ in question.choices]) for question in questions]


def encode(bundle: Bundle, texts: Sequence[str]) -> list[list[int]]:
    """Ids of texts as training had them: behind the id that begins a text, if there is one."""
    begin = [] if bundle.start_id is None else [bundle.start_id]
    return [[*begin, *ids.tolist()] for ids in bundle.tokenizer.encode(list(texts))]


def score_ids(
    bundle: Bundle, asked: Sequence[tuple[list[int], int]], on_step: Progress | None = None
) -> list[Likelihood]:
    """Log-likelihood of ids behind others.

    Args:
        asked: ids, and how many of them stand before those that are scored.
    """
    from model.likelihood import Continuation, Likelihood, continuation_likelihoods

    # nothing predicts a first id
    continuations = [Continuation(ids, max(0, len(ids) - max(1, before))) for ids, before in asked]
    found = continuation_likelihoods(bundle.model, continuations, on_step=on_step)
    charge = math.log(bundle.tokenizer.vocab_size)
    return [
        Likelihood(item.logprob - charge, False) if ids and not before else item
        for item, (ids, before) in zip(found, asked, strict=True)
    ]


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids two sequences begin with alike."""
    n = 0
    for ours, theirs in zip(one, other, strict=False):
        if ours != theirs:
            break
        n += 1
    return n


def _choice(question: MultipleChoice, logprobs: list[float]) -> Choice:
    sizes = [len(choice.encode()) for choice in question.choices]
    return Choice(tuple(logprobs), tuple(value / size for value, size in zip(logprobs, sizes, strict=True)))


def write_answers(bundle: Bundle, questions: Sequence[ExactMatch], on_step: Progress | None = None) -> list[str]:
    """What greedy generation writes behind each prompt, up to the first text that ends an answer.

    Generation itself ends there, so that no token is made in vain. An answer that it ended in the white space before
    the first word is written again without an end, and cut (see `ended`).

    Raises:
        ValueError: a prompt is empty, and the model knows no token that a text could begin with.
    """
    groups: dict[tuple[int, tuple[str, ...]], list[int]] = defaultdict(list)
    for number, question in enumerate(questions):
        groups[question.max_new_tokens, question.stop].append(number)
    answers, done = [""] * len(questions), 0
    for (most, stop), numbers in sorted(groups.items()):
        prompts = [questions[number].prompt for number in numbers]
        found = bundle.complete(prompts, max_new_tokens=most, temperature=0.0, stop=stop)
        texts = [item.text for item in found]
        blank = [place for place, item in enumerate(found) if item.finish_reason == "stop" and not item.text.strip()]
        whole = bundle.complete([prompts[place] for place in blank], max_new_tokens=most, temperature=0.0)
        for place, item in zip(blank, whole, strict=True):
            texts[place] = ended(item.text, stop)
        for number, text in zip(numbers, texts, strict=True):
            answers[number] = text.strip()
        done += len(numbers)
        if on_step:
            on_step(done, len(questions))
    return answers


def ended(text: str, stop: Sequence[str]) -> str:
    """A text up to the first of the texts that end it, wherever that begins.

    White space that a text begins with ends nothing: a model may put a line feed before its answer.
    """
    begin = len(text) - len(text.lstrip())
    places = [place for place in (text.find(item, begin) for item in stop) if place >= 0]
    return text[: min(places, default=len(text))]
