"""A prompt at the keyboard: load the model and stream its continuation. Nothing is committed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flows.cli_common import model_folder
from storage.errors import UserError
from storage.manifest import Manifest
from storage.store import MANIFEST_NAME
from tasks.bundle import Bundle
from tasks.generation.completions import BATCH_SIZES, complete_prompts
from tasks.generation.prompts import one_prompt
from tasks.machine import Machine


@dataclass(frozen=True)
class Prompted:
    """Continuations of one prompt.

    Attributes:
        rows: Rows as in the table of completions, one for each sample.
        tokens: New tokens.
        seconds: Time of making them, without loading the model.
    """

    rows: list[dict[str, Any]]
    tokens: int
    seconds: float


def continue_prompt(options: Any, prompt: str, on_text: Callable[[str], None] | None) -> Prompted:
    """Continue a prompt.

    Args:
        on_text: Called first with the prompt, then with each piece of a single continuation as it grows.

    Raises:
        UserError: if the settings do not go with the model, or no name leads to it.
    """
    settings = options.load().generate
    asked = one_prompt(prompt, options.template or "")
    folder = model_folder(options.home or "", options.model, options.corpus)
    with Machine(deterministic=settings.deterministic) as machine:
        machine.seed(settings.seed)
        bundle = Bundle(folder, machine.device)
        record = folder / MANIFEST_NAME
        digest = Manifest.from_json(record.read_text(encoding="utf-8")).digest if record.is_file() else ""
        if on_text is not None:
            on_text(asked.prompt)
        begun = time.monotonic()
        size = settings.batch_size or BATCH_SIZES[machine.device]
        try:
            rows = complete_prompts(bundle, digest, [vars(asked)], settings.sampling(), size, on_text=on_text)
        except ValueError as error:  # a bundle is served without our errors, so it raises none of them
            raise UserError(f"generate: {error}") from error
    return Prompted(rows, sum(row["n_tokens"] for row in rows), time.monotonic() - begun)
