"""Corpora become documents: through the whole of ingestion, only what is new, and the same each time."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ingest_run import contents, home_at, ingest, prose, settings_of, write

from flows.ingest import Documents, read_documents
from flows.stages import stage_facts
from storage.errors import UserError
from storage.home import Home
from storage.lineage import manifest_of
from storage.schemas import DOCUMENTS_FILE
from storage.tables import read_rows
from storage.verify import check_store
from tasks.core.run import Run, StageReport
from tasks.ingest import importing
from tasks.ingest.extract import document_id
from tasks.ingest.segments import split_by_reader
from tasks.sources.address import resolve_sources
from tasks.sources.folder import ListedFile
from tests.tasks.warm import WarmMachine


@dataclass
class Imported:
    """Result of an import."""

    run: Run
    read: Documents

    @property
    def reports(self) -> dict[str, StageReport]:
        """Return the report line of each stage."""
        return self.run.reports

    def rows(self) -> list[dict[str, Any]]:
        """Rows of `normalised`, those of live documents alone."""
        return [
            row
            for ref, live in zip(self.read.normalised, self.read.segments.live, strict=True)
            for row in read_rows(self.run.store.folder(ref) / DOCUMENTS_FILE)
            if row["doc_id"] in live
        ]

    def files(self) -> dict[str, dict[str, Any]]:
        """Rows of `files` by path."""
        rows = read_rows(self.run.store.folder(self.read.snapshot) / "files.parquet")
        assert len({row["path"] for row in rows}) == len(rows)
        return {row["path"]: row for row in rows}

    def texts(self) -> dict[str, str]:
        """Texts by path."""
        paths = {row["doc_id"]: path for path, row in self.files().items() if row["status"] == "ok" and row["doc_id"]}
        found = [(paths[row["doc_id"]], row["text"]) for row in self.rows()]
        assert len(dict(found)) == len(found) == len(paths)
        return dict(found)


def read(home: Home, source: str, *assignments: str, refresh: tuple[str, ...] = ()) -> Imported:
    with WarmMachine(workers=1) as machine:
        run = Run(home, machine, refresh=refresh)
        return Imported(run, read_documents(run, source, settings_of(*assignments)))


def run(home: Home, path: Path, *assignments: str, refresh: tuple[str, ...] = ()) -> Imported:
    return read(home, f"documents:{path}", *assignments, refresh=refresh)


def write_lines(path: Path, records: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def records(numbers: range) -> list[dict[str, Any]]:
    return [{"id": f"doc/{n}", "text": prose(n), "title": f"Title  {n}"} for n in numbers]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return home_at(tmp_path / "home")


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A folder of several kinds of corpora, and a file that is none."""
    folder = tmp_path / "docs"
    write_lines(folder / "a.jsonl", [*records(range(3)), {"text": 4}, {"text": "  \n"}])
    pq.write_table(pa.Table.from_pylist(records(range(3, 6))), folder / "b.parquet")
    (folder / "deep").mkdir()
    (folder / "deep" / "c.jsonl.gz").write_bytes(
        gzip.compress("".join(json.dumps(item) + "\n" for item in records(range(6, 8))).encode())
    )
    (folder / "README.md").write_text("# A corpus\n\nOf prose.\n")
    (folder / "copy.jsonl").write_bytes((folder / "a.jsonl").read_bytes())
    return folder


def test_every_row_of_every_corpus_is_a_document_or_says_why_not(home: Home, docs: Path) -> None:
    done = run(home, docs)
    assert done.texts() == {
        **{f"a.jsonl/{n + 1}": prose(n) for n in range(3)},
        **{f"b.parquet/{n - 2}": prose(n) for n in range(3, 6)},
        **{f"deep/c.jsonl.gz/{n - 5}": prose(n) for n in range(6, 8)},
    }
    files = done.files()
    others = {path: (row["status"], row["reason_code"]) for path, row in files.items() if path not in done.texts()}
    assert others == {
        "README.md": ("skipped", "unsupported"),
        "a.jsonl": ("ok", ""),
        "a.jsonl/4": ("rejected", "no_column"),
        "a.jsonl/5": ("rejected", "no_text"),
        "b.parquet": ("ok", ""),
        "copy.jsonl": ("duplicate", "duplicate_bytes"),
        "deep/c.jsonl.gz": ("ok", ""),
    }
    assert {row["container"] for path, row in files.items() if path.startswith("b.parquet/")} == {"b.parquet"}
    assert {row["source"] for row in files.values()} == {f"documents:{docs}"}


