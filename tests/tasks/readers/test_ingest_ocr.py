"""OCR: one engine for many pages, each read as if it were the first; what to do where something is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from extraction import extract_document
from ingest_samples import picture_of, saved
from PIL import Image

from tasks.readers import ocr
from tasks.readers.ocr import OcrError, OcrUnavailable, Reading, find_tessdata, ocr_image, ocr_ready
from tasks.readers.records import ExtractOptions
from tasks.readers.second_ocr import SecondOcrError, can_read

OPTIONS = ExtractOptions()


@pytest.mark.full
def test_no_page_influences_another(tesseract):
    pictures = [picture_of(text) for text in ("alpha bravo", "l1I0O8 rn m", "quick brown fox")]
    alone = []
    for picture in pictures:
        ocr._engine.cache_clear()
        alone.append(ocr_image(picture, OPTIONS))
    assert [ocr_image(picture, OPTIONS) for picture in reversed(pictures)] == alone[::-1]


def test_paragraphs_are_an_empty_line_apart(tesseract):
    read = ocr_image(picture_of("first line\nsecond line\n\n\n\nlast line", (1000, 500)), OPTIONS)
    assert read.text == "first line\nsecond line\n\nlast line"


@pytest.mark.parametrize(
    "turn", [90, pytest.param(180, marks=pytest.mark.full), pytest.param(270, marks=pytest.mark.full)]
)
def test_a_page_on_its_side_or_upside_down_is_turned(tesseract, turn):
    if find_tessdata("osd") is None:
        pytest.skip("the data for orientation is not installed")
    lines = "\n".join(["The quick brown fox jumps over the lazy dog", "and every file that was seen has a row"] * 6)
    page = picture_of(lines, (1300, 900), font_size=36).rotate(turn, expand=True)
    read = ocr_image(page, OPTIONS)
    assert read.text.startswith("The quick brown fox") and read.confidence > 0.8


@pytest.fixture
def no_tesserocr(monkeypatch):
    monkeypatch.setitem(sys.modules, "tesserocr", None)  # importing it fails
    ocr._tesserocr.cache_clear()
    yield
    ocr._tesserocr.cache_clear()


def test_without_the_library_the_program_reads_the_page_and_turns_it(tesseract, no_tesserocr):
    if shutil.which("tesseract") is None or find_tessdata("osd") is None:
        pytest.skip("the program tesseract or its data for orientation are not installed")
    lines = "\n".join(["The quick brown fox jumps over the lazy dog", "and every file that was seen has a row"] * 6)
    page = picture_of(lines, (1300, 900), font_size=36).rotate(180)
    read = ocr_image(page, OPTIONS)
    assert read.text.startswith("The quick brown fox") and read.confidence > 0.8
    assert [ocr._clockwise_turn(page.rotate(turn, expand=True), None) for turn in (90, 180, 270)] == [270, 0, 90]
    assert ocr_ready("eng") and f"tesseract {ocr.engine_version()}" in printed("tesseract", "--version").splitlines()[0]


def test_the_program_needs_no_more_than_the_data_of_the_language(tesseract, no_tesserocr, monkeypatch, tmp_path):
    if shutil.which("tesseract") is None:
        pytest.skip("the program tesseract is not installed")
    shutil.copy(find_tessdata("eng") / "eng.traineddata", tmp_path)
    monkeypatch.setenv("TESSDATA_PREFIX", str(tmp_path))
    assert ocr_image(picture_of("first line\n4\nlast line"), OPTIONS).text == "first line\n4\nlast line"
    (tmp_path / "eng.traineddata").write_bytes(b"no data at all")
    with pytest.raises(OcrUnavailable, match="cannot use its language data"):
        ocr_image(picture_of("readable"), OPTIONS)


@pytest.mark.parametrize(("script", "error"), [("exit 127", OcrError), ("kill -9 $$", MemoryError)])
def test_a_program_that_fails_is_no_version_and_no_empty_page(
    tesseract, no_tesserocr, monkeypatch, tmp_path, script, error
):
    program = tmp_path / "tesseract"
    program.write_text(f"#!/bin/sh\n[ $1 = --version ] && exit 1\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert ocr.engine_version() is None
    with pytest.raises(error):
        ocr_image(picture_of("readable"), OPTIONS)


def test_an_image_that_the_program_refuses_is_an_error_with_its_reason(tesseract, no_tesserocr):
    if shutil.which("tesseract") is None:
        pytest.skip("the program tesseract is not installed")
    with pytest.raises(OcrError, match=r"the program tesseract ended with 1: .+"):
        ocr_image(Image.new("L", (40_000, 10), 255), OPTIONS)


def test_without_library_and_program_the_reason_names_both(no_tesserocr, monkeypatch, tmp_path):
    (tmp_path / "eng.traineddata").touch()
    monkeypatch.setenv("TESSDATA_PREFIX", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ocr.engine_version() is None
    with pytest.raises(OcrUnavailable, match=r"the Python package tesserocr, .* or the program tesseract"):
        ocr_image(picture_of("words"), OPTIONS)


def printed(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_page_segmentation_is_a_setting(tesseract):
    line = picture_of("one single line", (700, 120))
    assert ocr_image(line, ExtractOptions(ocr_page_segmentation=7)).text == "one single line"


def test_a_line_that_tesseract_doubts_is_read_by_the_second_engine(tesseract):
    doubtful = r"\usepackage[utf8]{inputenc}"
    picture = picture_of(f"plain words in a line\n{doubtful}", (1100, 200), font_size=28)
    alone = ocr_image(picture, ExtractOptions(ocr_second=False))
    assert alone.engine == "tesseract" and doubtful not in alone.text
    both = ocr_image(picture, OPTIONS)
    assert both.text == f"plain words in a line\n{doubtful}" and both.confidence > alone.confidence
    assert both.engine == "tesseract + rapidocr" and both.again == (2,)


def test_the_second_engine_is_not_asked_for_scripts_that_it_does_not_know():
    assert can_read("Ångström, 東京, カード, 1 + 1 µm")
    assert not can_read("MOSKVA МОСКВА") and not can_read("λόγος")


def test_a_damaged_page_is_read_by_the_second_engine(tesseract):
    texts = [[f"{word} line number {n} of this" for n in range(12)] for word in ("first", "second", "third")]
    page = Image.new("L", (1400, 700), 255)
    for place, lines in enumerate(texts):
        page.paste(picture_of("\n".join(lines), (440, 680), font_size=28), (450 * place, 10))
    noise = np.random.default_rng(1).normal(128, 140, (page.height, page.width)).clip(0, 255).astype(np.uint8)
    damaged = Image.blend(page, Image.fromarray(noise), 0.48)
    alone = ocr_image(damaged, ExtractOptions(ocr_second=False))
    both = ocr_image(damaged, OPTIONS)
    wanted = [line for lines in texts for line in lines]
    assert sum(line in alone.text for line in wanted) < 0.5 * len(wanted)
    read = [line for line in both.text.split("\n") if line in wanted]
    assert read == [line for line in wanted if line in read] and len(read) > 0.8 * len(wanted)
    assert both.engine == "rapidocr"


def test_where_the_second_engine_fails_the_page_says_so_and_keeps_the_first_reading(tesseract, monkeypatch):
    def fail(*_: object) -> None:
        raise SecondOcrError("rapidocr failed on it (Error)")

    monkeypatch.setattr(ocr, "read_line", fail)
    monkeypatch.setattr(ocr, "read_page", fail)
    picture = picture_of(r"\usepackage[utf8]{inputenc}", (1100, 200), font_size=28)
    page = ocr_image(picture, OPTIONS).page(1)
    assert page.error == "what Tesseract doubted was not read again: rapidocr failed on it (Error)"
    assert page.text == ocr_image(picture, ExtractOptions(ocr_second=False)).text


@pytest.mark.parametrize("size", [(4000, 20), (20, 4000), (32, 2000), (9, 9)])
def test_a_strip_of_noise_is_read_by_no_engine_and_breaks_none(tesseract, size):
    noise = np.random.default_rng(1).integers(0, 255, size[::-1], dtype=np.uint8)
    assert ocr_image(Image.fromarray(noise), OPTIONS).problem == ""


@pytest.mark.full
def test_the_foot_of_a_page_does_not_end_up_between_its_columns(tesseract, corpus):
    with Image.open(corpus / "scans" / "ltnews-p006-200dpi.jpg") as page:
        read = ocr_image(page, OPTIONS, 200)
    assert "are brought to you by" in read.text.split("\n")[-1]


def test_an_empty_picture_has_no_words_and_no_confidence(tesseract):
    assert ocr_image(Image.new("L", (300, 300), 255), OPTIONS) == Reading("", None)


def test_a_picture_wider_than_tesseract_can_take_is_an_error_not_a_crash(tesseract):
    with pytest.raises(OcrError, match="40000 x 8"):
        ocr_image(Image.new("L", (40_000, 8), 255), OPTIONS)


def test_other_threads_go_on_during_recognition(tesseract):
    """The thread that ends a worker whose parent is gone must not have to wait for a page."""
    counted, done = [0], threading.Event()

    def count() -> None:
        while not done.is_set():
            counted[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    ocr_image(picture_of("\n".join(["many words on many lines of this page"] * 20), (1500, 1200)), OPTIONS)
    done.set()
    thread.join()
    assert counted[0] > 20


def test_without_language_data_the_reason_says_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setenv("TESSDATA_PREFIX", str(tmp_path))
    found = extract_document(saved(picture_of("readable"), "PNG"), "", OPTIONS)
    assert (found.status, found.reason_code) == ("failed", "no_ocr_engine")
    assert "apt install tesseract-ocr" in found.reason and "brew install tesseract" in found.reason
    assert str(tmp_path) in found.reason
    assert not ocr_ready("eng")


def test_a_missing_language_is_named(tesseract):
    with pytest.raises(OcrUnavailable, match=r"language xyz.*apt install tesseract-ocr-xyz"):
        ocr_image(picture_of("readable"), ExtractOptions(ocr_languages="eng+xyz"))


def test_damaged_language_data_are_no_crash(monkeypatch, tmp_path):
    (tmp_path / "eng.traineddata").write_bytes(b"no data at all")
    monkeypatch.setenv("TESSDATA_PREFIX", str(tmp_path))
    with pytest.raises(OcrUnavailable, match="cannot use the data for eng"):
        ocr_image(picture_of("readable"), OPTIONS)


@pytest.mark.parametrize("subfolder", ["", "tessdata"])
def test_the_folder_in_the_environment_or_its_parent_is_used(monkeypatch, tmp_path, subfolder):
    folder = tmp_path / subfolder
    folder.mkdir(exist_ok=True)
    (folder / "eng.traineddata").touch()
    monkeypatch.setenv("TESSDATA_PREFIX", str(tmp_path))
    assert find_tessdata("eng") == folder
    assert find_tessdata("eng+deu") is None


def test_the_program_is_asked_where_the_usual_places_have_nothing(monkeypatch, tmp_path):
    program, data = tmp_path / "tesseract", tmp_path / "data"
    data.mkdir()
    (data / "eng.traineddata").touch()
    program.write_text(f"#!/bin/sh\necho 'List of available languages in \"{data}/\" (1):'\necho eng\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("TESSDATA_PREFIX", raising=False)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    monkeypatch.setattr(ocr, "USUAL_PLACES", ())
    ocr._folders.cache_clear()
    try:
        assert find_tessdata("eng") == data
    finally:
        ocr._folders.cache_clear()


@pytest.mark.full
def test_memory_that_runs_out_during_recognition_ends_the_process():
    """Cleanly or by a signal, but it ends, so that the pool learns of it."""
    if sys.platform != "linux":
        pytest.skip("only Linux limits the address space")
    code = (
        "import resource, sys; from PIL import Image; from tasks.readers.ocr import ocr_image\n"
        "from tasks.readers.records import ExtractOptions\n"
        "ocr_image(Image.new('L', (50, 50), 255), ExtractOptions())\n"
        "size = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize() + 60 * 2**20\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); resource.setrlimit(resource.RLIMIT_AS, (size, size))\n"
        "ocr_image(Image.effect_noise((7000, 7000), 90), ExtractOptions())\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, timeout=120)
    assert done.returncode != 0
