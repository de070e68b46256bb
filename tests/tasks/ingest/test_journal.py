"""Extraction that is interrupted, repeated, and asked for again: nothing is read twice that need not be."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pypdf
import pytest
from ingest_run import Ingestion, home_at, ingest, prose, settings_of, write

from storage.home import Home
from tasks.core.machine import Machine
from tasks.core.run import Run
from tasks.ingest.extract import SegmentSettings, SourceFiles, document_id, extract
from tasks.ingest.journal import Content, Journal
from tasks.readers.records import Extraction, PageText


def text(words: str) -> Extraction:
    return Extraction("ok", kind="text", pages=[PageText(1, words, "text", "text")])


def zipped(**members: str | bytes) -> bytes:
    """A ZIP archive; `__` in a name stands for a slash, and the suffix is `.txt`."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(f"{name.replace('__', '/')}.txt"), content)
    return file.getvalue()


def locked(words: str, password: str) -> bytes:
    """An encrypted PDF with a text layer."""
    from ingest.ingest_samples import encrypted_pdf

    return encrypted_pdf(words, password, "AES-256")


# the journal alone


def test_what_was_saved_is_there_in_the_next_process(tmp_path: Path) -> None:
    content, found = Content("a" * 64, ".txt"), text("the fold")
    with Journal(tmp_path) as journal:
        journal.save(content, found)
    with Journal(tmp_path) as journal:
        assert content in journal
        assert journal.load(content) == found
        assert Content("a" * 64, ".txt", attempt=1) not in journal
        assert Content("a" * 64, ".md") not in journal


@pytest.mark.parametrize("cut", [1, 2, 30])
def test_a_torn_last_line_counts_as_not_written_and_costs_no_other(tmp_path: Path, cut: int) -> None:
    whole, torn, later = (Content(letter * 64, ".txt") for letter in "abc")
    with Journal(tmp_path) as journal:
        journal.save(whole, text("first"))
        journal.save(torn, text("second"))
    path = tmp_path / "journal.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    with Journal(tmp_path) as journal:
        assert (whole in journal, torn in journal) == (True, False)
        journal.save(later, text("third"))
    with Journal(tmp_path) as journal:
        assert [content in journal for content in (whole, torn, later)] == [True, False, True]
        assert journal.load(whole) == text("first")
        assert journal.load(later) == text("third")


def boxed(*words: str, code: Any = "") -> Extraction:
    """An archive; `code` is why its last member failed."""
    members = [
        Extraction("ok", kind="text", locator=f"{n}.txt", pages=text(word).pages) for n, word in enumerate(words)
    ]
    if code:
        members.append(Extraction("failed", "why", code, locator="last.txt"))
    return Extraction("ok", kind="archive", members=members)


def test_an_archive_s_members_come_back_in_order_and_one_at_a_time(tmp_path: Path) -> None:
    one, two = Content("a" * 64, ".zip"), Content("b" * 64, ".zip")
    with Journal(tmp_path) as journal:
        journal.save(one, boxed("first", "second"))
        journal.save(two, boxed("third"))
    with Journal(tmp_path) as journal:
        read = [iter(journal.load(content).members) for content in (one, two)]
        assert [next(members).pages[0].text for members in (read[0], read[1], read[0])] == ["first", "third", "second"]
        assert [next(members, None) for members in read] == [None, None]
        assert journal.load(one) == boxed("first", "second")
        assert len((tmp_path / "journal.jsonl").read_bytes().splitlines()) == 5  # a line for each member and file


@pytest.mark.parametrize("kept_lines", [0, 1, 2])
def test_an_archive_without_its_end_counts_as_not_written_and_costs_no_other(tmp_path: Path, kept_lines: int) -> None:
    before, torn, after = (Content(letter * 64, ".zip") for letter in "abc")
    with Journal(tmp_path) as journal:
        journal.save(before, boxed("zero"))
        journal.save(torn, boxed("first", "second"))
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[: 2 + kept_lines]))
    with Journal(tmp_path) as journal:
        assert (before in journal, torn in journal) == (True, False)
        journal.save(after, boxed("third", "fourth"))
    with Journal(tmp_path) as journal:
        assert [content in journal for content in (before, torn, after)] == [True, False, True]
        assert journal.load(after) == boxed("third", "fourth")
        assert journal.load(before) == boxed("zero")


