"""The stage `prompts`: reads prompts from files of several formats and stores them in shards.

An invalid record becomes a prompt with an error, so that it does not stop the others. Errors of the whole file (format,
duplicate ids, no valid prompt) are raised.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from storage.schemas import DOCUMENTS_FILE
from storage.tables import read_rows as read_table
from storage.tables import write_table
from tasks.core.stage import Work, stage
from tasks.generation.completions import (
    ID_COLUMN,
    Prompt,
    PromptsError,
    Template,
    TemplateError,
    fill_template,
    parse_template,
)
from tasks.readers.records import ExtractionProblem
from tasks.readers.rows import SUFFIXES, Row, Table, encoding_fault, read_rows

if TYPE_CHECKING:
    from storage.manifest import ArtifactRef
    from storage.store import Store
    from tasks.core.settings import GenerateSettings

PROMPTS_FILE = "prompts.parquet"
PROMPTS = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("prompt", pa.large_string(), nullable=False),
        pa.field("fields", pa.large_string()),
        pa.field("error", pa.string()),
    ]
)
PROMPT_COLUMNS = ("prompt", "text")
N_SAMPLED, SAMPLED_WORDS = 4, 8  # sampled evaluation documents, and words of each
SAMPLED_ID = 12  # digits of a document's id that are the id of its prompt
MOST_SAMPLED = 400  # most characters of the first words, as words may be arbitrarily long
MOST_SHARDS = 256  # larger lists have larger shards, as each shard has a task and a folder
CHARS_PER_NEW_TOKEN = 32  # of a prompt: reading a token costs about an eighth of generating one


@dataclass(frozen=True)
class PromptsSettings:
    """Digest of a list of prompts; the list itself is an unkeyed argument."""

    digest: str


@stage("prompts", version=2, tables={PROMPTS_FILE: PROMPTS}, unkeyed=("prompts",))
def keep_prompts(work: Work, settings: PromptsSettings, *, prompts: Sequence[Prompt]) -> str:
    """Write a list of prompts to the store, for the lineage of completions."""
    work.counts["rows"] = write_table(work.out / PROMPTS_FILE, PROMPTS, map(asdict, prompts))
    return settings.digest


def cut_prompts(prompts: Sequence[Prompt], settings: GenerateSettings) -> list[list[Prompt]]:
    """Cut prompts into shards of consecutive prompts, of at most about `settings.shard_tokens` new tokens each.

    A shard is one artefact: the unit of caching and of recovery. Shards are filled from the beginning, so that prompts
    added at the end do not change earlier shards.
    """
    per_prompt = settings.n_samples * settings.room(0)
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


def read_prompts(path: Path, template: str = "") -> list[Prompt]:
    """Read a prompts file.

    Text files have a prompt per line. JSON Lines, CSV or TSV with a header, and Parquet have a prompt per record, with
    a column `prompt` (or `text`) and optionally `id`; other columns are kept.

    Args:
        template: template of the prompt, see `parse_template`.

    Raises:
        PromptsError: the file cannot be read, or has no valid prompt.
        TemplateError: the template is invalid, or has an unknown column.
    """
    if not path.is_file():
        raise PromptsError(f"no prompts file {path}: give a text, JSONL, CSV or Parquet file")
    made = parse_template(template) if template else None
    try:
        prompts = [_prompt(row, index, path, made) for index, row in enumerate(_rows(path))]
    except ExtractionProblem as problem:
        raise PromptsError(f"{path} cannot be read: {problem.reason}") from problem
    if not prompts:
        raise PromptsError(f"{path} has no prompts")
    if all(prompt.error for prompt in prompts):
        first = f"the first of {len(prompts)}: {prompts[0].error}"
        raise PromptsError(f"{path} has no valid prompt; {first}")
    twice = sorted(name for name, count in Counter(prompt.id for prompt in prompts).items() if count > 1)
    if twice:
        listed = ", ".join(map(repr, twice[:5]))
        raise PromptsError(f"{path}: the ids {listed} occur more than once; expected unique ids")
    return prompts


def sample_prompts(store: Store, evalset: ArtifactRef) -> list[Prompt]:
    """Return the first words of a few evaluation documents as prompts."""
    read = read_table(store.folder(evalset) / DOCUMENTS_FILE, ["doc_id", "text"])
    rows = [row for row in read if row["text"].strip()]  # some models cannot complete an empty prompt
    long_enough = [row for row in rows if len(row["text"].split()) > SAMPLED_WORDS] or rows
    chosen = sorted(long_enough, key=lambda row: str(row["doc_id"]))[:N_SAMPLED]
    return [Prompt(row["doc_id"][:SAMPLED_ID], _beginning(row["text"])) for row in chosen]


def _beginning(text: str) -> str:
    """Return the first words of a text with the white space between them, which models learn too."""
    found = re.match(rf"\s*(?:\S+\s+){{0,{SAMPLED_WORDS - 1}}}\S+", text)
    return found[0].lstrip()[:MOST_SAMPLED] if found else ""


def _rows(path: Path) -> Iterator[Row]:
    form = SUFFIXES.get(path.suffix.lower())
    if form is not None:
        yield from read_rows(Table(path.resolve(), form))
        return
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
        # iterating the file splits at line feeds only, not at Unicode separators
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield Row(f"line {number}", number, {"prompt": line.removesuffix("\n")})


def _prompt(row: Row, index: int, path: Path, template: Template | None) -> Prompt:
    """Return the prompt of a record, with an error if it is invalid."""
    given = row.values.get(ID_COLUMN)
    # an id that is not text is kept in `fields`, see `given_id`
    carried = {key: value for key, value in row.values.items() if key != ID_COLUMN or not isinstance(given, str | None)}
    column = next((name for name in PROMPT_COLUMNS if row.values.get(name) is not None), PROMPT_COLUMNS[0])
    text = fault = ""
    try:
        if template is None:
            if isinstance(row.values.get(column), str):
                text = carried.pop(column)
            row.text(column, empty=True)
        elif row.problem is not None:
            raise row.problem
        else:
            text = fill_template(template, row.values, row.place)
            fault = encoding_fault(text)
            fault = f"{row.place}: the prompt {fault}" if fault else ""
    except (ExtractionProblem, TemplateError) as error:
        fault = str(error)
    # the id of an unreadable record is its position
    name = row.place if row.problem is not None else str(index if given is None else given)
    fields = _storable(json.dumps(_plain(carried), ensure_ascii=False, default=str)) if carried else None
    return Prompt(_storable(name), _storable(text), fields, f"{path.name}, {fault}" if fault else None)


def _storable(text: str) -> str:
    """Return the text with replacement characters for lone surrogates."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _plain(value: Any) -> Any:
    """Return a value with None for non-finite numbers, which JSON does not support."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
