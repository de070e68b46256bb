"""The stage `complete`: a model's completions of a shard of prompts.

A prompt that cannot be completed has one row with an `error`. Random numbers are seeded by the id of a prompt, so its
completions do not depend on its position or shard.
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
    """Complete every prompt of a shard.

    Args:
        batch_size: completions per batch; 0 for the default of the device.
        own_process: on a CPU, compute in a subprocess with one thread, because other shards use the other cores.
    """
    device = work.machine.device
    work.seed(settings.seed)  # records device and kernels; sampling is seeded per prompt
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
        with work.machine.computing:  # each shard uses all cores
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

    No global seed is set: sampling is seeded per prompt, and generation on a CPU is reproducible.

    Args:
        digest: digest of the model, as its folder may have another one after a refresh.
        settings: see `Bundle.sampling_config`.
        stretch: see `Bundle`.
        threads: number of torch threads in a subprocess; 0 keeps it.

    Returns:
        `counts` and the logical `digest` of the table.

    Raises:
        UserError: the settings are invalid for the model.
    """
    if threads:
        import torch

        torch.set_num_threads(threads)
    asked = read_rows(prompts)
    try:
        bundle = _bundle(checkpoint, digest, device, **stretch)
        rows = complete_prompts(bundle, digest, asked, settings, batch_size, progress)
    except ValueError as error:  # bundles are served without `UserError`
        raise UserError(f"generate: {error}") from error
    write_table(out, COMPLETIONS, rows)
    counts = {
        "rows": len(rows),
        "errors": len({row["id"] for row in rows if row["error"] is not None}),
        "tokens": sum(row["n_tokens"] for row in rows),
        "units": len(asked),
    }
    return {"counts": counts, "digest": hashlib.sha256(b"".join(map(digested, rows))).hexdigest()}


@lru_cache(maxsize=1)  # the next shard has the same model
def _bundle(folder: Path, digest: str, device: str, **stretch: Any) -> Bundle:
    return Bundle(folder, device, **stretch)


def digested(row: dict[str, Any]) -> bytes:
    """Return a row as bytes for the logical digest of completions."""
    return json.dumps(row, sort_keys=True).encode() + b"\n"
