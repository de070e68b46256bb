"""Tables: each row is a document, whatever the file holds besides, and damage or a missing column is told."""

from __future__ import annotations

import io
import json
import random
import sqlite3
import subprocess
import sys
import tracemalloc
import zipfile
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from extraction import extract_document
from pyarrow import parquet

from tasks.readers.document import yield_document
from tasks.readers.records import Extraction, ExtractOptions

OPTIONS = ExtractOptions()


def parquet_of(columns: dict[str, object], **settings: object) -> bytes:
    file = io.BytesIO()
    parquet.write_table(pa.table(columns), file, **settings)
    return file.getvalue()


def sqlite_of(*statements: str) -> bytes:
    with closing(sqlite3.connect(":memory:")) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()
        return database.serialize()


def querying(query: str, **settings: object) -> ExtractOptions:
    return ExtractOptions(sqlite_query=query, **settings)


def texts(outcome: Extraction) -> dict[str, str]:
    assert (outcome.kind, outcome.status) == ("table", "ok"), outcome
    return {row.locator: "".join(page.text for page in row.pages) for row in outcome.members}


def codes(outcome: Extraction) -> list[tuple[str, str, str]]:
    return [(row.locator, row.status, row.reason_code) for row in outcome.members]


# Parquet


@pytest.mark.parametrize("settings", [{}, {"use_dictionary": False}, {"compression": "zstd", "row_group_size": 2}])
def test_each_row_of_a_parquet_file_is_a_document(settings):
    rows = [f"Text number {number}." for number in range(150)]
    found = extract_document(parquet_of({"id": list(range(150)), "text": rows}, **settings), ".parquet", OPTIONS)
    assert texts(found) == {str(number): text for number, text in enumerate(rows, start=1)}
    assert (found.media_type, found.reason, found.pages) == ("application/vnd.apache.parquet", "", [])


def test_a_parquet_file_that_is_mostly_text_is_a_table():
    data = parquet_of({"text": ["The quick brown fox."] * 3}, compression="none", use_dictionary=False)
    assert len(extract_document(data, ".txt", OPTIONS).members) == 3


def test_a_row_is_a_document_with_its_own_digest_and_size():
    row = extract_document(parquet_of({"text": ["Größe"]}), "", OPTIONS).members[0]
    assert (row.kind, row.media_type, row.size, len(row.sha256)) == ("text", "text/plain", 7, 64)
    assert (row.encoding, row.encoding_confidence, row.pages[0].method) == ("utf-8", 1.0, "text")


def test_the_preferred_column_that_is_text_holds_the_documents():
    columns = {"body": ["b"], "content": ["c"], "text": [1]}
    assert texts(extract_document(parquet_of(columns), "", OPTIONS)) == {"1": "c"}


def test_the_columns_to_look_for_are_a_setting():
    found = extract_document(
        parquet_of({"text": ["a"], "abstract": ["b"]}), "", ExtractOptions(table_columns="abstract")
    )
    assert texts(found) == {"1": "b"}


def test_rows_without_text_are_told():
    found = extract_document(parquet_of({"text": ["a", None, "", "  \n"]}), "", OPTIONS)
    assert codes(found) == [
        ("1", "ok", ""),
        ("2", "skipped", "empty"),
        ("3", "skipped", "empty"),
        ("4", "rejected", "no_text"),
    ]


def test_a_parquet_file_without_a_column_of_text_names_those_it_has():
    found = extract_document(parquet_of({"text": [1], "title": ["x"]}), "", OPTIONS)
    assert (found.status, found.reason_code, found.kind) == ("skipped", "no_column", "table")
    assert "there are: text (int64), title" in found.reason
    assert "table_columns" in found.reason


@pytest.mark.parametrize("keep", [0.3, 0.9, 0.999])
def test_a_truncated_parquet_file_is_corrupt(keep):
    data = parquet_of({"text": [f"text {number}" for number in range(1000)]})
    found = extract_document(data[: int(keep * len(data))], ".parquet", OPTIONS)
    assert (found.status, found.reason_code) == ("failed", "corrupt")
    assert "Parquet" in found.reason


@pytest.mark.parametrize("seed", range(20))
def test_random_damage_to_a_parquet_file_ends_in_an_outcome(seed):
    noise = random.Random(seed)
    data = bytearray(parquet_of({"text": [f"text {number}" for number in range(50)]}))
    for _ in range(5):
        data[noise.randrange(4, len(data) - 4)] = noise.randrange(256)
    found = extract_document(bytes(data), "", OPTIONS)
    assert all(row.status == "ok" or row.reason for row in (found, *found.members))


def test_a_value_that_is_repeated_without_end_stops_at_the_total():
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 5000, pa.int32()), pa.array(["x" * 1_000_000]))
    data = parquet_of({"text": column})
    assert len(data) < 100_000
    found = extract_document(data, "", ExtractOptions(archive_max_bytes=20_000_000))
    assert len(found.members) == 21
    assert found.members[-1].reason_code == "too_large"
    assert "archive_max_bytes" in found.reason


