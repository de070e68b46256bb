"""Reading external evaluation sets: every text in their files, as hashes of runs of thirteen words.

Which columns matter is not asked: every string of a Parquet or JSON file is taken, each as a text of its own, because a
question or an answer found in a training document is a leak under any column name.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from storage.errors import UserError
from tasks.text.minhash import GRAM_WORDS
from tasks.text.words import U64, distinct, read_batches, word_runs

_FORMATS = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".txt": "text",
    ".md": "text",
}
SUFFIXES = tuple(_FORMATS)

_CHARS_AT_ONCE = 1 << 22
_ROWS_AT_ONCE = 1_000


class EvaluationSetError(UserError):
    """A file of an evaluation set that cannot be read."""


def nfc(text: str) -> str:
    """Canonical composition, the least that comparing texts needs."""
    return unicodedata.normalize("NFC", text)


def evaluation_grams(paths: Sequence[Path], normalise: Callable[[str], str] = nfc) -> U64:
    """Sorted distinct hashes of all runs of thirteen words in evaluation sets; shorter texts in them are left out.

    Args:
        paths: Parquet, JSON lines, JSON or text files, or folders with files of `SUFFIXES`. A file of any other suffix
            is read as text.
        normalise: what the training documents went through, so that both sides read alike.

    Raises:
        EvaluationSetError: if there is no such file, it holds no text, or it is damaged.
    """
    found: U64 = np.zeros(0, np.uint64)
    for path in evaluation_files(paths):
        fresh = [found]
        some = False
        for texts in _bundles(map(normalise, _texts(path))):
            some = True
            fresh.append(_full_runs(texts))
        if not some:
            raise EvaluationSetError(f"evaluation set {path} holds no text: name a file with text, or leave it out")
        found = distinct(np.concatenate(fresh))
    return found


def _full_runs(texts: list[str]) -> U64:
    parts = [np.zeros(0, np.uint64)]
    for batch in read_batches(texts):
        runs = word_runs(batch.words, GRAM_WORDS)
        parts.append(runs.values[np.repeat(batch.words.counts >= GRAM_WORDS, runs.counts)])
    return distinct(np.concatenate(parts))


def _bundles(texts: Iterator[str]) -> Iterator[list[str]]:
    """Texts in lists of bounded size, the empty ones left out."""
    bundle: list[str] = []
    chars = 0
    for text in texts:
        if not text.strip():
            continue
        bundle.append(text)
        chars += len(text)
        if chars >= _CHARS_AT_ONCE:
            yield bundle
            bundle, chars = [], 0
    if bundle:
        yield bundle


def evaluation_files(paths: Sequence[Path]) -> list[Path]:
    """The files that `evaluation_grams` reads for these paths, in its order.

    Raises:
        EvaluationSetError: if there is no such file.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
            if not inside:
                raise EvaluationSetError(
                    f"evaluation set {path} is a folder without any file of {', '.join(SUFFIXES)}: name the files"
                )
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise EvaluationSetError(f"evaluation set {path} is not there: expected a file or a folder")
    return found


def evaluation_format(path: Path) -> str:
    """How a file is read: `parquet`, `jsonl`, `json` or `text`; its suffix says so, and nothing else."""
    return _FORMATS.get(path.suffix.lower(), "text")


def _texts(path: Path) -> Iterator[str]:
    kind = evaluation_format(path)
    if kind == "parquet":
        return _parquet_texts(path)
    if kind == "jsonl":
        return _json_lines_texts(path)
    if kind == "json":
        return _strings(_parsed(_whole(path), str(path)))
    return iter([_whole(path)])


def _whole(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise EvaluationSetError(f"evaluation set {path} is no UTF-8 text ({error}): convert it first") from error


def _json_lines_texts(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8-sig") as lines:
        try:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield from _strings(_parsed(line, f"{path}, line {number}"))
        except UnicodeDecodeError as error:
            raise EvaluationSetError(f"evaluation set {path} is no UTF-8 text ({error}): convert it first") from error


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise EvaluationSetError(f"evaluation set {where}: no valid JSON ({error})") from error


def _strings(value: Any) -> Iterator[str]:
    """Every string in a JSON value, in order; names of fields are no text."""
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            stack.extend(reversed(value))
        elif isinstance(value, dict):
            stack.extend(reversed(value.values()))


def _parquet_texts(path: Path) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        for batch in pq.ParquetFile(path).iter_batches(batch_size=_ROWS_AT_ONCE):
            for column in batch.columns:
                yield from _column_strings(column)
    except (pa.ArrowInvalid, OSError) as error:
        raise EvaluationSetError(f"evaluation set {path} cannot be read as Parquet: {error}") from error


def _column_strings(column: Any) -> Iterator[str]:
    """Every string in a column, nested ones too."""
    import pyarrow.types as kinds

    if kinds.is_dictionary(column.type):
        column = column.dictionary
    if kinds.is_string(column.type) or kinds.is_large_string(column.type) or kinds.is_string_view(column.type):
        yield from (text for text in column.to_pylist() if text is not None)
    elif kinds.is_map(column.type):
        yield from _column_strings(column.items)
    elif kinds.is_nested(column.type) and not kinds.is_union(column.type):
        for part in column.flatten() if kinds.is_struct(column.type) else [column.flatten()]:
            yield from _column_strings(part)