def test_ids_follow_from_the_file_and_the_row(home: Home, docs: Path) -> None:
    row = run(home, docs).files()["b.parquet/2"]
    sha256 = run(home, docs).files()["b.parquet"]["sha256"]
    assert row["doc_id"] == document_id(sha256, "2")


def test_names_and_titles_are_taken_where_the_settings_say(home: Home, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.jsonl", [*records(range(1)), {"id": " \ud800 a\nb ", "text": prose(1)}])
    done = run(home, path, "documents.id_column=id", "documents.title_column=title")
    assert list(done.texts()) == ["x.jsonl/1:doc/0", "x.jsonl/2:� a b"]
    assert [row["title"] for row in done.rows()] == ["Title 0", None]


def test_texts_are_normalised_like_extracted_ones(home: Home, tmp_path: Path) -> None:
    text = "\ufeffCafe\u0301  \r\nwas ﬁne \x00\n\n\n\nand isn’t"
    done = run(home, write_lines(tmp_path / "x.jsonl", [{"text": text}]))
    assert done.texts() == {"x.jsonl/1": "Café\nwas fine\n\nand isn’t"}


def test_a_second_run_computes_nothing(home: Home, docs: Path) -> None:
    first, again = run(home, docs), run(home, docs)
    assert first.reports["import"].computed == 4  # contents; one of them lies at two paths
    assert (again.reports["import"].computed, again.reports["import"].reused) == (0, 4)
    assert again.read == first.read


def test_a_file_that_is_added_is_all_that_is_read(home: Home, docs: Path) -> None:
    before = run(home, docs).texts()
    write_lines(docs / "new.jsonl", records(range(20, 22)))
    grown = run(home, docs)
    assert (grown.reports["import"].computed, grown.reports["import"].reused) == (1, 4)
    assert grown.texts() == before | {"new.jsonl/1": prose(20), "new.jsonl/2": prose(21)}


def test_what_is_removed_is_gone_and_what_is_moved_is_not_read_again(home: Home, docs: Path) -> None:
    run(home, docs)
    (docs / "b.parquet").unlink()
    (docs / "a.jsonl").rename(docs / "z.jsonl")
    (docs / "copy.jsonl").unlink()
    shrunk = run(home, docs)
    assert shrunk.reports["import"].computed == 0
    assert {path.partition("/")[0] for path in shrunk.texts()} == {"z.jsonl", "deep"}


def test_other_columns_are_another_import(home: Home, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.jsonl", [{"text": prose(1), "body": prose(2)}])
    assert run(home, path).texts() == {"x.jsonl/1": prose(1)}
    done = run(home, path, "documents.text_column=body")
    assert (done.texts(), done.reports["import"].computed) == ({"x.jsonl/1": prose(2)}, 1)


def test_refresh_reads_all_of_it_again_and_finds_the_same(home: Home, docs: Path) -> None:
    first, again = run(home, docs), run(home, docs, refresh=("import",))
    assert again.reports["import"].computed == 4
    assert again.texts() == first.texts()


def test_the_store_is_sound_after_an_import(home: Home, docs: Path) -> None:
    done = run(home, docs)
    assert [check.problems for check in check_store(done.run.store, stage_facts())] == [[]] * 5
    ref = done.read.segments.refs[0]
    assert manifest_of(done.run.store, ref).counts["rows"] == 8


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "PART_BYTES", 4000)
    monkeypatch.setattr(importing, "WHOLE_PARQUET_BYTES", 4000)


@pytest.mark.usefixtures("small_parts")
def test_a_large_file_is_many_segments_and_one_table(home: Home, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.jsonl", [*records(range(30)), {"text": None}, *records(range(31, 35))])
    done = run(home, path)
    assert len(done.read.segments.refs) > 3
    assert done.texts() == {f"x.jsonl/{n + 1}": prose(n) for n in range(35) if n != 30}
    assert done.files()["x.jsonl/31"]["status"] == "skipped"
    assert run(home, path).reports["import"].computed == 0


@pytest.mark.usefixtures("small_parts")
def test_a_large_file_of_no_use_has_one_row(home: Home, tmp_path: Path) -> None:
    done = run(home, write_lines(tmp_path / "x.jsonl", records(range(30))), "documents.text_column=body")
    assert list(done.files()) == ["x.jsonl"]
    assert done.files()["x.jsonl"]["reason_code"] == "no_column"
    assert done.texts() == {}


def test_two_homes_hold_the_same_bytes(docs: Path, tmp_path: Path) -> None:
    def made(name: str) -> dict[str, dict[str, str]]:
        home = home_at(tmp_path / name)
        run(home, docs)
        return contents(home)

    assert made("one") == made("two")


def test_a_plan_says_what_would_be_imported(home: Home, docs: Path) -> None:
    planner = Run(home, plan=True)
    read_documents(planner, f"documents:{docs}", settings_of())
    assert planner.reports["import"].computed == 4
    run(home, docs)
    planner = Run(home, plan=True)
    read_documents(planner, f"documents:{docs}", settings_of())
    assert (planner.reports["import"].computed, planner.reports["snapshot"].cached) == (0, True)


def test_ingestion_goes_on_as_for_files(home: Home, tmp_path: Path) -> None:
    texts = [{"text": prose(n)} for n in range(12)]
    path = write_lines(tmp_path / "x.jsonl", [*texts, {"text": prose(3)}])
    done = ingest(home, f"documents:{path}", settings=settings_of())
    assert done.codes() == {"x.jsonl/13": "duplicate_text"} or done.codes() == {"x.jsonl/4": "duplicate_text"}
    assert set(done.sides().values()) == {"train", "validation"}
    assert len(done.query("select * from documents")) == 12
    assert done.query("select count(*) as n from pages") == [{"n": 0}]
    assert done.texts() == {f"x.jsonl/{n + 1}": prose(n if n < 12 else 3) for n in range(13)}


def listed(path: str, source: str, sha256: str | None) -> ListedFile:
    return ListedFile(path, source, "", 1, sha256, ".jsonl", "", "")


def test_corpora_are_told_from_files_by_source_and_by_content() -> None:
    rows = [
        listed("a", "documents:/x", "1"),
        listed("b", "/y", "2"),
        listed("c", "/y", "1"),
        listed("d", "documents:/x", None),
        listed("e", "/y", None),
    ]
    corpora, others = split_by_reader(rows)
    assert [row.path for row in corpora] == ["a", "c", "d"]
    assert [row.path for row in others] == ["b", "e"]


def test_files_and_corpora_are_one_corpus(home: Home, docs: Path, tmp_path: Path) -> None:
    texts = write(tmp_path / "texts", {"one.txt": prose(100), "two.txt": prose(101)})
    # the same bytes have one reading, wherever they lie
    (texts / "a-copy.jsonl").write_bytes((docs / "a.jsonl").read_bytes())
    done = read(home, f"{texts}\ndocuments:{docs}\n{docs / 'README.md'}")
    found = done.texts()
    assert {path for path in found if path.startswith("texts/")} == {"texts/one.txt", "texts/two.txt"}
    assert found["docs/b.parquet/1"] == prose(3)
    assert len(found) == 10
    # named twice, it is a corpus
    assert done.files()["docs/README.md"]["reason_code"] == "unsupported"
    assert (done.reports["extract"].computed, done.reports["import"].computed) == (2, 4)


def test_a_corpus_may_be_larger_than_a_file_to_extract(home: Home, docs: Path) -> None:
    assert len(run(home, docs, "extract.max_file_bytes=1000").texts()) == 8


def test_a_pattern_names_some_of_the_corpora(home: Home, docs: Path) -> None:
    found = read(home, f"documents:{docs}/**/*.gz")
    assert set(found.texts()) == {"deep/c.jsonl.gz/1", "deep/c.jsonl.gz/2"}


def test_a_source_of_documents_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        resolve_sources([f"documents:{tmp_path / 'nothing'}"])


def test_the_address_of_a_source_leads_to_it_again(docs: Path) -> None:
    (source,) = resolve_sources([f"documents: {docs}/*.jsonl"])
    assert resolve_sources([str(source)]) == [source]
