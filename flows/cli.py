"""The command line. Commands that run a flow are made from the flow's option model; the others look things up.

Every command takes `--json`, which prints one document on standard output; all else goes to standard error. Heavy
libraries are imported by the commands that need them, so that `--help`, `sql` and `plan` start at once.
"""

from __future__ import annotations

import inspect as signatures
import logging
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, get_args, get_type_hints

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from typer.core import TyperGroup
from typer.main import get_group

from flows import options as models
from flows.cli_common import AsJson, plain_errors, print_json, say
from storage.errors import UserError

INTERRUPTED = 130  # the exit code of a command that Ctrl-C ended
PATHS = ("config", "prompts", "tasks")  # options that name files, made absolute


class Commands(TyperGroup):
    """Commands of flows; the others are imported when one of them is asked for, or all are listed."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:
            self.list_commands(ctx)
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        self.commands.update(other_commands())
        return super().list_commands(ctx)


@cache
def other_commands() -> Mapping[str, Any]:
    """Return the commands that run no flow, by name."""
    from flows import cli_keep as keep
    from flows import cli_lookup as look
    from flows import cli_team as team

    found = typer.Typer()
    lookups = (look.sql, look.why, look.verify, look.status, look.sample, look.inspect, look.count)
    upkeep = (keep.forget, keep.gc, keep.compact, keep.export, keep.export_corpus, keep.rollback, keep.rebuild_tracking)
    for function in (*lookups, *upkeep, team.up, team.down):
        found.command()(function)
    found.command("import")(keep.import_)
    return get_group(found).commands


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Turns a folder of documents into a language model, and keeps that model up to date.",
)


def command(
    options: type[models.Options], name: str, leave_out: tuple[str, ...] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function of an option model a command whose arguments are the model's fields.

    Args:
        leave_out: Fields that are no options of the command.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        own = [
            item.replace(kind=item.KEYWORD_ONLY, annotation=hints[item.name])
            for item in list(signatures.signature(function).parameters.values())[1:]
        ]

        def run(**given: Any) -> None:
            with plain_errors():
                rest = {item.name: given.pop(item.name) for item in own}
                try:
                    function(_asked(options, given), **rest)
                except KeyboardInterrupt:
                    print(flush=True)  # the shell's prompt begins a line
                    say("stopped; what is finished stays")
                    raise typer.Exit(INTERRUPTED) from None

        fields = {key: field for key, field in options.model_fields.items() if key not in leave_out}
        parameters = [_parameter(key, field) for key, field in fields.items()]
        parameters.sort(key=lambda item: item.default is not signatures.Parameter.empty)
        run.__signature__ = signatures.Signature([*parameters, *own])  # type: ignore[attr-defined]
        run.__annotations__ = {item.name: item.annotation for item in (*parameters, *own)}
        run.__doc__ = function.__doc__
        app.command(name)(run)
        return function

    return decorate


def _parameter(name: str, field: FieldInfo) -> signatures.Parameter:
    """Return the command's parameter for a field of an option model."""
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, Mapping) else {}
    kind: Any = field.annotation
    kind = get_args(kind)[0] if isinstance(kind, UnionType) else kind
    default = signatures.Parameter.empty if field.is_required() else field.default
    limits = {key: getattr(item, key) for item in field.metadata for key in ("ge", "le") if hasattr(item, key)}
    shown: dict[str, Any] = {"help": field.description, "min": limits.get("ge"), "max": limits.get("le")}
    if name == "source":
        text = f"{str(field.description).removesuffix(', one per line.')}."
        hint: Any = Annotated[list[str], typer.Argument(help=text)]
    elif field.is_required() and not extra.get("option"):
        hint = Annotated[kind, typer.Argument(help=field.description)]
    elif name == "settings":
        text = "Further setting, section.name=value; may be repeated."
        hint = Annotated[list[str] | None, typer.Option("--set", help=text)]
    elif name == "refresh":
        hint = Annotated[list[str] | None, typer.Option(help="Stage to compute again; may be repeated.")]
    elif kind == list[str]:
        hint = Annotated[list[str] | None, typer.Option(help=f"{str(field.description).rstrip('.')}; may be repeated.")]
    elif kind is bool:
        hint = Annotated[bool, typer.Option(f"--{name.replace('_', '-')}", help=field.description)]
        default = False
    else:
        optional = kind if default is not None else kind | None
        hint = Annotated[optional, typer.Option(**shown)]
    return signatures.Parameter(name, signatures.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _asked(options: type[models.Options], given: dict[str, Any]) -> Any:
    """Return the option model of a command line: sources and paths absolute, settings checked by name."""
    from tasks.settings import parse_assignments, storable

    if "source" in given:
        from tasks.ingest.sources.resolve import resolve_sources

        given["source"] = "\n".join(map(str, resolve_sources(given["source"])))
    if "settings" in given:
        given["settings"] = storable(parse_assignments(given["settings"] or [])) or None
    if "refresh" in given:
        given["refresh"] = ",".join(given["refresh"] or []) or None
    for name in PATHS:
        if given.get(name) and options is not models.LmEvalOptions:
            given[name] = str(Path(given[name]).expanduser().resolve())
    if given.get("on") and given["on"] not in ("train", "validation"):
        given["on"] = str(Path(given["on"]).expanduser().resolve())
    asked = {name: value for name, value in given.items() if value is not None and value is not False and value != []}
    try:
        return options(**asked)
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:  # options that do not go together
            raise UserError(str(first["ctx"]["error"])) from error
        raise UserError(f"--{str(first['loc'][0]).replace('_', '-')} is {first['input']!r}: {first['msg']}") from error


def run_flow(module: str, name: str, options: Any) -> dict[str, Any]:
    """Run a flow in this process, under the running Prefect server or an embedded one."""
    from flows.embedded import ends_in_order, prefect_api
    from storage.home import Home

    place = Home.from_environment(options.home).create()
    with ends_in_order(), prefect_api(place):
        flow = getattr(import_module(f"flows.{module}"), name)
        result: dict[str, Any] = flow(options.model_copy(update={"home": str(place.path)}))
    return result


def _show(result: dict[str, Any], as_json: bool) -> None:
    """Print a flow's result."""
    if as_json:
        print_json(result)
        return
    from flows.report import RunResult
    from flows.show import metrics_table, sample_table, stage_table
    from tasks.run import StageReport

    found = RunResult(**{**result, "stages": [StageReport(**item) for item in result["stages"]]})
    print(stage_table(found.stages))
    if found.metrics:
        print("\n" + metrics_table(found.metrics))
    if found.model:
        print(
            f"\nmodels:/{found.model['name']}/{found.model['version']} is {found.model['alias']}: "
            f"{found.model['reason']}"
        )
    if found.completions:
        print("\n" + sample_table(found.completions) + f"\n\ncompletions: {found.completions}")
    for note in found.notes:
        print(f"note: {note}")


@command(models.RetrainOptions, "run", leave_out=("base",))
def run(options: models.RetrainOptions, as_json: AsJson = False) -> None:
    """Everything: ingest, prepare, train, evaluate, promote, generate a sample."""
    from flows.unchanged import last_result

    _show(last_result(options) or run_flow("retrain", "retrain", options), as_json)


@command(models.RetrainOptions, "plan", leave_out=("base", "workers", "deterministic"))
def plan(options: models.RetrainOptions, as_json: AsJson = False) -> None:
    """Report what `run` would compute, what is cached, and about how long it takes; computes and downloads nothing."""
    from flows.retrain import plan as plan_run

    planned = plan_run(options)
    stages = list(planned.reports.values())
    if as_json:
        from dataclasses import asdict

        print_json({"stages": [asdict(item) for item in stages], "notes": planned.notes})
        return
    from flows.show import stage_table

    print(stage_table(stages, planned=True))
    total = sum(item.seconds for item in stages)
    print("\nnothing to compute" if all(item.cached for item in stages) else f"\nabout {total:.0f} seconds")
    for note in planned.notes:
        print(f"note: {note}")


@command(models.IngestOptions, "ingest")
def ingest(options: models.IngestOptions, as_json: AsJson = False) -> None:
    """Extract and curate the text of new files, and report the status of every file."""
    _show(run_flow("ingest", "ingest", models.WatchOptions(**options.given())), as_json)


@command(models.PrepareOptions, "prepare")
def prepare(options: models.PrepareOptions, as_json: AsJson = False) -> None:
    """Ingest, then normalise, split, tokenise and cut into training sequences."""
    _show(run_flow("prepare", "prepare", options), as_json)


@command(models.TrainOptions, "suggest", leave_out=("seed", "deterministic"))
def suggest(options: models.TrainOptions, as_json: AsJson = False) -> None:
    """Propose size, context, batch, learning rate and steps for a corpus, this device and a time, and say why."""
    result = run_flow("train", "suggest", options)
    if as_json:
        print_json({name: result[name] for name in ("suggestion", "stages", "notes")})
        return
    from flows.show import print_suggestion

    print_suggestion(result)


@command(models.TrainOptions, "train")
def train(options: models.TrainOptions, as_json: AsJson = False) -> None:
    """Prepare, then train a network; nothing is registered (see `promote`)."""
    _show(run_flow("train", "train", options), as_json)


@command(models.EvaluateOptions, "evaluate", leave_out=("config", "settings"))
def evaluate(options: models.EvaluateOptions, as_json: AsJson = False) -> None:
    """Measure a model on the corpus's frozen evaluation set or other texts, beside its baselines."""
    if options.tasks:
        from tasks.exams.questions import read_questions

        read_questions(Path(options.tasks))  # a broken file is refused before anything starts
    result = run_flow("evaluate", "evaluate", options)
    if options.tasks and not as_json:
        from flows.show import print_exam

        print_exam(result)
        return
    _show(result, True) if options.tasks else _show(result, as_json)


@command(models.CorpusOptions, "promote")
def promote(options: models.CorpusOptions, as_json: AsJson = False) -> None:
    """Register the corpus's latest training, and make it champion if it passes the gates."""
    _show(run_flow("promote", "promote", options), as_json)


@command(models.CompareOptions, "compare", leave_out=("config", "settings", "refresh"))
def compare(options: models.CompareOptions, as_json: AsJson = False) -> None:
    """Compare two models on the corpus's frozen evaluation set: figures, slices, documents, completions."""
    _show_pair(run_flow("compare", "compare", options), as_json)


@command(models.AblateOptions, "ablate", leave_out=("config", "settings", "refresh"))
def ablate(options: models.AblateOptions, as_json: AsJson = False) -> None:
    """Train a model again without a source of its documents, and compare the two; nothing is registered."""
    _show_pair(run_flow("compare", "ablate", options), as_json)


def _show_pair(result: dict[str, Any], as_json: bool) -> None:
    table = result.pop("table")
    if as_json:
        print_json(result)
        return
    if "without" in result:
        left_out, left = result["documents_left_out"], result["documents_trained_on"]
        print(f"left out: {left_out:,} documents {result['without']}; trained on the other {left:,}\n")
    print(table)
    for note in result["notes"] if "without" in result else ():
        print(f"note: {note}")
    say(f"page: {result['page']}")


@command(models.LmEvalOptions, "lm-eval", leave_out=("config", "settings", "refresh"))
def lm_eval(options: models.LmEvalOptions, as_json: AsJson = False) -> None:
    """Evaluate a model on tasks of lm-evaluation-harness."""
    import_module("tasks.harness")  # refused where it is not installed, before anything starts
    result = run_flow("upkeep", "lm_eval", options)
    if as_json:
        print_json(result)
        return
    from flows.show import harness_table

    print(harness_table(result["results"]))


@command(models.GenerateOptions, "generate", leave_out=("config",))
def generate(
    options: Any,
    prompt: Annotated[str, typer.Argument(help="A prompt; or use --prompts.")] = "",
    as_json: AsJson = False,
) -> None:
    """Continue a prompt at the terminal, or every prompt of a file; further settings by --set generate.NAME=VALUE."""
    if bool(prompt) == bool(options.prompts):
        raise UserError("give either a PROMPT or --prompts FILE")
    if options.prompts:
        _generate_file(options, as_json)
        return
    from flows.prompt import continue_prompt

    def show(piece: str) -> None:
        print(piece, end="", flush=True)

    streamed = not as_json and (options.n_samples or 1) == 1
    made = continue_prompt(options, prompt, show if streamed else None)
    if as_json:
        print_json({"rows": made.rows, "completions": None, "page": ""})
        return
    if streamed:
        print()
        _refuse_failed(made.rows)
    else:
        _print_rows(made.rows)
    say(f"{made.tokens:,} tokens in {made.seconds:.1f} s, {made.tokens / made.seconds:,.0f} tokens/s")


def _generate_file(options: Any, as_json: bool) -> None:
    from storage.home import Home
    from storage.tables import read_rows
    from tasks.generation.prompts import given_id, read_prompts

    read_prompts(Path(options.prompts or ""), options.template or "")  # a broken file is refused before anything starts
    result = run_flow("generate", "generate", options)
    rows = [{**row, "id": given_id(row)} for row in read_rows(Path(result["completions"]))]
    page = str(Home.from_environment(options.home).reports_of(options.corpus) / "generation.html")
    if as_json:
        print_json({"rows": rows, "completions": result["completions"], "page": page})
        return
    _print_rows(rows)
    say(f"completions: {result['completions']}\npage: {page}")


def _print_rows(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        print(f"{row['prompt']}{row['text']}\n" if row["error"] is None else f"{row['id']}: {row['error']}\n")
    _refuse_failed(rows)


def _refuse_failed(rows: list[dict[str, Any]]) -> None:
    failed = [row for row in rows if row["error"] is not None]
    if failed and len(failed) == len(rows):
        raise UserError(f"no prompt could be continued; {failed[0]['id']}: {failed[0]['error']}")
    if failed:
        say(f"{len(failed)} of the prompts could not be continued; the column `error` says why")


def main(command: Callable[[], None] = app) -> None:
    """Run the console script."""
    terminal = logging.StreamHandler()
    terminal.addFilter(lambda record: not record.name.startswith("prefect."))  # those are for the flow run's log
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[terminal])
    logging.getLogger("sheepfold").setLevel(logging.INFO)
    command()


if __name__ == "__main__":
    main()