def test_rows_after_the_limit_are_left_out_and_the_first_says_so():
    found = extract_document(parquet_of({"text": ["x"] * 10}), "", ExtractOptions(archive_max_members=4))
    assert codes(found)[-1] == ("5", "rejected", "too_many")
    assert len(found.members) == 5


@pytest.mark.parametrize("skip", [0, 1, 5, 9])
def test_rows_that_are_done_are_passed_over(skip):
    data = parquet_of({"text": [f"text {number}" for number in range(9)]})
    rows = [item.locator for item in yield_document(data, "", OPTIONS, skip=skip) if isinstance(item, Extraction)]
    assert rows == [str(number) for number in range(1 + skip, 10)]


# JSON Lines


def lines(*records: object) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def test_each_line_of_json_lines_is_a_document():
    found = extract_document(lines({"text": "one", "id": 1}, {"id": 2, "text": "zwei Größen"}), ".jsonl", OPTIONS)
    assert texts(found) == {"1": "one", "2": "zwei Größen"}
    assert found.media_type == "application/jsonl"


def test_json_lines_without_a_column_for_documents_stay_text():
    found = extract_document(lines({"a": "one"}, {"a": "two"}), ".jsonl", OPTIONS)
    assert (found.kind, found.media_type, found.status) == ("text", "application/jsonl", "ok")
    assert found.pages[0].text == '{"a": "one"}\n{"a": "two"}\n'


def test_bad_lines_are_rows_that_name_the_line():
    data = lines({"text": "one"}) + b'{"text": "cut\n' + lines(["text"], {"id": 1}, {"text": 5}, {"text": None})
    found = extract_document(data, ".jsonl", OPTIONS)
    assert codes(found) == [
        ("1", "ok", ""),
        ("2", "failed", "corrupt"),
        ("3", "failed", "corrupt"),
        ("4", "rejected", "no_column"),
        ("5", "rejected", "no_column"),
        ("6", "skipped", "empty"),
    ]
    assert all(f"line {row.locator}" in row.reason for row in found.members[1:])
    assert "it has: id" in found.members[3].reason


# SQLite

NOTES = (
    "CREATE TABLE notes (id INTEGER, author TEXT, words TEXT)",
    "INSERT INTO notes VALUES (1, 'ann', 'first'), (2, 'bob', 'second'), (3, 'ann', 'third')",
)


def test_the_rows_of_the_query_are_the_documents():
    found = extract_document(
        sqlite_of(*NOTES), ".db", querying("SELECT words FROM notes WHERE author = 'ann' ORDER BY id DESC")
    )
    assert texts(found) == {"1": "third", "2": "first"}
    assert found.media_type == "application/vnd.sqlite3"


def test_a_preferred_column_comes_before_the_first_one_of_text():
    options = querying("SELECT author, words AS body FROM notes ORDER BY id")
    assert texts(extract_document(sqlite_of(*NOTES), "", options)) == {"1": "first", "2": "second", "3": "third"}


def test_without_a_query_a_sqlite_file_is_passed_over():
    found = extract_document(sqlite_of(*NOTES), ".db", OPTIONS)
    assert (found.status, found.reason_code, found.kind) == ("skipped", "unsupported", "")
    assert "sqlite_query" in found.reason


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("SELECT words FROM letters", "tables of the file: notes"),
        ("SELECT nothing FROM notes", "nothing"),
        ("SELEC", "syntax error"),
        ("SELECT id FROM notes", "there are: id"),
        ("SELECT content FROM read_text('/etc/passwd')", "disabled"),
        ("COPY (SELECT 1) TO '/tmp/sheepfold-test-should-not-exist.csv'", "disabled"),
    ],
)
def test_a_query_that_fails_says_why(query, complaint):
    found = extract_document(sqlite_of(*NOTES), "", querying(query))
    assert found.reason_code == "no_column"
    assert complaint in found.reason


def test_joins_views_and_odd_names_work():
    data = sqlite_of(
        *NOTES,
        'CREATE TABLE "odd ""name" ("a b" TEXT)',
        'INSERT INTO "odd ""name" VALUES (\'ann\')',
        "CREATE VIEW loud AS SELECT author, upper(words) AS words FROM notes",
    )
    query = 'SELECT words FROM loud JOIN "odd ""name" o ON o."a b" = loud.author ORDER BY words'
    assert texts(extract_document(data, "", querying(query))) == {"1": "FIRST", "2": "THIRD"}


def test_a_column_may_hold_values_of_any_type():
    data = sqlite_of(
        "CREATE TABLE t (x, y, z)",
        "INSERT INTO t VALUES (1, 1, NULL), ('two', 2.5, NULL), (NULL, 3, NULL), (x'ff41', 4, NULL)",
    )
    assert list(texts(extract_document(data, "", querying("SELECT x FROM t ORDER BY y"))).values())[:2] == ["1", "two"]
    assert texts(extract_document(data, "", querying("SELECT sum(y)::TEXT FROM t"))) == {"1": "10.5"}


