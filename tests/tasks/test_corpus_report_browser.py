"""The report of a corpus in a real browser: it opens alone, everything is seen, nothing spills, no file name runs."""

from __future__ import annotations

import io
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from browsing import Opened
from corpus_report_samples import CORPUS, Sample, rich
from PIL import Image

from tasks.corpus_report import corpus_report
from tasks.corpus_report.page import SECTIONS
from tasks.corpus_report.thumbnails import Thumbnails

pytestmark = [pytest.mark.full, pytest.mark.browser]


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a corpus with something in every section, one picture among it."""
    folder = tmp_path_factory.mktemp("report")
    scan = io.BytesIO()
    Image.new("L", (300, 200), 90).save(scan, "PNG")
    picture = folder / "scan.png"
    picture.write_bytes(scan.getvalue())
    digest = sha256(scan.getvalue()).hexdigest()
    sample = rich(folder / "store")
    worst = [{"method": "ocr", "engine": "tesseract", "confidence": 0.1, "text": "read badly"}]
    sample.document("png", "scan.png", pages=worst, kind="image", file={"sha256": digest, "media_type": "image/png"})
    with Thumbnails({digest: str(picture)}) as thumbnails:
        text = corpus_report(sample.catalog(), CORPUS, thumbnails)
    path = folder / "report.html"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_page_opens_without_complaint_or_request_and_has_all_sections(chromium: Any, page_file: Path) -> None:
    opened = Opened(chromium, page_file)
    assert opened.complaints == [] and opened.foreign == []
    for name in SECTIONS:
        assert opened.page.locator(f"#{name}").is_visible()
        assert opened.page.locator(f"#{name} h2").count() == 1
        assert opened.page.locator(f'nav a[href="#{name}"]').count() == 1


def test_no_file_name_runs(chromium: Any, page_file: Path) -> None:
    opened = Opened(chromium, page_file)
    assert opened.page.evaluate("window.hit") is None
    assert opened.page.locator("main img").count() == 1
    assert opened.page.locator("script").count() == 0
    assert "<img src=x onerror=hit=1>" in opened.page.locator("#files").inner_text()


def test_the_bar_of_all_files_is_drawn_in_proportion(chromium: Any, page_file: Path) -> None:
    opened = Opened(chromium, page_file)
    widths = opened.page.eval_on_selector_all(
        ".fates .fate", "parts => parts.map(p => p.getBoundingClientRect().width)"
    )
    whole = opened.page.locator(".fates").bounding_box()["width"]
    assert sum(widths) == pytest.approx(whole, abs=len(widths))
    kept, failed = (opened.page.locator(f".fates .{name}").bounding_box()["width"] for name in ("train", "failed"))
    assert kept / failed == pytest.approx(4, rel=0.1)


def test_histograms_have_bars_within_their_frame(chromium: Any, page_file: Path) -> None:
    opened = Opened(chromium, page_file)
    bars = [opened.page.locator(f"#histogram-n-chars .{name}").count() for name in ("ink", "dropped-ink")]
    assert bars == [2, 2], "hundred and hundred thousand characters; three and a hundred of those that were dropped"
    outside = opened.page.evaluate(
        """() => [...document.querySelectorAll('#measures svg')].flatMap(svg => {
          const edge = svg.viewBox.baseVal;
          return [...svg.querySelectorAll('text, rect')].filter(part => {
            const box = part.getBBox();
            const right = box.x + box.width, bottom = box.y + box.height;
            return box.x < -1 || box.y < -2 || right > edge.width + 1 || bottom > edge.height + 1;
          }).map(part => svg.id + ': ' + part.textContent);
        })"""
    )
    assert outside == []


def test_the_picture_of_a_doubtful_page_is_seen(chromium: Any, page_file: Path) -> None:
    opened = Opened(chromium, page_file)
    shown = opened.page.locator(".card img").first
    assert shown.is_visible() and shown.evaluate("image => image.naturalWidth") > 0
    assert opened.page.locator(".card").first.inner_text().startswith("10% sure")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_is_wider_than_the_screen(chromium: Any, page_file: Path, width: int, scheme: str) -> None:
    opened = Opened(chromium, page_file, viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    spilled = "cells => cells.filter(cell => cell.scrollWidth > cell.clientWidth + 1).map(cell => cell.textContent)"
    assert opened.page.eval_on_selector_all("td, th, li > div, .card, figcaption", spilled) == []
    ink, paper = (
        opened.page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("color", "backgroundColor")
    )
    assert ink != paper


def test_labels_of_a_histogram_do_not_cover_each_other(chromium: Any, page_file: Path) -> None:
    opened = Opened(chromium, page_file)
    covered = opened.page.evaluate(
        """() => [...document.querySelectorAll('#measures svg')].flatMap(svg => {
          const boxes = [...svg.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
          return boxes.flatMap(([word, a], index) => boxes.slice(index + 1).filter(([, b]) =>
            Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
            Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3).map(([other]) => svg.id + word + ' / ' + other));
        })"""
    )
    assert covered == []


def test_the_page_of_an_empty_corpus_opens(chromium: Any, tmp_path: Path) -> None:
    path = tmp_path / "empty.html"
    path.write_text(corpus_report(Sample(tmp_path / "store").catalog(), CORPUS), encoding="utf-8")
    opened = Opened(chromium, path)
    assert opened.complaints == []
    assert opened.page.get_by_text("No file was found").first.is_visible()
