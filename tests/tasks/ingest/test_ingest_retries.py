"""Repeated extraction: only as often as it may help, without loss of earlier results."""

from __future__ import annotations

import copy
import io
import json
import stat
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from extraction import Document, alone, load
from ingest_run import Ingestion, home_at, ingest, prose, settings_of, write

from storage.home import Home
from storage.manifest import ArtifactRef
from tasks.core import executor
from tasks.core.progress import StageProgress
from tasks.core.run import Run
from tasks.core.stage import Request, Stage, StageResult
from tasks.ingest import extract as extract_module
from tasks.ingest.journal import Content
from tasks.ingest.segments import Located, passwords_digest, segment_index, wants_retry
from tasks.readers.records import Extraction, Limits, PageText, judge_pages


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """A corpus with a PDF of three pages."""
    from ingest_samples import text_pdf

    pdf = text_pdf([f"page {number} of the shepherd's book, which tells of the fold" for number in ("one", "two", "3")])
    return write(tmp_path / "in", {"book.pdf": pdf, **{f"{number}.txt": prose(number) for number in range(3)}})


def ingest_with(
    change: Callable[[Document], None], home: Home, source: Path, retry_failed: bool = False, **given: Any
) -> Ingestion:
    """An ingestion in which the pool's outcome for each PDF and archive is changed by a function."""

    def read_changed(out: Path) -> Iterator[Extraction]:
        document = load(out)
        if document.kind in ("pdf", "archive"):
            change(document)
        yield alone(document)
        yield from document.members

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extract_module, "read_document", read_changed)
        return ingest(home, source, retry_failed=retry_failed, **given)


def losing(*numbers: int, code: Any = "timeout") -> Callable[[Document], None]:
    """As if these pages had been lost."""

    def lose(found: Document) -> None:
        for number in numbers:
            error = f"page {number} took more than 60 s"
            found.pages[number - 1] = PageText(number, "", "none", "", error=error, error_code=code)
        judge_pages(found, found.pages, ocr=True)

    return lose


# what counts when there are several attempts


@pytest.mark.full
def test_a_retry_that_loses_more_pages_changes_nothing_in_its_own_run_nor_in_the_next(home: Home, book: Path) -> None:
    first = ingest_with(losing(2), home, book)
    again = ingest_with(losing(1, 2), home, book, retry_failed=True)
    assert again.computed()["extract"] == 1
    for ran in (again, ingest(home, book)):
        assert ran.texts() == first.texts()
        assert ran.files()["book.pdf"]["reason"] == "page 2 took more than 60 s"
    assert "page one" in first.texts()["book.pdf"]


@pytest.mark.full
def test_a_retry_that_fails_altogether_takes_no_text_away(home: Home, book: Path) -> None:
    ingest_with(losing(2), home, book)
    ran = ingest_with(losing(1, 2, 3), home, book, retry_failed=True)
    assert ran.files()["book.pdf"]["status"] == "ok"
    assert "page 3" in ran.texts()["book.pdf"]


@pytest.mark.full
def test_after_a_worse_retry_the_next_one_is_a_new_attempt(home: Home, book: Path, extracted: list[str]) -> None:
    ingest_with(losing(2), home, book)
    ingest_with(losing(1, 2, 3), home, book, retry_failed=True)
    extracted.clear()
    ran = ingest(home, book, retry_failed=True)
    assert extracted == ["book.pdf"]
    assert "page two" in ran.texts()["book.pdf"]
    assert ran.files()["book.pdf"]["reason_code"] == ""


@pytest.mark.full
def test_of_two_attempts_that_give_as_much_the_later_one_counts(home: Home, book: Path) -> None:
    ingest_with(losing(2), home, book)
    ran = ingest_with(losing(1), home, book, retry_failed=True)
    assert "page two" in ran.texts()["book.pdf"]
    assert "page one" not in ran.texts()["book.pdf"]


# pages that were lost in a document that is there


