"""Tables hold what their schema says, in row groups that two cores can share, and digest by rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage import schemas, tables
from storage.digest import rows_digest, sha256_json
from storage.tables import (
    TableWriter,
    read_columns,
    read_places,
    read_rows,
    stream_columns,
    stream_rows,
    union_digest,
    write_table,
)

SCHEMA = pa.schema(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("digest", pa.string(), nullable=False),
        pa.field("n", pa.int32()),
    ],
    metadata={"sheepfold.table": "test"},
)


def rows(*names: str) -> list[dict[str, Any]]:
    return [{"doc_id": name, "digest": f"content of {name}", "n": 1} for name in names]


def table(folder: Path, name: str, *names: str) -> Path:
    path = folder / f"{name}.parquet"
    write_table(path, SCHEMA, rows(*names))
    return path


def test_rows_read_back_as_they_were_written_with_the_schema_and_its_metadata(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    written = [*rows("a", "b"), {"doc_id": "ü", "digest": "", "n": None}]
    assert write_table(path, SCHEMA, iter(written)) == 3
    assert read_rows(path) == written
    assert read_columns(path, ["n", "doc_id"]) == {"n": [1, 1, None], "doc_id": ["a", "b", "ü"]}
    assert pq.read_schema(path).equals(SCHEMA, check_metadata=True)


@pytest.mark.parametrize(
    ("count", "groups"), [(0, []), (1, [1]), (1000, [1000]), (1001, [1000, 1]), (2500, [1000, 1000, 500])]
)
def test_row_groups_hold_a_thousand_rows_and_none_is_empty(tmp_path: Path, count: int, groups: list[int]) -> None:
    path = tmp_path / "t.parquet"
    assert write_table(path, SCHEMA, rows(*map(str, range(count)))) == count
    metadata = pq.read_metadata(path)
    assert [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)] == groups
    assert len(read_rows(path)) == count


def group_sizes(path: Path) -> list[int]:
    metadata = pq.read_metadata(path)
    return [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]


def test_a_row_group_ends_early_where_its_rows_are_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a thousand long documents would have to fit into memory at once."""
    monkeypatch.setattr(tables, "ROW_GROUP_BYTES", 100)
    long, short = {"doc_id": "x" * 60, "digest": "", "n": 1}, {"doc_id": "y", "digest": "", "n": 2}
    write_table(tmp_path / "t.parquet", SCHEMA, [long, long, short, long, long, short])
    assert group_sizes(tmp_path / "t.parquet") == [2, 3, 1]
    assert read_rows(tmp_path / "t.parquet") == [long, long, short, long, long, short]


def test_rows_that_come_in_several_calls_are_one_table(tmp_path: Path) -> None:
    with TableWriter(tmp_path / "t.parquet", SCHEMA) as writer:
        writer.write(rows("a"))
        writer.write([])
        writer.write(rows("b", "c"))
        assert writer.count == 3
    assert read_rows(tmp_path / "t.parquet") == rows("a", "b", "c")
    assert group_sizes(tmp_path / "t.parquet") == [3]


def test_streamed_rows_are_the_rows_a_row_group_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ROW_GROUP_ROWS", 2)
    path = table(tmp_path, "t", *"abcde")
    assert list(stream_rows(path)) == rows(*"abcde")
    assert list(stream_rows(path, ["n", "doc_id"])) == [{"n": 1, "doc_id": name} for name in "abcde"]
    assert list(stream_rows(table(tmp_path, "empty"))) == []


def test_streamed_columns_are_those_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ROW_GROUP_ROWS", 2)
    path = table(tmp_path, "t.parquet", *"abcde")
    groups = list(stream_columns(path, ["digest", "doc_id"]))
    assert [list(group) for group in groups] == [["digest", "doc_id"]] * 3
    assert [doc_id for group in groups for doc_id in group["doc_id"]] == [row["doc_id"] for row in read_rows(path)]


def test_tables_are_made_without_pandas_which_later_finds_them(tmp_path: Path) -> None:
    program = (
        "import sys, storage.tables, pyarrow as pa\n"
        "made = pa.Table.from_pylist([{'a': 'x', 'b': [1]}])\n"
        "assert 'pandas' not in sys.modules\n"
        "print(made.to_pandas()['a'].tolist())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("['x']\n", "")


@pytest.mark.parametrize(
    ("places", "groups"), [([], 0), ([0], 1), ([4], 1), ([2, 3], 1), ([1, 2], 2), ([0, 1, 2, 3, 4], 3)]
)
def test_values_at_places_are_read_from_their_row_groups_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: list[int], groups: int
) -> None:
    monkeypatch.setattr(tables, "ROW_GROUP_ROWS", 2)
    path = table(tmp_path, "t", *"abcde")
    seen: list[int] = []
    read = pq.ParquetFile.read_row_group

    def note(file: pq.ParquetFile, group: int, *arguments: Any, **named: Any) -> Any:
        seen.append(group)
        return read(file, group, *arguments, **named)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", note)
    assert read_places(path, "doc_id", places) == {place: "abcde"[place] for place in places}
    assert len(seen) == groups


