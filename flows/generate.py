"""The generate flow: a file of prompts becomes a table of completions."""

from pathlib import Path
from typing import Annotated

from prefect import flow
from pydantic import Field

from flows import pipeline
from flows.actions import checkpoint_of, completions_path, result_of
from flows.context import (
    Corpus,
    HomeFolder,
    Model,
    Refresh,
    described,
    finish,
    flow_session,
    flow_settings,
    task_runner,
)
from tasks.generation.prompts import read_prompts
from tasks.session import artifact


@flow(name="generate", task_runner=task_runner(), persist_result=False)
@described
def generate(
    prompts: Annotated[str, Field(description="Prompts file: text (one per line), JSONL or Parquet.")],
    model: Model = "champion",
    max_new_tokens: Annotated[int, Field(description="Longest continuation, in tokens.", ge=1)] = 64,
    temperature: Annotated[float, Field(description="0 always takes the likeliest token.", ge=0)] = 0.8,
    top_k: Annotated[int, Field(description="Sample from so many likeliest tokens; 0 is off.", ge=0)] = 0,
    top_p: Annotated[float, Field(description="Sample from the likeliest tokens of this share.", gt=0, le=1)] = 0.95,
    seed: Annotated[int, Field(description="Seed of the sampling.", ge=0)] = 0,
    corpus: Corpus = "default",
    refresh: Refresh = "",
    home: HomeFolder = "",
) -> dict[str, object]:
    """Continue every prompt of a file."""
    lines = [
        f"generate.max_new_tokens={max_new_tokens}",
        f"generate.temperature={temperature}",
        f"generate.top_k={top_k}",
        f"generate.top_p={top_p}",
        f"generate.seed={seed}",
    ]
    settings = flow_settings("", "\n".join(lines))
    with flow_session(home, corpus, refresh) as session:
        asked = read_prompts(Path(prompts).expanduser().resolve())
        checkpoint = checkpoint_of(session, model)
        made = artifact(pipeline.generate_text(session, settings, checkpoint, asked))
        pipeline.remember(session, generate=made)
        pipeline.publish(session, corpus)
        return finish(session, corpus, result_of(session, completions=completions_path(session.store, made)))


if __name__ == "__main__":
    import sys

    generate(sys.argv[1])
