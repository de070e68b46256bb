"""The exam flow: a file of questions with known answers is put to a model."""

from functools import partial
from pathlib import Path
from typing import Annotated

from prefect import flow
from prefect.artifacts import create_table_artifact
from pydantic import Field

from flows.actions import checkpoint_of, log_evaluation, result_of, version_of
from flows.context import HomeFolder, Model, Refresh, described, flow_session, task_runner
from tasks.exams.questions import read_questions
from tasks.exams.stages import ANSWERS_FILE, ExamSettings, QuestionsSettings, keep_questions, read_exam_metrics
from tasks.exams.stages import exam as put_questions
from tasks.session import artifact


@flow(name="exam", task_runner=task_runner(), persist_result=False)
@described
def exam(
    questions: Annotated[str, Field(description="JSON Lines file: multiple_choice and exact_match questions.")],
    model: Model = "champion",
    refresh: Refresh = "",
    home: HomeFolder = "",
) -> dict[str, object]:
    """Put questions to a model, and say how many it answers rightly beside what guessing would reach."""
    asked = read_questions(Path(questions).expanduser().resolve())
    with flow_session(home, "default", refresh) as session:
        checkpoint = checkpoint_of(session, model)
        session.resources.questions = asked
        kept = session.run(keep_questions, QuestionsSettings.of(asked))
        made = artifact(session.run(put_questions, ExamSettings(), checkpoint=checkpoint, questions=kept))
        folder = session.store.folder(made)
        metrics = read_exam_metrics(folder)
        version = version_of(session, checkpoint)
        if version is not None and version.run_id:
            session.act("track", partial(log_evaluation, session, version.run_id, version, artifact(kept), metrics))
        table = [{"figure": name, "value": value} for name, value in metrics.items()]
        create_table_artifact(table, key="sheepfold-exam", description=f"{len(asked)} questions for {model}")
        return {**result_of(session, metrics=metrics).to_dict(), "answers": str(folder / ANSWERS_FILE)}


if __name__ == "__main__":
    import sys

    exam(sys.argv[1])
