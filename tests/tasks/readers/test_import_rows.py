"""Rows of corpora: what becomes of each, however broken, in whatever container, and where files are cut."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from tasks.readers.row_parts import GZIP, LINES, ZSTD, Part, parts_of, unchanged

from storage.errors import UserError
from tasks.core.settings import SettingsError, load_settings
from tasks.ingest.importing import DocumentsSettings
from tasks.readers import row_parts as cutting
from tasks.readers.rows import Row, Unusable, read_part

TEXT = DocumentsSettings()


def lines(*records: Any) -> bytes:
    return b"".join(
        (record if isinstance(record, bytes) else json.dumps(record).encode()) + b"\n" for record in records
    )


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def cut(path: Path, cache: Path | None = None) -> tuple[Part, ...]:
    return parts_of(str(path), sha(path), cache or path.parent / "cache")


def read(path: Path, settings: DocumentsSettings = TEXT) -> list[Row]:
    return [row for part in cut(path) for row in read_part(str(path), part, settings)]


def refusals(rows: Sequence[Row]) -> dict[int, tuple[str, str]]:
    return {row.number: (row.refusal.status, row.refusal.code) for row in rows if row.refusal}


def texts(rows: Sequence[Row]) -> dict[int, str]:
    return {row.number: row.text for row in rows if row.refusal is None}


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
def test_lines_are_read_whatever_packs_them(tmp_path: Path, data: bytes, form: str) -> None:
    path = put(tmp_path, data, "corpus.bin")  # the content decides, not the name
    assert [part.format for part in cut(path)] == [form]
    assert texts(read(path)) == {1: "one", 2: "two", 3: "three"}


def test_several_frames_are_one_file(tmp_path: Path) -> None:
    assert texts(read(put(tmp_path, gzip.compress(GOOD) * 2))) == dict(enumerate(["one", "two", "three"] * 2, start=1))


def test_every_broken_line_is_told_and_costs_no_other(tmp_path: Path) -> None:
    data = lines(
        {"text": "first"},
        b'{"text": "cut',
        b"",
        b"   ",
        {"text": 7},
        {"text": None},
        {"text": ""},
        {"body": "elsewhere"},
        [1, 2],
        b"\xff\xfe{",
        b"[" * 100_000,
        b'{"text": ' + b"9" * 5_000 + b"}",
        {"text": "last"},
    )
    rows = read(put(tmp_path, data))
    assert texts(rows) == {1: "first", 13: "last"}
    assert refusals(rows) == {
        2: ("failed", "corrupt"),
        5: ("rejected", "no_column"),
        6: ("skipped", "empty"),
        7: ("skipped", "empty"),
        8: ("rejected", "no_column"),
        9: ("failed", "corrupt"),
        10: ("failed", "corrupt"),
        11: ("failed", "corrupt"),
        12: ("failed", "corrupt"),
    }
    told = {row.number: row.refusal.reason for row in rows if row.refusal}
    assert "'text'" in told[5] and "int" in told[5]
    assert "body" in told[8]


def test_a_line_beyond_the_limit_is_passed_over_unread(tmp_path: Path) -> None:
    path = put(tmp_path, lines({"text": "a"}, {"text": "b" * 5000}, {"text": "c"}))
    rows = read(path, DocumentsSettings(max_row_bytes=1000))
    assert texts(rows) == {1: "a", 3: "c"}
    assert refusals(rows) == {2: ("rejected", "too_large")}


def test_bytes_that_are_no_utf8_and_a_mark_in_front_cost_nothing(tmp_path: Path) -> None:
    rows = read(put(tmp_path, b"\xef\xbb\xbf" + lines({"text": "a"}) + b'{"text": "caf\xe9"}'))
    assert texts(rows) == {1: "a", 2: "caf�"}


def test_other_columns_are_read_where_the_settings_name_them(tmp_path: Path) -> None:
    settings = DocumentsSettings("content", "id", "name", "type", "text", "lang")
    data = lines(
        {"content": "x", "id": 7, "name": "A title", "type": "code", "lang": "Rust"},
        {"content": "y"},
        {"content": "z", "type": "poem"},
    )
    rows = read(put(tmp_path, data), settings)
    assert rows[0] == Row(1, "x", "7", "A title", "code", "Rust")
    assert rows[1] == Row(2, "y", None, None, "text", None)
    assert refusals(rows) == {3: ("rejected", "unsupported")}


@pytest.mark.parametrize(
    ("data", "code", "told"),
    [
        (b"", "empty", "empty"),
        (b"\n\n  \n", "empty", "empty"),
        (b"# A heading\n\nProse.\n", "unsupported", "neither Parquet nor JSON Lines.*not JSON"),
        (b'["text", "a"]\n{"title": "b"}\n', "no_column", "no 'text'"),
        (b'{\n  "text": "a"\n}\n', "unsupported", "neither Parquet"),
        (lines({"body": "a"}, {"boddy": "b"}), "no_column", r"no 'text' \(documents\.text_column\).*body, boddy"),
        (gzip.compress(GOOD, mtime=0)[:20], "corrupt", "damaged"),
        (zstandard.compress(GOOD)[:10], "corrupt", "damaged"),
        (b"PAR1 and no more", "corrupt", "Parquet file is damaged"),
    ],
)
def test_a_file_of_no_use_is_told_as_a_whole(tmp_path: Path, data: bytes, code: str, told: str) -> None:
    with pytest.raises(Unusable, match=told) as caught:
        read(put(tmp_path, data))
    assert caught.value.refusal.code == code


def test_what_was_read_before_the_damage_is_kept(tmp_path: Path) -> None:
    data = lines(*({"text": f"{n} {os.urandom(200).hex()}"} for n in range(20_000)))
    whole = gzip.compress(data, 1)
    rows = read(put(tmp_path, whole[: len(whole) // 2]))
    assert len(texts(rows)) > 5_000
    assert list(refusals(rows).items()) == [(len(rows), ("failed", "corrupt"))]


def test_a_file_that_unpacks_without_end_is_ended(tmp_path: Path) -> None:
    data = gzip.compress(lines({"text": "x" * 10_000}) * 2_000)
    rows = read(put(tmp_path, data), DocumentsSettings(max_unpacked_bytes=1_000_000))
    assert len(texts(rows)) < 110
    assert refusals(rows)[len(rows)] == ("rejected", "too_large")


def test_a_long_line_without_an_end_is_read_in_linear_time(tmp_path: Path) -> None:
    path = put(tmp_path, lines({"text": "a"}) + b'{"text": "' + b"\\" * 40_000_000)
    assert texts(read(path, DocumentsSettings(max_row_bytes=2**20))) == {1: "a"}


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_any_type_of_text_is_a_text_column(tmp_path: Path, kind: pa.DataType) -> None:
    path = table(tmp_path, {"text": pa.array(["a", None, "", "a"], kind), "n": [1, 2, 3, 4]})
    rows = read(path)
    assert texts(rows) == {1: "a", 4: "a"}
    assert refusals(rows) == {2: ("skipped", "empty"), 3: ("skipped", "empty")}


def test_ids_of_a_table_may_be_numbers(tmp_path: Path) -> None:
    path = table(tmp_path, {"text": ["a"], "id": [12]})
    assert read(path, DocumentsSettings(id_column="id"))[0].name == "12"


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"body": ["a"]}, r"no 'text' \(documents\.text_column\) among the columns; there are: body"),
        ({"text": [1]}, "is of int64, expected text"),
        ({"text": [["a"]]}, "expected text"),
    ],
)
def test_a_table_without_a_text_column_is_told_as_a_whole(tmp_path: Path, columns: Any, told: str) -> None:
    with pytest.raises(Unusable, match=told):
        read(table(tmp_path, columns))


def test_two_columns_of_one_name_are_told(tmp_path: Path) -> None:
    pq.write_table(pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]), tmp_path / "corpus.parquet")
    with pytest.raises(Unusable, match="several columns are called 'text'"):
        read(tmp_path / "corpus.parquet")


def test_an_id_beyond_all_calendars_costs_its_row_group(tmp_path: Path) -> None:
    dates = pa.array([0, 2**62], pa.timestamp("ms"))
    path = table(tmp_path, {"text": ["a", "b"], "id": dates}, rows=1)
    rows = read(path, DocumentsSettings(id_column="id"))
    assert texts(rows) == {1: "a"}
    assert refusals(rows) == {2: ("failed", "corrupt")}


def test_a_setting_that_names_a_column_which_is_nowhere_is_told(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match=r"'titel' \(documents\.title_column\)"):
        read(put(tmp_path, GOOD), DocumentsSettings(title_column="titel"))


def test_text_of_a_table_that_is_no_utf8_is_repaired(tmp_path: Path) -> None:
    broken = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0\4\0\0\0"), pa.py_buffer(b"ab\xe9c")]
    )
    assert texts(read(table(tmp_path, {"text": broken}))) == {1: "ab", 2: "�c"}


def test_damage_in_a_table_costs_one_row_group(tmp_path: Path) -> None:
    path = table(tmp_path, {"text": [f"{n} " + "word " * 100 for n in range(3000)]}, rows=1000)
    # the header of a page: damage inside of compressed text may decode to other text, as tables carry no checksums
    header = pq.read_metadata(path).row_group(1).column(0).data_page_offset
    data = bytearray(path.read_bytes())
    data[header : header + 64] = b"\0" * 64
    path.write_bytes(data)
    rows = read(path)
    ((number, outcome),) = refusals(rows).items()
    assert outcome == ("failed", "corrupt")
    assert 1001 <= number <= 2000
    assert texts(rows).keys() == {*range(1, number), *range(2001, 3001)}


# where files are cut


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "PART_BYTES", 1000)
    monkeypatch.setattr(cutting, "WHOLE_PARQUET_BYTES", 1000)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n\n"])
@pytest.mark.parametrize("block", [1, 7, 1000, 1 << 20])
def test_parts_of_lines_hold_every_line_once_under_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: bytes, block: int
) -> None:
    monkeypatch.setattr(cutting, "_BLOCK", block)
    data = lines(*({"text": f"{n} " + "x" * (n * 37 % 300)} if n % 5 else b"" for n in range(1, 60)))
    path = put(tmp_path, data.rstrip(b"\n") + end)
    found = cut(path)
    assert len(found) > 5
    assert [part.start for part in found[1:]] == [part.stop for part in found[:-1]]
    assert (found[0].start, found[-1].stop) == (0, path.stat().st_size)
    rows = read(path)
    assert {number: text.split()[0] for number, text in texts(rows).items()} == {
        n: str(n) for n in range(1, 60) if n % 5
    }


@pytest.mark.usefixtures("small_parts")
def test_a_line_longer_than_a_part_is_a_part(tmp_path: Path) -> None:
    path = put(tmp_path, lines({"text": "x" * 5000}, {"text": "y" * 5000}, {"text": "z"}))
    assert [part.first_row for part in cut(path)] == [1, 2, 3]
    assert list(texts(read(path))) == [1, 2, 3]


@pytest.mark.usefixtures("small_parts")
def test_parts_of_a_table_are_row_groups(tmp_path: Path) -> None:
    path = table(tmp_path, {"text": [f"{n} {os.urandom(30).hex()}" for n in range(100)]}, rows=7)
    found = cut(path)
    assert len(found) > 3
    assert [part.start for part in found[1:]] == [part.stop for part in found[:-1]]
    assert {number: int(text.split()[0]) for number, text in texts(read(path)).items()} == {
        n + 1: n for n in range(100)
    }


@pytest.mark.usefixtures("small_parts")
def test_cuts_are_remembered_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, lines(*({"text": "x" * 100} for _ in range(50))))
    first = cut(path)
    scans: list[object] = []
    scan = cutting._line_cuts
    monkeypatch.setattr(cutting, "_line_cuts", lambda file: scans.append(file) or scan(file))
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
    with pytest.raises(SettingsError, match=rf"documents\.{next(iter(values))} is .*, expected "):
        load_settings(None, {"documents": values})


# -- memory --------------------------------------------------------------------------------------------------------

PEAK = r"""
import json, pathlib, re, sys
sys.path.insert(0, sys.argv[1])
from tasks.ingest.importing import import_parts

def peak():
    return int(re.search(r"VmHWM:\s+(\d+)", pathlib.Path("/proc/self/status").read_text())[1]) * 1024

before = peak()
made = import_parts(*json.loads(sys.argv[2]), progress=lambda done, total: None)
print(made["rows"], peak() - before)
"""


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell a process's peak")
@pytest.mark.parametrize("end", ["", "\r\n"], ids=["as it is", "changed"])
def test_a_long_document_needs_a_few_times_its_size(end: str, tmp_path: Path) -> None:
    path = put(tmp_path, lines({"text": "the shepherd counts his sheep and the fold is full of wool\n" * 10**6 + end}))
    part = asdict(Part(sha(path), LINES))
    arguments = [[part], [str(path)], str(tmp_path), asdict(TEXT), True, str(tmp_path)]
    root = str(Path(__file__).resolve().parents[3])
    told = subprocess.run(
        [sys.executable, "-c", PEAK, root, json.dumps(arguments)], capture_output=True, text=True, check=True
    )
    rows, peak = map(int, told.stdout.split())
    assert rows == 1
    assert peak < 4.3 * path.stat().st_size
