"""Leave the report of a run in the home and in Prefect's UI.

Texts of documents, and completions that begin with them, stay in the home alone: Prefect's database keeps what it is
given, and `forget` does not reach it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flows.context import reach_server
from flows.report import RunResult, run_report, sample_table
from flows.state import publish
from storage.atomic import write_file
from storage.tracking import pages_under
from tasks.core.executor import in_flow
from tasks.core.run import Run
from tasks.report.completions import write as generation_page
from tasks.report.corpus import write as corpus_page
from tasks.report.dataset import write as dataset_page
from tasks.report.evaluation import write as evaluation_page
from tasks.report.gates import write as gates_page
from tasks.report.training import write as training_page
from tasks.report.written import Outcome
from tasks.training.suggest import read_suggestion, suggest

if TYPE_CHECKING:
    from tasks.registry.promote import Promotion
    from tasks.report.evaluation import Measured

# the evaluation's page links to the others
PAGES = (corpus_page, dataset_page, training_page, gates_page, generation_page, evaluation_page)


def result_of(run: Run, **parts: Any) -> RunResult:
    """Return a result with the run's report, and the proposal that it followed, if there is one."""
    made = run.produced.get(suggest.name)
    suggestion = read_suggestion(run.store.folder(made[0])) if made else None
    return RunResult(stages=list(run.reports.values()), notes=list(run.notes), suggestion=suggestion, **parts)


def leave(topic: str, description: str, text: str) -> None:
    """Leave a Markdown artefact in Prefect's UI."""
    if in_flow():
        from prefect.artifacts import create_markdown_artifact

        reach_server(lambda: create_markdown_artifact(text, key=f"sheepfold-{topic}", description=description))


def finish(
    run: Run,
    result: RunResult,
    measured: Measured | None = None,
    promoted: Promotion | None = None,
) -> dict[str, Any]:
    """Publish what a run produced, and write its report and pages; returns the flow's result.

    Args:
        measured: The model whose evaluation has a page.
        promoted: Verdicts of the gates on it.
    """
    publish(run)
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
    return result.to_dict()


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
