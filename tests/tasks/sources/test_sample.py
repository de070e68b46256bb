"""The sample corpus: complete, repeatable, all different, and readable."""

import shutil
from collections import Counter
from pathlib import Path

import pypdfium2
import pytest
from PIL import Image

from tasks.readers.ocr import ocr_image
from tasks.readers.records import ExtractOptions
from tasks.sources.sample import SCAN_SIZE, build_sample, read_topics, text_pdf, wrap_pages

PROSE = ["The quick brown fox jumps over the lazy dog while the judge reads every word of the page."] * 8
needs_tesseract = pytest.mark.skipif(shutil.which("tesseract") is None, reason="tesseract is not installed")


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample")
    build_sample(folder)
    return folder


def read_pages(pdf: Path | bytes) -> list[str]:
    with pypdfium2.PdfDocument(pdf) as document:
        return [page.get_textpage().get_text_range().replace("\r\n", "\n") for page in document]


def edit_distance(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
    return row[-1]


def test_the_corpus_holds_every_kind_in_the_promised_numbers(sample: Path) -> None:
    files = [path.relative_to(sample) for path in sample.rglob("*") if path.is_file()]
    counts = Counter(f"{path.parent}/{path.suffix}" for path in files)
    assert counts["text/.txt"] + counts["text/.md"] == 40
    assert 60 <= counts["code/.py"] <= 120
    assert counts["documents/.pdf"] == 3
    assert counts["scans/.pdf"] == 1
    assert {path.name for path in files if path.parent.name == "images"} == {
        "page.png",
        "photo.jpg",
        "tinted.png",
        "fax.tiff",
    }
    assert 1_500_000 <= sum((sample / path).stat().st_size for path in files) <= 3_000_000


def test_two_folders_get_the_same_bytes(sample: Path, tmp_path: Path) -> None:
    built = build_sample(tmp_path)
    assert built == sorted(path for path in tmp_path.rglob("*") if path.is_file())
    names = [path.relative_to(tmp_path) for path in built]
    assert names == [path.relative_to(sample) for path in build_sample(sample)]
    assert all((tmp_path / name).read_bytes() == (sample / name).read_bytes() for name in names)


def test_a_second_call_repairs_what_is_damaged_and_touches_nothing_else(sample: Path) -> None:
    def stamp(path: Path) -> tuple[int, int]:
        return path.stat().st_mtime_ns, path.stat().st_ino

    damaged, *others = build_sample(sample)
    right, before = damaged.read_bytes(), [stamp(path) for path in others]
    damaged.write_bytes(b"damaged")
    assert build_sample(sample) == [damaged, *others]
    assert damaged.read_bytes() == right
    assert [stamp(path) for path in others] == before


def test_no_text_stands_in_two_files(sample: Path) -> None:
    texts = [" ".join(path.read_text().split()) for path in sample.glob("text/*")]
    texts += [" ".join("".join(read_pages(path)).split()) for path in sample.glob("documents/*")]
    texts += [path.read_bytes().decode("utf-8", "replace") for path in sample.glob("code/*")]
    assert all(texts)
    assert len(set(texts)) == len(texts)


def test_every_born_digital_pdf_has_several_pages_a_text_layer_and_a_title(sample: Path) -> None:
    for path in sample.glob("documents/*.pdf"):
        pages = read_pages(path)
        assert len(pages) >= 3
        assert all(len(page) > 200 for page in pages[:-1])
        with pypdfium2.PdfDocument(path) as document:
            assert document.get_metadata_value("Title").lower().replace(" ", "-").startswith(path.stem)


def test_scans_have_three_pages_and_no_text_layer(sample: Path) -> None:
    (scan,) = sample.glob("scans/*.pdf")
    assert read_pages(scan) == ["", "", ""]


def test_the_fax_has_two_frames_and_every_image_states_its_resolution(sample: Path) -> None:
    frames = {}
    for path in sample.glob("images/*"):
        with Image.open(path) as image:
            frames[path.name] = getattr(image, "n_frames", 1)
            assert image.info["dpi"] == pytest.approx((200, 200), abs=0.1)
    assert frames == {"page.png": 1, "photo.jpg": 1, "tinted.png": 1, "fax.tiff": 2}


def test_every_page_of_the_sample_reads_back_exactly() -> None:
    pages = [page for topic in read_topics() for page in wrap_pages(topic.prose, 88, 54)]
    assert [text.split("\n") for text in read_pages(text_pdf("All", pages))] == pages


@needs_tesseract
def test_tesseract_reads_a_page_of_the_scan(sample: Path) -> None:
    (path,) = sample.glob("scans/*.pdf")
    (topic,) = (topic for topic in read_topics() if topic.name == path.stem)
    with pypdfium2.PdfDocument(path) as document:
        image = document[0].render(scale=200 / 72).to_pil()
    assert image.size == pytest.approx(SCAN_SIZE, abs=2)
    truth = " ".join(wrap_pages(topic.prose, 58, 34)[0])
    assert (
        edit_distance(" ".join(ocr_image(image.convert("L"), ExtractOptions()).text.split()), truth) / len(truth) < 0.05
    )
