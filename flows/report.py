"""End a flow run: the corpus's ref follows its artefacts, and its result, report and pages are written.

Texts of documents, and completions that begin with them, stay in the home alone: Prefect's database keeps what it is
given, and `forget` does not reach it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill, indent
from typing import TYPE_CHECKING, Any

from flows.context import reach_server
from storage.atomic import write_file
from storage.catalog import LISTED, corpus_ref
from storage.manifest import ArtifactRef
from storage.schemas import COMPLETIONS_FILE
from storage.tables import read_rows
from storage.tracking import pages_under
from tasks.core.executor import in_flow
from tasks.core.run import Run, StageReport
from tasks.evaluation.tables import baselines_of
from tasks.ingest.snapshot import snapshot
from tasks.report.completions import write as generation_page
from tasks.report.corpus import write as corpus_page
from tasks.report.dataset import write as dataset_page
from tasks.report.evaluation import metrics_table
from tasks.report.evaluation import write as evaluation_page
from tasks.report.gates import write as gates_page
from tasks.report.page import Outcome, Page
from tasks.report.training import write as training_page
from tasks.report.wording import cell, cut, legible, table
from tasks.training.forecast import forecast, forecast_text, read_forecast
from tasks.training.suggest import read_suggestion, suggest, suggestion_text
from tasks.upkeep.forget import refuse_forgotten

if TYPE_CHECKING:
    from tasks.registry.promote import Promotion
    from tasks.report.evaluation import Measured

# the evaluation's page links to the others
PAGES = (corpus_page, dataset_page, training_page, gates_page, generation_page, evaluation_page)
LEADS = ("corpus", "dataset", "training", "evaluation")
SAMPLES = 4
PROMPT = 24  # characters of a prompt in a terminal
ADVICE = 3  # sentences
SLOWEST = 4  # stages
SAMPLE = 200  # characters of a prompt, and of its continuation


@dataclass
class RunResult:
    """Result of a flow, as `--json` prints it.

    Attributes:
        metrics: figures of the evaluation.
        model: name, version and alias of the registered model; None if the command registers none.
        completions: path of the Parquet table with the generated text; None if the command generates none.
        suggestion: proposed size, context, batch, learning rate and steps, with reasons; None if all were given.
        forecast: bits per byte that are expected of the training, and of others; None where nothing is forecast.
        pages: what each page of the run says first, what it advises, and where it is.
        report: path of the report with everything.
        tracking: page of the MLflow run, or the command that shows it.
        notes: remarks for the person.
    """

    stages: list[StageReport]
    metrics: dict[str, float] = field(default_factory=dict)
    model: dict[str, Any] | None = None
    mlflow_run_id: str | None = None
    completions: str | None = None
    suggestion: dict[str, Any] | None = None
    forecast: dict[str, Any] | None = None
    pages: list[dict[str, Any]] = field(default_factory=list)
    report: str = ""
    tracking: str = ""
    notes: list[str] = field(default_factory=list)


def publish(run: Run) -> None:
    """Let the corpus's ref follow the artefacts of this run; the catalogue's views follow the ref.

    Only ingestion makes a corpus; an evaluation or completions under an unknown name do not.

    Raises:
        UserError: if a document that this run may have read was forgotten while it ran.
    """
    if run.forgotten is not None:
        refuse_forgotten(run.store, run.forgotten)
    name = corpus_ref(run.corpus)
    with run.store.lock(name):  # another run may publish between our reading and writing
        state = run.store.read_ref(name) or {}
        for stage, refs in run.produced.items():
            state[stage] = [asdict(ref) for ref in refs]
        if run.produced.get(snapshot.name):
            state.pop(LISTED, None)
        if snapshot.name in state:
            run.store.write_ref(name, state)


def leave(topic: str, description: str, text: str) -> None:
    """Leave a Markdown artefact in Prefect's UI."""
    if in_flow():
        from prefect.artifacts import create_markdown_artifact

        reach_server(lambda: create_markdown_artifact(text, key=f"sheepfold-{topic}", description=description))


