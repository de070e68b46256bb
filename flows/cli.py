"""The command line: commands made from the option model of a flow; `cli_home` has those that run no flow.

Every command takes `--json`, which prints one document on standard output; all else goes to standard error. Heavy
libraries are imported by the commands that need them, so that `--help`, `sql` and `plan` start at once.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any

import typer

from flows import options as models
from flows.cli_common import AsJson, HomeFolder, absolute, answer, app, command, model_folder, say
from flows.cli_home import others
from storage.errors import UserError
from storage.home import Home
from tasks.core.progress import TerminalHandler


def run_flow(flow: str, options: Any) -> dict[str, Any]:
    """Run the flow `MODULE:NAME` in this process, under the running Prefect server or an embedded one."""
    from flows.embedded import ends_in_order

    with ends_in_order():
        try:
            result: dict[str, Any] = resolve_name(flow)(options)
        except RuntimeError as error:
            if not str(error).startswith("Failed to reach API"):
                raise
            raise UserError(f"Prefect: {error}. Start the server (`sheepfold up`), or unset PREFECT_API_URL") from error
    return result


def _show(options: Any, result: dict[str, Any], as_json: bool) -> None:
    """Print a flow's result."""
    from flows.report import result_text

    answer(result, as_json, lambda found: print(result_text(found)))


@command(models.RetrainOptions, leave_out=("base",))
def run(options: models.RetrainOptions, as_json: AsJson = False) -> None:
    """Everything: ingest, prepare, train, evaluate, promote, generate a sample."""
    from flows.plan import last_result

    # a run whose plan finds everything in the store needs no server
    _show(options, last_result(options) or run_flow("flows.retrain:retrain", options), as_json)


@command(models.RetrainOptions, leave_out=("base", "workers", "deterministic"))
def plan(options: models.RetrainOptions, as_json: AsJson = False) -> None:
    """Report what `run` would compute, what is cached, and about how long it takes; computes and downloads nothing."""
    from flows.plan import plan as plan_run
    from flows.report import plan_text

    planned = plan_run(options)
    document = {"stages": [asdict(item) for item in planned.reports.values()], "notes": planned.notes}
    answer(document, as_json, lambda found: print(plan_text(found)))


@command(models.WatchOptions, leave_out=("announce_share",))
def ingest(options: models.WatchOptions, as_json: AsJson = False) -> None:
    """Extract and curate the text of new files, and report the status of every file."""
    _show(options, run_flow("flows.ingest:ingest", options), as_json)


@command(models.PrepareOptions)
def prepare(options: models.PrepareOptions, as_json: AsJson = False) -> None:
    """Ingest, then normalise, split, tokenise and cut into training sequences."""
    _show(options, run_flow("flows.prepare:prepare", options), as_json)


@command(models.TrainOptions, leave_out=("seed", "deterministic"))
def suggest(options: models.TrainOptions, as_json: AsJson = False) -> None:
    """Propose size, context, batch, learning rate and steps for a corpus, this device and a time, and say why."""
    from flows.report import proposal_text

    result = run_flow("flows.train:suggest", options)
    document = {name: result[name] for name in ("suggestion", "forecast", "stages", "notes")}
    answer(document, as_json, lambda found: print(proposal_text(found)))


@command(models.TrainOptions)
def train(options: models.TrainOptions, as_json: AsJson = False) -> None:
    """Prepare, then train a network; nothing is registered (see `promote`)."""
    _show(options, run_flow("flows.train:train", options), as_json)


@command(models.EvaluateOptions)
def evaluate(options: models.EvaluateOptions, as_json: AsJson = False) -> None:
    """Measure a model on the corpus's frozen evaluation set or other texts, beside its baselines."""
    _show(options, run_flow("flows.evaluate:evaluate", options), as_json)


@command(models.SettingsOptions)
def promote(options: models.SettingsOptions, as_json: AsJson = False) -> None:
    """Register the corpus's latest training, and make it champion if it passes the gates."""
    _show(options, run_flow("flows.promote:promote", options), as_json)


@command(models.CompareOptions)
def compare(options: models.CompareOptions, as_json: AsJson = False) -> None:
    """Compare two models on the corpus's frozen evaluation set: figures, slices, documents, completions."""
    _show_pair(run_flow("flows.compare:compare", options), as_json)


@command(models.AblateOptions)
def ablate(options: models.AblateOptions, as_json: AsJson = False) -> None:
    """Train a model again without a source of its documents, and compare the two; nothing is registered."""
    result = run_flow("flows.compare:ablate", options)
    say(
        f"left out: {result['documents_left_out']:,} documents {result['without']}; trained on the other "
        f"{result['documents_trained_on']:,}"
    )
    _show_pair(result, as_json)
    for note in result["notes"]:
        say(f"note: {note}")