@pytest.mark.parametrize(
    "lost",
    [
        Extraction("failed", "why", "timeout"),
        Extraction("rejected", "why", "encrypted"),
        Extraction("ok", "page 2: why", "no_ocr_engine", pages=[PageText(1, "words", "text", "text")]),
        boxed("first", code="crashed"),
    ],
    ids=["file", "locked", "page", "member"],
)
def test_what_may_go_differently_now_is_missing_in_the_next_run_and_there_in_this_one(
    tmp_path: Path, lost: Extraction
) -> None:
    sound, doubtful = Content("a" * 64, ".txt"), Content("b" * 64, ".txt")
    with Journal(tmp_path) as journal:
        journal.save(doubtful, lost)
        journal.save(sound, Extraction("rejected", "no text", "no_text"))
        assert journal.load(doubtful) == lost
    with Journal(tmp_path) as journal:
        assert (sound in journal, doubtful in journal) == (True, False)


# a segment that is begun, killed and finished


def test_a_segment_that_was_interrupted_extracts_only_what_its_journal_lacks(
    home: Home, tmp_path: Path, extracted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "in", {f"{number}.txt": prose(number) for number in range(4)})
    calm = ingest(home_at(tmp_path / "calm"), source)
    extracted.clear()
    save = Journal.save

    def save_two_and_die(journal: Journal, content: Content, found: Extraction) -> None:
        if len(journal._places) == 2:
            raise KeyboardInterrupt
        save(journal, content, found)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "save", save_two_and_die)
        with pytest.raises(KeyboardInterrupt):
            ingest(home, source)
    (journal,) = Path(home.store).glob(".work/extract/*/**/journal.jsonl")
    before = [json.loads(line)[0]["sha256"] for line in journal.read_bytes().splitlines()]
    journal.write_bytes(journal.read_bytes() + b'[{"sha256": "torn')
    extracted.clear()
    resumed = ingest(home, source)
    done = {hashlib.sha256((source / name).read_bytes()).hexdigest() for name in extracted}
    assert (len(before), len(extracted)) == (2, 2)
    assert done.isdisjoint(before)
    assert resumed.ingested.segments.refs == calm.ingested.segments.refs
    assert resumed.texts() == calm.texts()


# archives


def test_members_of_an_archive_are_documents_with_rows_of_their_own(home: Home, tmp_path: Path) -> None:
    archive = zipped(one=prose(1), deep__two=prose(2), empty=b"")
    source = write(tmp_path / "in", {"box.zip": archive, "plain.txt": prose(3)})
    ran = ingest(home, source)
    files = ran.files()
    assert files["box.zip"]["status"] == "ok"
    assert files["box.zip"]["doc_id"] is None
    digest = hashlib.sha256(archive).hexdigest()
    for locator, words in (("one.txt", prose(1)), ("deep/two.txt", prose(2))):
        row = files[f"box.zip/{locator}"]
        assert (row["container"], row["status"]) == ("box.zip", "ok")
        assert row["doc_id"] == document_id(digest, locator)
        assert (row["size"], row["sha256"]) == (len(words), hashlib.sha256(words.encode()).hexdigest())
        assert ran.texts()[f"box.zip/{locator}"] == words
    assert files["box.zip/empty.txt"]["status"] != "ok"
    assert files["box.zip/empty.txt"]["reason"]
    assert files["plain.txt"]["container"] is None
    rows = [row for row in ran.rows(ran.ingested.segments.refs, "extracts.parquet") if row["file_sha256"] == digest]
    assert [(row["locator"], row["kind"]) for row in rows][:3] == [
        ("", "archive"),
        ("one.txt", "text"),
        ("deep/two.txt", "text"),
    ]
    counted = ran.query("select container, count(*) as n from files where container is not null group by 1")
    assert counted == [{"container": "box.zip", "n": 3}]
    assert ran.query("select count(*) as n from documents") == [{"n": 3}]


