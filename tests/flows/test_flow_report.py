"""The report of a flow run."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from flows.report import RunResult, run_report
from flows.show import sample_table
from storage.home import Home
from tasks.gates.verdicts import Verdict
from tasks.run import StageReport


def test_a_report_under_the_name_of_a_corpus_that_was_never_ingested_tells_of_the_stages(tmp_path: Path) -> None:
    home = Home.from_environment(tmp_path)
    result = RunResult(stages=[StageReport("generate", "k", False, 1, 0, 2.0, 3)])
    report = run_report(home, "never-run", result)
    assert report.startswith("# Corpus `never-run`\n\n## Stages\n\n| stage |")
    assert "| generate | 1 | 0 | 2.0 | 3 |" in report


def test_a_report_quotes_neither_prompts_nor_continuations(tmp_path: Path) -> None:
    table = tmp_path / "completions.parquet"
    pq.write_table(pa.table({"prompt": ["seventeen violet"], "text": ["lanterns of dust"], "error": [None]}), table)
    result = RunResult(stages=[], completions=str(table))
    report = run_report(Home.from_environment(tmp_path), "fold", result)
    assert "seventeen" not in report and "lanterns" not in report
    assert "| seventeen violet | lanterns of dust |" in sample_table(str(table))


def test_a_report_says_what_the_gates_said(tmp_path: Path) -> None:
    verdict = Verdict("worst_slice", "failed", 0.1, 0.05, "source a|b is 10.0% worse")
    model = {"name": "sheepfold", "version": "2", "alias": "challenger", "reason": "no", "gates": [verdict.document()]}
    report = run_report(Home.from_environment(tmp_path), "fold", RunResult(stages=[], model=model))
    assert "| worst slice | failed | source a\\|b is 10.0% worse |" in report
