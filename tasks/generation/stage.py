"""The stages of generation: prompts are kept, each shard of them is completed, and the shards are joined.

    prompts     prompts.parquet       one shard's prompts, so that completions lead back to them
    complete    completions.parquet   its completions
    generate    completions.parquet   those of all shards, in the order of the prompts

A prompt that cannot be continued has one row with an `error`; the others go on. A prompt's noise is named by its id, so
what it gets depends neither on its place nor on the shard that it is in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage.digest import sha256_json
from storage.errors import UserError
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import COMPLETIONS, COMPLETIONS_FILE
from storage.tables import TableWriter, read_rows, stream_rows, write_table
from tasks.apart import WORTH_A_PROCESS
from tasks.bundle import Bundle
from tasks.generation.completions import BATCH_SIZES, Progress, complete_prompts
from tasks.generation.prompts import Prompt
from tasks.settings import GenerateSettings
from tasks.stage import Work, stage

PROMPTS_FILE = "prompts.parquet"

PROMPTS = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("prompt", pa.large_string(), nullable=False),
        pa.field("fields", pa.large_string()),
        pa.field("error", pa.string()),
    ]
)


@dataclass(frozen=True)
class PromptsSettings:
    """Identity of a list of prompts; the list comes as a resource."""

    digest: str

    @classmethod
    def of(cls, prompts: Sequence[Prompt]) -> PromptsSettings:
        """Settings that name these prompts."""
        return cls(sha256_json(list(prompts)))


@stage("prompts", version=2, unkeyed=("prompts",))
def keep_prompts(work: Work, settings: PromptsSettings, *, prompts: Sequence[Prompt]) -> str:
    """Keep a list of prompts in the store, so that completions lead back to it."""
    work.counts["rows"] = write_table(work.out / PROMPTS_FILE, PROMPTS, map(asdict, prompts))
    return settings.digest


@stage(
    "complete",
    version=1,
    unit="shard",
    modules=("model.checkpoint", "model.generation"),
    tables={"completions.parquet": COMPLETIONS},
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
        "checkpoint": str(work.folder(checkpoint)),
        "digest": checkpoint.digest,
        "prompts": str(work.folder(prompts) / PROMPTS_FILE),
        "out": str(work.out / COMPLETIONS_FILE),
        "settings": settings.sampling(),
        "device": device,
        "batch_size": batch_size or BATCH_SIZES[device],
    }

    def progress(done: int, total: int) -> None:
        work.progress.update(done, total, "completions")

    if own_process and device == "cpu":
        found = work.machine.apart.call(complete_apart, progress, WORTH_A_PROCESS, **shard)
    else:
        with work.machine.computing:  # each shard takes all cores
            found = complete_shard(progress, **shard)
    work.counts.update(found["counts"])
    return str(found["digest"])


def complete_apart(progress: Progress, **shard: Any) -> dict[str, Any]:
    """`complete_shard` in a process of its own, with one thread: the others have their cores.

    Nothing is seeded: the noise is named by prompt, and on a CPU what is asked of generation makes it repeatable.
    """
    import torch

    torch.set_num_threads(1)
    return complete_shard(progress, **shard)


def complete_shard(
    progress: Progress,
    *,
    checkpoint: str,
    digest: str,
    prompts: str,
    out: str,
    settings: dict[str, Any],
    device: str,
    batch_size: int,
) -> dict[str, Any]:
    """Write the completions of a table of prompts.

    Args:
        checkpoint: folder of the model.
        digest: of the model; its folder may hold another one after a refresh.
        settings: as for `Bundle.sampling_config`.

    Returns:
        `counts` and the logical `digest` of the table.

    Raises:
        UserError: if the settings do not go with the model.
    """
    asked = read_rows(Path(prompts))
    try:
        rows = complete_prompts(_bundle(checkpoint, digest, device), digest, asked, settings, batch_size, progress)
    except ValueError as error:  # a bundle is served without our errors, so it raises none of them
        raise UserError(f"generate: {error}") from error
    write_table(Path(out), COMPLETIONS, rows)
    counts = {
        "rows": len(rows),
        "errors": len({row["id"] for row in rows if row["error"] is not None}),
        "tokens": sum(row["n_tokens"] for row in rows),
        "units": len(asked),
    }
    return {"counts": counts, "digest": _Digest().over(rows)}


@dataclass(frozen=True)
class JoinSettings:
    """Settings of the joining; there are none."""


@stage("generate", version=2, tables={"completions.parquet": COMPLETIONS}, keep_with=("parts",))
def generate(work: Work, settings: JoinSettings, *, parts: RefSet) -> str:
    """Join the completions of all shards, in the order of the prompts."""
    digest, n_errors, n_tokens = _Digest(), 0, 0
    with TableWriter(work.out / COMPLETIONS_FILE, COMPLETIONS) as writer:
        for ref in parts.refs:
            for row in stream_rows(work.folder(ref) / COMPLETIONS_FILE):
                writer.write([row])
                digest.add(row)
                n_errors += row["error"] is not None
                n_tokens += row["n_tokens"]
    work.counts.update(rows=writer.count, errors=n_errors, tokens=n_tokens)
    return digest.hexdigest()


def joined(parts: Sequence[ArtifactRef]) -> RefSet:
    """Completed shards as one input, which their order belongs to; without a digest where a plan would make one."""
    made = all(ref.made for ref in parts)
    return RefSet(tuple(parts), sha256_json([ref.digest for ref in parts]) if made else "")


@lru_cache(maxsize=1)
def _bundle(folder: str, digest: str, device: str) -> Bundle:
    """The model, kept for the next shard."""
    return Bundle(Path(folder), device)


class _Digest:
    """Logical digest of completions: over their rows in their order, however they are spread over tables.

    All columns count, also those that say how a text was made: shards of equal texts are joined under one key.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, row: dict[str, Any]) -> None:
        self._digest.update(json.dumps(row, sort_keys=True).encode() + b"\n")

    def over(self, rows: Sequence[dict[str, Any]]) -> str:
        for row in rows:
            self.add(row)
        return self.hexdigest()

    def hexdigest(self) -> str:
        return self._digest.hexdigest()
