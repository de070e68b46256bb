"""The stage `generate`: the completions of all shards in one table, in the order of the prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from storage.digest import sha256_json
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import COMPLETIONS, COMPLETIONS_FILE
from storage.tables import TableWriter, stream_rows
from tasks.core.stage import Work, stage
from tasks.generation.complete import CompletionsDigest


@dataclass(frozen=True)
class JoinSettings:
    """Settings of the joining; there are none."""


@stage("generate", version=2, tables={"completions.parquet": COMPLETIONS}, keep_with=("parts",))
def generate(work: Work, settings: JoinSettings, *, parts: RefSet) -> str:
    """Join the completions of all shards, in the order of the prompts."""
    digest, n_errors, n_tokens = CompletionsDigest(), 0, 0
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
