"""What the flows share: the session of a flow run, the report it leaves in Prefect's UI, and their parameters."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar, get_type_hints

from prefect import get_run_logger
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.runtime import deployment, flow_run
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner
from pydantic import Field

from flows.corpus_page import write_corpus_page
from flows.dataset_page import write_dataset_page
from flows.embedded import EMBEDDED
from flows.evaluation_page import write_evaluation_page
from flows.gates_page import write_gates_page
from flows.generation_page import write_generation_page
from flows.report import RunResult, run_report, sample_table
from flows.stages import stage_names
from flows.train_page import write_training_page
from model.presets import PRESETS
from storage.catalog import LONGEST_CORPUS_NAME, check_corpus_name
from storage.errors import UserError
from storage.home import Home
from storage.registry import Registry
from tasks.cluster import on_ray, ray_runner
from tasks.evaluation_report.collect import Measured
from tasks.generation.stage import generate
from tasks.ingest.records import Limits
from tasks.ingest.snapshot import snapshot
from tasks.promotion import Promotion
from tasks.resources import Resources
from tasks.session import PrefectSession
from tasks.settings import Settings, load_settings
from tasks.tokens.dataset import dataset
from tasks.tokens.groups import check_expression
from tasks.train_settings import AUTO
from tasks.training import train

P = ParamSpec("P")
R = TypeVar("R")

# Parameters that several flows share, described once for the forms of the UI.
Source = Annotated[str, Field(description="Folders or files with documents, one per line.")]
Corpus = Annotated[
    str,
    Field(
        description="Name of the corpus; its tokeniser and evaluation set are kept under it.",
        json_schema_extra={"minLength": 1, "maxLength": LONGEST_CORPUS_NAME},
    ),
]
Preset = Annotated[
    str,
    Field(
        description="Shape of the network, such as modern-15m; empty takes what is suggested.",
        json_schema_extra={"enum": ["", AUTO, *PRESETS]},  # a list to choose from, checked before a run is made
    ),
]
Minutes = Annotated[float, Field(description="Training time in minutes; fixed as a number of steps by a probe.", ge=0)]
MaxSteps = Annotated[int, Field(description="Optimiser steps; 0 leaves it to the tokens or minutes.", ge=0)]
MaxTokens = Annotated[int, Field(description="Training tokens; 0 leaves it to the minutes.", ge=0)]
Seed = Annotated[int, Field(description="Seed of weights, order and dropout; -1 takes that of the settings.", ge=-1)]
Workers = Annotated[int, Field(description="Extraction processes; 0 is one per core.", ge=0)]
Refresh = Annotated[str, Field(description="Stages to compute again, separated by commas.")]
RetryFailed = Annotated[bool, Field(description="Extract files again whose extraction failed.")]
Config = Annotated[str, Field(description="Configuration file (TOML or JSON); empty for none.")]
Overrides = Annotated[str, Field(description="Further settings, section.name=value, one per line.")]
Base = Annotated[
    str,
    Field(
        description="Model to continue from, such as champion (which is not trained again on what it has read); empty "
        "begins from scratch."
    ),
]
Deterministic = Annotated[bool, Field(description="Ask torch for deterministic kernels only.")]
HomeFolder = Annotated[str, Field(description="Home folder; empty takes SHEEPFOLD_HOME, else .sheepfold.")]
Model = Annotated[str, Field(description="A model: alias, version, models:/ address, run id or folder.")]

# A run that is lost is queued again by an automation; one that takes its worker with it each time has to end somewhere.
MOST_BEGINNINGS = 5

# An unbounded runner would start a thread per segment; extraction is bounded by its own pool of processes anyway.
SEGMENTS_AT_ONCE = 4


def described(function: Callable[P, R]) -> Callable[P, R]:
    """Put the parameters' descriptions into the docstring, which is where Prefect's forms read them from."""
    lines = [f"    {name}: {hint.__metadata__[0].description}" for name, hint in _hints(function).items()]
    function.__doc__ = f"{inspect.getdoc(function)}\n\nArgs:\n" + "\n".join(lines)
    return function


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    hints = get_type_hints(function, include_extras=True)
    return {name: hint for name, hint in hints.items() if name != "return"}


def task_runner() -> TaskRunner[Any]:
    """Runner of the flows' tasks: threads, or the Ray cluster that the settings name (see `tasks.cluster`)."""
    return ray_runner() if on_ray() else ThreadPoolTaskRunner(max_workers=SEGMENTS_AT_ONCE)


def flow_run_begins() -> None:
    """Refuse to go on with a run that was lost or crashed too often.

    Raises:
        UserError: if so; the run fails, and a failed run is not queued again.
    """
    if flow_run.run_count > MOST_BEGINNINGS:
        raise UserError(
            f"this run was begun {flow_run.run_count} times and never came to its end: see in its log and its worker's "
            "what ended it each time, often it is memory, or a server that was away; then start it anew"
        )


def flow_settings(config: str, overrides: str, **options: object) -> Settings:
    """Settings of a flow run; options that are 0 or empty, and a seed of -1, leave their setting alone."""
    seed = options.pop("train__seed", -1)
    given = {name.replace("__", "."): value for name, value in options.items() if value}
    if isinstance(seed, int) and seed >= 0:
        given["train.seed"] = seed
    settings = load_settings(config or None, [line for line in overrides.splitlines() if line.strip()], given)
    if settings.mix.by.strip():
        check_expression(settings.mix.by)  # now, not after an hour of ingestion
    return settings


