"""Two homes, one worker and four: every data file of ingestion is the same, byte for byte."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest
from ingest_run import STAGES, Ingestion, contents, edited, home_at, ingest, prose, write
from ingest_samples import picture_of, saved, text_pdf

from tasks.readers.ocr import engine_version

CODE = '''"""Counting sheep."""


def count(sheep: list[str]) -> int:
    """How many sheep are in the fold; write to shepherd@fold-and-pen.org if one is missing."""
    return sum(1 for one in sheep if one.startswith("sheep"))
'''


def docx() -> bytes:
    document = pytest.importorskip("docx").Document()
    document.add_heading("The shepherd's report", 1)
    for line in prose(30).split("\n"):
        document.add_paragraph(line)
    file = io.BytesIO()
    document.save(file)
    return file.getvalue()


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for number in range(4):
            archive.writestr(zipfile.ZipInfo(f"deep/{number}.txt"), prose(40 + number))
        archive.writestr(zipfile.ZipInfo("near.txt"), edited(prose(1), 1, 1))
    return file.getvalue()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text, code, PDFs, an image, an archive, a table, an office document, and what is none of these."""
    jsonl = "".join(json.dumps({"text": prose(50 + number), "id": number}) + "\n" for number in range(5))
    files: dict[str, str | bytes] = {f"{number:02}.txt": prose(number) for number in range(8)}
    files |= {
        "near.txt": edited(prose(2), 2, 1),
        "same.md": prose(3) + "\n",
        "code/count.py": CODE,
        "book.pdf": text_pdf(["the shepherd counts his sheep at dusk", "and closes the fold before the rain comes"]),
        "scan.png": saved(picture_of("the shepherd counts his sheep"), "PNG"),
        "scans.tiff": saved(
            picture_of("a dog watches from the gate"),
            "TIFF",
            save_all=True,
            append_images=[picture_of(f"and lamb number {number} sleeps") for number in range(9)],
        ),
        "box.zip": zipped(),
        "rows.jsonl": jsonl,
        "report.docx": docx(),
        "broken.pdf": b"%PDF-1.4\nnothing of the kind",
        "noise.bin": bytes(range(256)) * 8,
        "empty.txt": "",
    }
    return write(tmp_path_factory.mktemp("mixed") / "in", files)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, source: Path) -> tuple[Ingestion, Ingestion]:
    """The same folder, ingested by one worker in place and by four with processes apart."""
    folder = tmp_path_factory.mktemp("homes")
    one = ingest(home_at(folder / "one"), source, workers=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.core.subprocesses.WORTH_A_PROCESS", 0)
        four = ingest(home_at(folder / "four"), source, workers=4)
    return one, four


def test_one_worker_and_four_write_the_same_bytes(both: tuple[Ingestion, Ingestion]) -> None:
    one, four = (contents(home_at(Path(str(ran.store.root)).parent)) for ran in both)  # type: ignore[attr-defined]
    assert {name.partition("/")[0] for name in one} == set(STAGES)
    assert one == four


def test_the_folder_holds_what_it_is_there_to_hold(both: tuple[Ingestion, Ingestion]) -> None:
    files = both[0].files()
    fine = {
        "00.txt", "code/count.py", "book.pdf", "box.zip", "box.zip/deep/3.txt", "rows.jsonl", "report.docx"
    }  # fmt: skip
    assert {path: files[path]["status"] for path in fine} == dict.fromkeys(fine, "ok")
    assert {files[path]["status"] for path in ("broken.pdf", "noise.bin", "empty.txt")}.isdisjoint({"ok"})
    assert sum(row["container"] == "rows.jsonl" for row in files.values()) == 5
    assert {"near_duplicate", "duplicate_text"} <= set(both[0].codes().values())


@pytest.mark.skipif(engine_version() is None, reason="Tesseract is not installed")
def test_pages_that_several_processes_read_by_ocr_are_in_order(both: tuple[Ingestion, Ingestion]) -> None:
    texts = [ran.texts("normalise")["scans.tiff"] for ran in both]
    assert texts[0] == texts[1]
    places = [texts[0].find(f"number {number}") for number in range(9)]
    assert places == sorted(places)
    assert places[0] > 0
    assert both[0].query("select count(*) as n from pages where method = 'ocr'") == [{"n": 11}]


def test_nothing_private_is_left_in_the_code(both: tuple[Ingestion, Ingestion]) -> None:
    assert "shepherd@fold-and-pen.org" in both[0].texts("normalise")["code/count.py"]
    assert "shepherd@fold-and-pen.org" not in both[0].texts()["code/count.py"]
