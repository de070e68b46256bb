"""The flows `cleanup` and `lm_eval`: upkeep of a home, and an external evaluation.

Forgetting is not a flow, because Prefect's database would keep the names of forgotten documents.
"""

from __future__ import annotations

from typing import Any

from flows.cli_common import model_folder, open_home
from flows.context import check_attempts, flow
from flows.options import CleanupOptions, LmEvalOptions
from flows.report import leave
from flows.stages import stage_facts
from tasks.core.machine import detect_device
from tasks.report.wording import table
from tasks.upkeep.compact import compact_home
from tasks.upkeep.garbage import collect_garbage


@flow(CleanupOptions)
def cleanup(options: CleanupOptions) -> dict[str, Any]:
    """Join small segments, then remove artefacts that no corpus, registered model, run or unfinished work needs."""
    check_attempts()
    home, store = open_home(options.home or "")
    dry_run = bool(options.dry_run)
    compacted = compact_home(home, store, options.at_least, options.grace_days, dry_run)
    cleared = collect_garbage(home, store, stage_facts(), options.grace_days, dry_run)
    can_be = "can be" if dry_run else "are"
    names = ("stage", "artefacts", "size", "garbage")
    leave(
        "cleanup",
        "Joined and removed artefacts",
        f"{sum(map(len, compacted['joined'].values()))} segment(s) {can_be} joined into {len(compacted['joined'])}. "
        f"{len(compacted['removed']) + len(cleared['removed'])} artefact(s) and {cleared['work']} unfinished work(s), "
        f"{cleared['bytes'] / 2**20:,.1f} MiB, {can_be} removed; {len(cleared['left'])} in use were left.\n\n"
        + "\n".join(table(names, [[str(item[name]) for name in names] for item in cleared["sizes"]])),
    )
    return {"compacted": compacted, "cleared": cleared}


@flow(LmEvalOptions)
def lm_eval(options: LmEvalOptions) -> dict[str, Any]:
    """Evaluate a model on tasks of lm-evaluation-harness."""
    from tasks.evaluation.harness import evaluate_tasks, task_manager

    names = [name.strip() for name in options.tasks.split(",") if name.strip()]
    manager = task_manager(names, options.include or "")
    folder = model_folder(options.home or "", options.model, options.corpus)
    shots = -1 if options.shots is None else options.shots
    results = evaluate_tasks(folder, detect_device(), names, manager, options.limit or 0, shots)
    rows = [[task, name, str(value)] for task, figures in results.items() for name, value in figures.items()]
    leave("lm-eval", f"{options.model} on {', '.join(names)}", "\n".join(table(["task", "figure", "value"], rows)))
    return {"results": results}
