"""Prompts as people write them: files of several formats, and the columns that travel with each prompt.

A record that cannot be a prompt (bytes that are not UTF-8, a column without a value) becomes a row with an error, so
that one bad record among thousands costs itself alone. What is wrong with the file as a whole (its format, a column
that no record has, two records of one id) refuses the file.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
import math
import re
import string
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.errors import UserError

if TYPE_CHECKING:
    from storage.manifest import ArtifactRef
    from storage.store import Store

PROMPT_COLUMNS = ("prompt", "text")
ID_COLUMN = "id"
SAMPLED_ID = 12  # digits of its document's id that a sampled prompt is known by
MOST_SAMPLED = 400  # characters of a document's first words: there are words without an end

_Records = Iterator[tuple[str, dict[str, Any]]]  # the place of each, for people, and its columns


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    Attributes:
        id: how the caller knows it, as text.
        prompt: the text; where that is no UTF-8, with signs of replacement.
        fields: the other columns of its record as JSON, with an id that is not text; None where there are none.
        error: why it cannot be continued by any model; None if it can.
    """

    id: str
    prompt: str
    fields: str | None = None
    error: str | None = None


class TemplateError(UserError):
    """A template that cannot be used, or that asks for a column that is not there."""


@dataclass(frozen=True)
class Template:
    """A text with columns in it; made by `parse`.

    Attributes:
        parts: pieces of text and the column behind each, None where none is.
    """

    parts: tuple[tuple[str, str | None], ...]

    @classmethod
    def parse(cls, text: str) -> Template:
        """A template; `{column}` stands for a column's value, `{{` and `}}` for braces.

        Raises:
            TemplateError: for a brace that opens or closes nothing, and for more than a name between braces.
        """
        try:
            found = list(string.Formatter().parse(text))
        except ValueError as error:
            raise TemplateError(
                f"the template {_short(text)} has a brace that opens or closes nothing ({error}); write {{column}} for "
                "a column, and {{ or }} for a brace"
            ) from error
        parts: list[tuple[str, str | None]] = []
        for literal, name, form, conversion in found:
            if name is not None and (not name or form or conversion):
                shown = f"{{{name}{'!' + conversion if conversion else ''}{':' + form if form else ''}}}"
                raise TemplateError(
                    f"the template {_short(text)} holds {shown}; expected the name of a column and nothing else "
                    "between braces, and {{ or }} for a brace"
                )
            parts.append((literal, name))
        return cls(tuple(parts))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it names, each once."""
        return tuple(dict.fromkeys(name for _, name in self.parts if name is not None))

    def check(self, columns: Iterable[str], place: str) -> None:
        """Refuse a record that lacks a column.

        Args:
            columns: those that are there.
            place: names the record for people.

        Raises:
            TemplateError: if one is missing.
        """
        known = list(columns)
        for name in self.columns:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {{{close[0]}}}?" if close else "write {{ and }} for braces of the text"
                listed = ", ".join(map(repr, known)) or "none"
                raise TemplateError(f"{place}: the template names the column {name!r}; columns are {listed}; {hint}")

    def fill(self, record: Mapping[str, Any]) -> str:
        """The prompt of a record that has all columns."""
        return "".join(text + ("" if name is None else str(record[name])) for text, name in self.parts)


class PromptsError(UserError):
    """A prompts file that cannot be used."""


def read_prompts(path: Path, template: str = "") -> list[Prompt]:
    """Read a prompts file.

    Text holds one prompt per line; JSON Lines one object per line, CSV (TSV) one record per row under a header and
    Parquet one row per prompt, with a column `prompt` (or `text`) and, if there is one, `id`. All other columns are
    carried along.

    Args:
        template: puts the prompt together from columns, see `Template`.

    Raises:
        PromptsError: if the file holds no prompts, or a record is not what its format asks for.
        TemplateError: if the template is none, or names a column that is not there.
    """
    if not path.is_file():
        raise PromptsError(f"no prompts file {path}: give a text, JSONL, CSV or Parquet file")
    made = Template.parse(template) if template else None
    prompts = [_prompt(record, index, f"{path}, {place}", made) for index, (place, record) in enumerate(_records(path))]
    if not prompts:
        raise PromptsError(f"{path} holds no prompts")
    twice = sorted(name for name, count in Counter(prompt.id for prompt in prompts).items() if count > 1)
    if twice:
        listed = ", ".join(map(repr, twice[:5]))
        raise PromptsError(f"{path}: the ids {listed} occur more than once; each prompt needs its own")
    return prompts


def given_id(row: Mapping[str, Any]) -> Any:
    """Return the id of a prompt or completion in the JSON type in which the prompts file has it.

    Args:
        row: with `id`, which is text, and `fields`, the other columns as JSON, among them an id that was not text.
    """
    carried = json.loads(row["fields"]) if row["fields"] else {}
    value = carried.get(ID_COLUMN)
    return row[ID_COLUMN] if value is None else value


def one_prompt(text: str, template: str = "") -> Prompt:
    """The prompt of a command line.

    Raises:
        PromptsError: if it is not UTF-8.
        TemplateError: if the template is none, or names another column than `prompt`.
    """
    if template:
        made = Template.parse(template)
        made.check(["prompt"], "PROMPT")
        text = made.fill({"prompt": text})
    return Prompt("0", encodable("PROMPT", text))


def encodable(place: str, text: str) -> str:
    """The text, which UTF-8 can hold; bytes of a command line that are not UTF-8 arrive as lone surrogates.

    Args:
        place: names the prompt for people.

    Raises:
        PromptsError: if it cannot.
    """
    fault = _encoding_fault(text)
    if fault:
        raise PromptsError(f"{place}: {fault}; give UTF-8 text")
    return text


def sample_prompts(store: Store, evalset: ArtifactRef, count: int = 4, words: int = 8) -> list[Prompt]:
    """First words of a few evaluation documents as they stand there, to look at what a model has learned."""
    from storage.tables import read_rows

    read = read_rows(store.folder(evalset) / "documents.parquet", ["doc_id", "text"])
    rows = [row for row in read if row["text"].strip()]  # there are models that cannot continue nothing
    long_enough = [row for row in rows if len(row["text"].split()) > words] or rows
    chosen = sorted(long_enough, key=lambda row: str(row["doc_id"]))[:count]
    return [Prompt(row["doc_id"][:SAMPLED_ID], _beginning(row["text"], words)) for row in chosen]


def _beginning(text: str, words: int) -> str:
    """The first words of a text with the white space between them: lines and indents are what models learned, too."""
    found = re.match(rf"\s*(?:\S+\s+){{0,{words - 1}}}\S+", text)
    return found[0].lstrip()[:MOST_SAMPLED] if found else ""


def _records(path: Path) -> _Records:
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return _table_rows(path)
    if suffix in (".csv", ".tsv"):
        return _csv_rows(path, "\t" if suffix == ".tsv" else ",")
    if suffix in (".jsonl", ".ndjson"):
        return ((f"line {number}", _json_object(line, number, path)) for number, line in _lines(path))
    return ((f"line {number}", {"prompt": line}) for number, line in _lines(path))


def _read_text(path: Path) -> str:
    """Text of a file; a byte that is not UTF-8 becomes a lone surrogate, by which its record is known."""
    return path.read_bytes().removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers; only line ends part them, not what Unicode calls a separator."""
    for number, line in enumerate(_read_text(path).replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
        if line.strip():
            yield number, line


def _csv_rows(path: Path, delimiter: str) -> _Records:
    csv.field_size_limit(sys.maxsize)  # a prompt may be long
    reader = csv.reader(io.StringIO(_read_text(path), newline=""), delimiter=delimiter, strict=True)
    try:
        header = next(reader, [])
        if len(set(header)) < len(header):
            raise PromptsError(f"{path}: two columns have one name; the header is {header}")
        for row in reader:
            if not row:
                continue
            place = f"line {reader.line_num}"
            if len(row) != len(header):
                raise PromptsError(
                    f"{path}, {place}: {len(row)} values under a header of {len(header)} columns; quote values that "
                    "hold the separator"
                )
            yield place, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise PromptsError(f"{path}, line {reader.line_num}: not CSV ({error})") from error


def _table_rows(path: Path) -> _Records:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(path).to_pylist()
    except pa.ArrowInvalid as error:
        raise PromptsError(f"{path} is not a Parquet file ({error})") from error
    yield from ((f"row {number}", row) for number, row in enumerate(rows, 1))


def _json_object(line: str, number: int, path: Path) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise PromptsError(f"{path}, line {number}: not JSON ({error})") from error
    if not isinstance(record, dict):
        raise PromptsError(f"{path}, line {number}: {type(record).__name__} where an object is expected")
    return record


def _prompt(record: dict[str, Any], index: int, place: str, template: Template | None) -> Prompt:
    """The prompt of a record; `place` names the record for people."""
    given = record.get(ID_COLUMN)
    name = _storable(str(index if given is None else given))
    if template is None:
        column = next((column for column in PROMPT_COLUMNS if record.get(column) is not None), PROMPT_COLUMNS[0])
        text, carried = record.get(column), {key: value for key, value in record.items() if key != column}
        if not isinstance(text, str):
            raise PromptsError(f"{place}: no text in a field `prompt`; fields are {sorted(map(str, record))}")
        fault = ""
    else:
        template.check(record, place)
        empty = [column for column in template.columns if record[column] is None]
        fault = f"the column {empty[0]!r} of the template has no value here" if empty else ""
        text, carried = "" if empty else template.fill(record), record
    if given is None or isinstance(given, str):  # an id of another type is carried along, see `given_id`
        carried = {key: value for key, value in carried.items() if key != ID_COLUMN}
    fault = fault or _encoding_fault(text)
    return Prompt(name, _storable(text), _as_json(carried) if carried else None, fault or None)


def _encoding_fault(text: str) -> str:
    """Why a text cannot be stored; empty if it can."""
    if text.isascii():
        return ""
    place = next((place for place, char in enumerate(text) if "\ud800" <= char <= "\udfff"), None)
    if place is None:
        return ""
    if "\udc80" <= text[place] <= "\udcff":  # what a byte becomes that is not UTF-8
        byte = ord(text[place]) - 0xDC00
        return f"the prompt is not UTF-8: byte 0x{byte:02x} behind {place} characters (a lone surrogate when read)"
    return "the prompt holds a lone surrogate (\\ud800 to \\udfff), which is no character"


def _storable(text: str) -> str:
    """The text, with a sign of replacement for what UTF-8 cannot hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _as_json(record: Mapping[str, Any]) -> str:
    return _storable(json.dumps(_plain(record), ensure_ascii=False, default=str))


def _plain(value: Any) -> Any:
    """A value without numbers that JSON does not know."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:79] + "…")
