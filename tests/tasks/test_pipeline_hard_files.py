"""Files that are hard to name or to get hold of: each has its row, and is read as soon as it can be."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw
from tiny_run import direct_run, tiny_settings, write_texts

import flows.ingest
import tasks.ingest.segments
from storage.home import Home
from storage.tables import read_rows
from tasks.core.run import StageReport
from tasks.readers import ocr

VICTIM = "text-01.txt"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "texts", range(3))


def ingest(home: Home, source: Path, *settings: str, **options: Any) -> tuple[dict[str, Any], StageReport]:
    """The rows of `files` by path, and what extraction had to do."""
    with direct_run(home, options.get("refresh", ())) as run:
        run.retry_failed = options.get("retry_failed", False)
        found = flows.ingest.ingest_documents(run, str(source), tiny_settings(*settings))
        rows = read_rows(run.store.folder(found.snapshot) / "files.parquet")
        return {row["path"]: row for row in rows}, run.reports["extract"]


def ingest_while_it_vanishes(home: Home, source: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Ingest while a file that was walked is gone when its turn comes; afterwards it is there again."""
    choose = tasks.ingest.segments.choose_contents
    kept = (source / VICTIM).read_bytes()

    def choose_and_lose(*arguments: Any) -> Any:
        (source / VICTIM).unlink()
        return choose(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(tasks.ingest.segments, "choose_contents", choose_and_lose)
        rows, _ = ingest(home, source)
    (source / VICTIM).write_bytes(kept)
    assert rows[VICTIM]["status"] == "failed"
    assert rows[VICTIM]["reason_code"] == "changed"
    return rows


def test_a_suffix_that_is_not_utf8_has_its_row_and_the_run_goes_on(home: Home, source: Path) -> None:
    name = os.fsencode(source) + b"/bad.\xe9xt"
    Path(os.fsdecode(name)).write_text("some words of its own\n")
    rows, report = ingest(home, source)
    assert {path: row["status"] for path, row in rows.items()} == {
        "bad.%E9xt": "ok",
        **{f"text-{number:02}.txt": "ok" for number in range(3)},
    }
    assert ingest(home, source)[1].computed == 0
    assert report.computed == 4


def test_a_file_that_was_gone_for_a_moment_is_read_by_the_next_run(
    home: Home, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest_while_it_vanishes(home, source, monkeypatch)
    rows, report = ingest(home, source)
    assert rows[VICTIM]["status"] == "ok"
    assert report.computed == 1
    assert ingest(home, source)[1].computed == 0


@pytest.mark.full
def test_a_refreshed_extraction_is_used_by_the_next_run_also_where_a_file_was_read_twice_before(
    home: Home, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest_while_it_vanishes(home, source, monkeypatch)
    ingest(home, source, retry_failed=True)
    refreshed, _ = ingest(home, source, refresh=["extract"])
    again, report = ingest(home, source)
    assert report.computed == 0
    assert {path: row["segment"] for path, row in again.items()} == {
        path: row["segment"] for path, row in refreshed.items()
    }


def scan(source: Path) -> None:
    image = Image.new("L", (400, 100), 255)
    ImageDraw.Draw(image).text((20, 40), "Hello world sheep", fill=0)
    image.save(source / "scan.png")


@pytest.mark.skipif(ocr.engine_version() is None, reason="Tesseract is not installed")
def test_an_image_in_a_language_that_is_not_installed_is_not_tried_on_every_run(home: Home, source: Path) -> None:
    scan(source)
    rows, _ = ingest(home, source, "extract.ocr_languages=eng+xxx")
    assert rows["scan.png"]["reason_code"] == "no_ocr_engine"
    assert ingest(home, source, "extract.ocr_languages=eng+xxx")[1].computed == 0


@pytest.mark.skipif(ocr.engine_version() is None, reason="Tesseract is not installed")
def test_an_image_is_read_again_once_its_language_is_installed(
    home: Home, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan(source)
    ingest(home, source, "extract.ocr_languages=eng+xxx")
    monkeypatch.setattr(tasks.ingest.segments, "ocr_ready", lambda languages: languages == "eng+xxx")
    assert ingest(home, source, "extract.ocr_languages=eng+xxx")[1].computed == 1


@pytest.mark.parametrize(("languages", "ready"), [("eng", True), ("eng+xxx", False), ("xxx", False)])
@pytest.mark.skipif(ocr.engine_version() is None, reason="Tesseract is not installed")
def test_ocr_is_ready_where_every_language_is_installed(languages: str, ready: bool) -> None:
    assert ocr.ocr_ready(languages) is ready


def test_ocr_is_not_ready_without_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ocr, "_tesserocr", lambda: None)
    monkeypatch.setenv("PATH", "")
    assert not ocr.ocr_ready("eng")
