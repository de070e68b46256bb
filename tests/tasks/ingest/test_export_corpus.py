"""Exports of a corpus: every document and id that the store has, nothing else, in files that anybody reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_run import Ran, home_at, run_prepare, tiny_settings, write_texts
from typer.testing import CliRunner

from flows.cli import app
from storage.catalog import Catalog
from storage.errors import UserError
from tasks.ingest import export as exporting
from tasks.ingest.export import Exported, export_corpus
from tasks.tokens.tokenizer_kinds import load_tokenizer


def prepare(folder: Path, *assignments: str) -> Ran:
    return run_prepare(home_at(folder / "home"), write_texts(folder / "texts"), tiny_settings(*assignments))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    # bytes are never unknown, whatever the vocabulary was fitted on
    return prepare(tmp_path_factory.mktemp("export"), "tokenizer.kind=bpe", "tokenizer.vocab_size=300")


def export(ran: Ran, folder: Path, what: str, split: str = "") -> Exported:
    return export_corpus(ran.run.store, "default", folder, what, split)


def rows(exported: Exported) -> list[dict[str, Any]]:
    tables = [pq.read_table(Path(exported.folder) / name) for name in exported.files]
    return [row for table in tables for row in table.to_pylist()]


def query(ran: Ran, sql: str) -> list[dict[str, Any]]:
    return Catalog(ran.run.store, "default").query(sql)


def test_documents_have_all_that_the_view_has_and_their_paths(ran: Ran, tmp_path: Path) -> None:
    found = rows(export(ran, tmp_path / "out", "documents"))
    paths = {row["doc_id"]: row["path"] for row in query(ran, "select doc_id, path from files")}
    assert {row["doc_id"]: row["path"] for row in found} == {row["doc_id"]: paths[row["doc_id"]] for row in found}
    expected = query(ran, "select * from documents")
    assert len(found) == len(expected) == 12
    names = [name for name in found[0] if name not in ("source", "path")]
    assert names == list(expected[0])
    by_id = {row["doc_id"]: row for row in expected}
    assert all({name: row[name] for name in names} == by_id[row["doc_id"]] for row in found)


def test_tokens_give_the_texts_back(ran: Ran, tmp_path: Path) -> None:
    exported = export(ran, tmp_path / "out", "tokens")
    found = rows(exported)
    tokenizer = load_tokenizer(tmp_path / "out" / "tokenizer.json")
    texts = {row["doc_id"]: row for row in query(ran, "select doc_id, text, split, n_bytes from documents")}
    assert {row["doc_id"] for row in found} == texts.keys()
    for row in found:
        assert tokenizer.decode(row["input_ids"]) == texts[row["doc_id"]]["text"]
        assert (row["split"], row["n_bytes"]) == (texts[row["doc_id"]]["split"], texts[row["doc_id"]]["n_bytes"])
    assert exported.tokens == sum(len(row["input_ids"]) for row in found)


@pytest.mark.parametrize("what", ["documents", "tokens"])
def test_one_side_is_exported_alone(ran: Ran, tmp_path: Path, what: str) -> None:
    both = rows(export(ran, tmp_path / "both", what))
    train = rows(export(ran, tmp_path / "train", what, "train"))
    validation = rows(export(ran, tmp_path / "validation", what, "validation"))
    assert {row["split"] for row in train} == {"train"}
    assert {row["split"] for row in validation} == {"validation"}
    assert sorted(map(str, both)) == sorted(map(str, [*train, *validation]))


@pytest.mark.parametrize("what", ["documents", "tokens"])
def test_batches_and_files_do_not_show_in_the_rows(
    ran: Ran, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = export(ran, tmp_path / "whole", what)
    monkeypatch.setattr(exporting, "BATCH_IDS", 100)
    monkeypatch.setattr(exporting, "BATCH_ROWS", 2)
    monkeypatch.setattr(exporting, "FILE_BYTES", 4000)
    parts = export(ran, tmp_path / "parts", what)
    assert len(whole.files) == 1 < len(parts.files)
    assert rows(parts) == rows(whole)
    assert (parts.rows, parts.tokens) == (whole.rows, whole.tokens)


def test_columns_have_the_types_that_trainers_expect(ran: Ran, tmp_path: Path) -> None:
    exported = export(ran, tmp_path / "out", "tokens")
    schema = pq.read_schema(tmp_path / "out" / exported.files[0])
    assert schema.names == ["doc_id", "split", "input_ids", "n_bytes"]
    assert schema.field("input_ids").type.value_type == pa.uint32()


def test_the_record_says_what_was_exported_from_what(ran: Ran, tmp_path: Path) -> None:
    exported = export(ran, tmp_path / "out", "tokens", "train")
    record = json.loads((tmp_path / "out" / "export.json").read_text())
    assert (record["what"], record["split"], record["rows"]) == ("tokens", "train", exported.rows)
    assert record["files"] == ["tokens-00000.parquet"]
    assert {ref["stage"] for ref in record["made_from"]} == {"curate", "tokenizer", "tokenise"}


def test_two_exports_are_the_same_bytes(ran: Ran, tmp_path: Path) -> None:
    for what in ("documents", "tokens"):
        one, two = (export(ran, tmp_path / f"{what}-{n}", what) for n in (1, 2))
        assert [(Path(one.folder) / name).read_bytes() for name in one.files] == [
            (Path(two.folder) / name).read_bytes() for name in two.files
        ]


def test_an_export_that_fails_leaves_nothing(ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "FILE_BYTES", "no number")
    with pytest.raises(TypeError):
        export(ran, tmp_path / "out", "tokens")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("what", "split", "told"), [("pages", "", "--what"), ("tokens", "test", "--split")])
def test_what_cannot_be_exported_is_told(ran: Ran, tmp_path: Path, what: str, split: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        export(ran, tmp_path / "out", what, split)


def test_a_corpus_that_was_not_prepared_says_what_to_run(ran: Ran, tmp_path: Path) -> None:
    state = ran.run.store.read_ref("corpus/default")
    assert state is not None
    ran.run.store.write_ref("corpus/ingested", {name: refs for name, refs in state.items() if name != "tokenise"})
    with pytest.raises(UserError, match=r"tokenise.*sheepfold prepare"):
        export_corpus(ran.run.store, "ingested", tmp_path / "out", "tokens")
    with pytest.raises(UserError, match="sheepfold ingest"):
        export_corpus(ran.run.store, "other", tmp_path / "out", "documents")


def test_the_command_writes_what_was_prepared(ran: Ran, tmp_path: Path) -> None:
    asked = ["export-corpus", str(tmp_path / "out"), "--split", "train", "--home", str(ran.run.home.path)]
    done = CliRunner().invoke(app, [*asked, "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["what"], told["split"], told["rows"]) == ("tokens", "train", 9)
    again = CliRunner().invoke(app, asked)
    assert (again.exit_code, "not an empty folder" in again.output) == (1, True)
