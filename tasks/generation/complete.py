"""The stage `complete`: a model's completions of a shard of prompts.

A prompt that cannot be continued has one row with an `error`; the others go on. A prompt's noise is named by its id, so
what it gets depends neither on its place nor on the shard that it is in.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from storage.errors import UserError
from storage.manifest import ArtifactRef
from storage.schemas import COMPLETIONS, COMPLETIONS_FILE
from storage.tables import read_rows, write_table
from tasks.core.settings import GenerateSettings
from tasks.core.stage import Work, stage
from tasks.core.subprocesses import WORTH_A_PROCESS
from tasks.generation.completions import BATCH_SIZES, Progress, complete_prompts
from tasks.generation.prompts import PROMPTS_FILE
from tasks.training.bundle import Bundle


@stage(
    "complete",
    version=3,
    unit="shard",
    modules=("model.checkpoint", "model.generation"),
    tables={COMPLETIONS_FILE: COMPLETIONS},
    keep_with=("checkpoint",),
    unkeyed=("batch_size", "own_process"),
)
def complete(
    work: Work,
    settings: GenerateSettings,
    *,
    checkpoint: ArtifactRef,
    prompts: ArtifactRef,
    batch_size: int = 0,
    own_process: bool = False,
) -> str:
    """Continue every prompt of a shard.

    Args:
        batch_size: Continuations that grow at once; 0 picks by the device.
        own_process: On a CPU, compute in a subprocess with one thread, because other shards have the other cores.
    """
    device = work.machine.device
    work.seed(settings.seed)  # notes device and kernels; the noise itself is named by prompt
    shard: dict[str, Any] = {
        "checkpoint": work.folder(checkpoint),
        "digest": checkpoint.digest,
        "prompts": work.folder(prompts) / PROMPTS_FILE,
        "out": work.out / COMPLETIONS_FILE,
        "settings": settings.sampling(),
        "stretch": settings.stretch(),
        "device": device,
        "batch_size": batch_size or BATCH_SIZES[device],
    }

    def progress(done: int, total: int) -> None:
        work.progress.update(done, total, "completions")

    if own_process and device == "cpu":
        found = work.machine.subprocesses.call(complete_shard, progress, WORTH_A_PROCESS, threads=1, **shard)
    else:
        with work.machine.computing:  # each shard takes all cores
            found = complete_shard(progress, **shard)
    work.counts.update(found["counts"])
    return str(found["digest"])


def complete_shard(
    progress: Progress,
    *,
    checkpoint: Path,
    digest: str,
    prompts: Path,
    out: Path,
    settings: dict[str, Any],
    stretch: dict[str, Any],
    device: str,
    batch_size: int,
    threads: int = 0,
) -> dict[str, Any]:
    """Write the completions of a table of prompts.

    Nothing is seeded: the noise is named by prompt, and on a CPU generation is repeatable.

    Args:
        digest: digest of the model; its folder may hold another one after a refresh.
        settings: as for `Bundle.sampling_config`.
        stretch: as for `Bundle`.
        threads: threads of torch, in a process of its own; 0 leaves them.

    Returns:
        `counts` and the logical `digest` of the table.

    Raises:
        UserError: if the settings do not go with the model.
    """
    if threads:
        import torch

        torch.set_num_threads(threads)
    asked = read_rows(prompts)
    try:
        bundle = _bundle(checkpoint, digest, device, **stretch)
        rows = complete_prompts(bundle, digest, asked, settings, batch_size, progress)
    except ValueError as error:  # a bundle is served without our errors, so it raises none of them
        raise UserError(f"generate: {error}") from error
    write_table(out, COMPLETIONS, rows)
    counts = {
        "rows": len(rows),
        "errors": len({row["id"] for row in rows if row["error"] is not None}),
        "tokens": sum(row["n_tokens"] for row in rows),
        "units": len(asked),
    }
    return {"counts": counts, "digest": hashlib.sha256(b"".join(map(digested, rows))).hexdigest()}


@lru_cache(maxsize=1)  # the next shard's model is the same
def _bundle(folder: Path, digest: str, device: str, **stretch: Any) -> Bundle:
    return Bundle(folder, device, **stretch)


def digested(row: dict[str, Any]) -> bytes:
    """Return a row for the logical digest of completions, which goes over all columns of all rows in their order."""
    return json.dumps(row, sort_keys=True).encode() + b"\n"
