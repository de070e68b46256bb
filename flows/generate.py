"""The generate flow: a file of prompts becomes a table of completions."""

import json
from pathlib import Path
from typing import Annotated, Any

from prefect import flow
from pydantic import Field

from flows import pipeline
from flows.actions import checkpoint_of, completions_path, result_of
from flows.context import (
    Config,
    Corpus,
    HomeFolder,
    Model,
    Overrides,
    Refresh,
    described,
    finish,
    flow_session,
    flow_settings,
    task_runner,
)
from tasks.generation.prompts import read_prompts
from tasks.session import artifact
from tasks.settings import GenerateSettings


@flow(name="generate", task_runner=task_runner(), persist_result=False)
@described
def generate(
    prompts: Annotated[str, Field(description="Prompts file: text (one per line), JSONL, CSV or Parquet.")],
    model: Model = "champion",
    template: Annotated[str, Field(description="What a prompt is made of: text with {column} in it.")] = "",
    max_new_tokens: Annotated[int, Field(description="Longest continuation, in tokens.", ge=1)] = 64,
    min_new_tokens: Annotated[int, Field(description="No continuation ends before so many tokens.", ge=0)] = 1,
    n_samples: Annotated[int, Field(description="Continuations of each prompt.", ge=1)] = 1,
    temperature: Annotated[float, Field(description="0 always takes the likeliest token.", ge=0)] = 0.8,
    top_k: Annotated[int, Field(description="Sample from so many likeliest tokens; 0 is off.", ge=0)] = 0,
    top_p: Annotated[float, Field(description="Sample from the likeliest tokens of this share.", gt=0, le=1)] = 0.95,
    min_p: Annotated[float, Field(description="Least share of the likeliest token's probability.", ge=0, le=1)] = 0,
    typical_p: Annotated[float, Field(description="Sample from the most typical tokens of this share.", le=1)] = 1,
    repetition_penalty: Annotated[float, Field(description="Above 1 makes what occurred less likely.", gt=0)] = 1,
    frequency_penalty: Annotated[float, Field(description="Taken from a logit for each time it occurred.")] = 0,
    presence_penalty: Annotated[float, Field(description="Taken once from the logit of what occurred.")] = 0,
    no_repeat_ngram: Annotated[int, Field(description="No so many tokens in a row twice; 0 is off.", ge=0)] = 0,
    stop: Annotated[str, Field(description="Texts that end a continuation, one a line.")] = "",
    top_logprobs: Annotated[int, Field(description="Likeliest tokens told with each token.", ge=0)] = 0,
    overflow: Annotated[str, Field(description="Where the context is full: roll, stop or refuse.")] = "roll",
    ignore_eos: Annotated[bool, Field(description="Never draw the id that ends a text.")] = False,
    seed: Annotated[int, Field(description="Seed of the sampling.", ge=0)] = 0,
    deterministic: Annotated[bool, Field(description="The same alone and in any batch; slower.")] = False,
    workers: Annotated[int, Field(description="Shards computed at once; more than one on a CPU only.", ge=1)] = 1,
    corpus: Corpus = "default",
    refresh: Refresh = "",
    config: Config = "",
    overrides: Overrides = "",
    home: HomeFolder = "",
) -> dict[str, object]:
    """Continue every prompt of a file; lists of token ids are set by `overrides`, as generate.stop_ids=[13]."""
    asked: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "min_new_tokens": min_new_tokens,
        "n_samples": n_samples,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "typical_p": typical_p,
        "repetition_penalty": repetition_penalty,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "no_repeat_ngram": no_repeat_ngram,
        "stop": [text for text in stop.split("\n") if text],
        "top_logprobs": top_logprobs,
        "overflow": overflow,
        "ignore_eos": ignore_eos,
        "seed": seed,
        "deterministic": deterministic,
    }
    usual = GenerateSettings().sampling()  # what is left as it is leaves the configuration file its say
    given = {name: value for name, value in asked.items() if value != usual[name] and (value or usual[name])}
    lines = [f"generate.{name}={json.dumps(value)}" for name, value in given.items()]
    settings = flow_settings(config, "\n".join([*lines, overrides]))
    with flow_session(home, corpus, refresh, workers=workers, deterministic=settings.generate.deterministic) as session:
        session.resources.shards_at_once = workers
        prompted = read_prompts(Path(prompts).expanduser().resolve(), template)
        checkpoint = checkpoint_of(session, model)
        made = artifact(pipeline.generate_text(session, settings, checkpoint, prompted))
        pipeline.remember(session, generate=made)
        pipeline.publish(session, corpus)
        return finish(session, corpus, result_of(session, completions=completions_path(session.store, made)))


if __name__ == "__main__":
    import sys

    generate(sys.argv[1])
