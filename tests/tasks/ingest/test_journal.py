"""Extraction that is interrupted, repeated, and asked for again: nothing is read twice that need not be."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from extraction import Document, load, save
from ingest_run import Ingestion, home_at, ingest, prose, settings_of, write

from storage.home import Home
from tasks.core.machine import Machine
from tasks.core.progress import StageProgress
from tasks.core.run import Run
from tasks.ingest import extract as extract_module
from tasks.ingest.extract import SegmentSettings, SourceFiles, document_id, extract
from tasks.ingest.journal import Content, read_document, resume
from tasks.readers.records import Extraction, PageText


def text(words: str) -> Document:
    return Document("ok", kind="text", pages=[PageText(1, words, "text", "text")])


def zipped(**members: str | bytes) -> bytes:
    """A ZIP archive; `__` in a name stands for a slash, and the suffix is `.txt`."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(f"{name.replace('__', '/')}.txt"), content)
    return file.getvalue()


def locked(words: str, password: str) -> bytes:
    """An encrypted PDF with a text layer."""
    from ingest_samples import encrypted_pdf

    return encrypted_pdf(words, password, "AES-256")


# the journal alone


def test_what_was_saved_is_there_in_the_next_process(tmp_path: Path) -> None:
    content, found = Content("a" * 64, ".txt"), text("the fold \ud800 \u2028 \U0001f411")
    others = Content("a" * 64, ".txt", attempt=1), Content("a" * 64, ".md/.."), Content("a" * 64, "\udcff")
    save(tmp_path / content.name, found)
    assert resume(tmp_path, [content, *others]) == {content}
    assert load(tmp_path / content.name) == text("the fold ? \u2028 \U0001f411")  # a table holds no lone surrogate


@pytest.mark.parametrize("cut", [0, 2, 20, 10_000])
def test_a_document_of_which_the_disk_has_not_all_counts_as_not_written(tmp_path: Path, cut: int) -> None:
    whole, torn = (Content(letter * 64, ".zip") for letter in "ab")
    for content in (whole, torn):
        save(tmp_path / content.name, boxed("first", "second"))
    path = tmp_path / torn.name
    cut = cut or len(path.read_bytes().splitlines(keepends=True)[-1])
    with path.open("r+b") as file:
        file.truncate(max(0, path.stat().st_size - cut))  # a line without its end is whole
    assert resume(tmp_path, [whole, torn]) == {whole}
    assert load(tmp_path / whole.name) == boxed("first", "second")


def boxed(*words: str, code: Any = "") -> Document:
    """An archive; `code` is why its last member failed."""
    members = [
        Extraction("ok", kind="text", locator=f"{n}.txt", pages=text(word).pages) for n, word in enumerate(words)
    ]
    if code:
        members.append(Extraction("failed", "why", code, locator="last.txt"))
    return Document("ok", kind="archive", members=members)


def test_an_archive_s_members_come_back_in_order_and_one_at_a_time(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    save(one, boxed("first", "second"))
    save(two, boxed("third"))
    read = [read_document(out) for out in (one, two)]
    assert [next(documents).kind for documents in read] == ["archive", "archive"]
    assert [next(members).pages[0].text for members in (read[0], read[1], read[0])] == ["first", "third", "second"]
    assert [next(members, None) for members in read] == [None, None]
    assert len(one.read_bytes().splitlines()) == 3  # a line for each member, and the outcome


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
    save(tmp_path / doubtful.name, lost)
    save(tmp_path / sound.name, Extraction("rejected", "no text", "no_text"))
    assert load(tmp_path / doubtful.name).reason_code == lost.reason_code
    assert resume(tmp_path, [sound, doubtful]) == {sound}


# a segment that is begun, killed and finished


def test_a_segment_that_was_interrupted_extracts_only_what_its_journal_lacks(
    home: Home, tmp_path: Path, extracted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "in", {f"{number}.txt": prose(number) for number in range(4)})
    calm = ingest(home_at(tmp_path / "calm"), source)
    extracted.clear()
    update = StageProgress.update

    def die_after_two(progress: StageProgress, done: float, total: float, note: str = "") -> None:
        update(progress, done, total, note)
        if (done, note) == (2, "files"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(StageProgress, "update", die_after_two)
        with pytest.raises(KeyboardInterrupt):
            ingest(home, source)
    (journal,) = Path(home.store).glob(".work/extract/*/**/documents")
    before = {path.name.partition("-")[0] for path in journal.glob("*.jsonl")}
    (journal / f"{'f' * 64}.0.part").write_bytes(b"of a process that was killed")
    extracted.clear()
    resumed = ingest(home, source)
    done = {hashlib.sha256((source / name).read_bytes()).hexdigest() for name in extracted}
    assert len(before) >= 2  # the pool may have finished more
    assert len(before) + len(extracted) == 4
    assert done.isdisjoint(before)
    assert resumed.ingested.segments.refs == calm.ingested.segments.refs
    assert resumed.texts() == calm.texts()


# archives


@pytest.mark.full
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


@pytest.mark.full
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

    def read_less(out: Path) -> Iterator[Extraction]:
        for found in read_document(out):
            if found.kind == "pdf":
                found.pages[1] = PageText(2, "", "none", "", error="page 2 took more than 60 s")
                found.reason_code, found.reason = "timeout", "page 2 took more than 60 s"
            yield found

    monkeypatch.setattr(extract_module, "read_document", read_less)


@pytest.fixture
def lossy(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Ingestion]:
    """A corpus after a run in which a PDF of three pages lost the second."""
    from ingest_samples import text_pdf

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


def test_a_segment_can_be_made_without_a_pool_when_its_journal_is_whole(home: Home, tmp_path: Path) -> None:
    """A kill between the last document and the commit costs no extraction."""
    content = Content("a" * 64, ".txt")
    settings = SegmentSettings(settings_of().extract, (content,))
    with Machine(workers=1) as machine:
        run = Run(home, machine)
        key = extract.key(settings, {})
        with pytest.raises(RuntimeError), run.store.workspace("extract", key) as workspace:
            (workspace.scratch / "documents").mkdir()
            save(workspace.scratch / "documents" / content.name, text("kept"))
            raise RuntimeError
        extract(run, settings, files=SourceFiles({}, {}))
        assert machine._pool is None
