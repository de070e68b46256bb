"""The stages of exams: a file of questions to a table of answers and accuracies, kept like everything else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from exam_samples import outspoken
from tiny_run import Ran, copy_of_store, direct_run

from storage.errors import UserError
from storage.home import Home
from storage.manifest import ArtifactRef
from storage.tables import read_rows
from tasks.bundle import Bundle
from tasks.exams.exam import (
    ANSWERS_FILE,
    ExamSettings,
    QuestionsSettings,
    exam,
    exam_metrics,
    keep_questions,
    load_questions,
    read_exam_metrics,
)
from tasks.exams.questions import ExactMatch, MultipleChoice, Question
from tasks.exams.scoring import score_choices, write_answers
from tasks.run import Run

CHOOSING = [
    MultipleChoice("a", "the shepherd counts", ("his sheep", "qqq zzz"), 0),
    MultipleChoice("b", "the shepherd counts", ("his sheep", "qqq zzz", "xxx"), 1),
]


@pytest.fixture(scope="module")
def home(tiny: Ran, tmp_path_factory: pytest.TempPathFactory) -> Home:
    return copy_of_store(tiny, tmp_path_factory.mktemp("exam") / "home")


@pytest.fixture(scope="module")
def bundle(tiny: Ran, home: Home) -> Bundle:
    """The home's model."""
    assert tiny.checkpoint is not None
    return outspoken(Path(home.store) / "train" / tiny.checkpoint.key)


def put(run: Run, checkpoint: ArtifactRef, questions: list[Question]) -> ArtifactRef:
    kept = keep_questions(run, QuestionsSettings.of(questions), questions=questions)
    assert load_questions(run.store.folder(kept)) == questions
    return exam(run, ExamSettings(), checkpoint=checkpoint, questions=kept)


def test_answers_stand_in_the_order_of_the_questions_with_all_that_led_to_them(
    tiny: Ran, home: Home, bundle: Bundle
) -> None:
    assert tiny.checkpoint is not None
    plain = ExactMatch("w", "a dog watches", ("nothing",), 6, ())
    (written,) = write_answers(bundle, [plain])
    right = ExactMatch("w", "a dog watches", ("nothing", written), 6, ())
    with direct_run(home) as run:
        made = put(run, tiny.checkpoint, [CHOOSING[0], right, CHOOSING[1]])
        folder = run.store.folder(made)
    rows = read_rows(folder / ANSWERS_FILE)
    assert [row["id"] for row in rows] == ["a", "w", "b"]
    scored = score_choices(bundle, CHOOSING)
    for row, question, found in zip((rows[0], rows[2]), CHOOSING, scored, strict=True):
        assert row["logprobs"] == pytest.approx(found.logprobs, rel=1e-5)
        assert row["prediction"] == question.choices[found.prediction]
        assert row["right"] == (found.prediction == question.answer)
        assert row["right_by_bytes"] == (found.prediction_by_bytes == question.answer)
    assert (rows[1]["prediction"], rows[1]["right"], rows[1]["right_by_bytes"]) == (written, True, None)
    assert read_exam_metrics(folder) == exam_metrics(rows)


def test_the_same_questions_are_put_once(tiny: Ran, home: Home) -> None:
    assert tiny.checkpoint is not None
    with direct_run(home) as run:
        first = put(run, tiny.checkpoint, [*CHOOSING])
    with direct_run(home) as run:
        assert put(run, tiny.checkpoint, [*CHOOSING]) == first
        assert run.reports["exam"].cached


def test_an_empty_prompt_of_a_model_that_cannot_begin_is_told(tiny: Ran, home: Home, tmp_path: Path) -> None:
    assert tiny.checkpoint is not None
    bare = copy_of_store(tiny, tmp_path / "home")
    config = Path(bare.store) / "train" / tiny.checkpoint.key / "config.json"
    text = config.read_text()
    config.write_text(json.dumps({**json.loads(text), "bos": 0, "eos": 0}).ljust(len(text)))
    with direct_run(bare) as run, pytest.raises(UserError, match="exact_match: prompt 1 of 1 is empty"):
        put(run, tiny.checkpoint, [ExactMatch("1", "", ("x",))])


def test_guessing_is_the_mean_over_questions_with_different_numbers_of_choices() -> None:
    common = {"prediction": "", "type": "multiple_choice"}
    rows = [
        {**common, "right": True, "right_by_bytes": False, "choices": ["a", "b"]},
        {**common, "right": False, "right_by_bytes": False, "choices": ["a", "b", "c", "d"]},
    ]
    found = exam_metrics(rows)
    assert found["exam/multiple_choice/chance"] == pytest.approx((1 / 2 + 1 / 4) / 2)
    assert found["exam/multiple_choice/accuracy"] == 0.5
    assert found["exam/multiple_choice/accuracy_by_bytes"] == 0
    assert found["exam/multiple_choice/questions"] == 2
    assert not any("exact_match" in name for name in found)