def _show_pair(result: dict[str, Any], as_json: bool) -> None:
    table = result.pop("table")
    answer(result, as_json, lambda _: print(table))
    say(f"page: {result['page']}")


@command(models.LmEvalOptions)
def lm_eval(options: models.LmEvalOptions, as_json: AsJson = False) -> None:
    """Evaluate a model on tasks of lm-evaluation-harness."""
    import_module("tasks.evaluation.harness")  # refused where it is not installed, before anything starts
    answer(run_flow("flows.upkeep:lm_eval", options), as_json)


@command(models.GenerateOptions)
def generate(
    options: Any,
    prompt: Annotated[str, typer.Argument(help="A prompt; or use --prompts.")] = "",
    echo: Annotated[
        bool | None,
        typer.Option("--echo/--no-echo", help="Put the prompt before its continuation (default: not in --json)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Continue a prompt at the terminal, or every prompt of a file; further settings by --set generate.NAME=VALUE."""
    if bool(prompt) == bool(options.prompts):
        raise UserError("give either a PROMPT or --prompts FILE")
    echo = not as_json if echo is None else echo
    if prompt:
        streamed = not as_json and options.load().generate.n_samples == 1
        on_text = partial(print, end="", flush=True) if streamed else None
        rows, seconds = continue_prompt(options, prompt, on_text, echo)
        document: dict[str, Any] = {"rows": rows, "completions": None, "page": ""}
        tokens = sum(row["n_tokens"] for row in rows)
        remark = f"{tokens:,} tokens in {seconds:.1f} s, {tokens / seconds:,.0f} tokens/s"
    else:
        streamed, document = False, _continue_file(options)
        rows, remark = document["rows"], f"completions: {document['completions']}\npage: {document['page']}"
    if echo:
        document["rows"] = [{**row, "text": row["prompt"] + row["text"]} for row in rows]
    if streamed:
        print()
    else:
        answer(document, as_json, _print_rows)
    failed = [row for row in rows if row["error"] is not None]
    if failed and len(failed) == len(rows):
        raise UserError(f"no prompt could be continued; {failed[0]['id']}: {failed[0]['error']}")
    if failed:
        say(f"{len(failed)} of the prompts could not be continued; the column `error` says why")
    say(remark)


def continue_prompt(
    options: Any, prompt: str, on_text: Callable[[str], None] | None, echo: bool = False
) -> tuple[list[dict[str, Any]], float]:
    """Continue a prompt, which commits nothing; returns rows as in the table of completions, one a sample, and seconds.

    Args:
        on_text: Called with each piece of a single continuation as it grows.
        echo: Call it with the prompt first.

    Raises:
        UserError: if the settings do not go with the model, or no name leads to it.
    """
    from storage.manifest import Manifest
    from storage.store import MANIFEST_NAME
    from tasks.core.machine import Machine
    from tasks.generation.completions import BATCH_SIZES, complete_prompts, one_prompt
    from tasks.training.bundle import Bundle, read_sampling

    given = options.load()
    asked = one_prompt(prompt, options.template or "")
    folder = model_folder(options.home or "", options.model, options.corpus)
    settings = given.generate_with(read_sampling(folder))
    with Machine(deterministic=settings.deterministic) as machine:
        machine.seed(settings.seed)
        record = folder / MANIFEST_NAME
        digest = Manifest.from_json(record.read_text(encoding="utf-8")).digest if record.is_file() else ""
        size = settings.batch_size or BATCH_SIZES[machine.device]
        try:
            bundle = Bundle(folder, machine.device, **settings.stretch()).loaded()  # before the clock starts
            if bundle.tokenizer.kind == "hf":
                say(f"the prompt begins with {bundle.tokenizer.beginning(bundle.bos)}")
            if on_text is not None and echo:
                on_text(asked.prompt)
            begun = time.monotonic()
            rows = complete_prompts(bundle, digest, [vars(asked)], settings.sampling(), size, on_text=on_text)
        except ValueError as error:  # a bundle is served without our errors, so it raises none of them
            raise UserError(f"generate: {error}") from error
    return rows, time.monotonic() - begun


@command(models.GenerateOptions, leave_out=("prompts", "template", "workers"))
def chat(
    options: Any,
    system: Annotated[str, typer.Option("--system", help="Message that opens every chat.")] = "",
    as_json: AsJson = False,
) -> None:
    """Chat with a model at the keyboard: /new begins again, /bye ends; more settings by --set generate.NAME=VALUE."""
    from tasks.chat.talk import ANEW, END, form_of, talk
    from tasks.core.machine import Machine
    from tasks.training.bundle import Bundle, read_sampling

    given = options.load()
    folder = model_folder(options.home or "", options.model, options.corpus)
    settings = given.generate_with(read_sampling(folder))
    with Machine(deterministic=settings.deterministic) as machine:
        machine.seed(settings.seed)
        try:
            bundle = Bundle(folder, machine.device, **settings.stretch())
            template = form_of(bundle, options.model)
            if sys.stdin.isatty():
                say(f"{options.model} answers; {ANEW} begins another chat, {END} ends")
            show = partial(print, end="", flush=True)
            sampling = {**settings.sampling(), "n_samples": 1, "max_length": 0}
            if "generate.max_new_tokens" not in given.given:  # the default is for continuations, and answers end
                del sampling["max_new_tokens"]
            said = talk(bundle, template, _typed_lines(), _silent if as_json else show, system, **sampling)
        except ValueError as error:
            raise UserError(f"chat: {error}") from error
    if as_json:
        answer({"messages": said}, as_json)


def _silent(_: str) -> None:
    """Show nothing."""


def _typed_lines() -> Iterator[str]:
    """Yield the lines of standard input, each with a prompt at a terminal."""
    while True:
        try:
            yield input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return


def _continue_file(options: Any) -> dict[str, Any]:
    from storage.tables import read_rows
    from tasks.generation.completions import given_id
    from tasks.generation.prompts import read_prompts

    read_prompts(absolute(options.prompts), options.template or "")  # a broken file is refused before anything starts
    completions = run_flow("flows.generate:generate", options)["completions"]
    rows = [{**row, "id": given_id(row)} for row in read_rows(Path(completions))]
    folder = Home.from_environment(options.home).reports_of(options.corpus)
    return {"rows": rows, "completions": completions, "page": str(folder / "generation.html")}


def _print_rows(found: dict[str, Any]) -> None:
    for row in found["rows"]:
        print(f"{row['text']}\n" if row["error"] is None else f"{row['id']}: {row['error']}\n")


app.add_typer(others)


@command(models.TeamOptions, keeps_last=True)
def up(
    options: models.TeamOptions,
    schedules: Annotated[
        bool | None, typer.Option("--schedules/--no-schedules", help="Switch the deployments' schedules on or off.")
    ] = None,
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Start Prefect's and MLflow's servers and two workers under supervisord, and make the deployments.

    Options that are not given keep their last value.
    """
    from flows.embedded import ends_in_order
    from flows.team.programs import bring_up, team_status
    from flows.team.settings import TeamSettings

    place = Home.from_environment(home or None)
    settings = TeamSettings.kept(place).model_copy(update=options.model_dump(exclude_unset=True))
    if not settings.source:
        absolute("documents").mkdir(exist_ok=True)
    paths = {
        "source": settings.source or str(absolute("documents")),
        "prompts": str(absolute(settings.prompts or "prompts.txt")),
    }
    with ends_in_order():
        started = bring_up(place, settings.model_copy(update=paths), say, schedules)
    answer({"started": started, **team_status(place)}, as_json)


@app.command()
def down(home: HomeFolder = "", as_json: AsJson = False) -> None:
    """Stop the workers, whose runs are queued again, then the servers."""
    from flows.team.programs import bring_down

    answer({"ended": bring_down(Home.from_environment(home or None), say)}, as_json)


PANELS = {
    "Start here": ("run", "plan", "generate", "chat", "status", "sample"),
    "Steps of a run": ("ingest", "prepare", "suggest", "train", "evaluate", "promote"),
    "Documents and lineage": ("sql", "why", "layout", "forget", "export-corpus"),
    "Models": ("compare", "ablate", "lm-eval", "serve", "rollback", "export", "import"),
    "Look into a network": ("inspect", "count", "optimizer"),
    "Team": ("up", "down"),
    "Upkeep": ("verify", "gc", "compact", "rebuild-tracking"),
}
for _item in (*app.registered_commands, *others.registered_commands):
    _name = _item.name or getattr(_item.callback, "__name__", "").replace("_", "-")
    _item.rich_help_panel = next(panel for panel, names in PANELS.items() if _name in names)


def main() -> None:
    """Run the console script."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[TerminalHandler()])
    logging.getLogger("sheepfold").setLevel(logging.INFO)
    app()


if __name__ == "__main__":
    main()
