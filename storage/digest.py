"""Digests of settings and files, and logical digests of tables, which do not depend on the layout of the rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, is_dataclass
from itertools import groupby
from pathlib import Path
from typing import Any


def plain(value: Any) -> Any:
    """Return a value with dataclasses and tuples as JSON objects and lists.

    Raises:
        TypeError: for a value without an unambiguous JSON form (sets, functions, objects), and for paths, which must
            not enter a digest.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"cannot digest {type(value).__name__} {value!r}: use numbers, strings, lists, mappings")


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and no spaces, so that equal values give equal text."""
    try:
        return _ENCODER.encode(value)
    except TypeError:  # it contains a dataclass, or a value without a JSON form
        return _ENCODER.encode(plain(value))


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256_json(value: Any) -> str:
    """Return the sha256 of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode("utf-8", "surrogatepass")).hexdigest()


def sha256_file(path: Path) -> str:
    """Return the sha256 of a file's bytes."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def rows_digest(rows: Iterable[tuple[str, str]]) -> str:
    """Return the logical digest of a table: the sha256 of its distinct (id, content digest) pairs in sorted order.

    A table built in two steps has the digest of the same table built in one.
    """
    # one string per pair sorts like the pair and takes half its memory: there may be hundreds of thousands
    joined = sorted(f"{identity}\0{content}" for identity, content in rows)
    pairs = (pair.rpartition("\0") for pair, _ in groupby(joined))
    return sorted_rows_digest((identity, content) for identity, _, content in pairs)


def sorted_rows_digest(rows: Iterable[tuple[str, str]]) -> str:
    """Return the `rows_digest` of distinct, sorted rows; they are read once and not kept in memory."""
    digest = hashlib.sha256()
    for identity, content in rows:
        digest.update(f"{len(identity)}:{identity}{len(content)}:{content}".encode())
    return digest.hexdigest()


def list_digest(items: Iterable[Any], head: str = "") -> str:
    """Return the `sha256_json` of the list of these items, or of `[head, items]` if there is a head, as a stream."""
    digest = hashlib.sha256(f"[{canonical_json(head)},[".encode() if head else b"[")
    for number, item in enumerate(items):
        digest.update(f"{',' if number else ''}{canonical_json(item)}".encode("utf-8", "surrogatepass"))
    digest.update(b"]]" if head else b"]")
    return digest.hexdigest()
