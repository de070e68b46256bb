"""The command line: one thin function per command.

Every command takes `--json`, which prints one document on standard output; all else goes to standard error. Heavy
libraries are imported by the commands that need them, so that `--help`, `sql` and `plan` start at once.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.cli_common import AsJson, Assign, Corpus, HomeFolder, Model, plain_errors, print_json
from flows.cli_compare import ablate, compare
from flows.cli_count import count
from flows.cli_exam import checked_questions, show_exam
from flows.cli_exchange import export, export_corpus, import_
from flows.cli_generate import generate
from flows.cli_harness import lm_eval
from flows.cli_inspect import inspect
from flows.cli_keep import compact, forget, gc
from flows.cli_lookup import sample, sql, status, verify, why
from flows.cli_names import rebuild_tracking, rollback
from flows.cli_suggest import show_suggestion
from flows.cli_team import down, up

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Turns a folder of documents into a language model, and keeps that model up to date.",
)

Sources = Annotated[list[str], typer.Argument(help="Folders or files with documents.", show_default=False)]
Preset = Annotated[str, typer.Option(help="Shape of the network (see `count`); empty takes what `suggest` proposes.")]
Config = Annotated[str, typer.Option(help="Configuration file, TOML or JSON.")]
Minutes = Annotated[float, typer.Option(help="Training time in minutes (default 5).", min=0)]
MaxSteps = Annotated[int, typer.Option(help="Optimiser steps instead of minutes.", min=0)]
MaxTokens = Annotated[int, typer.Option(help="Training tokens instead of minutes.", min=0)]
Workers = Annotated[int, typer.Option(help="Extraction processes; 0 is one per core.", min=0)]
Refresh = Annotated[list[str] | None, typer.Option(help="A stage to compute again; may be repeated.")]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Extract files again whose extraction failed.")]
Seed = Annotated[int | None, typer.Option(help="Seed of weights, order and dropout.", min=0, show_default="1337")]
Deterministic = Annotated[bool, typer.Option("--deterministic", help="Deterministic kernels only.")]


def _sources(sources: list[str]) -> str:
    """Sources as a flow takes them: absolute, one per line."""
    from tasks.ingest.sources.resolve import resolve_sources

    return "\n".join(map(str, resolve_sources(sources)))


def _flow(name: str, home: str, **parameters: Any) -> dict[str, Any]:
    """Run a flow in this process, under the running Prefect server or an embedded one."""
    import importlib

    from flows.embedded import ends_in_order, prefect_api
    from storage.home import Home

    place = Home.from_environment(home or None).create()
    with ends_in_order(), prefect_api(place):
        flow = getattr(importlib.import_module(f"flows.{name}"), name)
        result: dict[str, Any] = flow(home=str(place.path), **parameters)
    return result


def _show(result: dict[str, Any], as_json: bool) -> None:
    """Print a flow's result."""
    if as_json:
        print_json(result)
        return
    from flows.report import RunResult, metrics_table, sample_table, stage_table
    from tasks.session import StageReport

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


def _overrides(assign: list[str] | None) -> str:
    """Settings as a flow takes them, one per line; they are checked here, for a flow's database keeps them as given."""
    from tasks.settings import storable_assignments

    return "\n".join(storable_assignments(assign or []))


