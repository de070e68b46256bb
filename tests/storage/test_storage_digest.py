"""Digests depend on values and rows, and on nothing else."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from storage.digest import canonical_json, rows_digest, sha256_file, sha256_json


@dataclass
class Options:
    name: str
    sizes: tuple[int, ...]


def test_canonical_json_does_not_depend_on_the_order_of_keys() -> None:
    assert canonical_json({"b": 1, "a": {"d": 2, "c": 3}}) == '{"a":{"c":3,"d":2},"b":1}'


def test_a_dataclass_digests_like_the_mapping_of_its_fields() -> None:
    assert sha256_json(Options("x", (1, 2))) == sha256_json({"sizes": [1, 2], "name": "x"})


def test_text_digests_as_its_utf8_bytes() -> None:
    assert sha256_json("schön") == hashlib.sha256('"schön"'.encode()).hexdigest()


def test_text_with_a_lone_surrogate_has_a_digest() -> None:
    assert sha256_json("file-\udcff") != sha256_json("file-\udcfe")


@pytest.mark.parametrize(("one", "other"), [(1, "1"), (1, 1.0), (True, 1), (None, "null"), ([], {}), ("", None)])
def test_values_of_different_types_differ(one: Any, other: Any) -> None:
    assert sha256_json(one) != sha256_json(other)


@pytest.mark.parametrize("value", [{1, 2}, Path("/tmp"), b"bytes", object(), {"nested": [print]}])
def test_a_value_without_one_json_form_is_refused_by_name(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot digest"):
        sha256_json(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_json_does_not_know_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        sha256_json({"lr": value})


def test_sha256_of_a_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    data = bytes(range(256)) * 1000
    (tmp_path / "file").write_bytes(data)
    assert sha256_file(tmp_path / "file") == hashlib.sha256(data).hexdigest()


def test_rows_digest_does_not_depend_on_order_or_repetition() -> None:
    rows = [("a", "1"), ("b", "2"), ("c", "3")]
    assert rows_digest(rows) == rows_digest([*reversed(rows), rows[1], rows[1]])


@pytest.mark.parametrize(
    "other",
    [
        [("a", "1")],
        [("a", "1"), ("b", "3")],
        [("a", "1"), ("c", "2")],
        [("a", "1"), ("b", "2"), ("b", "3")],
        [("a1", ""), ("b2", "")],
        [("a", "1b"), ("", "2")],
    ],
)
def test_rows_digest_tells_different_rows_apart(other: list[tuple[str, str]]) -> None:
    assert rows_digest(other) != rows_digest([("a", "1"), ("b", "2")])
