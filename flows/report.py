"""End a flow run: the corpus's ref follows its artefacts, and its result, report and pages are written.

Texts of documents, and completions that begin with them, stay in the home alone: Prefect's database keeps what it is
given, and `forget` does not reach it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
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
from tasks.ingest.snapshot import snapshot
from tasks.report.completions import write as generation_page
from tasks.report.corpus import write as corpus_page
from tasks.report.dataset import write as dataset_page
from tasks.report.evaluation import metrics_table
from tasks.report.evaluation import write as evaluation_page
from tasks.report.gates import write as gates_page
from tasks.report.page import Outcome, Page
from tasks.report.training import write as training_page
from tasks.report.wording import cell, table
from tasks.training.suggest import read_suggestion, suggest, suggestion_text
from tasks.upkeep.forget import refuse_forgotten

if TYPE_CHECKING:
    from tasks.registry.promote import Promotion
    from tasks.report.evaluation import Measured

# the evaluation's page links to the others
PAGES = (corpus_page, dataset_page, training_page, gates_page, generation_page, evaluation_page)
SAMPLES = 4
SAMPLE = 200  # characters of a prompt, and of its continuation


@dataclass
class RunResult:
    """Result of a flow, as `--json` prints it.

    Attributes:
        metrics: figures of the evaluation.
        model: name, version and alias of the registered model; None if the command registers none.
        completions: path of the Parquet table with the generated text; None if the command generates none.
        suggestion: proposed size, context, batch, learning rate and steps, with reasons; None if all were given.
        notes: remarks for the person.
    """

    stages: list[StageReport]
    metrics: dict[str, float] = field(default_factory=dict)
    model: dict[str, Any] | None = None
    mlflow_run_id: str | None = None
    completions: str | None = None
    suggestion: dict[str, Any] | None = None
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
    proposal = run.produced.get(suggest.name)
    result = RunResult(
        stages=list(run.reports.values()),
        metrics=dict(metrics or {}),
        model=model_entry(promoted) if promoted else None,
        mlflow_run_id=mlflow_run_id,
        completions=str(run.store.folder(completions) / COMPLETIONS_FILE) if completions else None,
        suggestion=read_suggestion(run.store.folder(proposal[0])) if proposal else None,
        notes=list(run.notes),
    )
    outcome = Outcome(run, result.metrics, measured, promoted)
    pages = [page for write in PAGES if (page := write(outcome)) is not None]
    links = _links(run, result.mlflow_run_id, promoted) if result.mlflow_run_id else []
    report = run_report(run.corpus, result, pages, links)
    sample = f"\n## Sample\n\n{sample_table(result.completions)}\n" if result.completions else ""
    file = outcome.folder / "report.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_file(file, (report + sample).encode())
    leave("report", f"Report of corpus {run.corpus}", f"{report}\nThe report with the completions: `{file}`\n")
    for page in pages:
        leave(page.topic, page.title, f"{page.summary}\n\nThe whole page: `{page.files[0]}`\n")
        for path in page.files if result.mlflow_run_id else ():
            run.tracking.client.log_artifact(result.mlflow_run_id, str(path))
    return asdict(result)


def _links(run: Run, run_id: str, promoted: Promotion | None) -> list[str]:
    """Return links to the MLflow run and the model version where a server shows pages, else the run's database."""
    address = run.tracking.page_of_run(run_id)
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
    """Return a flow's result as a person reads it in a terminal."""
    model = found["model"]
    parts = [stage_table(found["stages"]), metrics_table(found["metrics"])]
    if model:
        parts.append(f"models:/{model['name']}/{model['version']} is {model['alias']}: {model['reason']}")
    if found["completions"]:
        parts += [sample_table(found["completions"]), f"completions: {found['completions']}"]
    return _text(found, *parts)


def plan_text(found: Mapping[str, Any]) -> str:
    """Return a plan as a person reads it in a terminal."""
    stages = found["stages"]
    total = sum(item["seconds"] for item in stages)
    about = "nothing to compute" if all(item["cached"] for item in stages) else f"about {total:.0f} seconds"
    return _text(found, stage_table(stages, planned=True), about)


def proposal_text(found: Mapping[str, Any]) -> str:
    """Return a result of `suggest` as a person reads it in a terminal."""
    advice = "`sheepfold run` and `sheepfold train` with the same sources and budget take it."
    return _text(found, suggestion_text(found["suggestion"]), advice)


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
