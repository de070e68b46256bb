"""Rows: the same in every format, a bad one costs itself alone, and only a file that cannot be read is an error."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from tasks.readers.records import ExtractionProblem
from tasks.readers.rows import CSV, GZIP, LINES, PARQUET, SQLITE, TSV, ZSTD, Row, Table, list_columns, read_rows

Records = Sequence[dict[str, Any]]


def lines(*records: Any) -> bytes:
    return b"".join(
        (record if isinstance(record, bytes) else json.dumps(record).encode()) + b"\n" for record in records
    )


def put(folder: Path, data: bytes) -> Path:
    path = folder / "rows.bin"  # the form decides, not the name
    path.write_bytes(data)
    return path


def parquet(folder: Path, columns: dict[str, Any], rows: int = 1000, **options: Any) -> Table:
    pq.write_table(pa.table(columns), folder / "rows.bin", row_group_size=rows, **options)
    return Table(folder / "rows.bin", PARQUET)


def separated(records: Records, delimiter: str) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(records[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue().encode()


def sqlite(records: Records) -> Table:
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE notes (id, text)")
        database.executemany("INSERT INTO notes VALUES (?, ?)", [(row["id"], row["text"]) for row in records])
        database.commit()
        return Table(database.serialize(), SQLITE, query="SELECT * FROM notes")


FORMS: dict[str, Callable[[Path, Records], Table]] = {
    PARQUET: lambda folder, rows: parquet(folder, {name: [row[name] for row in rows] for name in rows[0]}),
    LINES: lambda folder, rows: Table(put(folder, lines(*rows)), LINES),
    GZIP: lambda folder, rows: Table(put(folder, gzip.compress(lines(*rows))), GZIP),
    ZSTD: lambda folder, rows: Table(put(folder, zstandard.compress(lines(*rows))), ZSTD),
    CSV: lambda folder, rows: Table(put(folder, separated(rows, ",")), CSV),
    TSV: lambda folder, rows: Table(put(folder, separated(rows, "\t")), TSV),
    SQLITE: lambda folder, rows: sqlite(rows),
}
ROWS = [{"id": "a", "text": "one, two\nthree"}, {"id": "b", "text": ""}, {"id": "c", "text": "Größe 😀"}]


def texts(rows: Sequence[Row]) -> dict[int, str]:
    return {row.number: row.values["text"] for row in rows if row.problem is None}


def problems(rows: Sequence[Row]) -> dict[int, tuple[str, str]]:
    return {row.number: (row.problem.code, row.problem.reason) for row in rows if row.problem}


@pytest.mark.parametrize("form", FORMS)
def test_every_format_gives_the_same_rows(tmp_path: Path, form: str) -> None:
    table = FORMS[form](tmp_path, ROWS)
    assert [dict(row.values) for row in read_rows(table)] == ROWS
    columns: list[dict[str, str]] = []
    chosen = [row.text("text", empty=True) for row in read_rows(table, lambda found: columns.append(found) or ["text"])]
    assert chosen == [row["text"] for row in ROWS]
    assert columns == [{"id": "text", "text": "text"}]


@pytest.mark.parametrize("form", [PARQUET, LINES])
def test_bytes_are_read_like_files(tmp_path: Path, form: str) -> None:
    table = FORMS[form](tmp_path, ROWS)
    assert isinstance(table.source, Path)
    whole = replace(table, source=table.source.read_bytes())
    assert list(read_rows(whole)) == list(read_rows(table))


@pytest.mark.parametrize("form", FORMS)
def test_a_column_that_is_not_there_is_an_error_before_the_first_row(tmp_path: Path, form: str) -> None:
    def refuse(columns: Any) -> list[str]:
        raise ExtractionProblem("rejected", "no_column", f"there are: {list_columns(columns)}")

    with pytest.raises(ExtractionProblem, match="there are: id, text"):
        next(read_rows(FORMS[form](tmp_path, ROWS), refuse))


@pytest.mark.parametrize(
    ("form", "data", "code", "said"),
    [
        (PARQUET, b"PAR1 and no more", "corrupt", "the Parquet file is damaged"),
        (LINES, b"", "empty", "empty"),
        (LINES, b"\n\n  \n", "empty", "empty"),
        (LINES, b"# A heading\n\nProse.\n", "unsupported", "not JSON Lines: line 1 is not JSON"),
        (LINES, b'{\n  "text": "a"\n}\n', "unsupported", "not JSON Lines"),
        (GZIP, gzip.compress(lines(*ROWS), mtime=0)[:20], "corrupt", "the file is damaged"),
        (ZSTD, zstandard.compress(lines(*ROWS))[:10], "corrupt", "the file is damaged"),
        (CSV, b"text,text\na,b\n", "no_column", "two columns have one name"),
        (CSV, b'"text\n', "corrupt", "the header is not CSV"),
        (SQLITE, b"SQLite format 3\x00" + b"\xff" * 5000, "corrupt", "the SQLite file is damaged"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, form: str, data: bytes, code: str, said: str) -> None:
    source: Path | bytes = data if form == SQLITE else put(tmp_path, data)
    with pytest.raises(ExtractionProblem, match=said) as caught:
        list(read_rows(Table(source, form, query="SELECT 1"), list))
    assert caught.value.code == code


def test_the_text_of_a_row_is_text_or_the_reason_why_not() -> None:
    def told(**values: Any) -> tuple[str, str, str]:
        with pytest.raises(ExtractionProblem) as caught:
            Row("line 3", 3, values).text("text")
        return caught.value.status, caught.value.code, caught.value.reason

    assert Row("line 3", 3, {"text": ""}).text("text", empty=True) == ""
    assert told(text="") == told(text=None) == ("skipped", "empty", "line 3 holds no text in 'text'")
    assert told(text=7) == ("rejected", "no_column", "line 3 holds no text in 'text' but int")
    assert told(body="a") == ("rejected", "no_column", "line 3 has no 'text'; it has: body")
    assert told(text="é\ud800")[1:] == (
        "corrupt",
        "line 3: the text in 'text' holds a lone surrogate (\\ud800 to \\udfff), which is no character",
    )
    assert "is not UTF-8: byte 0xe9 behind 1500000 characters" in told(text="é" * 1_500_000 + "\udce9")[2]


# JSON Lines


def test_a_bad_line_costs_itself_alone(tmp_path: Path) -> None:
    data = lines(
        {"text": "first"},
        b'{"text": "cut',
        b"",
        b"   ",
        [1, 2],
        b"\xff\xfe{",
        b"[" * 100_000,
        b'{"text": ' + b"9" * 5_000 + b"}",
        {"text": float("nan")},
        {"text": "last"},
    )
    rows = list(read_rows(Table(put(tmp_path, data), LINES)))
    assert [row.number for row in rows] == [1, 2, 5, 6, 7, 8, 9, 10]
    told = problems(rows)
    assert {number: code for number, (code, _) in told.items()} == dict.fromkeys([2, 5, 6, 7, 8], "corrupt")
    assert all(reason.startswith(f"line {number} ") for number, (_, reason) in told.items())
    assert "nested too deep" in told[7][1]
    assert rows[-1].values == {"text": "last"}


def test_several_frames_are_one_file(tmp_path: Path) -> None:
    path = put(tmp_path, gzip.compress(lines({"text": "a"}, {"text": "b"})) * 2)
    assert texts(list(read_rows(Table(path, GZIP)))) == {1: "a", 2: "b", 3: "a", 4: "b"}


@pytest.mark.parametrize("form", [LINES, GZIP])
def test_a_line_beyond_the_limit_is_passed_over_unread(tmp_path: Path, form: str) -> None:
    table = FORMS[form](tmp_path, [{"text": "a"}, {"text": "b" * 5000}, {"text": "c"}])
    rows = list(read_rows(replace(table, max_row_bytes=1000)))
    assert texts(rows) == {1: "a", 3: "c"}
    assert problems(rows) == {2: ("too_large", "line 2 has 5013 bytes; the limit is 1000 (max_row_bytes)")}


def test_a_long_line_without_an_end_is_read_in_linear_time(tmp_path: Path) -> None:
    path = put(tmp_path, lines({"text": "a"}) + b'{"text": "' + b"\\" * 40_000_000)
    assert texts(list(read_rows(Table(path, LINES, max_row_bytes=2**20), list))) == {1: "a"}


@pytest.mark.parametrize(("errors", "text"), [("replace", "caf\ufffd"), ("surrogateescape", "caf\udce9")])
def test_bytes_that_are_no_utf8_are_replaced_or_marked_and_a_mark_in_front_is_no_text(
    tmp_path: Path, errors: str, text: str
) -> None:
    data = b"\xef\xbb\xbf" + lines({"text": "a"}) + b'{"text": "caf\xe9"}'
    assert texts(list(read_rows(Table(put(tmp_path, data), LINES, errors=errors)))) == {1: "a", 2: text}


def test_what_was_read_before_the_damage_is_kept(tmp_path: Path) -> None:
    whole = gzip.compress(lines(*({"text": f"{n} {os.urandom(200).hex()}"} for n in range(20_000))), 1)
    rows = list(read_rows(Table(put(tmp_path, whole[: len(whole) // 2]), GZIP)))
    assert len(texts(rows)) > 5_000
    ((number, (code, reason)),) = problems(rows).items()
    assert (number, code) == (len(rows), "corrupt")
    assert f"the lines from line {number} on were not read" in reason


def test_a_file_that_unpacks_without_end_is_ended(tmp_path: Path) -> None:
    data = gzip.compress(lines({"text": "x" * 10_000}) * 2_000)
    rows = list(read_rows(Table(put(tmp_path, data), GZIP, max_unpacked_bytes=1_000_000)))
    assert len(texts(rows)) < 110
    assert problems(rows)[len(rows)][0] == "too_large"


def test_any_value_of_json_is_a_row_where_that_is_asked_for(tmp_path: Path) -> None:
    rows = read_rows(Table(put(tmp_path, lines([1, "a"], "b", {"c": 2})), LINES, objects=False))
    assert [dict(row.values) for row in rows] == [{"": [1, "a"]}, {"": "b"}, {"c": 2}]


# Parquet


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_any_type_of_text_is_a_text_column(tmp_path: Path, kind: pa.DataType) -> None:
    table = parquet(tmp_path, {"text": pa.array(["a", None, "b"], kind), "n": [1, 2, 3]})
    found: list[dict[str, str]] = []
    rows = list(read_rows(table, lambda columns: found.append(columns) or ["text"]))
    assert texts(rows) == {1: "a", 2: None, 3: "b"}
    assert found == [{"text": "text", "n": "int64"}]


def test_two_columns_of_one_name_are_an_error(tmp_path: Path) -> None:
    pq.write_table(pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]), tmp_path / "rows.bin")
    with pytest.raises(ExtractionProblem, match="several columns are called 'text'"):
        list(read_rows(Table(tmp_path / "rows.bin", PARQUET)))


def test_a_cell_beyond_the_limit_or_all_calendars_costs_its_row(tmp_path: Path) -> None:
    dates = pa.array([0, 2**62, 0, 0], pa.timestamp("ms"))
    table = parquet(tmp_path, {"text": ["a", "b", "c" * 5000, "d"], "date": dates})
    rows = list(read_rows(replace(table, max_row_bytes=1000)))
    assert texts(rows) == {1: "a", 4: "d"}
    assert {number: code for number, (code, _) in problems(rows).items()} == {2: "corrupt", 3: "too_large"}
    assert problems(rows)[2][1].startswith("row 2: 'date' cannot be read")


@pytest.mark.parametrize(("errors", "text"), [("replace", "\ufffdc"), ("surrogateescape", "\udce9c")])
def test_text_of_a_table_that_is_no_utf8_is_replaced_or_marked(tmp_path: Path, errors: str, text: str) -> None:
    broken = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0\4\0\0\0"), pa.py_buffer(b"ab\xe9c")]
    )
    table = parquet(tmp_path, {"text": broken})
    assert texts(list(read_rows(replace(table, errors=errors)))) == {1: "ab", 2: text}


def test_damage_in_a_table_costs_one_row_group(tmp_path: Path) -> None:
    table = parquet(tmp_path, {"text": [f"{n} " + "word " * 100 for n in range(3000)]}, rows=1000)
    path = tmp_path / "rows.bin"
    # the header of a page: damage inside of compressed text may decode to other text, as tables carry no checksums
    header = pq.read_metadata(path).row_group(1).column(0).data_page_offset
    data = bytearray(path.read_bytes())
    data[header : header + 64] = b"\0" * 64
    path.write_bytes(data)
    rows = list(read_rows(table))
    ((number, (code, reason)),) = problems(rows).items()
    assert code == "corrupt"
    assert 1001 <= number <= 2000
    assert reason.startswith(f"row {number} and the {2000 - number} behind it")
    assert texts(rows).keys() == {*range(1, number), *range(2001, 3001)}


# CSV


def test_a_bad_record_costs_itself_alone(tmp_path: Path) -> None:
    data = b'id,text\na,one\nb\n"c"x,y\n\nd,"two\nlines"\ne,"f\n'
    rows = list(read_rows(Table(put(tmp_path, data), CSV)))
    assert texts(rows) == {2: "one", 7: "two\nlines"}
    assert {number: reason.partition(":")[0] for number, (_, reason) in problems(rows).items()} == {
        3: "line 3 has 1 values under a header of 2 columns; quote values that hold the separator",
        4: "line 4 is not CSV",
        8: "line 8 is not CSV",
    }


def test_a_line_of_csv_beyond_the_limit_ends_the_file_with_a_reason(tmp_path: Path) -> None:
    rows = list(read_rows(Table(put(tmp_path, b"text\na\n" + b"b" * 5000 + b"\nc\n"), CSV, max_row_bytes=1000)))
    assert texts(rows) == {2: "a"}
    ((_, reason),) = problems(rows).values()
    assert "longer than 1000 characters; the lines behind it were not read" in reason