def test_a_database_in_write_ahead_mode_is_read(tmp_path: Path):
    with closing(sqlite3.connect(tmp_path / "a.db")) as database:
        database.execute("PRAGMA journal_mode = wal")
        for statement in NOTES:
            database.execute(statement)
        database.commit()
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        data = (tmp_path / "a.db").read_bytes()
    assert data[18:20] == b"\x02\x02"
    assert len(texts(extract_document(data, "", querying("SELECT words FROM notes")))) == 3


def test_a_damaged_sqlite_file_is_corrupt():
    rows = ", ".join(f"({number}, 'x', '{'word ' * 50}')" for number in range(500))
    data = bytearray(sqlite_of(NOTES[0], f"INSERT INTO notes VALUES {rows}"))
    for place in range(4096, len(data), 4096):
        data[place : place + 16] = b"\xee" * 16
    found = extract_document(bytes(data), "", querying("SELECT words FROM notes"))
    assert (found.status, found.reason_code) == ("failed", "corrupt")
    assert "SQLite" in found.reason


def test_no_heavy_library_is_imported_before_a_file_needs_it():
    code = (
        "import sys; from tasks.readers.document import yield_document; "
        "from tasks.readers.records import ExtractOptions; "
        "list(yield_document(b'some words', '.txt', ExtractOptions())); "
        "print([name for name in ('numpy', 'pandas', 'pyarrow', 'duckdb', 'lxml', 'docx') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


LINES = ExtractOptions(lines=True)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"Hello world\nMachine learning is cool.", {"1": "Hello world", "2": "Machine learning is cool."}),
        (b"\na\r\n \t\r\nb\rc\n\n", {"2": "a", "4": "b", "5": "c"}),
        ("é ß\u2028x\nü\x00".encode("utf-16"), {"1": "é ß\u2028x", "2": "ü"}),
        ("Größe\nüber".encode("cp1252"), {"1": "Größe", "2": "über"}),
        (b"one", {"1": "one"}),
    ],
)
def test_lines_that_are_not_blank_are_documents_in_any_encoding(data: bytes, expected: dict[str, str]) -> None:
    assert texts(extract_document(data, ".txt", LINES)) == expected


def test_only_text_of_lines_is_cut_into_lines() -> None:
    assert texts(extract_document(b"# A\nb\n", ".md", LINES)) == {"1": "# A", "2": "b"}
    for data, suffix in ((b"<p>a</p>\n<p>b</p>", ".html"), (b"import os\nx = 1\n", ".py"), (b'{"a":\n1}', ".json")):
        assert extract_document(data, suffix, LINES).pages, suffix
    assert len(extract_document(b"a\nb\n", ".txt", ExtractOptions()).pages) == 1


def test_a_long_text_is_divided_into_sections_at_blank_lines() -> None:
    paragraphs = [f"{number} " + "sheep " * 30 for number in range(40)]
    book, options = "\n\n".join(paragraphs), ExtractOptions(section_length=1_000)
    found = texts(extract_document(book.encode(), ".txt", options))
    assert [part.strip() for text in found.values() for part in text.split("\n\n")] == [
        paragraph.strip() for paragraph in paragraphs
    ]
    assert all(500 <= len(text) <= 1_500 for text in found.values())
    for data, suffix in ((book[:1_900], ".txt"), ("import os\nx = 1\n" * 300, ".py")):
        assert extract_document(data.encode(), suffix, options).pages, suffix


def test_a_text_without_lines_is_divided_by_length() -> None:
    found = texts(extract_document(b"x" * 3_600, ".txt", ExtractOptions(section_length=1_000)))
    assert [len(text) for text in found.values()] == [1_000, 1_000, 1_000, 600]


def test_lines_within_an_archive_and_beyond_a_limit_are_told() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("notes.txt", "a\n\nb\nc\n")
    found = extract_document(file.getvalue(), ".zip", ExtractOptions(lines=True, archive_max_members=2))
    assert [(line.locator, line.reason_code) for line in found.members] == [
        ("notes.txt/1", ""),
        ("notes.txt/3", ""),
        ("notes.txt/4", "too_many"),
    ]
    assert "more than 2 in one file (archive_max_members)" in found.reason


@pytest.mark.full
def test_a_text_of_nothing_but_line_ends_is_empty_at_little_memory() -> None:
    data = b"\n" * 2**20
    extract_document(b"\n", ".txt", LINES)  # what is loaded once is no part of it
    tracemalloc.start()
    found = extract_document(data, ".txt", LINES)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (found.status, found.reason_code) == ("skipped", "empty")
    assert peak < 8 * len(data)