def test_columns_are_compressed_with_zstd(tmp_path: Path) -> None:
    metadata = pq.read_metadata(table(tmp_path, "t", "a"))
    assert {metadata.row_group(0).column(index).compression for index in range(3)} == {"ZSTD"}


@pytest.mark.parametrize(
    "row",
    [
        {"doc_id": "a", "digest": "d"},
        {"doc_id": "a", "digest": "d", "n": 1, "surprise": 2},
        {"doc_id": "a", "digest": "d", "N": 1},
    ],
)
def test_a_row_with_other_columns_than_the_schema_is_refused_with_both_lists(
    tmp_path: Path, row: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"t\.parquet: row has \[.*\], the schema \['digest', 'doc_id', 'n'\]"):
        write_table(tmp_path / "t.parquet", SCHEMA, [*rows("b"), row])


@pytest.mark.parametrize(
    "row",
    [
        {"doc_id": None, "digest": "d", "n": 1},
        {"doc_id": "a", "digest": "d", "n": "many"},
        {"doc_id": "a", "digest": "d", "n": 2**40},
    ],
)
def test_a_value_that_its_column_cannot_hold_is_refused(tmp_path: Path, row: dict[str, Any]) -> None:
    with pytest.raises(pa.ArrowInvalid):
        write_table(tmp_path / "t.parquet", SCHEMA, [row])


def test_every_schema_names_its_table_and_version_and_holds_no_time() -> None:
    found = {name: value for name, value in vars(schemas).items() if isinstance(value, pa.Schema)}
    assert len(found) >= 12
    for schema in found.values():
        assert {b"sheepfold.table", b"sheepfold.schema_version"} <= set(schema.metadata)
        assert not [field.name for field in schema if pa.types.is_temporal(field.type)]


def test_union_digest_does_not_depend_on_how_rows_are_spread_over_files(tmp_path: Path) -> None:
    one = table(tmp_path, "one", "a", "b", "c", "d")
    split = [table(tmp_path, "left", "d", "a"), table(tmp_path, "empty"), table(tmp_path, "right", "c", "b")]
    assert union_digest([one]) == union_digest(split)
    assert union_digest([one]) != union_digest(split[:2])


def test_union_digest_counts_of_each_table_only_its_live_documents(tmp_path: Path) -> None:
    grown = [table(tmp_path, "old", "a", "b", "gone"), table(tmp_path, "new", "c", "b")]
    assert union_digest(grown, [{"a", "b"}, {"c"}]) == union_digest([table(tmp_path, "fresh", "a", "b", "c")])
    assert union_digest(grown, [{"a", "b", "gone"}, {"c"}]) != union_digest(grown, [{"a", "b"}, {"c"}])


def test_union_digest_takes_a_document_from_the_table_in_which_it_is_live(tmp_path: Path) -> None:
    old, new = table(tmp_path, "old", "a"), tmp_path / "new.parquet"
    write_table(new, SCHEMA, [{"doc_id": "a", "digest": "read again", "n": 1}])
    assert union_digest([old, new], [{"a"}, set()]) == union_digest([old])
    assert union_digest([old, new], [set(), {"a"}]) == union_digest([new])


def test_union_digest_tells_rows_by_another_column_where_that_is_asked_for(tmp_path: Path) -> None:
    """Members of a container are live with their file, whatever their own ids are."""
    schema = SCHEMA.append(pa.field("file", pa.string()))
    found = [{**row, "file": "f" if row["doc_id"] < "c" else "g"} for row in rows("a", "b", "c")]
    write_table(tmp_path / "files.parquet", schema, found)
    path = tmp_path / "files.parquet"
    assert union_digest([path], [{"f"}], "file") == union_digest([table(tmp_path, "fresh", "a", "b")])
    assert union_digest([path], [{"f", "g"}], "file") == union_digest([path])
    assert union_digest([path], [set()], "file") == union_digest([])


def test_union_digest_of_hashed_rows_counts_a_row_that_lies_twice_once(tmp_path: Path) -> None:
    name, content, other = map(sha256_json, range(3))
    for file, digest in (("a", content), ("b", content), ("c", other)):
        write_table(tmp_path / file, SCHEMA, [{"doc_id": name, "digest": digest, "n": 1}])
    assert union_digest([tmp_path / "a", tmp_path / "b"]) == union_digest([tmp_path / "a"])
    found = union_digest([tmp_path / file for file in "abc"])
    assert found == rows_digest([(name, content), (name, other)])
