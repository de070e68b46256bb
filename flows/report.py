"""What a command says at its end: one document for machines, the same in words for people."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from storage.catalog import Catalog, read_state
from storage.home import Home
from storage.store import open_store
from tasks.evaluation.sums import baselines_of
from tasks.pages.markdown import plain
from tasks.session import StageReport


@dataclass
class RunResult:
    """Result of a flow, as `--json` prints it.

    Attributes:
        metrics: figures of the evaluation.
        model: name, version and alias of the registered model; None where the command registers none.
        completions: path of the Parquet table with the generated text; None where the command generates none.
        suggestion: size, context, batch, learning rate and steps that were proposed, and why; None where nothing was
            left open.
        notes: what the person should know.
    """

    stages: list[StageReport]
    metrics: dict[str, float] = field(default_factory=dict)
    model: dict[str, Any] | None = None
    mlflow_run_id: str | None = None
    completions: str | None = None
    suggestion: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The document."""
        return asdict(self)


def stage_table(stages: list[StageReport], planned: bool = False) -> str:
    """Markdown table of the stages."""
    head = "| stage | computed | reused | seconds | rows |" + (" reason |" if planned else "")
    lines = [head, "|" + "---|" * (head.count("|") - 1)]
    for item in stages:
        seconds = f"~{item.seconds:.0f}" if planned and not item.cached else f"{item.seconds:.1f}"
        row = f"| {item.stage} | {item.computed} | {item.reused} | {seconds} | {item.rows} |"
        lines.append(row + (f" {item.reason} |" if planned else ""))
    return "\n".join(lines)


def metrics_table(metrics: dict[str, float]) -> str:
    """Markdown table of a model beside its baselines."""
    if not metrics:
        return ""
    rows = [
        ("this model", metrics["val/loss"], metrics["val/bits_per_byte"]),
        *((name, metrics[f"val/{of}_loss"], metrics[f"val/{of}_bits_per_byte"]) for name, of in baselines_of(metrics)),
    ]
    lines = ["| | loss | perplexity | bits per byte |", "|---|---|---|---|"]
    if "val/champion_bits_per_byte" in metrics:
        rows.insert(1, ("other champion", metrics["val/champion_loss"], metrics["val/champion_bits_per_byte"]))
    lines += [f"| {name} | {loss:.4f} | {math.exp(loss):.2f} | {bits:.4f} |" for name, loss, bits in rows]
    lines.append(f"| zstd -19 | | | {metrics['val/zstd19_bits_per_byte']:.4f} |")
    share = 100 * metrics["val/below_unigram"]
    lines.append("")
    lines.append(
        f"{share:.1f} % fewer bits per byte than the unigram baseline, on {metrics['val/documents']:.0f} documents "
        f"({metrics['val/bytes']:,.0f} bytes)."
    )
    return "\n".join(lines)


def gates_table(gates: list[dict[str, Any]]) -> str:
    """Markdown table of the gates' verdicts."""
    rows = [
        f"| {item['gate'].replace('_', ' ')} | {item['verdict']} | {plain(item['sentence'], 400)} |" for item in gates
    ]
    return "\n".join(["| gate | verdict | why |", "|---|---|---|", *rows])


def corpus_table(home: Home, corpus: str) -> str:
    """Markdown table of what became of the files; empty for a corpus that was never ingested."""
    store = open_store(home.store, home.cache)
    if not read_state(store, corpus):
        return ""
    rows = Catalog(store, corpus).query(
        "select status, case when status = 'ok' then '' else reason_code end as why, count(*) as files "
        "from files group by all order by files desc, status, why"
    )
    lines = ["| files | status | why |", "|---|---|---|"]
    lines += [f"| {row['files']} | {row['status']} | {row['why']} |" for row in rows]
    return "\n".join(lines)


def suggestion_text(suggestion: dict[str, Any]) -> str:
    """Markdown of what was proposed and why."""
    shape, plan = suggestion["model"], suggestion["train"]
    steps = f"{suggestion['max_steps']:,} steps" if suggestion["max_steps"] else "the steps asked for"
    head = (
        f"**{suggestion['preset']}**: {shape['n_layer']} layers of width {shape['d_model']}, context "
        f"{shape['max_seq_len']}, batches of {plan['batch_size'] * plan['grad_accum']}, highest learning rate "
        f"{plan['lr']:g}, {steps}."
    )
    lines = ["| network | parameters | s/step | steps | passes | promised loss |", "|---|---|---|---|---|---|"]
    for item in suggestion["candidates"]:
        if item["step_seconds"] is None:
            lines.append(f"| {item['name']} | {item['parameters']:,} | | | | {item['note']} |")
            continue
        lines.append(
            f"| {item['name']} | {item['parameters']:,} | {item['step_seconds']:.3f} | {item['steps']:,} | "
            f"{item['passes']:.1f} | {item['loss']:.2f} |"
        )
    return "\n\n".join([head, "\n".join(f"- {reason}" for reason in suggestion["why"]), "\n".join(lines)])


def run_report(home: Home, corpus: str, result: RunResult) -> str:
    """The report, Markdown; without what was written, which begins with words of documents: see `sample_table`."""
    parts = [f"# Corpus `{corpus}`", corpus_table(home, corpus), "## Stages", stage_table(result.stages)]
    if result.suggestion:
        parts += ["## Suggestion", suggestion_text(result.suggestion)]
    if result.metrics:
        parts += ["## Model", metrics_table(result.metrics)]
    if result.model:
        parts.append(
            f"Registered as `{result.model['name']}` version {result.model['version']}, "
            f"**{result.model['alias']}**: {result.model['reason']}."
        )
        parts.append(gates_table(result.model["gates"]))
    if result.notes:
        parts += ["## Notes", *(f"- {note}" for note in result.notes)]
    return "\n\n".join(part for part in parts if part) + "\n"


def sample_table(completions: str) -> str:
    """Markdown table of the first completions."""
    from pathlib import Path

    from storage.tables import read_rows

    lines = ["| prompt | continuation |", "|---|---|"]
    for row in read_rows(Path(completions))[:4]:
        written = row["text"] if row["error"] is None else f"(not continued: {row['error']})"
        prompt, text = (" ".join(words.split()).replace("|", "\\|") for words in (row["prompt"], written))
        lines.append(f"| {prompt} | {text[:200]} |")
    return "\n".join(lines)
