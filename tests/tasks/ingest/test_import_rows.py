"""Rows of corpora: documents or the reason why not, and the parts in which files are read."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from storage.errors import UserError
from storage.tables import read_rows
from tasks.core.settings import load_settings
from tasks.ingest import importing
from tasks.ingest.importing import DocumentsSettings, Part, import_parts, parts_of, unchanged
from tasks.readers.rows import GZIP, LINES, ZSTD

TEXT = DocumentsSettings()


def lines(*records: Any) -> bytes:
    return b"".join(
        (record if isinstance(record, bytes) else json.dumps(record).encode()) + b"\n" for record in records
    )


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def cut(path: Path, cache: Path | None = None) -> tuple[Part, ...]:
    return parts_of(str(path), sha(path), cache or path.parent / "cache")


def read(path: Path, settings: DocumentsSettings = TEXT) -> tuple[dict[str, Any], dict[str, tuple[str, str, str]]]:
    """Documents by row number, and what became of the file (""), and of each other row."""
    parts = cut(path)
    out = path.parent / "out"
    out.mkdir(exist_ok=True)
    cache = path.parent / "cache"
    import_parts(list(parts), [str(path)] * len(parts), cache, settings, True, out, lambda done, total: None, {})
    told = {row["doc_id"]: row for row in read_rows(out / "extracts.parquet")}
    documents = {told[row["doc_id"]]["locator"]: row for row in read_rows(out / "documents.parquet")}
    others = {
        row["locator"]: (row["status"], row["reason_code"], row["reason"])
        for row in told.values()
        if row["locator"] not in documents
    }
    return documents, others


def texts(path: Path, settings: DocumentsSettings = TEXT) -> dict[int, str]:
    documents, others = read(path, settings)
    assert others == {"": ("ok", "", "")}
    return {int(locator): row["text"] for locator, row in documents.items()}


def put(folder: Path, data: bytes, name: str = "corpus.jsonl") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def table(folder: Path, columns: dict[str, Any], rows: int = 1000, **options: Any) -> Path:
    path = folder / "corpus.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=rows, **options)
    return path


GOOD = lines({"text": "one"}, {"text": "two", "more": [1]}, {"text": "three"})


@pytest.mark.parametrize(
    ("data", "form"),
    [(GOOD, LINES), (gzip.compress(GOOD, mtime=0), GZIP), (zstandard.compress(GOOD), ZSTD)],
    ids=["plain", "gzip", "zstd"],
)
def test_the_content_decides_how_a_file_is_read(tmp_path: Path, data: bytes, form: str) -> None:
    path = put(tmp_path, data, "corpus.bin")
    assert [part.format for part in cut(path)] == [form]
    assert texts(path) == {1: "one", 2: "two", 3: "three"}


def test_every_bad_row_is_told_and_costs_no_other(tmp_path: Path) -> None:
    data = lines(
        {"text": "first"},
        b'{"text": "cut',
        {"text": 7},
        {"text": None},
        {"text": ""},
        {"body": "a"},
        [1],
        b'{"text": "\\ud800"}',
    )
    documents, others = read(put(tmp_path, data + b'{"text": "caf\xe9"}'))
    assert {locator: row["text"] for locator, row in documents.items()} == {"1": "first", "9": "caf\ufffd"}
    assert {locator: told[:2] for locator, told in others.items()} == {
        "": ("ok", ""),
        "2": ("failed", "corrupt"),
        "3": ("rejected", "no_column"),
        "4": ("skipped", "empty"),
        "5": ("skipped", "empty"),
        "6": ("rejected", "no_column"),
        "7": ("failed", "corrupt"),
        "8": ("failed", "corrupt"),
    }


def test_other_columns_are_read_where_the_settings_name_them(tmp_path: Path) -> None:
    settings = DocumentsSettings("content", "id", "name", "type", "text", "lang")
    data = lines(
        {"content": "x", "id": 7, "name": "A  title", "type": "code", "lang": "Rust"},
        {"content": "y"},
        {"content": "z", "type": "poem"},
    )
    documents, others = read(put(tmp_path, data), settings)
    columns = ("text", "title", "kind", "programming_language")
    assert {locator: tuple(row[name] for name in columns) for locator, row in documents.items()} == {
        "1:7": ("x", "A title", "code", "Rust"),
        "2": ("y", None, "text", None),
    }
    assert others["3"][:2] == ("rejected", "unsupported")


@pytest.mark.parametrize(
    ("data", "code", "said"),
    [
        (b"", "empty", "empty"),
        (b"# A heading\n\nProse.\n", "unsupported", "not JSON Lines: line 1 is not JSON"),
        (b'["text", "a"]\n{"title": "b"}\n', "no_column", "no 'text'"),
        (
            lines({"body": "a"}, {"boddy": "b"}),
            "no_column",
            "no 'text' (documents.text_column) in the first lines; there are: body, boddy",
        ),
        (b"PAR1 and no more", "corrupt", "the Parquet file is damaged"),
    ],
)
def test_a_file_of_no_use_is_told_as_a_whole(tmp_path: Path, data: bytes, code: str, said: str) -> None:
    documents, others = read(put(tmp_path, data))
    assert (documents, [*others]) == ({}, [""])
    assert others[""][1] == code
    assert said in others[""][2]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"body": ["a"]}, "no 'text' (documents.text_column) among the columns; there are: body"),
        ({"text": [1]}, "is of int64, expected text"),
        ({"text": [["a"]]}, "expected text"),
    ],
)
def test_a_table_without_a_text_column_is_told_as_a_whole(tmp_path: Path, columns: Any, said: str) -> None:
    documents, others = read(table(tmp_path, columns))
    assert (documents, [*others]) == ({}, [""])
    assert said in others[""][2]


def test_a_setting_that_names_a_column_which_is_nowhere_is_told(tmp_path: Path) -> None:
    _, others = read(put(tmp_path, GOOD), DocumentsSettings(title_column="titel"))
    assert "'titel' (documents.title_column)" in others[""][2]


# where files are cut


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "PART_BYTES", 1000)
    monkeypatch.setattr(importing, "WHOLE_PARQUET_BYTES", 1000)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n\n"])
@pytest.mark.parametrize("block", [1, 7, 1000, 1 << 20])
def test_parts_of_lines_hold_every_line_once_under_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: bytes, block: int
) -> None:
    monkeypatch.setattr(importing, "_BLOCK", block)
    data = lines(*({"text": f"{n} " + "x" * (n * 37 % 300)} if n % 5 else b"" for n in range(1, 60)))
    path = put(tmp_path, data.rstrip(b"\n") + end)
    found = cut(path)
    assert len(found) > 5
    assert [part.start for part in found[1:]] == [part.stop for part in found[:-1]]
    assert (found[0].start, found[-1].stop) == (0, path.stat().st_size)
    assert {number: text.split()[0] for number, text in texts(path).items()} == {
        n: str(n) for n in range(1, 60) if n % 5
    }


@pytest.mark.usefixtures("small_parts")
def test_a_line_longer_than_a_part_is_a_part(tmp_path: Path) -> None:
    path = put(tmp_path, lines({"text": "x" * 5000}, {"text": "y" * 5000}, {"text": "z"}))
    assert [part.first_row for part in cut(path)] == [1, 2, 3]
    assert list(texts(path)) == [1, 2, 3]


@pytest.mark.usefixtures("small_parts")
def test_parts_of_a_table_are_row_groups(tmp_path: Path) -> None:
    path = table(tmp_path, {"text": [f"{n} {os.urandom(30).hex()}" for n in range(100)]}, rows=7)
    found = cut(path)
    assert len(found) > 3
    assert [part.start for part in found[1:]] == [part.stop for part in found[:-1]]
    assert {number: int(text.split()[0]) for number, text in texts(path).items()} == {n + 1: n for n in range(100)}


@pytest.mark.usefixtures("small_parts")
def test_cuts_are_remembered_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, lines(*({"text": "x" * 100} for _ in range(50))))
    first = cut(path)
    scans: list[object] = []
    scan = importing._line_cuts
    monkeypatch.setattr(importing, "_line_cuts", lambda file: scans.append(file) or scan(file))
    assert cut(path) == first
    assert scans == []
    os.utime(path, ns=(1, 1))
    assert cut(path) == first
    assert len(scans) == 1


@pytest.mark.usefixtures("small_parts")
def test_a_file_that_changed_is_not_taken_for_what_it_was(tmp_path: Path) -> None:
    path = put(tmp_path, lines(*({"text": "x" * 100} for _ in range(50))))
    found, was = cut(path)[1], sha(path)
    path.write_bytes(path.read_bytes().replace(b"x", b"y"))
    with (
        pytest.raises(UserError, match="changed while it was imported"),
        unchanged(str(path), found, tmp_path / "cache"),
    ):
        pytest.fail("read all the same")
    with pytest.raises(UserError, match="changed while it was imported"):
        parts_of(str(path), was, tmp_path / "cache")


def test_a_small_file_that_changed_is_not_taken_for_what_it_was(tmp_path: Path) -> None:
    path = put(tmp_path, GOOD)
    (part,) = cut(path)
    with pytest.raises(UserError, match="changed"), unchanged(str(path), part, tmp_path):
        path.write_bytes(GOOD + GOOD)
    with pytest.raises(UserError, match="changed"), unchanged(str(path), part, tmp_path):
        pytest.fail("read all the same")


@pytest.mark.parametrize(
    "values", [{"text_column": ""}, {"kind": "poem"}, {"max_row_bytes": 0}, {"max_unpacked_bytes": -1}]
)
def test_impossible_settings_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=rf"documents\.{next(iter(values))} is .*, expected "):
        load_settings(None, {"documents": values})


# -- memory --------------------------------------------------------------------------------------------------------

PEAK = r"""
import pathlib, re, sys
sys.path.insert(0, sys.argv[1])
from tasks.ingest.importing import DocumentsSettings, Part, import_parts

def peak():
    return int(re.search(r"VmHWM:\s+(\d+)", pathlib.Path("/proc/self/status").read_text())[1]) * 1024

before = peak()
path, sha256, out = map(pathlib.Path, sys.argv[2:])
part = Part(sha256.name, "jsonl")
made = import_parts([part], [str(path)], out, DocumentsSettings(), True, out, lambda done, total: None, {})
print(made["rows"], peak() - before)
"""


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell a process's peak")
@pytest.mark.parametrize("end", ["", "\r\n"], ids=["as it is", "changed"])
def test_a_long_document_needs_a_few_times_its_size(end: str, tmp_path: Path) -> None:
    path = put(tmp_path, lines({"text": "the shepherd counts his sheep and the fold is full of wool\n" * 10**6 + end}))
    root = str(Path(__file__).resolve().parents[3])
    told = subprocess.run(
        [sys.executable, "-c", PEAK, root, str(path), sha(path), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    rows, peak = map(int, told.stdout.split())
    assert rows == 1
    assert peak < 4.3 * path.stat().st_size
