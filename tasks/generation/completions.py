"""Completions of prompts by a loaded model, as rows; without stages and tables, which a single prompt does not need."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tasks.training.bundle import Bundle, TextCompletion

BATCH_SIZES = {"cpu": 32, "cuda": 256}  # continuations that grow at once

Progress = Callable[[int, int], None]


def complete_prompts(
    bundle: Bundle,
    digest: str,
    asked: Sequence[dict[str, Any]],
    settings: dict[str, Any],
    batch_size: int,
    progress: Progress | None = None,
    on_text: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """Return the rows of the completions of prompts.

    Args:
        digest: Digest of the model.
        asked: Fields of `Prompt`.
        settings: As for `Bundle.sampling_config`.
        on_text: Called with each piece of a single continuation as it grows.

    Raises:
        ValueError: if the settings do not go with the model.
    """
    faults = _faults(bundle, asked, settings)
    good = [row for row, fault in zip(asked, faults, strict=True) if not fault]
    if on_text is not None and len(good) == 1 and settings["n_samples"] == 1:
        found = [_streamed(bundle, good[0], settings, on_text)]
    else:
        texts, keys = [row["prompt"] for row in good], [noise_key(row["id"]) for row in good]
        found = bundle.complete(texts, keys=keys, batch_size=batch_size, on_step=progress, **settings)
    same = {"model": digest, "settings": json.dumps(settings, sort_keys=True), "seed": settings["seed"]}
    return [{**row, **same} for row in _rows(asked, faults, found, settings["n_samples"])]


def noise_key(name: str) -> int:
    """The number that names the noise of the prompt with this id."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def _faults(bundle: Bundle, asked: Sequence[dict[str, Any]], settings: dict[str, Any]) -> list[str]:
    """Why each prompt cannot be continued; empty if it can."""
    whole = [row["prompt"] for row in asked if row["error"] is None]
    found = iter(bundle.prompt_faults(whole, **settings))
    own = [row["error"] or next(found) for row in asked]
    return [
        fault if row["error"] or not fault else f"the prompt {fault}" for row, fault in zip(asked, own, strict=True)
    ]


def _streamed(
    bundle: Bundle, row: dict[str, Any], settings: dict[str, Any], on_text: Callable[[str], None]
) -> TextCompletion:
    whole: TextCompletion | None = None
    for piece in bundle.stream(row["prompt"], key=noise_key(row["id"]), **settings):
        if isinstance(piece, str):
            on_text(piece)
        else:
            whole = piece
    assert whole is not None
    return whole


def _rows(
    asked: Sequence[dict[str, Any]], faults: Sequence[str], found: Sequence[TextCompletion], n_samples: int
) -> Iterator[dict[str, Any]]:
    """Rows of the table, without what all of them share: the samples of each prompt, or its error."""
    completions = iter(found)
    for row, fault in zip(asked, faults, strict=True):
        carried = {"id": row["id"], "prompt": row["prompt"], "fields": row["fields"]}
        made = [TextCompletion("", "error", 0, [])] if fault else [next(completions) for _ in range(n_samples)]
        for item in made:
            yield {
                **carried,
                "sample": item.sample,
                "text": item.text,
                "finish_reason": item.finish_reason,
                "n_tokens": item.n_tokens,
                "logprobs": item.logprobs,
                "ids": item.ids,
                "top_ids": [[token for token, _ in best] for best in item.top_logprobs],
                "top_logprobs": [[value for _, value in best] for best in item.top_logprobs],
                "error": fault or None,
            }
