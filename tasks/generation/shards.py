"""How a list of prompts is cut up: into runs of neighbours that cost about the same.

A shard is one artefact: found again when the same prompts come again, lost alone when a process dies. The cut goes from
the beginning, so that prompts added at the end leave the shards before them as they were.
"""

from __future__ import annotations

from collections.abc import Sequence

from tasks.core.settings import GenerateSettings
from tasks.generation.prompt_files import Prompt

MOST_SHARDS = 256  # then they grow: each has a task and a folder of its own
CHARS_PER_NEW_TOKEN = 32  # of a prompt; reading a token costs an eighth of making one, about


def cut_prompts(prompts: Sequence[Prompt], settings: GenerateSettings) -> list[list[Prompt]]:
    """Prompts in runs, none of them empty, each of about `settings.shard_tokens` new tokens at most."""
    per_prompt = settings.n_samples * settings.max_new_tokens
    costs = [per_prompt + len(prompt.prompt) // CHARS_PER_NEW_TOKEN for prompt in prompts]
    most = settings.shard_tokens
    while sum(costs) / most > MOST_SHARDS:
        most *= 2
    shards: list[list[Prompt]] = []
    filled = most
    for prompt, cost in zip(prompts, costs, strict=True):
        if filled + cost > most:
            shards.append([])
            filled = 0
        shards[-1].append(prompt)
        filled += cost
    return shards
