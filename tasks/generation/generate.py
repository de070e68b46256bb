"""The stage `generate`: the completions of all shards of a list of prompts, joined."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from storage.digest import sha256_json
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import COMPLETIONS, COMPLETIONS_FILE
from storage.tables import stream_rows, write_table
from tasks.core.stage import NoSettings, Work, stage
from tasks.generation.complete import digested


@stage("generate", version=3, tables={COMPLETIONS_FILE: COMPLETIONS}, keep_with=("parts",))
def join_completions(work: Work, settings: NoSettings, *, parts: RefSet) -> str:
    """Join the completions of all shards, in the order of the prompts."""
    digest = hashlib.sha256()
    work.counts.update(rows=0, errors=0, tokens=0)

    def rows() -> Iterator[dict[str, Any]]:
        for ref in parts.refs:
            for row in stream_rows(work.folder(ref) / COMPLETIONS_FILE):
                digest.update(digested(row))
                work.counts["errors"] += row["error"] is not None
                work.counts["tokens"] += row["n_tokens"]
                yield row

    work.counts["rows"] = write_table(work.out / COMPLETIONS_FILE, COMPLETIONS, rows())
    return digest.hexdigest()


def joined(parts: Sequence[ArtifactRef]) -> RefSet:
    """Return completed shards as one ordered input; without a digest if a shard is only planned."""
    made = all(ref.made for ref in parts)
    return RefSet(tuple(parts), sha256_json([ref.digest for ref in parts]) if made else "")
