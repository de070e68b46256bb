"""The stage `prompts`: the prompts of one shard, kept so that completions lead back to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa

from storage.digest import sha256_json
from storage.tables import write_table
from tasks.core.stage import Work, stage
from tasks.generation.prompt_files import Prompt

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