@contextmanager
def flow_session(
    home: str,
    corpus: str,
    refresh: str = "",
    retry_failed: bool = False,
    workers: int = 0,
    deterministic: bool = False,
    limits: Limits | None = None,
) -> Iterator[PrefectSession]:
    """The session of the running flow; ends its processes when the flow ends.

    Raises:
        UserError: if the corpus cannot be called that, there is no such stage, or the run was begun too often.
    """
    flow_run_begins()
    check_corpus_name(corpus)
    place = Home.from_environment(home or None).create()
    names = stage_names(refresh)
    with Resources(place, workers, deterministic, limits) as resources:
        resources.run_tags = {
            "prefect.flow_run_id": str(flow_run.id or ""),
            "prefect.flow_run_name": str(flow_run.name or ""),
            "prefect.deployment": str(deployment.name or ""),
            "prefect.ui_url": "" if os.environ.get(EMBEDDED) else str(flow_run.ui_url or ""),
            "sheepfold.corpus": corpus,
        }
        yield PrefectSession(place, resources, names, retry_failed)


def _link_mlflow(session: PrefectSession, run_id: str, promoted: Promotion | None) -> None:
    """Say in Prefect's UI where MLflow shows the run and the model: by links where a server shows its pages."""
    address = session.resources.tracking.page_of_run(run_id)
    if address is None:
        create_markdown_artifact(
            f"MLflow run `{run_id}` in `{session.home.shown_tracking_uri}`",
            key="sheepfold-mlflow-run",
            description="Where the training curve is",
        )
        return
    create_link_artifact(
        address, link_text=f"MLflow run {run_id}", key="sheepfold-mlflow-run", description="Where the training curve is"
    )
    if promoted is not None:
        version = promoted.version.version
        create_link_artifact(
            Registry(session.resources.tracking).page_of(version) or address,
            link_text=f"Version {version} in the registry",
            key="sheepfold-model-version",
            description="Card, tags and figures of the model",
        )


def _leave_report(session: PrefectSession, corpus: str, result: RunResult) -> None:
    """Write the report into the home, and show all of it but the sample in the UI."""
    report = run_report(session.home, corpus, result)
    file = session.home.reports_of(corpus) / "report.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    sample = f"\n## Sample\n\n{sample_table(result.completions)}\n" if result.completions else ""
    file.write_text(report + sample, encoding="utf-8")
    where = f"\nThe report with what the model wrote: `{file}`\n" if sample else ""
    create_markdown_artifact(report + where, key="sheepfold-report", description=f"Report of corpus {corpus}")


def finish(
    session: PrefectSession,
    corpus: str,
    result: RunResult,
    measured: Measured | None = None,
    promoted: Promotion | None = None,
) -> dict[str, object]:
    """Leave the report in the UI and in the home; returns the flow's result.

    What documents say, and what models wrote after their words, stands in the home alone: Prefect's database keeps what
    it is given, and no `forget` reaches it.

    Args:
        measured: the model whose evaluation is to have a page.
        promoted: what the gates said of it.
    """
    with ThreadPoolExecutor(1) as aside:
        # drawn by a process of its own where the corpus is large, beside the report
        drawn = aside.submit(write_corpus_page, session, corpus) if snapshot.name in session.produced else None
        _leave_report(session, corpus, result)

    def leave(topic: str, description: str, summary: str, *files: Path) -> None:
        """Show the summary of a page in the UI, and keep the page and what lies beside it with the run."""
        create_markdown_artifact(
            f"{summary}\n\nThe whole page: `{files[0]}`\n", key=f"sheepfold-{topic}", description=description
        )
        if result.mlflow_run_id:
            for file in files:
                session.resources.tracking.log_file(result.mlflow_run_id, file)

    if drawn is not None:
        page, summary = drawn.result()
        leave("corpus", f"What became of corpus {corpus}", summary, page)
    if dataset.name in session.produced:
        page, card, summary = write_dataset_page(session, corpus)
        leave("dataset", f"What models of {corpus} read", f"{summary}\n\nThe data card: `{card}`", page, card)
    if session.produced.get(train.name):
        page, summary = write_training_page(session, corpus, result.metrics)
        leave("training", f"How the model of {corpus} was trained", summary, page)
    if promoted is not None:
        page, summary = write_gates_page(session, corpus, promoted)
        leave("gates", f"Whether version {promoted.version.version} may be champion", summary, page)
    if session.produced.get(generate.name):
        page, summary = write_generation_page(session, corpus)
        leave("generation", f"What the model of {corpus} wrote", summary, page)
    if measured is not None:
        page, summary = write_evaluation_page(session, corpus, measured)
        leave("evaluation", f"How good {measured.model} is", summary, page)
    table = [
        {"stage": item.stage, "computed": item.computed, "reused": item.reused, "seconds": item.seconds}
        for item in result.stages
    ]
    create_table_artifact(table, key="sheepfold-stages", description="What was computed and what was reused")
    if result.metrics:
        figures = [{"metric": name, "value": value} for name, value in sorted(result.metrics.items())]
        create_table_artifact(figures, key="sheepfold-metrics", description="Evaluation beside its baselines")
    if result.mlflow_run_id:
        _link_mlflow(session, result.mlflow_run_id, promoted)
    computed = sum(item.computed for item in result.stages)
    get_run_logger().info("computed %d units, reused the rest", computed)
    return result.to_dict()
