"""The stage `texts`: what a model may be measured on beside the frozen evaluation set, from files of the user.

Whatever it is becomes an artefact with the layout of an evaluation set, so that all that works on the one works on the
other. Files are read as they are, each a document: nothing is cleaned, cut or left out.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.catalog import read_state
from storage.digest import sha256_json
from storage.errors import UserError
from storage.manifest import ArtifactRef
from storage.schemas import EVALSET
from storage.tables import write_table
from tasks.core.stage import Work, stage
from tasks.curate.evalset import frozen_evalset
from tasks.evaluation.split import SplitSettings, copy_split, split_inputs

if TYPE_CHECKING:
    from tasks.core.run import Run

SPLITS = ("train", "validation")
LINES = (".jsonl", ".ndjson")
PARQUET = ".parquet"
COLUMN = "text"
UNDETERMINED = "und"
NAMES_SHOWN = 20


class TextsError(UserError):
    """Something that a model cannot be measured on."""


@dataclass(frozen=True)
class Text:
    """A text to measure a model on, and what its figures are told apart by."""

    doc_id: str
    text: str
    kind: str = "text"
    language: str = UNDETERMINED
    source: str = ""
    method: str = "text"


def read_texts(path: Path, column: str = COLUMN) -> list[Text]:
    """Read a text file, a folder of text files, JSON Lines or Parquet.

    JSON Lines and Parquet hold a document in each row, in the field `column`; of their other fields `kind`, `language`,
    `source` and `method` tell slices apart, and `id` or `doc_id` names the document.

    Args:
        path: a file or a folder; in a folder every file is a document, also below it, but for hidden ones.

    Raises:
        TextsError: there is no text in it, or something that is none; two documents have one name.
    """
    if path.is_dir():
        files = [item for item in sorted(path.rglob("*")) if item.is_file() and not _hidden(item.relative_to(path))]
        texts = [_file_text(item, path) for item in files]
        texts = list({item.doc_id: item for item in texts}.values())  # the same bytes twice are one document
    elif not path.is_file():
        raise TextsError(
            f"there is no {path}: give a split ({' or '.join(SPLITS)}), a text file, a folder of text files, JSON "
            "Lines (.jsonl) or Parquet"
        )
    elif path.suffix == PARQUET:
        texts = list(_parquet_texts(path, column))
    elif path.suffix in LINES:
        texts = list(_line_texts(path, column))
    else:
        texts = [_file_text(path, path.parent)]
    if not any(item.text for item in texts):
        raise TextsError(f"{path} holds no text to measure a model on")
    twice = sorted(name for name, count in Counter(item.doc_id for item in texts).items() if count > 1)
    if twice:
        raise TextsError(
            f"{path}: the ids {', '.join(map(repr, twice[:5]))} occur more than once; each document needs its own"
        )
    return texts


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _file_text(path: Path, root: Path) -> Text:
    data = _bytes_of(path)
    folder = path.relative_to(root).parent.as_posix()
    source = root.name if folder == "." else f"{root.name}/{folder.partition('/')[0]}"
    return Text(hashlib.sha256(data).hexdigest(), _decoded(data, path), source=source)


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TextsError(f"{path} cannot be read: {error.strerror}") from error


def _decoded(data: bytes, path: Path) -> str:
    """The text of a file; one with NUL bytes is no text, though it may be UTF-8."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place, why = error.start, error.reason
    else:
        place, why = text.find("\0"), "a NUL"
        if place < 0:
            return text
    raise TextsError(
        f"{path} is no UTF-8 text ({why} at {place:,}): save it as UTF-8, or let `sheepfold ingest` read documents of "
        "other kinds and measure on a split of the corpus"
    )