@app.command()
def run(
    sources: Sources,
    corpus: Corpus = "default",
    preset: Preset = "",
    config: Config = "",
    assign: Assign = None,
    minutes: Minutes = 0,
    max_steps: MaxSteps = 0,
    max_tokens: MaxTokens = 0,
    workers: Workers = 0,
    refresh: Refresh = None,
    retry_failed: RetryFailed = False,
    seed: Seed = None,
    deterministic: Deterministic = False,
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Everything: ingest, prepare, train, evaluate, promote, generate a sample."""
    with plain_errors():
        result = _flow(
            "retrain",
            home,
            source=_sources(sources),
            corpus=corpus,
            preset=preset,
            minutes=minutes,
            max_steps=max_steps,
            max_tokens=max_tokens,
            seed=-1 if seed is None else seed,
            workers=workers,
            deterministic=deterministic,
            refresh=",".join(refresh or []),
            retry_failed=retry_failed,
            config=_absolute(config),
            overrides=_overrides(assign),
        )
        _show(result, as_json)


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().resolve()) if path else ""


@app.command()
def plan(
    sources: Sources,
    corpus: Corpus = "default",
    preset: Preset = "",
    config: Config = "",
    assign: Assign = None,
    minutes: Minutes = 0,
    max_steps: MaxSteps = 0,
    max_tokens: MaxTokens = 0,
    refresh: Refresh = None,
    retry_failed: RetryFailed = False,
    seed: Seed = None,
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """What `run` would compute, what is cached, and about how long it will take."""
    with plain_errors():
        from flows import pipeline
        from flows.stages import stage_names
        from storage.home import Home
        from tasks.ingest.sources.resolve import resolve_sources
        from tasks.session import Planner
        from tasks.settings import load_settings

        options = {
            "model.preset": preset or None,
            "train.minutes": minutes or None,
            "train.max_steps": max_steps or None,
            "train.max_tokens": max_tokens or None,
            "train.seed": seed,
        }
        settings = load_settings(config or None, assign or [], options)
        place = Home.from_environment(home or None)
        planner = Planner(place, stage_names(",".join(refresh or [])), retry_failed, corpus)
        pipeline.plan(planner, resolve_sources(sources), corpus, settings)
        stages = planner.report_list()
        if as_json:
            from dataclasses import asdict

            print_json({"stages": [asdict(item) for item in stages], "notes": planner.notes})
            return
        from flows.report import stage_table

        print(stage_table(stages, planned=True))
        total = sum(item.seconds for item in stages)
        print("\nnothing to compute" if all(item.cached for item in stages) else f"\nabout {total:.0f} seconds")
        for note in planner.notes:
            print(f"note: {note}")


@app.command()
def ingest(
    sources: Sources,
    corpus: Corpus = "default",
    config: Config = "",
    assign: Assign = None,
    workers: Workers = 0,
    refresh: Refresh = None,
    retry_failed: RetryFailed = False,
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Extract the text of what is new, and say for every file what became of it."""
    with plain_errors():
        result = _flow(
            "ingest",
            home,
            source=_sources(sources),
            corpus=corpus,
            workers=workers,
            refresh=",".join(refresh or []),
            retry_failed=retry_failed,
            config=_absolute(config),
            overrides=_overrides(assign),
        )
        _show(result, as_json)


@app.command()
def prepare(
    sources: Sources,
    corpus: Corpus = "default",
    preset: Preset = "",
    config: Config = "",
    assign: Assign = None,
    workers: Workers = 0,
    refresh: Refresh = None,
    retry_failed: RetryFailed = False,
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Ingest, then normalise, split, tokenise and cut into training sequences."""
    with plain_errors():
        result = _flow(
            "prepare",
            home,
            source=_sources(sources),
            corpus=corpus,
            preset=preset,
            workers=workers,
            refresh=",".join(refresh or []),
            retry_failed=retry_failed,
            config=_absolute(config),
            overrides=_overrides(assign),
        )
        _show(result, as_json)


@app.command()
def suggest(
    sources: Sources,
    corpus: Corpus = "default",
    preset: Preset = "",
    config: Config = "",
    assign: Assign = None,
    minutes: Minutes = 0,
    max_steps: MaxSteps = 0,
    max_tokens: MaxTokens = 0,
    workers: Workers = 0,
    refresh: Refresh = None,
    retry_failed: RetryFailed = False,
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Propose size, context, batch, learning rate and steps for a corpus, this device and a time, and say why."""
    with plain_errors():
        result = _flow(
            "suggest",
            home,
            source=_sources(sources),
            corpus=corpus,
            preset=preset,
            minutes=minutes,
            max_steps=max_steps,
            max_tokens=max_tokens,
            workers=workers,
            refresh=",".join(refresh or []),
            retry_failed=retry_failed,
            config=_absolute(config),
            overrides=_overrides(assign),
        )
        show_suggestion(result, as_json)


@app.command()
def train(
    sources: Sources,
    corpus: Corpus = "default",
    preset: Preset = "",
    config: Config = "",
    assign: Assign = None,
    minutes: Minutes = 0,
    max_steps: MaxSteps = 0,
    max_tokens: MaxTokens = 0,
    workers: Workers = 0,
    refresh: Refresh = None,
    retry_failed: RetryFailed = False,
    seed: Seed = None,
    deterministic: Deterministic = False,
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Prepare, then train a network; nothing is registered (see `promote`)."""
    with plain_errors():
        result = _flow(
            "train",
            home,
            source=_sources(sources),
            corpus=corpus,
            preset=preset,
            minutes=minutes,
            max_steps=max_steps,
            max_tokens=max_tokens,
            seed=-1 if seed is None else seed,
            workers=workers,
            deterministic=deterministic,
            refresh=",".join(refresh or []),
            retry_failed=retry_failed,
            config=_absolute(config),
            overrides=_overrides(assign),
        )
        _show(result, as_json)


@app.command()
def evaluate(
    model: Model = "champion",
    tasks: Annotated[str, typer.Option(help="JSON Lines file of questions to put to it instead.")] = "",
    on: Annotated[str, typer.Option(help="train, validation, a text, a folder, JSONL or Parquet instead.")] = "",
    column: Annotated[str, typer.Option(help="Field of JSONL or Parquet that holds the text.")] = "",
    stride: Annotated[int, typer.Option(help="Tokens from one window to the next; 0: as it was judged.", min=0)] = 0,
    drift: Annotated[bool, typer.Option("--drift", help="Also on documents that came after it was trained.")] = False,
    corpus: Corpus = "default",
    refresh: Refresh = None,
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Measure a model on the corpus's frozen evaluation set or other texts, beside its baselines."""
    with plain_errors():
        if tasks:
            if on or column or stride:
                from storage.errors import UserError

                raise UserError("--tasks puts questions, not documents: leave out --on, --column and --stride")
            asked = {"questions": checked_questions(tasks), "model": model, "refresh": ",".join(refresh or [])}
            show_exam(_flow("exam", home, **asked), as_json)
            return
        from tasks.evaluation.inputs import SPLITS

        how = {"on": on if on in SPLITS else _absolute(on), "column": column, "stride": stride, "drift": drift}
        _show(_flow("evaluate", home, model=model, corpus=corpus, refresh=",".join(refresh or []), **how), as_json)


@app.command()
def promote(
    corpus: Corpus = "default",
    config: Config = "",
    assign: Assign = None,
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Register the corpus's latest training, and make it champion if it passes the gates."""
    with plain_errors():
        _show(_flow("promote", home, corpus=corpus, config=_absolute(config), overrides=_overrides(assign)), as_json)


# looking things up, and commands about the network itself, in modules of their own
for _command in (sql, why, forget, gc, compact, verify, status, sample):
    app.command()(_command)
app.command()(up)
app.command()(down)
app.command()(generate)
app.command()(compare)
app.command()(rollback)
app.command()(rebuild_tracking)
app.command()(ablate)
app.command()(inspect)
app.command()(count)
app.command()(export)
app.command()(export_corpus)
app.command("import")(import_)
app.command("lm-eval")(lm_eval)


def main(command: Callable[[], None] = app) -> None:
    """Entry point of the console script."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("sheepfold").setLevel(logging.INFO)
    command()


if __name__ == "__main__":
    main()