@pytest.mark.parametrize("code", [pytest.param("no_ocr_engine", marks=pytest.mark.full), "changed"])
def test_a_document_that_lacks_a_page_is_read_again_once_that_can_help(
    home: Home, book: Path, extracted: list[str], code: str, tesseract: str
) -> None:
    ran = ingest_with(losing(2, code=code), home, book)
    assert (ran.files()["book.pdf"]["status"], ran.files()["book.pdf"]["reason_code"]) == ("ok", code)
    extracted.clear()
    ran = ingest(home, book)
    assert extracted == ["book.pdf"]
    assert (ran.files()["book.pdf"]["status"], ran.files()["book.pdf"]["reason_code"]) == ("ok", "")


@pytest.fixture
def tesseract() -> str:
    """Skips where no engine is installed."""
    from tasks.readers.ocr import engine_version

    return engine_version() or pytest.skip("Tesseract is not installed")


@pytest.mark.full
def test_what_a_run_that_was_interrupted_could_not_open_is_tried_when_it_goes_on_with_the_password(
    home: Home, tmp_path: Path, extracted: list[str]
) -> None:
    from ingest_samples import encrypted_pdf

    locked = encrypted_pdf("the ewes of the first fold stand in the rain", "alpha", "AES-256")
    source = write(tmp_path / "in", {"one.pdf": locked, **{f"{number}.txt": prose(number) for number in range(2)}})
    update = StageProgress.update

    def die(progress: StageProgress, done: float, total: float, note: str = "") -> None:
        update(progress, done, total, note)
        if (done, note) == (3, "files"):
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StageProgress, "update", die)
        with pytest.raises(KeyboardInterrupt):
            ingest(home, source)
    (tmp_path / "words").write_text("alpha")
    ran = ingest(home, source, f"passwords.file={tmp_path / 'words'}")
    assert ran.files()["one.pdf"]["status"] == "ok"


# several reasons in one file


def located(*codes: str, tried: tuple[str, ...] = ()) -> Located:
    return Located(Content("a" * 64, ".zip"), ArtifactRef("extract", "k", "d"), frozenset(codes), tried)


@pytest.mark.parametrize(
    ("found", "given", "wanted"),
    [
        (located(), {"retry_failed": True}, False),
        (located("timeout"), {}, False),
        (located("timeout"), {"retry_failed": True}, True),
        (located("timeout", "no_ocr_engine"), {"can_read_images": lambda: True}, True),
        (located("timeout", "no_ocr_engine"), {}, False),
        (located("encrypted", "changed", tried=("a",)), {"passwords": "a"}, True),
        (located("encrypted", "timeout", tried=("",)), {"passwords": "a"}, True),
        (located("encrypted", tried=("",)), {"passwords": ""}, False),
        (located("encrypted", tried=("a,b",)), {"passwords": "b"}, False),
        (located("encrypted", tried=("a,b",)), {"passwords": ""}, False),
        (located("encrypted", tried=("a,b",)), {"passwords": "b,c"}, True),
        (located("encrypted", tried=("a", "b")), {"passwords": "a"}, False),
        (located("encrypted", tried=("a,b",)), {"passwords": "a", "retry_failed": True}, False),
    ],
)
def test_any_reason_that_may_have_gone_away_is_enough(found: Located, given: dict[str, Any], wanted: bool) -> None:
    assert (
        wants_retry(found, **{"retry_failed": False, "can_read_images": lambda: False, "passwords": "", **given})
        is wanted
    )


def test_the_reasons_of_a_file_are_those_of_all_its_members(home: Home, tmp_path: Path) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for number in range(3):
            archive.writestr(f"{number}.txt", prose(number))
    source = write(tmp_path / "in", {"box.zip": file.getvalue(), "c.txt": prose(5)})

    def fail_two(found: Document) -> None:
        for member, code in zip(found.members, ("timeout", "encrypted"), strict=False):
            member.status, member.reason_code, member.reason = "failed", code, "why"  # type: ignore[assignment]

    ran = ingest_with(fail_two, home, source)
    found = segment_index(ran.store, settings_of().extract)
    assert found[ran.files()["box.zip"]["sha256"], ".zip"].reason_codes == {"timeout", "encrypted"}
    assert found[ran.files()["c.txt"]["sha256"], ".txt"].reason_codes == frozenset()


