"""The report of a corpus in a real browser: bars in proportion, histograms, pictures, names that are only names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browsing import Opened, page_in
from corpus_report_samples import CORPUS, Sample
from report_pages import corpus

from tasks.report.corpus import collect, corpus_page

pytestmark = [pytest.mark.full, pytest.mark.browser]


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a corpus with something in every section, one picture among it."""
    return page_in(tmp_path_factory.mktemp("report"), corpus)


def test_the_name_of_a_file_is_seen_as_it_is(chromium: Any, page_file: Path) -> None:
    opened = Opened(chromium, page_file)
    assert opened.page.locator("main img").count() == 0
    assert "<img src=x onerror=hit=1>" in opened.page.locator("#files").inner_text()


def test_the_bar_of_all_files_is_drawn_in_proportion(chromium: Any, page_file: Path) -> None:
    opened = Opened(chromium, page_file)
    widths = opened.page.eval_on_selector_all(".whole i", "parts => parts.map(p => p.getBoundingClientRect().width)")
    whole = opened.page.locator(".whole").bounding_box()["width"]
    assert sum(widths) == pytest.approx(whole, abs=len(widths))
    kept, failed = (
        opened.page.locator(f".whole .{name}").bounding_box()["width"] for name in ("tone-ink", "tone-contrary")
    )
    assert kept / failed == pytest.approx(4, rel=0.1)


def test_histograms_have_a_bar_for_every_layer_of_a_bin(chromium: Any, page_file: Path) -> None:
    opened = Opened(chromium, page_file)
    bars = [opened.page.locator(f"#histogram-n-chars .{name}").count() for name in ("tone-ink", "tone-contrary")]
    assert bars == [2, 2], "hundred and hundred thousand characters; three and a hundred of those that were dropped"


def test_the_page_of_an_empty_corpus_opens(chromium: Any, tmp_path: Path) -> None:
    opened = Opened(
        chromium, page_in(tmp_path, lambda folder: corpus_page(collect(Sample(folder).catalog()), CORPUS)[0])
    )
    assert opened.complaints == []
    assert opened.page.get_by_text("No file was found").first.is_visible()
