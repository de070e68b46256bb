"""The report of a flow run."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from flows.report import RunResult, run_report, sample_table
from tasks.core.run import StageReport
from tasks.report.page import Page


def test_a_report_of_a_corpus_that_was_never_ingested_lists_the_stages() -> None:
    report = run_report("never-run", RunResult(stages=[StageReport("generate", "k", False, 1, 0, 2.0, 3)]), [])
    assert report.startswith("# Corpus `never-run`\n\n## Stages\n\n| stage |")
    assert "| generate | 1 | 0 | 2.0 | 3 |" in report


def test_a_report_quotes_neither_prompts_nor_continuations(tmp_path: Path) -> None:
    table = tmp_path / "completions.parquet"
    pq.write_table(pa.table({"prompt": ["seventeen violet"], "text": ["lanterns\n of|dust"], "error": [None]}), table)
    report = run_report("fold", RunResult(stages=[], completions=str(table)), [])
    assert "seventeen" not in report and "lanterns" not in report
    assert "| seventeen violet | lanterns of\\|dust |" in sample_table(str(table))


def test_a_report_holds_the_verdict_on_a_model_and_the_summary_of_each_page(tmp_path: Path) -> None:
    model = {"name": "sheepfold", "version": "2", "alias": "challenger", "reason": "worst slice 10 % worse"}
    page = Page("gates", "Gates of version 2", "| worst slice | failed |", (tmp_path / "gates.html",))
    report = run_report("fold", RunResult(stages=[], model=model), [page])
    assert "version 2, **challenger**: worst slice 10 % worse." in report
    assert "## Gates of version 2\n\n| worst slice | failed |" in report
