"""Leave the report of a run in the home and in Prefect's UI.

Texts of documents, and completions that begin with them, stay in the home alone: Prefect's database keeps what it is
given, and `forget` does not reach it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from flows.report import CorpusFiles, Page, RunResult, run_report, write_pages
from flows.show import sample_table
from flows.state import publish
from storage.tracking import pages_under
from tasks.executor import in_flow
from tasks.run import Run
from tasks.suggest import read_suggestion, suggest

if TYPE_CHECKING:
    from tasks.evaluation_report.collect import Measured
    from tasks.ingest.segments import Sources
    from tasks.registry.promote import Promotion


def result_of(run: Run, **parts: Any) -> RunResult:
    """Return a result with the run's report, and the proposal that it followed, if there is one."""
    made = run.produced.get(suggest.name)
    suggestion = read_suggestion(run.store.folder(made[0])) if made else None
    return RunResult(stages=list(run.reports.values()), notes=list(run.notes), suggestion=suggestion, **parts)


def leave_markdown(topic: str, description: str, text: str) -> None:
    """Leave a Markdown artefact in Prefect's UI."""
    if in_flow():
        from prefect.artifacts import create_markdown_artifact

        create_markdown_artifact(text, key=f"sheepfold-{topic}", description=description)


def leave_table(topic: str, description: str, rows: list[dict[str, Any]]) -> None:
    """Leave a table in Prefect's UI."""
    if in_flow():
        from prefect.artifacts import create_table_artifact

        create_table_artifact(rows, key=f"sheepfold-{topic}", description=description)


def leave_link(topic: str, description: str, text: str, address: str) -> None:
    """Leave a link in Prefect's UI."""
    if in_flow():
        from prefect.artifacts import create_link_artifact

        create_link_artifact(address, link_text=text, key=f"sheepfold-{topic}", description=description)


def finish(
    run: Run,
    result: RunResult,
    sources: Sources | None = None,
    measured: Measured | None = None,
    promoted: Promotion | None = None,
) -> dict[str, Any]:
    """Publish what a run produced, and write its report and pages; returns the flow's result.

    Args:
        sources: Where the files lie, for pictures of pages.
        measured: The model whose evaluation has a page.
        promoted: Verdicts of the gates on it.
    """
    publish(run)
    corpus = run.corpus
    report = run_report(run.home, corpus, result)
    file = run.home.reports_of(corpus) / "report.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    sample = f"\n## Sample\n\n{sample_table(result.completions)}\n" if result.completions else ""
    with ThreadPoolExecutor(1) as beside:
        drawn = beside.submit(_pages, run, result, sources, measured, promoted)
        file.write_text(report + sample, encoding="utf-8")
    where = f"\nThe report with the completions: `{file}`\n" if sample else ""
    leave_markdown("report", f"Report of corpus {corpus}", report + where)
    for page in drawn.result():
        leave_markdown(page.topic, page.title, f"{page.summary}\n\nThe whole page: `{page.files[0]}`\n")
        if result.mlflow_run_id:
            for path in page.files:
                run.tracking.client.log_artifact(result.mlflow_run_id, str(path))
    columns = ("stage", "computed", "reused", "seconds")
    rows = [{name: getattr(item, name) for name in columns} for item in result.stages]
    leave_table("stages", "Computed and reused artefacts", rows)
    if result.metrics:
        figures = [{"metric": name, "value": value} for name, value in sorted(result.metrics.items())]
        leave_table("metrics", "Evaluation beside its baselines", figures)
    if result.mlflow_run_id:
        _link_mlflow(run, result.mlflow_run_id, promoted)
    return result.to_dict()


def _pages(
    run: Run, result: RunResult, sources: Sources | None, measured: Measured | None, promoted: Promotion | None
) -> list[Page]:
    files = CorpusFiles() if sources is None else CorpusFiles(sources.paths, sources.passwords)
    apart = run.machine.apart
    return list(
        write_pages(run.home, run.store, run.corpus, run.produced, apart, files, result.metrics, measured, promoted)
    )


def _link_mlflow(run: Run, run_id: str, promoted: Promotion | None) -> None:
    """Link the MLflow run and the model version where a server shows pages; else name the database."""
    address = run.tracking.page_of_run(run_id)
    if address is None:
        where = f"MLflow run `{run_id}` in `{run.home.shown_tracking_uri}`"
        leave_markdown("mlflow-run", "Training curve", where)
        return
    leave_link("mlflow-run", "Training curve", f"MLflow run {run_id}", address)
    if promoted is not None:
        name, version = promoted.version.name, promoted.version.version
        page = f"{pages_under(run.home.tracking_uri)}/models/{name}/versions/{version}"
        leave_link("model-version", "Card, tags and figures of the model", f"Version {version} in the registry", page)