def finish(
    run: Run,
    *,
    metrics: Mapping[str, float] | None = None,
    mlflow_run_id: str | None = None,
    completions: ArtifactRef | None = None,
    measured: Measured | None = None,
    promoted: Promotion | None = None,
) -> dict[str, Any]:
    """Publish what a run produced, and write its report and pages; returns the flow's result.

    Args:
        metrics: Figures of the evaluation.
        measured: The model whose evaluation has a page.
        promoted: The registered model, and the verdicts of the gates on it.
    """
    publish(run)
    proposal, expected = run.produced.get(suggest.name), run.produced.get(forecast.name)
    result = RunResult(
        stages=list(run.reports.values()),
        metrics=dict(metrics or {}),
        model=model_entry(promoted) if promoted else None,
        mlflow_run_id=mlflow_run_id,
        completions=str(run.store.folder(completions) / COMPLETIONS_FILE) if completions else None,
        suggestion=read_suggestion(run.store.folder(proposal[0])) if proposal else None,
        forecast=read_forecast(run.store.folder(expected[0])) if expected else None,
        notes=list(run.notes),
    )
    outcome = Outcome(run, result.metrics, measured, promoted)
    pages = [page for write in PAGES if (page := write(outcome)) is not None]
    file = outcome.folder / "report.md"
    result.pages, result.report = [page.at_a_glance() for page in pages], str(file)
    links = []
    if result.mlflow_run_id:
        address = run.tracking.page_of_run(result.mlflow_run_id)
        links = _links(run, result.mlflow_run_id, address, promoted)
        result.tracking = address or f"mlflow ui --backend-store-uri {run.home.shown_tracking_uri}"
    report = run_report(run.corpus, result, pages, links)
    sample = f"\n## Sample\n\n{sample_table(result.completions)}\n" if result.completions else ""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_file(file, (report + sample).encode())
    leave("report", f"Report of corpus {run.corpus}", f"{report}\nThe report with the completions: `{file}`\n")
    for page in pages:
        leave(page.topic, page.title, f"{page.summary}\n\nThe whole page: `{page.files[0]}`\n")
        for path in page.files if result.mlflow_run_id else ():
            run.tracking.client.log_artifact(result.mlflow_run_id, str(path))
    return asdict(result)


def _links(run: Run, run_id: str, address: str | None, promoted: Promotion | None) -> list[str]:
    """Return links to the MLflow run and the model version where a server shows pages, else the run's database."""
    if address is None:
        return [f"MLflow run `{run_id}` in `{run.home.shown_tracking_uri}`"]
    links = [f"[MLflow run {run_id}]({address})"]
    if promoted is not None:
        name, version = promoted.version.name, promoted.version.version
        page = f"{pages_under(run.home.tracking_uri)}/models/{name}/versions/{version}"
        links.append(f"[Version {version} in the registry]({page})")
    return links


def model_entry(done: Promotion) -> dict[str, Any]:
    """Return the `model` part of a result."""
    return {
        "name": done.version.name,
        "version": done.version.version,
        "alias": done.alias,
        "reason": done.reason,
        "moved": done.moved,
        "gates": [item.document() for item in done.verdicts],
    }


def result_text(found: Mapping[str, Any]) -> str:
    """Return a flow's result for a terminal: what came in, what was reached, what to do next, and where to look."""
    width = min(100, get_terminal_size().columns)
    leads = [page["lead"] for page in found["pages"] if page["topic"] in LEADS]
    facts = "\n".join(fill(f"- {line}", width, subsequent_indent="  ") for line in [*leads, _effort(found["stages"])])
    parts = [facts, _figures(found["metrics"], found["forecast"])]
    model = found["model"]
    if model:
        parts.append(fill(f"models:/{model['name']}/{model['version']} is {model['alias']}: {model['reason']}.", width))
    if found["completions"]:
        parts.append(_samples(found["completions"], width))
    advice = [line for page in reversed(found["pages"]) for line in page["advice"]][:ADVICE]
    parts.append(_section("Next", [fill(f"- {line}", width - 2, subsequent_indent="  ") for line in advice]))
    evaluated = [page["file"] for page in found["pages"] if page["topic"] == "evaluation"]
    looks = [(_near(path), "the evaluation, with texts") for path in evaluated]
    looks += [(_near(found["report"]), "all stages and pages"), (found["tracking"], "")]
    if model:
        looks += [(f"sheepfold why models:/{model['name']}/{model['version']}", "down to the files")]
        looks += [('sheepfold generate "Once upon a time"', "ask the champion")]
    lines = [f"{place:<45} {about}".rstrip() for place, about in looks if place]
    return _text(found, *parts, _section("Look at", lines))


def _section(title: str, lines: Sequence[str]) -> str:
    """Return a heading with indented lines; empty without lines."""
    return "\n".join([title, *(indent(line, "  ") for line in lines)]) if lines else ""


def _near(path: str) -> str:
    """Return a path relative to the current folder if it is below it."""
    return str(Path(path).relative_to(Path.cwd())) if Path(path).is_relative_to(Path.cwd()) else path


def _effort(stages: Sequence[Mapping[str, Any]]) -> str:
    """Return how many stages were cached, and which of the others took longest."""
    computed = sorted((item for item in stages if item["computed"]), key=lambda item: -item["seconds"])
    if not computed:
        return f"{len(stages)} stages, all cached: nothing was computed."
    longest = ", ".join(f"{item['stage']} {item['seconds']:.1f} s" for item in computed[:SLOWEST])
    seconds = sum(item["seconds"] for item in computed)
    n_cached = len(stages) - len(computed)
    told = f"{n_cached} of {len(stages)} stages cached; the others" if n_cached else f"{len(stages)} stages"
    return f"{told} took {seconds:.1f} s: {longest}."


