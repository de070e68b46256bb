"""The evaluate flow: a model is measured on the corpus's frozen evaluation set, or on any other texts."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from pydantic import Field

from flows import pipeline
from flows.actions import checkpoint_of, completions_path, log_evaluation, result_of, version_of
from flows.context import Corpus, HomeFolder, Model, Refresh, described, finish, flow_session, task_runner
from flows.drift import measure_drift
from flows.measuring import judged_by, measure_beside
from storage.errors import UserError
from tasks.evaluation.inputs import SPLITS
from tasks.registry.promote import trained_on
from tasks.session import artifact
from tasks.settings import Settings

WithDrift = Annotated[bool, Field(description="Measure it on documents that came after it was trained as well.")]


@flow(name="evaluate", task_runner=task_runner(), persist_result=False)
@described
def evaluate(
    model: Model = "champion",
    corpus: Corpus = "default",
    drift: WithDrift = False,
    on: Annotated[str, Field(description="train, validation, a text, a folder, JSONL or Parquet instead.")] = "",
    column: Annotated[str, Field(description="Field of JSONL or Parquet that holds the text.")] = "",
    stride: Annotated[int, Field(description="Tokens from one window to the next; 0: as it was judged.", ge=0)] = 0,
    refresh: Refresh = "",
    home: HomeFolder = "",
) -> dict[str, object]:
    """Measure a model beside its baselines, and look at what it writes; on fresh documents, too, if asked for."""
    usual = not (on or stride)
    if drift and not usual:
        raise UserError(
            "drift is measured against the usual evaluation: leave out `on` and `stride`, or give `drift=false`"
        )
    with flow_session(home, corpus, refresh) as session:
        checkpoint = checkpoint_of(session, model)
        version = version_of(session, checkpoint)
        judged = judged_by(session.store, corpus, version)
        settings = replace(judged, stride=stride or judged.stride)
        evalset = pipeline.evaluation_texts(session, corpus, on, column)
        found, metrics = pipeline.evaluate_model(session, checkpoint, evalset, settings)
        evaluation = artifact(found)
        read = trained_on(session.store, checkpoint, evalset)
        fair = usual and not read  # other figures stand beside the usual ones, never in their place
        if fair:
            pipeline.publish_evaluation(session, corpus, checkpoint, evaluation)
        made = artifact(pipeline.sample(session, Settings(), checkpoint, evalset))
        measured, beside = measure_beside(session, model, checkpoint, evalset, evaluation, made, settings)
        if not fair:
            measured = replace(measured, texts=_called(on, stride), read=read)
        if read:
            session.note(f"{model} was trained on some of these documents, so its figures flatter it")
        if read and drift:
            session.note("nothing is known of its drift, which is measured against those figures")
        drifted = measure_drift(session, corpus, checkpoint, evaluation, settings) if drift and not read else None
        if drifted is not None:
            said = f"{drifted[0].sentence()}\n"
            create_markdown_artifact(said, key="sheepfold-drift", description=f"Whether {model} still knows {corpus}")
        run_id = version.run_id if version is not None else ""
        if version is not None and run_id:
            logged = metrics if fair else _apart(metrics, evalset.stage, stride, read)
            session.act("track", partial(log_evaluation, session, run_id, version, evalset, logged))
            if drifted is not None:
                figures = drifted[0].figures()
                session.act("track", partial(log_evaluation, session, run_id, version, drifted[1], figures))
        result = result_of(
            session,
            metrics={**metrics, **beside, **(drifted[0].figures() if drifted is not None else {})},
            mlflow_run_id=run_id or None,
            completions=completions_path(session.store, made),
        )
        return finish(session, corpus, result, measured)


def _called(on: str, stride: int) -> str:
    """What the documents are called, and how they were read."""
    name = f"the {on} split" if on in SPLITS else Path(on).name if on else "the evaluation set"
    return f"{name}, read in strides of {stride}" if stride else name


def _apart(metrics: dict[str, float], stage: str, stride: int, read: bool) -> dict[str, float]:
    """Figures under other names than the usual ones, at which a training's curve ends.

    Args:
        read: whether the model was trained on some of the documents, so that they flatter it.
    """
    place = f"read-{stage}" if read else stage
    place = f"{place}/stride-{stride}" if stride else place
    return {f"{place}/{name.partition('/')[2]}": value for name, value in metrics.items()}


if __name__ == "__main__":
    evaluate()