# passwords


def test_fewer_passwords_than_were_tried_are_no_reason_to_try_again(
    home: Home, tmp_path: Path, extracted: list[str]
) -> None:
    from ingest_samples import encrypted_pdf

    words = tmp_path / "words"
    source = write(tmp_path / "in", {"one.pdf": encrypted_pdf("the ewes", "alpha", "AES-256"), "2.txt": prose(2)})
    words.write_text("beta\ngamma\n")
    ingest(home, source, f"passwords.file={words}")
    extracted.clear()
    words.write_text("gamma\n")
    ingest(home, source, f"passwords.file={words}")
    ingest(home, source)
    assert extracted == []


def on_node(path: Path) -> Callable[..., list[StageResult]]:
    """Carries requests out as on another machine, whose home is the folder `path`, or would be."""

    def carry_out(run: Run, stage: Stage, missing: Sequence[Request], *_: Any) -> list[StageResult]:
        there = copy.deepcopy(run)  # which is what travels
        there.home = replace(run.home, path=path)
        with there.machine:
            return [stage.make(there, request) for request in missing]

    return carry_out


@pytest.mark.parametrize("has_home", [True, False], ids=["with a home", "without a home"])
def test_what_a_node_could_not_open_is_not_tried_again_with_the_same_passwords(
    home: Home, tmp_path: Path, extracted: list[str], has_home: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ingest_samples import encrypted_pdf

    source = write(tmp_path / "in", {"one.pdf": encrypted_pdf("the ewes", "alpha", "AES-256"), "2.txt": prose(2)})
    (tmp_path / "words").write_text("beta\n")
    node = tmp_path / "node"
    if has_home:
        home_at(node)
    monkeypatch.setattr(executor, "carry_out", on_node(node))
    runs = [ingest(home, source, f"passwords.file={tmp_path / 'words'}").ingested.snapshot for _ in range(2)]
    assert sorted(extracted) == ["2.txt", "one.pdf"]
    assert runs[0] == runs[1]
    assert not (node / "password.key").exists()


@pytest.mark.full
def test_homes_that_share_a_store_try_the_same_passwords_once_each(
    home: Home, tmp_path: Path, extracted: list[str]
) -> None:
    from ingest_samples import encrypted_pdf

    source = write(tmp_path / "in", {"one.pdf": encrypted_pdf("the ewes", "alpha", "AES-256"), "2.txt": prose(2)})
    (tmp_path / "words").write_text("beta\n")
    other = replace(home_at(tmp_path / "other"), store=home.store)
    for place in (home, other, home, other):
        ingest(place, source, f"passwords.file={tmp_path / 'words'}")
    assert sorted(extracted) == ["2.txt", "one.pdf", "one.pdf"]


def test_what_is_noted_of_passwords_says_nothing_without_the_key_of_the_home(home: Home, tmp_path: Path) -> None:
    other = home_at(tmp_path / "other")
    noted = passwords_digest(["alpha", "beta", "alpha"], home)
    assert len(set(noted.split(","))) == 2
    assert passwords_digest(["beta", "alpha"], home) == noted
    assert set(passwords_digest(["beta"], home).split(",")) < set(noted.split(","))
    assert set(passwords_digest(["alpha", "beta"], other).split(",")).isdisjoint(noted.split(","))
    assert stat.S_IMODE((home.path / "password.key").stat().st_mode) == 0o600


@pytest.mark.full
def test_without_passwords_no_key_is_made(home: Home, book: Path) -> None:
    ran = ingest(home, book)
    assert not (home.path / "password.key").exists()
    tools = [json.loads(path.read_text())["tools"] for path in Path(ran.store.root).glob("extract/*/manifest.json")]
    assert [found["passwords"] for found in tools] == [""]


# limits


@pytest.mark.full
def test_limits_reach_the_pool_and_change_no_key(home: Home, book: Path) -> None:
    first = ingest(home, book)
    again = ingest(home, book, "limits.page_seconds=7", limits=Limits(page_seconds=7))
    assert again.computed() == {}
    assert again.ingested.segments.refs == first.ingested.segments.refs
