"""Inputs of an evaluation: texts, tables and splits as sets of documents, and messages for those that are refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_run import Ran, copy_of_store, direct_run

from flows.evaluate import evaluate_model
from storage.catalog import read_state
from storage.errors import UserError
from storage.lineage import manifest_of
from storage.tables import read_columns, read_rows
from tasks.core.settings import load_settings
from tasks.evaluation.split import split_inputs
from tasks.evaluation.texts import Text, TextsError, evaluation_texts
from tasks.evaluation.texts import read_texts as read_with_refused
from tasks.readers.rows import Refused


def lines(path: Path, records: Sequence[Any]) -> Path:
    path.write_text("\n".join(json.dumps(record) for record in records))
    return path


def read_texts(path: Path, column: str = "text") -> list[Text]:
    refused = Refused()
    found = read_with_refused(path, refused, column)
    assert not refused.count, refused.sentence()
    return found


def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes("\ufeffsheep\r\n€\n".encode())
    (found,) = read_texts(path)
    assert (found.text, found.source, found.kind) == ("sheep\r\n€\n", tmp_path.name, "text")


def test_a_folder_is_its_files_each_content_once(tmp_path: Path) -> None:
    for name, text in (("b/deep/two.txt", "two"), ("a.txt", "one"), ("b/copy.txt", "one"), (".git/config", "hidden")):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(text)
    found = read_texts(tmp_path / "in")
    assert sorted((item.text, item.source) for item in found) == [("one", "in/b"), ("two", "in/b")]


def test_json_lines_bring_names_and_slices(tmp_path: Path) -> None:
    records = [{"id": 7, "text": "one", "language": "de", "source": "web"}, {"text": "two", "kind": "code", "more": 1}]
    found = read_texts(lines(tmp_path / "x.jsonl", records))
    assert [(item.text, item.kind, item.language, item.source) for item in found] == [
        ("one", "text", "de", "web"),
        ("two", "code", "und", "x.jsonl"),
    ]
    assert found[0].doc_id == "7"
    assert len(found[1].doc_id) == 64


def test_a_parquet_column_is_read_by_its_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["one", "two"], "n": [1, 2]}), tmp_path / "x.parquet", row_group_size=1)
    found = read_texts(tmp_path / "x.parquet", "body")
    assert [item.text for item in found] == ["one", "two"]
    assert len({item.doc_id for item in found}) == 2


def test_rows_are_read_whatever_the_case_of_the_files_ending(tmp_path: Path) -> None:
    found = read_texts(lines(tmp_path / "X.JSONL", [{"text": "one"}, {"text": "two"}]))
    assert [item.text for item in found] == ["one", "two"]


def test_equal_rows_are_documents_of_their_own(tmp_path: Path) -> None:
    found = read_texts(lines(tmp_path / "x.jsonl", [{"text": "one"}, {"text": "one"}]))
    assert len({item.doc_id for item in found}) == 2


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("x.txt", b"", "has no text"),
        ("x.txt", b"ab\xff", r"x\.txt is not UTF-8 text \(invalid start byte at 2\): save it as UTF-8, or ingest"),
        ("x.txt", b"a\0b", r"is not UTF-8 text \(a NUL at 1\)"),
        ("x.jsonl", b"[1]", r"has no text .*: 1 row was refused: .*x\.jsonl, line 1 holds no object but list"),
        ("x.jsonl", b'{"text": "a", "id": 1}\n{"text": "b", "id": 1}', "the ids '1' occur more than once"),
        ("x.parquet", b"PAR1 no", r"x\.parquet cannot be read: the Parquet file is damaged"),
    ],
)
def test_what_is_no_text_is_refused_by_its_place(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(TextsError, match=said):
        read_texts(tmp_path / name)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"{", "is not JSON"),
        (b"[1]", "holds no object but list"),
        (b'{"body": "a"}', "has no 'text'; it has: body"),
        (b'{"text": 3}', "holds no text in 'text' but int"),
        (b'{"text": null}', "holds no text in 'text'"),
        (b'{"text": "\\ud800"}', ": the text in 'text' holds a lone surrogate"),
        (b'{"text": "caf\xe9"}', ": the text in 'text' is not UTF-8: byte 0xe9"),
        (b'{"text": "a", "id": "\\udfff"}', ": the name holds a lone surrogate"),
        (b'{"text": "a", "source": "\\udc80"}', ": the source is not UTF-8"),
    ],
)
def test_a_bad_row_is_left_out_and_told(tmp_path: Path, bad: bytes, reason: str) -> None:
    (tmp_path / "x.jsonl").write_bytes(b'{"text": "one"}\n' + bad + b'\n{"text": ""}\n{"text": "two"}')
    refused = Refused()
    assert [item.text for item in read_with_refused(tmp_path / "x.jsonl", refused)] == ["one", "", "two"]
    assert refused.count == 1
    assert f"x.jsonl, line 2{' ' * (not reason.startswith(':'))}{reason}" in refused.sentence()


def test_a_column_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["one"], "n": [1]}), tmp_path / "x.parquet")
    with pytest.raises(TextsError, match=r"there is no column 'text'; there are: body, n \(int64\)"):
        read_texts(tmp_path / "x.parquet")


def test_an_empty_folder_and_a_missing_file_are_told(tmp_path: Path) -> None:
    with pytest.raises(TextsError, match="has no text"):
        read_texts(tmp_path)
    with pytest.raises(TextsError, match=r"give a split \(train or validation\), a text file"):
        read_texts(tmp_path / "missing")


def test_a_model_is_measured_on_a_file_and_found_again(tiny: Ran, tmp_path: Path) -> None:
    path = lines(tmp_path / "x.jsonl", [{"id": "b", "text": "the shepherd counts"}, {"id": "a", "text": "his sheep"}])
    home = copy_of_store(tiny, tmp_path / "home", "evaluate")
    assert tiny.checkpoint is not None
    with direct_run(home) as run:
        first = evaluation_texts(run, str(path))
        assert read_columns(run.store.folder(first) / "documents.parquet", ["doc_id"])["doc_id"] == ["a", "b"]
        _, metrics = evaluate_model(run, tiny.checkpoint, first)
        assert metrics["val/bytes"] == len("the shepherd countshis sheep")
        assert metrics["val/ngram_loss"] > 0
        assert evaluation_texts(run, str(path)) == first


def test_refused_rows_are_a_note_of_the_run(tiny: Ran, tmp_path: Path) -> None:
    path = lines(tmp_path / "x.jsonl", [{"text": "the shepherd"}, 7])
    with direct_run(copy_of_store(tiny, tmp_path / "home", "evaluate")) as run:
        evaluation_texts(run, str(path))
        assert run.notes == [f"{path}: 1 row was refused: {path}, line 2 holds no object but int"]


def test_a_split_is_measured_as_it_is_now(tiny: Ran, tmp_path: Path) -> None:
    home = copy_of_store(tiny, tmp_path / "home", "evaluate")
    with direct_run(home) as run:
        sides = {
            name: run.store.folder(evaluation_texts(run, name)) / "documents.parquet"
            for name in ("train", "validation", "")
        }
    rows = {name: read_rows(path) for name, path in sides.items()}
    assert rows["validation"] == rows[""]
    assert len(rows["train"]) + len(rows["validation"]) == 12
    assert {(row["source"], row["method"]) for row in rows["train"]} == {(".", "text")}


def test_a_corpus_without_documents_has_no_splits(tmp_path: Path, tiny: Ran) -> None:
    assert split_inputs(read_state(tiny.run.store, "default"))["curated"] == tiny.ingested.curated
    with pytest.raises(UserError, match="the corpus has no documents yet, or some were forgotten since its last run"):
        split_inputs({})


def test_the_settings_of_a_run_say_how_it_is_measured(tiny: Ran, tmp_path: Path) -> None:
    home = copy_of_store(tiny, tmp_path / "home", "evaluate")
    assert tiny.checkpoint is not None
    settings = load_settings(None, {"model.max_seq_len": 32, "evaluate.stride": 8, "evaluate.ngram_order": 0}).evaluate
    with direct_run(home) as run:
        made, metrics = evaluate_model(run, tiny.checkpoint, tiny.prepared.evalset, settings)
        assert manifest_of(run.store, made).settings == {"stride": 8, "weights": ""}
    assert not any("ngram" in name for name in metrics)
    assert tiny.metrics is not None
    assert metrics["val/tokens"] == tiny.metrics["val/tokens"]
    assert metrics["val/loss"] != tiny.metrics["val/loss"]
