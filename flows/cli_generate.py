"""The command that continues prompts: one that streams to the terminal, or a file of them."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from flows.cli_common import AsJson, Assign, Corpus, HomeFolder, Model, plain_errors, print_json, say

INTERRUPTED = 130  # the exit code of a command that Ctrl-C ended

Deterministic = Annotated[
    bool, typer.Option("--deterministic", help="What a prompt gets is the same alone and in any batch; slower.")
]


def generate(
    prompt: Annotated[str, typer.Argument(help="A prompt; or use --prompts.")] = "",
    prompts: Annotated[str, typer.Option(help="File of prompts: text, JSONL, CSV or Parquet.")] = "",
    template: Annotated[str, typer.Option(help="What a prompt is made of: text with {column} in it.")] = "",
    model: Model = "champion",
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest continuation, in tokens.", min=1)] = None,
    temperature: Annotated[float | None, typer.Option(help="0 always takes the likeliest token.", min=0)] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from so many likeliest tokens; 0 is off.", min=0)] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample from the likeliest tokens of this share.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Least share of the likeliest token's probability.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="Above 1 makes what occurred less likely.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends a continuation; may be repeated.")] = None,
    samples: Annotated[int | None, typer.Option(help="Continuations of each prompt.", min=1)] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampling.", min=0)] = None,
    deterministic: Deterministic = False,
    workers: Annotated[int, typer.Option(help="Shards of a file that are computed at once.", min=1)] = 1,
    assign: Assign = None,
    corpus: Corpus = "default",
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Continue a prompt, or every prompt of a file; further settings by --set generate.NAME=VALUE."""
    options = {
        "generate.max_new_tokens": max_new_tokens,
        "generate.temperature": temperature,
        "generate.top_k": top_k,
        "generate.top_p": top_p,
        "generate.min_p": min_p,
        "generate.repetition_penalty": repetition_penalty,
        "generate.stop": stop or None,
        "generate.n_samples": samples,
        "generate.seed": seed,
        "generate.deterministic": deterministic or None,
    }
    try:
        with plain_errors():
            _generate(home, corpus, prompt, prompts, template, model, workers, assign or [], options, as_json)
    except KeyboardInterrupt:
        print(flush=True)  # the shell's prompt begins a line
        say("stopped; nothing of what was unfinished is kept")
        raise typer.Exit(INTERRUPTED) from None


def _generate(
    home: str,
    corpus: str,
    prompt: str,
    prompts: str,
    template: str,
    model: str,
    workers: int,
    assignments: list[str],
    options: dict[str, Any],
    as_json: bool,
) -> None:
    from flows.direct import Asked, generate_direct
    from storage.errors import UserError

    streamed: list[str] = []

    def show(piece: str) -> None:
        if not streamed:
            print(asked.text, end="")
        streamed.append(piece)
        print(piece, end="", flush=True)

    asked = Asked(prompt, prompts, template)
    made = generate_direct(home, corpus, asked, model, assignments, options, workers, None if as_json else show)
    if as_json:
        print_json({"rows": made.rows, "completions": made.path, "page": made.page})
        return
    if streamed:
        print()
    elif made.rows:
        for row in made.rows:
            print(f"{row['prompt']}{row['text']}\n" if row["error"] is None else f"{row['id']}: {row['error']}\n")
    failed = [row for row in made.rows if row["error"] is not None]
    if failed and len(failed) == len(made.rows):
        raise UserError(f"no prompt could be continued; {failed[0]['id']}: {failed[0]['error']}")
    if failed:
        say(f"{len(failed)} of the prompts could not be continued; the column `error` says why")
    if made.seconds:
        say(f"{made.tokens:,} tokens in {made.seconds:.1f} s, {made.tokens / made.seconds:,.0f} tokens/s")
    say(f"completions: {made.path}")
    if made.page:
        say(f"page: {made.page}")
    sys.stdout.flush()
