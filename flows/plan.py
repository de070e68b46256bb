"""The plan of a retraining, and the result of a run that has nothing to compute.

A run whose artefacts are all cached returns the result of the last run: no server is started and no report written.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from flows.evaluate import evaluate_model, trace_model
from flows.generate import sample
from flows.options import RetrainOptions
from flows.prepare import ingest_and_prepare
from flows.report import RunResult
from flows.train import train_model
from storage.atomic import write_file
from storage.digest import sha256_file, sha256_json
from storage.home import Home, check_corpus_name
from storage.registry import registered_versions
from tasks.core.run import Run
from tasks.core.settings import Settings
from tasks.registry.base import continuing
from tasks.report.page import VERSION as PAGES_VERSION

RESULT_FILE = "result.json"
COMPARED = ("snapshot", "dataset", "train", "evaluate", "generate")


def plan(options: RetrainOptions) -> Run:
    """Return a planning run of a retraining, whose reports list the stages to compute.

    No artefact is made and no source is downloaded.
    """
    settings = options.load()
    check_corpus_name(options.corpus)
    home = Home.from_environment(options.home)
    run = Run(home, None, options.corpus, options.stages_to_refresh(), bool(options.retry_failed), plan=True)
    plan_retraining(run, options.source, continuing(run, settings, options.base))
    return run


def plan_retraining(run: Run, source: str, settings: Settings) -> None:
    """Call the stages of a retraining in order, with a planning run.

    Without checks and the registry, which make no artefact, and without the evaluations of the champion and of rounded
    weights.
    """
    _, prepared, base = ingest_and_prepare(run, source, settings)
    checkpoint = train_model(run, settings, prepared, base)
    evalset, questions = prepared.evalset, prepared.questions
    evaluation, _ = evaluate_model(run, checkpoint, evalset, settings.evaluate, prepared.dataset, questions)
    made = sample(run, settings, checkpoint, evalset, questions)
    trace_model(run, settings.evaluate, checkpoint, evalset, made)
    run.remember(train=checkpoint, evaluate=evaluation, generate=made)


def _identity(run: Run, settings: Settings) -> dict[str, Any]:
    """Return everything that a result depends on: artefacts, settings, registered models with aliases, and reports."""
    versions = [(item.name, item.version, item.aliases) for item in registered_versions(run.store)]
    produced = {name: [asdict(ref) for ref in run.produced.get(name, ())] for name in COMPARED}
    folder = run.home.reports_of(run.corpus)
    files = [file for file in sorted(folder.glob("*")) if file.is_file() and file.name != RESULT_FILE]
    return {
        "produced": produced,
        "settings": sha256_json(settings.sections()),
        "versions": sha256_json(versions),
        "pages": PAGES_VERSION,
        "has_tracking": run.home.has_tracking,  # after the loss of the database a run has to report it
        "reports": {file.name: sha256_file(file) for file in files},
    }


def keep_result(run: Run, settings: Settings, result: dict[str, Any]) -> None:
    """Write the result of a complete run next to its report."""
    kept = {"identity": _identity(run, settings), "result": result}
    write_file(run.home.reports_of(run.corpus) / RESULT_FILE, json.dumps(kept, ensure_ascii=False).encode())


def last_result(options: RetrainOptions) -> dict[str, Any] | None:
    """Return the result of the last run if a run now would compute nothing; None if it has to run."""
    settings = options.load()
    if options.base or settings.train.base or options.refresh or options.retry_failed:
        return None
    file = Home.from_environment(options.home).reports_of(options.corpus) / RESULT_FILE
    if not file.is_file():
        return None
    planned = plan(options)
    if not all(line.cached for line in planned.reports.values()):
        return None
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        identity, result = kept["identity"], kept["result"]
    except (ValueError, KeyError, TypeError):
        return None  # the file is damaged, and the run writes it again
    if result.keys() != {item.name for item in fields(RunResult)}:
        return None  # another version wrote it
    if identity != json.loads(json.dumps(_identity(planned, settings))):
        return None
    if result["completions"] and not Path(result["completions"]).is_file():
        return None
    stages = [{**asdict(line), "seconds": 0.0} for line in planned.reports.values()]
    return {**result, "model": {**result["model"], "moved": False}, "stages": stages, "notes": planned.notes}