def test_the_same_archive_at_two_paths_is_a_duplicate_without_members(home: Home, tmp_path: Path) -> None:
    archive = zipped(one=prose(1), two=prose(2))
    ran = ingest(home, write(tmp_path / "in", {"a.zip": archive, "b/again.zip": archive, "c.txt": prose(3)}))
    files = ran.files()
    assert sorted(files) == ["a.zip", "a.zip/one.txt", "a.zip/two.txt", "b/again.zip", "c.txt"]
    assert files["b/again.zip"]["status"] == "duplicate"
    assert files["b/again.zip"]["reason"] == "same bytes as a.zip"


def test_a_member_with_the_bytes_of_a_file_is_a_document_that_is_dropped_as_a_duplicate(
    home: Home, tmp_path: Path
) -> None:
    ran = ingest(
        home, write(tmp_path / "in", {"box.zip": zipped(one=prose(1)), "one.txt": prose(1), "c.txt": prose(3)})
    )
    assert list(ran.codes().values()) == ["duplicate_text"]
    assert {"box.zip/one.txt", "one.txt"} - ran.codes().keys() == ran.sides().keys() - {"c.txt"}


# encrypted documents


def corpus_with_locked_files(folder: Path) -> Path:
    return write(
        folder,
        {
            "one.pdf": locked("the ewes of the first fold stand in the rain", "alpha"),
            "two.pdf": locked("a ram of the second fold walks over the hill", "beta"),
            **{f"{number}.txt": prose(number) for number in range(3)},
        },
    )


@pytest.fixture
def with_passwords(tmp_path: Path) -> Callable[..., Any]:
    """Settings with a file of these passwords."""

    def settings(*passwords: str) -> Any:
        path = tmp_path / "passwords.txt"
        path.write_text("\n".join(passwords))
        return settings_of(f"passwords.file={path}")

    return settings


def test_files_without_their_password_have_a_row_that_says_so_and_are_not_tried_on_every_run(
    home: Home, tmp_path: Path, extracted: list[str]
) -> None:
    source = corpus_with_locked_files(tmp_path / "in")
    files = ingest(home, source).files()
    assert {files[name]["reason_code"] for name in ("one.pdf", "two.pdf")} == {"encrypted"}
    extracted.clear()
    ingest(home, source)
    assert extracted == []


def test_other_passwords_try_the_encrypted_files_again_and_only_those(
    home: Home, tmp_path: Path, extracted: list[str], with_passwords: Callable[..., Any]
) -> None:
    source = corpus_with_locked_files(tmp_path / "in")
    ingest(home, source)
    extracted.clear()
    ran = ingest(home, source, settings=with_passwords("alpha"))
    assert sorted(extracted) == ["one.pdf", "two.pdf"]
    assert ran.files()["one.pdf"]["status"] == "ok"
    assert "first fold" in ran.texts()["one.pdf"]
    assert ran.files()["two.pdf"]["reason_code"] == "encrypted"
    extracted.clear()
    ingest(home, source, settings=with_passwords("alpha"))
    assert extracted == []
    again = ingest(home, source, settings=with_passwords("beta", "alpha"))
    assert extracted == ["two.pdf"]
    assert again.files()["two.pdf"]["status"] == "ok"


def test_a_document_that_was_opened_stays_open_when_its_password_is_given_no_more(
    home: Home, tmp_path: Path, extracted: list[str], with_passwords: Callable[..., Any]
) -> None:
    source = corpus_with_locked_files(tmp_path / "in")
    ingest(home, source, settings=with_passwords("alpha", "beta"))
    extracted.clear()
    assert ingest(home, source).files()["one.pdf"]["status"] == "ok"
    assert extracted == []


def test_no_password_is_written_into_the_store(home: Home, tmp_path: Path, with_passwords: Callable[..., Any]) -> None:
    source = corpus_with_locked_files(tmp_path / "in")
    ingest(home, source, settings=with_passwords("alpha", "sesame-open-7391"))
    assert [path for path in home.path.rglob("*") if path.is_file() and b"sesame-open-7391" in path.read_bytes()] == []