def _line_texts(path: Path, column: str) -> Iterator[Text]:
    digest = hashlib.sha256(data := _bytes_of(path)).hexdigest()
    # only line ends part lines, not what Unicode calls a separator
    for number, line in enumerate(_decoded(data, path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TextsError(f"{path}, line {number}: not JSON ({error})") from error
        if not isinstance(record, dict):
            raise TextsError(f"{path}, line {number}: {type(record).__name__} where an object is expected")
        yield _record_text(record, column, f"{path}, line {number}", f"{digest}\0{number}", path.name)


def _parquet_texts(path: Path, column: str) -> Iterator[Text]:
    digest = hashlib.sha256(_bytes_of(path)).hexdigest()
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if column not in names:
                raise TextsError(f"{path} has no column {column!r}; it has {_listed(names)}")
            wanted = [name for name in names if name in {column, *_NAMES, *_LABELS}]
            for group in range(file.num_row_groups):
                for record in file.read_row_group(group, columns=wanted).to_pylist():
                    number += 1
                    yield _record_text(record, column, f"{path}, row {number}", f"{digest}\0{number}", path.name)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise TextsError(f"{path} is no Parquet file that can be read ({error})") from error


_NAMES = ("doc_id", "id")
_LABELS = ("kind", "language", "source", "method")


def _record_text(record: dict[str, Any], column: str, place: str, identity: str, file: str) -> Text:
    """The text of a row; `place` names it for people, `identity` where it has no name of its own."""
    text = record.get(column)
    if not isinstance(text, str):
        found = "nothing" if text is None else type(text).__name__
        fields = _listed(list(record))
        raise TextsError(f"{place}: {found} in the field {column!r}, where a text is expected; its fields are {fields}")
    name = next((record[key] for key in _NAMES if record.get(key) is not None), None)
    labels = {key: str(record[key]) for key in _LABELS if record.get(key)}
    for what, value in (("text", text), ("name", str(name)), *labels.items()):
        if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
            raise TextsError(f"{place}: the {what} holds a lone surrogate (\\ud800 to \\udfff), which is no character")
    doc_id = hashlib.sha256(identity.encode()).hexdigest() if name is None else str(name)
    return Text(doc_id, text, **{"source": file, **labels})


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:NAMES_SHOWN])) or "none"
    return shown if len(names) <= NAMES_SHOWN else f"{shown} and {len(names) - NAMES_SHOWN} more"


@dataclass(frozen=True)
class TextsSettings:
    """Identity of texts."""

    digest: str

    @classmethod
    def of(cls, texts: list[Text]) -> TextsSettings:
        """Settings that name these texts."""
        return cls(sha256_json([asdict(item) for item in texts]))


@stage("texts", version=1, unkeyed=("texts",))
def keep_texts(work: Work, settings: TextsSettings, *, texts: list[Text]) -> str:
    """Keep texts from outside in the store, as a set to measure models on."""
    texts = sorted(texts, key=lambda item: item.doc_id)
    work.counts["rows"] = write_table(work.out / "documents.parquet", EVALSET, map(asdict, texts))
    work.counts["bytes"] = sum(len(item.text.encode()) for item in texts)
    return settings.digest


def evaluation_texts(run: Run, on: str | None, column: str | None = None) -> ArtifactRef:
    """Return texts to measure a model on, as an artefact with the layout of an evaluation set.

    Args:
        on: `train` or `validation` for that side of the corpus as it is now; else a text file, a folder of text files,
            JSON Lines or Parquet; None for the corpus's frozen evaluation set.
        column: Field of JSON Lines and Parquet that holds the text; None means `text`.

    Raises:
        StoreError: the corpus was never prepared.
        UserError: it cannot be read, or there is no text in it.
    """
    if not on:
        return frozen_evalset(run)
    if on in SPLITS:
        return copy_split(run, SplitSettings(on), **split_inputs(read_state(run.store, run.corpus)))
    texts = read_texts(Path(on).expanduser(), column or COLUMN)
    return keep_texts(run, TextsSettings.of(texts), texts=texts)


def texts_name(on: str | None, stride: int | None) -> str:
    """Return the name of the documents that `evaluation_texts` returns, and how they were read."""
    name = f"the {on} split" if on in SPLITS else Path(on).resolve().name if on else "the evaluation set"
    return f"{name}, read in strides of {stride}" if stride else name
