"""The stage `evaluation_sets`: hash the 13-grams of external evaluation sets, which training text must not contain.

Every string of a Parquet or JSON file is a text, whatever its column, because a question or an answer in a training
document is a leak.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from storage.digest import sha256_file
from storage.errors import UserError
from storage.manifest import ArtifactRef
from storage.schemas import GRAMS_FILE
from tasks.core.stage import Work, stage
from tasks.curate.settings import given_files, listed_paths
from tasks.readers.records import ExtractionProblem
from tasks.readers.rows import LINES, PARQUET, Columns, Refused, Table, encoding_fault, read_rows
from tasks.text.cleaning import normalise_text
from tasks.text.minhash import GRAM_WORDS
from tasks.text.words import U64, bundles, distinct, read_batches, word_runs

if TYPE_CHECKING:
    from tasks.core.run import Run

SUFFIXES = {
    ".parquet": PARQUET,
    **dict.fromkeys((".jsonl", ".jsonlines", ".ndjson"), LINES),
    ".json": "json",
    ".txt": "text",
    ".md": "text",
}

_CHARS_AT_ONCE = 1 << 22

logger = logging.getLogger("sheepfold")


@dataclass(frozen=True)
class EvaluationSetSettings:
    """Settings of the stage: the layout and digest of each file, sorted."""

    files: tuple[str, ...] = ()

    @classmethod
    def of(cls, paths: list[Path]) -> EvaluationSetSettings:
        """Return the settings for some paths; raises what `evaluation_files` raises."""
        return cls(tuple(sorted({f"{_form(file)} {sha256_file(file)}" for file in evaluation_files(paths)})))


@stage("evaluation_sets", version=3, unkeyed=("files",))
def evaluation_sets(work: Work, settings: EvaluationSetSettings, *, files: ArtifactRef | None = None) -> str:
    """Hash the 13-grams of external evaluation sets, of which there may be none."""
    refused = Refused()
    grams = evaluation_grams([] if files is None else work.files(files), refused)
    np.save(work.out / GRAMS_FILE, grams, allow_pickle=False)
    work.counts.update(rows=len(grams), refused=refused.count)
    if refused.count:
        logger.warning("curate.evaluation_sets: %s", refused.sentence())
    return sha256_file(work.out / GRAMS_FILE)


def forbidden_grams(run: Run, asked: str) -> ArtifactRef:
    """Return the 13-grams of external evaluation sets, which must not be trained on.

    Args:
        asked: Files and folders of the sets, one per line.

    Raises:
        UserError: One does not exist, or is a folder without files of `SUFFIXES`.
    """
    if not (paths := listed_paths(asked)):
        return evaluation_sets(run, EvaluationSetSettings())
    files = {f"{number:04}/{file.name}": file for number, file in enumerate(evaluation_files(paths))}
    ref, copies = run.add("evaluation_set_files", files)
    return evaluation_sets(run, EvaluationSetSettings.of(copies), files=ref)


def evaluation_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files to read for these paths, in order.

    Raises:
        UserError: A path does not exist, or is a folder without files of `SUFFIXES`.
    """
    return given_files("curate.evaluation_sets", paths, "name the files", SUFFIXES)


def evaluation_grams(paths: Sequence[Path], refused: Refused) -> U64:
    """Return sorted distinct hashes of all 13-grams in evaluation sets, normalised like training documents.

    Texts of fewer than 13 words are left out.

    Args:
        paths: Parquet, JSON Lines, JSON or text files, or folders with files of `SUFFIXES`, of which hidden ones are
            skipped. A file with another suffix is read as text.
        refused: Counter of the rows that cannot be read.

    Raises:
        UserError: A file does not exist, is damaged or has no text.
    """
    found: U64 = np.zeros(0, np.uint64)
    for path in evaluation_files(paths):
        before = refused.count
        normalised = (normalise_text(text, "text") for text in _texts(path, refused))
        fresh = [_full_grams(texts) for texts in bundles(filter(str.strip, normalised), len, _CHARS_AT_ONCE)]
        if not fresh:
            told = f" ({refused.sentence()})" if refused.count > before else ""
            raise UserError(f"evaluation set {path} has no text{told}: name a file with text")
        found = distinct(np.concatenate([found, *fresh]))
    return found


def _full_grams(texts: list[str]) -> U64:
    parts = [np.zeros(0, np.uint64)]
    for batch in read_batches(texts):
        runs = word_runs(batch.words, GRAM_WORDS)
        parts.append(runs.values[np.repeat(batch.words.counts >= GRAM_WORDS, runs.counts)])
    return distinct(np.concatenate(parts))


def _form(path: Path) -> str:
    return SUFFIXES.get(path.suffix.lower(), "text")


def _texts(path: Path, refused: Refused) -> Iterator[str]:
    form = _form(path)
    if form in (PARQUET, LINES):
        yield from _row_texts(path, form, refused)
        return
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"evaluation set {path} is not UTF-8 text ({error}): convert it first") from error
    if form == "text":
        yield text
        return
    try:
        yield from _strings(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise UserError(f"evaluation set {path}: not valid JSON ({error})") from error


def _row_texts(path: Path, form: str, refused: Refused) -> Iterator[str]:
    """Yield every string in the rows of a table; a row with one that UTF-8 cannot encode is refused."""
    try:
        for row in read_rows(Table(path, form, objects=False), _with_strings if form == PARQUET else None):
            texts = list(_strings(row.values))
            fault = next(filter(None, map(encoding_fault, texts)), "")
            if fault:
                refused.add(path, ExtractionProblem("failed", "corrupt", f"{row.place}: a text {fault}"))
            elif row.problem is not None:
                refused.add(path, row.problem)
            else:
                yield from texts
    except ExtractionProblem as problem:
        raise UserError(f"evaluation set {path}: {problem.reason}") from problem


def _with_strings(columns: Columns) -> list[str]:
    """Return the columns with text, including nested ones; others, such as embeddings, may be large."""
    return [name for name, kind in columns.items() if kind == "text" or "string" in kind]


def _strings(value: Any) -> Iterator[str]:
    """Yield every string in a value, in order, without names of fields."""
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            stack.extend(reversed(value))
        elif isinstance(value, dict):
            stack.extend(reversed(value.values()))
        elif isinstance(value, tuple):  # an entry of a Parquet map: its name and its value
            stack.append(value[1])
