"""The stage `prompts`: prompts as people write them, in files of several formats, and the shards that they are kept in.

A record that cannot be a prompt becomes one with an error, so that one bad record among thousands costs itself alone.
What is wrong with the file as a whole (its format, two records of one id, not one prompt) refuses the file.
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
N_SAMPLED, SAMPLED_WORDS = 4, 8  # evaluation documents that are sampled, and words of each
SAMPLED_ID = 12  # digits of its document's id that a sampled prompt is known by
MOST_SAMPLED = 400  # characters of a document's first words: there are words without an end
MOST_SHARDS = 256  # then they grow: each has a task and a folder of its own
CHARS_PER_NEW_TOKEN = 32  # of a prompt; reading a token costs an eighth of making one, about


@dataclass(frozen=True)
class PromptsSettings:
    """Identity of a list of prompts; the list itself is an argument without a key."""

    digest: str


@stage("prompts", version=2, unkeyed=("prompts",))
def keep_prompts(work: Work, settings: PromptsSettings, *, prompts: Sequence[Prompt]) -> str:
    """Keep a list of prompts in the store, so that completions lead back to it."""
    work.counts["rows"] = write_table(work.out / PROMPTS_FILE, PROMPTS, map(asdict, prompts))
    return settings.digest


def cut_prompts(prompts: Sequence[Prompt], settings: GenerateSettings) -> list[list[Prompt]]:
    """Return prompts in runs of neighbours, none of them empty, of about `settings.shard_tokens` new tokens at most.

    A shard is one artefact: found again when the same prompts come again, lost alone when a process dies. The cut goes
    from the beginning, so that prompts added at the end leave the shards before them as they were.
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

    Text holds one prompt per line; JSON Lines one object per line, CSV (TSV) one record per row under a header and
    Parquet one row per prompt, with a column `prompt` (or `text`) and, if there is one, `id`. All other columns are
    carried along.

    Args:
        template: puts the prompt together from columns, see `parse_template`.

    Raises:
        PromptsError: if the file cannot be read, or not one of its records is a prompt.
        TemplateError: if the template is none, or names a column that is not there.
    """
    if not path.is_file():
        raise PromptsError(f"no prompts file {path}: give a text, JSONL, CSV or Parquet file")
    made = parse_template(template) if template else None
    try:
        prompts = [_prompt(row, index, path, made) for index, row in enumerate(_rows(path))]
    except ExtractionProblem as problem:
        raise PromptsError(f"{path} cannot be read: {problem.reason}") from problem
    if not prompts:
        raise PromptsError(f"{path} holds no prompts")
    if all(prompt.error for prompt in prompts):
        first = f"the first of {len(prompts)}: {prompts[0].error}"
        raise PromptsError(f"{path} holds no prompt that can be continued; {first}")
    twice = sorted(name for name, count in Counter(prompt.id for prompt in prompts).items() if count > 1)
    if twice:
        listed = ", ".join(map(repr, twice[:5]))
        raise PromptsError(f"{path}: the ids {listed} occur more than once; each prompt needs its own")
    return prompts


def sample_prompts(store: Store, evalset: ArtifactRef) -> list[Prompt]:
    """Return the first words of a few evaluation documents as prompts, to look at what a model has learned."""
    read = read_table(store.folder(evalset) / DOCUMENTS_FILE, ["doc_id", "text"])
    rows = [row for row in read if row["text"].strip()]  # there are models that cannot continue nothing
    long_enough = [row for row in rows if len(row["text"].split()) > SAMPLED_WORDS] or rows
    chosen = sorted(long_enough, key=lambda row: str(row["doc_id"]))[:N_SAMPLED]
    return [Prompt(row["doc_id"][:SAMPLED_ID], _beginning(row["text"])) for row in chosen]


def _beginning(text: str) -> str:
    """Return the first words of a text with the white space between them: models learn lines and indents, too."""
    found = re.match(rf"\s*(?:\S+\s+){{0,{SAMPLED_WORDS - 1}}}\S+", text)
    return found[0].lstrip()[:MOST_SAMPLED] if found else ""


def _rows(path: Path) -> Iterator[Row]:
    form = SUFFIXES.get(path.suffix.lower())
    if form is not None:
        yield from read_rows(Table(path.resolve(), form))
        return
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
        # only line ends part lines, not what Unicode calls a separator
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield Row(f"line {number}", number, {"prompt": line.removesuffix("\n")})


def _prompt(row: Row, index: int, path: Path, template: Template | None) -> Prompt:
    """Return the prompt of a record, with an error if it cannot be one."""
    given = row.values.get(ID_COLUMN)
    # an id of another type is carried along, see `given_id`
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
    # nobody knows the id of a record that cannot be read: its place is no other record's
    name = row.place if row.problem is not None else str(index if given is None else given)
    fields = _storable(json.dumps(_plain(carried), ensure_ascii=False, default=str)) if carried else None
    return Prompt(_storable(name), _storable(text), fields, f"{path.name}, {fault}" if fault else None)


def _storable(text: str) -> str:
    """Return the text, with replacement characters for what UTF-8 cannot hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _plain(value: Any) -> Any:
    """Return a value without numbers that JSON does not know."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
