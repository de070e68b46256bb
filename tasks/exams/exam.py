"""The stages of exams: questions are kept in the store, and a model and questions give a table of answers.

answers.parquet   one row for every question: what was asked, what was answered, whether that is right
metrics.parquet   accuracies by type of question, with intervals and what guessing would reach
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.digest import sha256_json
from storage.errors import UserError
from storage.manifest import ArtifactRef
from storage.schemas import ANSWERS, METRICS
from storage.tables import read_rows, write_table
from tasks.bundle import Bundle
from tasks.exams.figures import accuracy_metrics
from tasks.exams.questions import ExactMatch, MultipleChoice, Question, as_record, question_of
from tasks.exams.scoring import score_choices, write_answers
from tasks.stage import Work, stage

QUESTIONS_FILE = "questions.jsonl"
ANSWERS_FILE = "answers.parquet"
METRICS_FILE = "metrics.parquet"


@dataclass(frozen=True)
class QuestionsSettings:
    """Identity of a list of questions; the list comes as a resource."""

    digest: str

    @classmethod
    def of(cls, questions: list[Question]) -> QuestionsSettings:
        """Settings that name these questions."""
        return cls(sha256_json([as_record(question) for question in questions]))


@dataclass(frozen=True)
class ExamSettings:
    """Settings of the stage; there are none: what an answer may be is said by each question."""


@stage("questions", version=1, unkeyed=("questions",))
def keep_questions(work: Work, settings: QuestionsSettings, *, questions: list[Question]) -> str:
    """Keep a list of questions in the store, so that answers lead back to it."""
    lines = [json.dumps(as_record(question), ensure_ascii=False) + "\n" for question in questions]
    (work.out / QUESTIONS_FILE).write_text("".join(lines), encoding="utf-8", newline="")
    work.counts["rows"] = len(lines)
    return settings.digest


@stage("exam", version=2, modules=("model.checkpoint", "model.generation"), keep_with=("checkpoint",))
def exam(work: Work, settings: ExamSettings, *, checkpoint: ArtifactRef, questions: ArtifactRef) -> str:
    """Put questions to a model."""
    work.seed(0)
    bundle = Bundle(work.folder(checkpoint), work.machine.device)
    asked = load_questions(work.folder(questions))
    choosing = [question for question in asked if isinstance(question, MultipleChoice)]
    writing = [question for question in asked if isinstance(question, ExactMatch)]

    def progress(done: int, total: int) -> None:
        work.progress.update(done, total, "steps")

    chosen = score_choices(bundle, choosing, progress) if choosing else []
    try:
        written = write_answers(bundle, writing, progress) if writing else []
    except ValueError as error:  # a bundle is served without our errors, so it raises none of them
        raise UserError(f"exact_match: {error}") from error
    rows = {
        question.id: {
            **_asked(question),
            "answer": question.choices[question.answer],
            "choices": list(question.choices),
            "logprobs": list(found.logprobs),
            "logprobs_by_byte": list(found.by_bytes),
            "prediction": question.choices[found.prediction],
            "prediction_by_bytes": question.choices[found.prediction_by_bytes],
            "right": found.prediction == question.answer,
            "right_by_bytes": found.prediction_by_bytes == question.answer,
        }
        for question, found in zip(choosing, chosen, strict=True)
    }
    rows |= {
        question.id: {
            **_asked(question),
            "answer": question.answers[0],
            "choices": [],
            "logprobs": [],
            "logprobs_by_byte": [],
            "prediction": text,
            "prediction_by_bytes": None,
            "right": question.accepts(text),
            "right_by_bytes": None,
        }
        for question, text in zip(writing, written, strict=True)
    }
    listed = [rows[question.id] for question in asked]
    work.counts["rows"] = write_table(work.out / ANSWERS_FILE, ANSWERS, listed)
    found = exam_metrics(listed)
    write_table(work.out / METRICS_FILE, METRICS, [{"metric": name, "value": found[name]} for name in sorted(found)])
    return sha256_json(listed)


def exam_metrics(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The figures of answers, by type of question: `exam/<type>/accuracy` and its bounds, `chance` and `questions`.

    Multiple choice also has `accuracy_by_bytes`, where the log-likelihood of a choice is divided by its length.
    """
    metrics: dict[str, float] = {}
    choosing = [row for row in rows if row["type"] == "multiple_choice"]
    writing = [row for row in rows if row["type"] == "exact_match"]
    if choosing:
        place = "exam/multiple_choice"
        metrics |= accuracy_metrics(f"{place}/accuracy", [row["right"] for row in choosing])
        metrics |= accuracy_metrics(f"{place}/accuracy_by_bytes", [row["right_by_bytes"] for row in choosing])
        metrics[f"{place}/chance"] = sum(1 / len(row["choices"]) for row in choosing) / len(choosing)
        metrics[f"{place}/questions"] = float(len(choosing))
    if writing:
        place = "exam/exact_match"
        metrics |= accuracy_metrics(f"{place}/accuracy", [row["right"] for row in writing])
        metrics[f"{place}/chance"] = 0.0
        metrics[f"{place}/questions"] = float(len(writing))
    return metrics


def load_questions(folder: Path) -> list[Question]:
    """The questions of an artefact."""
    lines = (folder / QUESTIONS_FILE).read_text(encoding="utf-8").split("\n")
    return [question_of(json.loads(line)) for line in lines if line]


def read_exam_metrics(folder: Path) -> dict[str, float]:
    """Figures of an artefact of the stage `exam`."""
    return {row["metric"]: row["value"] for row in read_rows(folder / METRICS_FILE)}


def _asked(question: Question) -> dict[str, Any]:
    kind = "multiple_choice" if isinstance(question, MultipleChoice) else "exact_match"
    return {"id": question.id, "type": kind, "prompt": question.prompt}
