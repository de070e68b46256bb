"""What a model answers, against the definition: one probability after the other."""

from __future__ import annotations

import math
import shutil
from itertools import product

import pytest
import torch
from exam_samples import noted, outspoken
from tiny_run import Ran

from tasks.bundle import Bundle
from tasks.exams.figures import accuracy
from tasks.exams.questions import ExactMatch, MultipleChoice
from tasks.exams.scoring import common_length, encode, ended, score_choices, score_ids, write_answers

QUESTIONS = [
    MultipleChoice("1", "the shepherd counts", ("his sheep", "the rain over the hill", "a dog"), 0),
    MultipleChoice("2", "", ("sheep", "the"), 1),
    MultipleChoice("3", "every lamb finds its mother in the straw near the old stone wall while", ("a", "the"), 0),
]


@pytest.fixture(scope="module")
def bundle(tiny: Ran, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    assert tiny.checkpoint is not None
    return outspoken(shutil.copytree(tiny.folder(tiny.checkpoint), tmp_path_factory.mktemp("exam") / "model"))


def log_probability(bundle: Bundle, ids: list[int], first: int) -> float:
    """Of the ids from a place on, all that fits before the last of them in view."""
    begin = max(0, len(ids) - 1 - bundle.model_config.max_seq_len)
    with torch.no_grad():
        scores = bundle.model(torch.tensor([ids[begin:-1]])).double().log_softmax(-1)[0]
    return sum(float(scores[place - begin - 1, ids[place]]) for place in range(first, len(ids)))


def test_a_choice_is_as_likely_as_its_ids_behind_the_prompt(bundle: Bundle) -> None:
    for question, found in zip(QUESTIONS, score_choices(bundle, QUESTIONS), strict=True):
        prompt, *whole = encode(bundle, [question.prompt, *question.texts()])
        common = min(common_length(prompt, ids) for ids in whole)
        expected = [log_probability(bundle, ids, common) for ids in whole]
        assert found.logprobs == pytest.approx(expected, rel=1e-4)
        sizes = [len(choice.encode()) for choice in question.choices]
        assert found.by_bytes == pytest.approx(
            [value / size for value, size in zip(expected, sizes, strict=True)], 1e-4
        )
        assert found.prediction == expected.index(max(expected))


def test_a_question_is_answered_alike_alone_and_among_others(bundle: Bundle) -> None:
    alone = [score_choices(bundle, [question])[0] for question in QUESTIONS]
    for one, other in zip(score_choices(bundle, QUESTIONS[::-1])[::-1], alone, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, rel=1e-5)
        assert (one.prediction, one.prediction_by_bytes) == (other.prediction, other.prediction_by_bytes)


def test_a_first_id_that_nothing_stands_before_is_charged_as_one_of_all(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "bos", False)
    (ids,) = encode(bundle, ["sheep"])
    (found,) = score_ids(bundle, [(ids, 0)])
    expected = log_probability(bundle, ids, 1) - math.log(bundle.tokenizer.vocab_size)
    assert found.logprob == pytest.approx(expected, rel=1e-4)


def test_answers_are_what_greedy_generation_writes_up_to_what_ends_them(bundle: Bundle) -> None:
    prompts = ["the shepherd counts", "a dog watches", "his sheep"]
    texts = [item.text for item in bundle.complete(prompts, max_new_tokens=20, temperature=0.0)]
    end = texts[1].strip()[4]
    questions = [ExactMatch(str(n), prompt, ("x",), 20, (end,) if n == 1 else ()) for n, prompt in enumerate(prompts)]
    questions.append(ExactMatch("short", prompts[0], ("x",), 3, ()))
    answers = write_answers(bundle, questions)
    assert answers[0] == texts[0].strip()
    assert answers[1] == texts[1].strip()[: texts[1].strip().index(end)].strip()
    assert answers[2] == texts[2].strip()
    assert texts[0].startswith(answers[3]) or texts[0].strip().startswith(answers[3])


def test_no_token_is_made_behind_what_ends_an_answer(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    (whole,) = bundle.complete(["a dog watches"], max_new_tokens=20, temperature=0.0)
    made = noted(bundle, monkeypatch)
    write_answers(bundle, [ExactMatch("1", "a dog watches", ("x",), 20, (whole.text.strip()[2],))])
    assert [item.finish_reason for item in made] == ["stop"]
    assert made[0].n_tokens < whole.n_tokens == 20


def test_an_answer_behind_what_would_end_it_at_once_is_still_found(bundle: Bundle) -> None:
    """A space takes the place of the line feed before an answer."""
    prompts = ["".join(text) for text in product("abcdefgh", repeat=2)]
    texts = [item.text for item in bundle.complete(prompts, max_new_tokens=20, temperature=0.0)]
    prompt, whole = next(pair for pair in zip(prompts, texts, strict=True) if pair[1][:1].isspace() and pair[1].strip())
    (answer,) = write_answers(bundle, [ExactMatch("1", prompt, ("x",), 20, (whole[0],))])
    assert answer == ended(whole, (whole[0],)).strip() != ""


@pytest.mark.parametrize(
    ("text", "stop", "left"),
    [
        ("4\nNext", ("\n",), "4"),
        ("\n\n 4\nNext", ("\n",), "\n\n 4"),
        ("4 and. 5", ("\n", ". ", " and"), "4"),
        ("4", (), "4"),
        (" \n ", ("\n",), " \n "),
    ],
)
def test_an_answer_ends_before_the_first_text_that_ends_it(text: str, stop: tuple[str, ...], left: str) -> None:
    assert ended(text, stop) == left


def test_an_accuracy_has_the_interval_of_a_bootstrap_over_questions() -> None:
    found = accuracy([True] * 60 + [False] * 40)
    assert found.share == 0.6
    spread = 1.96 * math.sqrt(0.6 * 0.4 / 100)
    assert found.low == pytest.approx(0.6 - spread, abs=0.011)
    assert found.high == pytest.approx(0.6 + spread, abs=0.011)
    assert accuracy([True] * 60 + [False] * 40) == found
    assert accuracy([True, True]).low == accuracy([True, True]).high == 1


def test_an_accuracy_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="needs at least one answer"):
        accuracy([])
