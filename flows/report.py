"""Results of flows: the document that `--json` prints, its text in a terminal, and the report in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from storage.tables import read_rows
from tasks.core.run import StageReport
from tasks.report.evaluation import metrics_table
from tasks.report.markdown import cell, table
from tasks.report.written import Page
from tasks.training.suggest import suggestion_text

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

    def to_dict(self) -> dict[str, Any]:
        """Return the document."""
        return asdict(self)


def result_text(found: Mapping[str, Any]) -> str:
    """Return a flow's result as a person reads it in a terminal."""
    model = found["model"]
    parts = [stage_table(found["stages"]), metrics_table(found["metrics"])]
    if model:
        parts.append(f"models:/{model['name']}/{model['version']} is {model['alias']}: {model['reason']}")
    if found["completions"]:
        parts += [sample_table(found["completions"]), f"completions: {found['completions']}"]
    return _text(*parts, *_notes(found))


def plan_text(found: Mapping[str, Any]) -> str:
    """Return a plan as a person reads it in a terminal."""
    stages = found["stages"]
    total = sum(item["seconds"] for item in stages)
    about = "nothing to compute" if all(item["cached"] for item in stages) else f"about {total:.0f} seconds"
    return _text(stage_table(stages, planned=True), about, *_notes(found))


def proposal_text(found: Mapping[str, Any]) -> str:
    """Return a result of `suggest` as a person reads it in a terminal."""
    advice = "`sheepfold run` and `sheepfold train` with the same sources and budget take it."
    return _text(suggestion_text(found["suggestion"]), advice, *_notes(found))


def _notes(found: Mapping[str, Any]) -> list[str]:
    return ["\n".join(f"note: {note}" for note in found["notes"])]


def _text(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


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
    return f"{_text(*parts)}\n"


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
