"""Reading the examples that a classifier learns from, as the documents it will judge are read.

In go files and folders, out come the distinct normalised texts of one side, in the order of their hashes: where an
example lies, what its file is called and how often it is there change nothing. A file is one example, or a table of
them; formats that need an extractor are refused, because what it makes of them should be seen before it is learnt.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage.digest import sha256_file
from storage.errors import UserError
from tasks.curate.classifier.features import READ_CHARS
from tasks.readers.decode import decode
from tasks.readers.detect import HEAD_BYTES, JSON_LINES, PARQUET_MEDIA, detect
from tasks.readers.records import ExtractionProblem
from tasks.readers.rows import LINES, PARQUET, TEXT, Columns, Refused, Table, list_columns, read_rows
from tasks.text import keep_best, near_pairs, signatures
from tasks.text.cleaning import normalise_text

COLUMN = "text"
MIN_EXAMPLES = 10
MAX_EXAMPLES = 2_000  # of one side; more would cost much and teach little
MAX_CHARS = 2**23  # of all examples of one side
POSSIBLE = "possible are text files and, with a column named text, JSON lines (.jsonl, .ndjson) and Parquet"

_READ_BYTES = 8 * READ_CHARS  # of a text file: enough characters in every encoding, with what normalising takes out
_LINES_SUFFIXES = (".jsonl", ".jsonlines", ".ndjson")

logger = logging.getLogger("sheepfold")


class ExamplesError(UserError):
    """Examples that are missing, too few, on both sides, or in no form that can be read."""


@dataclass(frozen=True)
class Examples:
    """The examples of one side.

    Attributes:
        texts: normalised, distinct, in the order of their hashes; at most the first `READ_CHARS` characters of each.
        repeated: how many more were equal, or nearly equal, to one of them: on both sides of a cross-validation they
            would make the classifier look better than it is.
        empty: how many held no text.
        refused: how many rows could not be read.
        left_out: how many were beyond `MAX_EXAMPLES` or `MAX_CHARS`.
        places: hash of each distinct text, and where it was first found.
    """

    texts: list[str]
    repeated: int
    empty: int
    refused: int
    left_out: int
    places: dict[bytes, str]


def file_identities(side: str, paths: Sequence[Path]) -> tuple[str, ...]:
    """What identifies the examples of one side: for each file how it is read and its sha256, sorted.

    Args:
        side: `good` or `bad`, for messages.
        paths: files and folders.

    Raises:
        ExamplesError: if one is not there, or is nothing that can be read.
    """
    return tuple(sorted({f"{_form(side, path)} {sha256_file(path)}" for path in example_files(side, paths)}))


def read_examples(side: str, paths: Sequence[Path]) -> Examples:
    """Read the examples of one side; rows that are none are left out with a warning.

    Args:
        side: `good` or `bad`, for messages.
        paths: files and folders; what is hidden in folders is left out.

    Raises:
        ExamplesError: if they cannot be read, or are fewer than `MIN_EXAMPLES`.
    """
    places: dict[bytes, str] = {}
    chosen: dict[bytes, str] = {}
    refused = Refused()
    repeated = empty = held = 0
    for path in example_files(side, paths):
        for place, raw in _raw_texts(side, path, refused):
            text = normalise_text(raw[: 2 * READ_CHARS], "text")[:READ_CHARS]
            if not text.strip():
                empty += 1
                continue
            digest = hashlib.sha256(text.encode()).digest()
            if digest in places:
                repeated += 1
                continue
            places[digest] = place
            chosen[digest] = text
            held += len(text)
            if len(chosen) > 2 * MAX_EXAMPLES or held > 2 * MAX_CHARS:  # what is beyond the limits now, stays so
                chosen = _within_limits(chosen)
                held = sum(map(len, chosen.values()))
    chosen = _within_limits(chosen)
    texts = _without_near_duplicates(list(chosen.values()))
    repeated += len(chosen) - len(texts)
    told = refused.sentence()
    if len(texts) < MIN_EXAMPLES:
        raise ExamplesError(
            f"classifier.{side} gives {len(texts)} different texts (besides {repeated} repeated or nearly so, and "
            f"{empty} empty), expected {MIN_EXAMPLES} or more: add examples; {POSSIBLE}{'; ' * bool(told)}{told}"
        )
    if told:
        logger.warning("classifier.%s: %s", side, told)
    return Examples(texts, repeated, empty, refused.count, len(places) - len(chosen), places)


def refuse_shared(good: Examples, bad: Examples) -> None:
    """Refuse texts that are examples of both sides.

    Raises:
        ExamplesError: if there are any, naming one.
    """
    shared = sorted(good.places.keys() & bad.places.keys())
    if shared:
        raise ExamplesError(
            f"{len(shared)} texts are examples of both sides, such as {good.places[shared[0]]} in classifier.good and "
            f"{bad.places[shared[0]]} in classifier.bad: leave each out on one side"
        )


def _within_limits(texts: dict[bytes, str]) -> dict[bytes, str]:
    """The texts of the lowest hashes, as many as the limits allow."""
    chosen: dict[bytes, str] = {}
    chars = 0
    for digest in sorted(texts)[:MAX_EXAMPLES]:
        chars += len(texts[digest])
        if chars > MAX_CHARS:
            break
        chosen[digest] = texts[digest]
    return chosen


def _without_near_duplicates(texts: list[str]) -> list[str]:
    """The texts but those that nearly equal one before them."""
    found = near_pairs(signatures(texts), lambda wanted: [texts[place] for place in wanted])
    kept, _ = keep_best(len(texts), found.pairs, np.arange(len(texts)))
    return [text for text, is_kept in zip(texts, kept, strict=True) if is_kept]


def example_files(side: str, paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.is_file() and not _is_hidden(file, path))
            if not inside:
                raise ExamplesError(f"classifier.{side} names {path}, a folder without files; {POSSIBLE}")
            yield from inside
        elif path.is_file():
            yield path
        else:
            raise ExamplesError(f"classifier.{side} names {path}, which is not there: expected a file or a folder")


def _is_hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _form(side: str, path: Path) -> str:
    """How a file is read: `text`, `lines` or `parquet`."""
    suffix = path.suffix.lower()
    with path.open("rb") as handle:
        head = handle.read(HEAD_BYTES)
    found = detect(head, path.stat().st_size, suffix)
    if found.media_type == JSON_LINES or (suffix in _LINES_SUFFIXES and found.kind == "text"):
        return "lines"
    if found.media_type == PARQUET_MEDIA:
        return "parquet"
    if found.kind in ("text", "code") and found.media_type.startswith("text/") and found.media_type != "text/html":
        return "text"
    raise ExamplesError(f"classifier.{side}: {path} is {found.media_type}, which is no example; {POSSIBLE}")


def _raw_texts(side: str, path: Path, refused: Refused) -> Iterator[tuple[str, str]]:
    """Where each text of a file stands, and the text."""
    form = _form(side, path)
    if form == "text":
        with path.open("rb") as handle:
            yield str(path), decode(handle.read(_READ_BYTES)).text
        return
    try:
        for row in read_rows(Table(path, LINES)) if form == "lines" else read_rows(Table(path, PARQUET), _text_column):
            try:
                yield f"{path}, {row.place}", row.text(COLUMN, empty=True)
            except ExtractionProblem as problem:
                if problem.code == "empty":
                    yield f"{path}, {row.place}", ""
                else:
                    refused.add(path, problem)
    except ExtractionProblem as problem:
        raise ExamplesError(f"classifier.{side}: {path}: {problem.reason}; {POSSIBLE}") from problem


def _text_column(columns: Columns) -> list[str]:
    if columns.get(COLUMN) != TEXT:
        reason = f"no column of text is called {COLUMN}; there are: {list_columns(columns)}"
        raise ExtractionProblem("rejected", "no_column", reason)
    return [COLUMN]
