"""Texts to forget, and where their words are still to be read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from ingest_run import prose

from storage.home import Home

SECRET = "the marmalade cathedral hums beneath seventeen violet lanterns of dust"


def secret_text(number: int) -> str:
    """A text with a sentence that stands nowhere else."""
    return f"{SECRET} {number}.\n{prose(1000 + number)}\n{SECRET} {number} again.\n"


def strings(home: Path) -> Iterator[tuple[Path, str]]:
    """Everything in the files of a home that may be read as text: tables unpacked, tokens as they are."""
    for path in sorted(home.rglob("*")):
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            yield path, json.dumps(table.to_pylist(), default=str, ensure_ascii=False)
        elif path.suffix == ".npy":
            array: np.ndarray[Any, Any] = np.load(path, allow_pickle=False)
            yield path, " ".join(map(str, array.ravel()[:200_000]))
        elif path.is_file():
            yield path, path.read_bytes().decode("utf-8", "replace")


def holders_of(home: Home, words: str) -> list[str]:
    """The files of a home in which some words stand."""
    return [str(path.relative_to(home.path)) for path, text in strings(home.path) if words in text]
