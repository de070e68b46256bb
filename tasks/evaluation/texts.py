"""The stage `texts`: texts of the user as an evaluation set, without cleaning."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from storage.catalog import read_state
from storage.digest import sha256_file, sha256_json
from storage.errors import UserError
from storage.manifest import ArtifactRef
from storage.schemas import DOCUMENTS_FILE, EVALSET
from storage.tables import write_table
from tasks.core.stage import Work, stage
from tasks.curate.evalset import frozen_evalset
from tasks.curate.settings import shown_files
from tasks.evaluation.split import SPLITS, SplitSettings, copy_split, split_inputs
from tasks.readers.records import ExtractionProblem
from tasks.readers.rows import (
    LINES,
    PARQUET,
    SUFFIXES,
    Columns,
    Refused,
    Row,
    Table,
    encoding_fault,
    list_columns,
    read_rows,
)

if TYPE_CHECKING:
    from tasks.core.run import Run

COLUMN = "text"
UNDETERMINED = "und"

_NAMES = ("doc_id", "id")
_LABELS = ("kind", "language", "source", "method")


class TextsError(UserError):
    """Texts that a model cannot be evaluated on."""


@dataclass(frozen=True)
class Text:
    """A text to evaluate a model on, and the labels of its slices."""

    doc_id: str
    text: str
    kind: str = "text"
    language: str = UNDETERMINED
    source: str = ""
    method: str = "text"


def read_texts(path: Path, refused: Refused, column: str = COLUMN) -> list[Text]:
    """Read a text file, a folder of text files, JSON Lines or Parquet.

    JSON Lines and Parquet have a document per row, with its text in `column`. The fields `kind`, `language`, `source`
    and `method` label slices, and `id` or `doc_id` is the document's id.

    Args:
        path: a file or a folder; each file in a folder and its subfolders is a document, but for hidden ones.
        refused: counts rows without text, which are left out.

    Raises:
        TextsError: there is no text, a file is not text, or two documents have the same id.
    """
    if path.is_dir():
        texts = [_file_text(item, path) for item in shown_files(path)]
        texts = list({item.doc_id: item for item in texts}.values())  # the same bytes twice are one document
    elif not path.is_file():
        raise TextsError(
            f"{path} does not exist: give a split ({' or '.join(SPLITS)}), a text file, a folder of text files, JSON "
            "Lines (.jsonl) or Parquet"
        )
    elif SUFFIXES.get(path.suffix.lower()) in (LINES, PARQUET):
        texts = list(_row_texts(path, refused, column))
    else:
        texts = [_file_text(path, path.parent)]
    if not any(item.text for item in texts):
        reasons = f": {refused.sentence()}" if refused.count else ""
        raise TextsError(f"{path} has no text to evaluate a model on{reasons}")
    twice = sorted(name for name, count in Counter(item.doc_id for item in texts).items() if count > 1)
    if twice:
        raise TextsError(f"{path}: the ids {', '.join(map(repr, twice[:5]))} occur more than once; expected unique ids")
    return texts


def _file_text(path: Path, root: Path) -> Text:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TextsError(f"{path} cannot be read: {error.strerror}") from error
    folder = path.relative_to(root).parent.as_posix()
    source = root.name if folder == "." else f"{root.name}/{folder.partition('/')[0]}"
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place, why = error.start, error.reason
    else:
        place, why = text.find("\0"), "a NUL"  # binary, although valid UTF-8
        if place < 0:
            return Text(hashlib.sha256(data).hexdigest(), text, source=source)
    raise TextsError(
        f"{path} is not UTF-8 text ({why} at {place:,}): save it as UTF-8, or ingest it by `sheepfold ingest` and "
        "evaluate on a split of the corpus"
    )


def _row_texts(path: Path, refused: Refused, column: str) -> Iterator[Text]:
    def choose(columns: Columns) -> list[str]:
        if column not in columns:
            reason = f"there is no column {column!r}; there are: {list_columns(columns)}"
            raise ExtractionProblem("rejected", "no_column", reason)
        return [column, *(name for name in columns if name in {*_NAMES, *_LABELS} - {column})]

    form = SUFFIXES[path.suffix.lower()]
    try:
        digest = sha256_file(path)
        for row in read_rows(Table(path.resolve(), form), choose if form == PARQUET else None):
            try:
                yield _row_text(row, column, f"{digest}\0{row.number}", path.name)
            except ExtractionProblem as problem:
                refused.add(path, problem)
    except ExtractionProblem as problem:
        raise TextsError(f"{path} cannot be read: {problem.reason}") from problem
    except OSError as error:
        raise TextsError(f"{path} cannot be read: {error.strerror or error}") from error


def _row_text(row: Row, column: str, identity: str, file: str) -> Text:
    """Return the text of a row; its id is derived from `identity` if it has none."""
    text = row.text(column, empty=True)
    name = next((row.values[key] for key in _NAMES if row.values.get(key) is not None), None)
    labels = {key: str(row.values[key]) for key in _LABELS if row.values.get(key)}
    for what, value in (("name", str(name)), *labels.items()):
        if fault := encoding_fault(value):
            raise ExtractionProblem("failed", "corrupt", f"{row.place}: the {what} {fault}")
    doc_id = hashlib.sha256(identity.encode()).hexdigest() if name is None else str(name)
    return Text(doc_id, text, **{"source": file, **labels})


@dataclass(frozen=True)
class TextsSettings:
    """Digest of the texts."""

    digest: str


@stage("texts", version=1, tables={DOCUMENTS_FILE: EVALSET}, unkeyed=("texts",))
def keep_texts(work: Work, settings: TextsSettings, *, texts: list[Text]) -> str:
    """Write texts to the store as an evaluation set."""
    rows = [asdict(item) for item in sorted(texts, key=lambda item: item.doc_id)]
    work.counts["rows"] = write_table(work.out / DOCUMENTS_FILE, EVALSET, rows)
    work.counts["bytes"] = sum(len(row["text"].encode()) for row in rows)
    return settings.digest


def evaluation_texts(run: Run, on: str | None, column: str | None = None) -> ArtifactRef:
    """Return texts to evaluate a model on, as an artefact with the layout of an evaluation set.

    Args:
        on: `train` or `validation` for that split of the corpus as it is now; else a text file, a folder of text files,
            JSON Lines or Parquet; None for the corpus's frozen evaluation set.
        column: text field of JSON Lines and Parquet; None for `text`.

    Raises:
        StoreError: the corpus was never prepared.
        UserError: the texts cannot be read, or are empty.
    """
    if not on:
        return frozen_evalset(run)
    if on in SPLITS:
        return copy_split(run, SplitSettings(on), **split_inputs(read_state(run.store, run.corpus)))
    refused = Refused()
    texts = read_texts(Path(on).expanduser(), refused, column or COLUMN)
    if refused.count:
        run.note(f"{on}: {refused.sentence()}")
    return keep_texts(run, TextsSettings(sha256_json(texts)), texts=texts)


def texts_name(on: str | None) -> str:
    """Return the name of the documents of `evaluation_texts`, for people."""
    return f"the {on} split" if on in SPLITS else Path(on).resolve().name if on else "the evaluation set"