def _figures(metrics: Mapping[str, float], expected: Mapping[str, Any] | None) -> str:
    """Return a model's figures beside its forecast and its baselines as columns; empty without any."""
    if not metrics:
        return ""
    named = [
        ("this model", ""),
        ("champion", "champion_"),
        *((name, f"{of}_") for name, of in baselines_of(metrics)),
    ]
    lines = [f"{'':<15}{'bits per byte':>14}{'perplexity':>12}{'loss':>9}"]
    for name, of in named:
        if f"val/{of}loss" in metrics:
            bits, loss = metrics[f"val/{of}bits_per_byte"], metrics[f"val/{of}loss"]
            lines.append(f"{name:<15}{bits:>14.4f}{math.exp(loss):>12.2f}{loss:>9.4f}")
    if expected and expected["asked"]["bits_per_byte"] is not None:
        asked = expected["asked"]
        lines.append(f"{'expected':<15}{asked['bits_per_byte']:>14.2f} ({asked['low']:.2f} to {asked['high']:.2f})")
    return "\n".join(lines)


def _samples(completions: str, width: int) -> str:
    """Return the first completions, each behind the end of its prompt."""
    lines = []
    for row in read_rows(Path(completions))[:SAMPLES]:
        written = row["text"] if row["error"] is None else f"(not continued: {row['error']})"
        prompt, text = (legible(" ".join(part.split())) for part in (row["prompt"] or "", written))
        lines.append(cut(f"…{prompt[-PROMPT:]} → {text}", width - 2))
    return _section("Sample (end of the prompt → completion)", lines)


def plan_text(found: Mapping[str, Any]) -> str:
    """Return a plan as a person reads it in a terminal."""
    stages = found["stages"]
    total = sum(item["seconds"] for item in stages)
    about = "nothing to compute" if all(item["cached"] for item in stages) else f"about {total:.0f} seconds"
    return _text(found, stage_table(stages, planned=True), about)


def proposal_text(found: Mapping[str, Any]) -> str:
    """Return a result of `suggest` as a person reads it in a terminal."""
    advice = "`sheepfold run` and `sheepfold train` with the same sources and budget take it."
    expected = forecast_text(found["forecast"]) if found["forecast"] else ""
    return _text(found, suggestion_text(found["suggestion"]), expected, advice)


def _text(found: Mapping[str, Any], *parts: str) -> str:
    """Parts of an answer, and the notes behind them."""
    notes = "\n".join(f"note: {note}" for note in found["notes"])
    return "\n\n".join(part for part in (*parts, notes) if part)


def run_report(corpus: str, result: RunResult, pages: Iterable[Page], links: Iterable[str] = ()) -> str:
    """Return the report in Markdown.

    Prompts and continuations are left out, because they quote documents: see `sample_table`.
    """
    parts = [f"# Corpus `{corpus}`", "## Stages", stage_table([asdict(item) for item in result.stages])]
    if result.suggestion:
        parts += ["## Suggestion", suggestion_text(result.suggestion)]
    if result.forecast:
        parts += ["## Forecast", forecast_text(result.forecast)]
    if result.metrics:
        parts += ["## Model", metrics_table(result.metrics)]
    if result.model:
        parts.append(
            f"Registered as `{result.model['name']}` version {result.model['version']}, "
            f"**{result.model['alias']}**: {result.model['reason']}."
        )
    parts += links
    for page in pages:
        parts += [f"## {page.title}", page.summary]
    if result.notes:
        parts += ["## Notes", *(f"- {note}" for note in result.notes)]
    return "\n\n".join(part for part in parts if part) + "\n"


def stage_table(stages: Iterable[Mapping[str, Any]], planned: bool = False) -> str:
    """Return the stages as a table."""
    head = ["stage", "computed", "reused", "seconds", "rows", *(["reason"] if planned else [])]
    rows = []
    for item in stages:
        seconds = f"~{item['seconds']:.0f}" if planned and not item["cached"] else f"{item['seconds']:.1f}"
        rows.append([str({**item, "seconds": seconds}[name]) for name in head])
    return "\n".join(table(head, rows))


def sample_table(completions: str) -> str:
    """Return the first completions as a table."""
    rows = []
    for row in read_rows(Path(completions))[:SAMPLES]:
        written = row["text"] if row["error"] is None else f"(not continued: {row['error']})"
        rows.append([cell(row["prompt"], SAMPLE), cell(written, SAMPLE)])
    return "\n".join(table(["prompt", "continuation"], rows))
