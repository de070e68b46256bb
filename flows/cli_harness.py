"""`sheepfold lm-eval`: tasks of lm-evaluation-harness are put to a model."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from flows.cli_common import AsJson, HomeFolder, Model, plain_errors, print_json

Tasks = Annotated[str, typer.Option(help="Names of the harness's tasks, separated by commas.")]
Include = Annotated[str, typer.Option(help="Folder with further tasks as YAML.")]
Limit = Annotated[int, typer.Option(help="Only so many documents of each task; 0 takes all.", min=0)]
Shots = Annotated[int, typer.Option(help="Solved examples before each question; -1 leaves it to the task.", min=-1)]


def lm_eval(
    tasks: Tasks,
    model: Model = "champion",
    include: Include = "",
    limit: Limit = 0,
    shots: Shots = -1,
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Put tasks of lm-evaluation-harness to a model."""
    with plain_errors():
        results = run_harness(
            home, model, [name.strip() for name in tasks.split(",") if name.strip()], include, limit, shots
        )
        if as_json:
            print_json({"results": results})
            return
        print("| task | figure | value | standard error |\n|---|---|---|---|")
        for task, figures in results.items():
            for name, value in figures.items():
                if isinstance(value, int | float) and "_stderr" not in name and "," in name:
                    print(f"| {task} | {name.partition(',')[0]} | {value:.4f} | {_error(figures, name)} |")


def _error(figures: dict[str, Any], name: str) -> str:
    value = figures.get(name.replace(",", "_stderr,", 1))
    return f"{value:.4f}" if isinstance(value, float) else ""


def run_harness(
    home: str, model: str, tasks: list[str], include: str, limit: int, shots: int
) -> dict[str, dict[str, Any]]:
    """The harness's figures of a model, by task.

    Raises:
        UserError: if the harness is not installed, knows no such task, or the name leads to no model.
    """
    from flows.actions import checkpoint_of
    from storage.errors import UserError
    from storage.home import Home
    from tasks.resources import Resources
    from tasks.session import Session

    try:
        from lm_eval import simple_evaluate
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise UserError(
            f"lm-evaluation-harness is not installed ({error}): pip install 'sheepfold[lm-eval]'"
        ) from error
    from tasks.harness import SheepfoldLM

    manager = TaskManager(include_path=include or None)
    unknown = [name for name in tasks if name not in manager.all_tasks]
    if unknown or not tasks:
        raise UserError(
            f"--tasks {','.join(tasks)}: lm-evaluation-harness knows no task {', '.join(unknown) or 'without a name'}; "
            "`lm-eval ls tasks` lists those that it knows, and --include names a folder with more"
        )
    place = Home.from_environment(home or None).create()
    with Resources(place) as resources:
        session = Session(place, resources)
        folder = session.store.folder(checkpoint_of(session, model))
        found = simple_evaluate(
            model=SheepfoldLM(folder, resources.device),
            tasks=tasks,
            task_manager=manager,
            limit=limit or None,
            num_fewshot=None if shots < 0 else shots,
        )
    results: dict[str, dict[str, Any]] = found["results"]
    return results