def test_encrypted_members_of_an_archive_are_tried_again_with_other_passwords(
    home: Home, tmp_path: Path, extracted: list[str], with_passwords: Callable[..., Any]
) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("one.pdf", locked("the ewes of the first fold stand in the rain", "alpha"))
        archive.writestr("two.txt", prose(2))
    source = write(tmp_path / "in", {"box.zip": file.getvalue(), "c.txt": prose(3)})
    assert ingest(home, source).files()["box.zip/one.pdf"]["reason_code"] == "encrypted"
    extracted.clear()
    ran = ingest(home, source, settings=with_passwords("alpha"))
    assert extracted == ["box.zip"]
    assert ran.files()["box.zip/one.pdf"]["status"] == "ok"
    assert ran.files()["box.zip/two.txt"]["status"] == "ok"


# a document that lost a page


def lose_a_page(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The pool's outcome for one file is as if its second page had taken a process down."""
    save = Journal.save

    def save_less(journal: Journal, content: Content, found: Extraction) -> None:
        if found.kind == "pdf":
            found.pages[1] = PageText(2, "", "none", "", error="page 2 took more than 60 s")
            found.reason_code, found.reason = "timeout", "page 2 took more than 60 s"
        save(journal, content, found)

    monkeypatch.setattr(Journal, "save", save_less)


@pytest.fixture
def lossy(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Ingestion]:
    """A corpus after a run in which a PDF of three pages lost the second."""
    from ingest.ingest_samples import text_pdf

    pdf = text_pdf([f"page {number} of the shepherd's book, which tells of the fold" for number in ("one", "two", "3")])
    source = write(tmp_path / "in", {"book.pdf": pdf, **{f"{number}.txt": prose(number) for number in range(3)}})
    with monkeypatch.context() as patch:
        lose_a_page(patch, "book.pdf")
        return source, ingest(home, source)


def test_a_document_that_lost_a_page_is_one_and_tells_what_it_lacks(lossy: tuple[Path, Ingestion]) -> None:
    row = lossy[1].files()["book.pdf"]
    assert (row["status"], row["reason_code"], row["reason"]) == ("ok", "timeout", "page 2 took more than 60 s")
    assert "page one" in lossy[1].texts()["book.pdf"]
    assert "page two" not in lossy[1].texts()["book.pdf"]


def test_a_document_that_lost_a_page_is_read_again_on_request_and_only_then(
    home: Home, lossy: tuple[Path, Ingestion], extracted: list[str]
) -> None:
    source, _ = lossy
    ingest(home, source)
    assert extracted == []
    ran = ingest(home, source, retry_failed=True)
    assert extracted == ["book.pdf"]
    assert ran.files()["book.pdf"]["reason_code"] == ""
    assert "page two" in ran.texts()["book.pdf"]
    assert ran.doc_id("book.pdf") == lossy[1].doc_id("book.pdf")
    extracted.clear()
    assert ingest(home, source, retry_failed=True).computed() == {}
    assert extracted == []


def test_pypdf_can_read_the_encrypted_samples_so_the_tests_above_mean_something() -> None:
    reader = pypdf.PdfReader(io.BytesIO(locked("the ewes", "alpha")))
    assert reader.is_encrypted
    assert not reader.decrypt("wrong")
    assert reader.decrypt("alpha")


def test_the_same_contents_under_other_options_are_another_segment(home: Home, tmp_path: Path) -> None:
    source = write(tmp_path / "in", {"a.txt": prose(1), "b.txt": prose(2)})
    first = ingest(home, source)
    assert ingest(home, source, "extract.max_pages=7").computed()["extract"] == 2
    assert ingest(home, source).ingested.segments.refs == first.ingested.segments.refs


def test_a_segment_can_be_made_without_a_pool_when_its_journal_is_whole(home: Home, tmp_path: Path) -> None:
    """A kill between the last document and the commit costs no extraction."""
    content = Content("a" * 64, ".txt")
    settings = SegmentSettings(settings_of().extract, (content,))
    with Machine(workers=1) as machine:
        run = Run(home, machine)
        key = extract.key(settings, {})
        with pytest.raises(RuntimeError), run.store.workspace("extract", key) as workspace:
            with Journal(workspace.scratch) as journal:
                journal.save(content, text("kept"))
            raise RuntimeError
        extract(run, settings, files=SourceFiles({}, {}))
        assert machine._pool is None
