"""Batch generation as a stage: prompts in, completions out, each with its finish reason and log-probabilities."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage.digest import sha256_json
from storage.errors import UserError
from storage.manifest import ArtifactRef
from storage.schemas import COMPLETIONS
from storage.store import Store
from storage.tables import read_rows, write_table
from tasks.bundle import CONFIG_FILE, WEIGHTS_FILE, Bundle
from tasks.settings import GenerateSettings
from tasks.stage import Work, stage
from tasks.tokens.index import COUNTS_FILE
from tasks.tokens.tokenizer import TOKENIZER_FILE

COMPLETIONS_FILE = "completions.parquet"

PROMPTS = pa.schema(
    [pa.field("id", pa.string(), nullable=False), pa.field("prompt", pa.large_string(), nullable=False)]
)


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    Attributes:
        id: how the caller knows it.
    """

    id: str
    prompt: str


class PromptsError(UserError):
    """A prompts file that cannot be used."""


def read_prompts(path: Path) -> list[Prompt]:
    """Read a prompts file.

    Text holds one prompt per line; JSONL one object per line and Parquet one row per prompt, with a column `prompt`
    (or `text`) and, if there is one, `id`.

    Raises:
        PromptsError: if the file holds no prompts, or a line is not what its format asks for.
    """
    if not path.is_file():
        raise PromptsError(f"no prompts file {path}: give a text, JSONL or Parquet file")
    if path.suffix == ".parquet":
        records = _table_rows(path)
    elif path.suffix in (".jsonl", ".ndjson"):
        records = [(f"line {number}", _json_object(line, number, path)) for number, line in _lines(path)]
    else:
        records = [(f"line {number}", {"prompt": line}) for number, line in _lines(path)]
    prompts = [_prompt(record, index, f"{path}, {place}") for index, (place, record) in enumerate(records)]
    if not prompts:
        raise PromptsError(f"{path} holds no prompts")
    twice = sorted(name for name, count in Counter(prompt.id for prompt in prompts).items() if count > 1)
    if twice:
        listed = ", ".join(map(repr, twice[:5]))
        raise PromptsError(f"{path}: the ids {listed} occur more than once; each prompt needs its own")
    return prompts


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers; only line ends part them, not what Unicode calls a separator."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise PromptsError(f"{path} is not UTF-8 ({error}): save it as UTF-8") from error
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line


def _table_rows(path: Path) -> list[tuple[str, dict[str, Any]]]:
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(path).to_pylist()
    except pa.ArrowInvalid as error:
        raise PromptsError(f"{path} is not a Parquet file ({error})") from error
    return [(f"row {number}", row) for number, row in enumerate(rows, 1)]


def _json_object(line: str, number: int, path: Path) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise PromptsError(f"{path}, line {number}: not JSON ({error})") from error
    if not isinstance(record, dict):
        raise PromptsError(f"{path}, line {number}: {type(record).__name__} where an object is expected")
    return record


def _prompt(record: dict[str, Any], index: int, place: str) -> Prompt:
    """The prompt of a record; `place` names the record for people."""
    text = record.get("prompt", record.get("text"))
    if not isinstance(text, str):
        raise PromptsError(f"{place}: no text in a field `prompt`; fields are {sorted(record)}")
    given = record.get("id")
    return Prompt(str(index if given is None else given), encodable(place, text))


def encodable(place: str, text: str) -> str:
    """The text, which UTF-8 can hold; bytes of a command line that are not UTF-8 arrive as lone surrogates.

    Args:
        place: names the prompt for people.

    Raises:
        PromptsError: if it cannot.
    """
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        raise PromptsError(
            f"{place}: the prompt holds a lone surrogate (\\ud800 to \\udfff), which is no character; give UTF-8 text"
        )
    return text


def sample_prompts(store: Store, evalset: ArtifactRef, count: int = 4, words: int = 8) -> list[Prompt]:
    """First words of a few evaluation documents, to look at what a model has learned."""
    read = read_rows(store.folder(evalset) / "documents.parquet", ["doc_id", "text"])
    rows = [row for row in read if row["text"].strip()]  # there are models that cannot continue nothing
    long_enough = [row for row in rows if len(row["text"].split()) > words] or rows
    chosen = sorted(long_enough, key=lambda row: str(row["doc_id"]))[:count]
    return [Prompt(row["doc_id"][:12], " ".join(row["text"].split()[:words])) for row in chosen]


@dataclass(frozen=True)
class PromptsSettings:
    """Identity of a list of prompts; the list comes as a resource."""

    digest: str

    @classmethod
    def of(cls, prompts: list[Prompt]) -> PromptsSettings:
        """Settings that name these prompts."""
        return cls(sha256_json(prompts))


@stage("prompts", version=1)
def keep_prompts(work: Work, settings: PromptsSettings) -> str:
    """Keep a list of prompts in the store, so that completions lead back to it."""
    work.counts["rows"] = write_table(work.out / "prompts.parquet", PROMPTS, map(asdict, work.resources.prompts))
    return settings.digest


@dataclass(frozen=True)
class BundleSettings:
    """Identity of a bundle from outside of the store: digest of its files."""

    digest: str


@stage("bundle", version=1)
def adopt_bundle(work: Work, settings: BundleSettings) -> str:
    """Take a model folder from outside into the store."""
    for name in (WEIGHTS_FILE, CONFIG_FILE, TOKENIZER_FILE, COUNTS_FILE):
        shutil.copyfile(work.resources.bundle_folder / name, work.out / name)
    return settings.digest


@stage("generate", version=1)
def generate(work: Work, settings: GenerateSettings, *, checkpoint: ArtifactRef, prompts: ArtifactRef) -> str:
    """Continue every prompt."""
    work.seed(settings.seed)
    bundle = Bundle(work.folder(checkpoint), work.resources.device)
    asked = read_rows(work.folder(prompts) / "prompts.parquet")
    try:
        bundle.encode_prompts([row["prompt"] for row in asked])
    except ValueError as error:  # a bundle is served without our errors, so it raises none of them
        raise UserError(str(error)) from error
    written = json.dumps(asdict(settings), sort_keys=True)
    found = bundle.complete(
        [row["prompt"] for row in asked],
        max_new_tokens=settings.max_new_tokens,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        seed=settings.seed,
        on_step=lambda done, total: work.progress.update(done, total, "prompts"),
    )
    rows = [
        {
            "id": row["id"],
            "sample": 0,
            "prompt": row["prompt"],
            "text": completion.text,
            "finish_reason": completion.finish_reason,
            "n_tokens": completion.n_tokens,
            "logprobs": completion.logprobs,
            "model": checkpoint.digest,
            "settings": written,
            "seed": settings.seed,
        }
        for row, completion in zip(asked, found, strict=True)
    ]
    work.counts["rows"] = write_table(work.out / COMPLETIONS_FILE, COMPLETIONS, rows)
    return sha256_json([[row["id"], row["text"], row["finish_reason"]] for row in rows])
