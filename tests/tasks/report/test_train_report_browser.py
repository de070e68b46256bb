"""The report of a training in a real browser: it opens alone, nothing spills, no text runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browsing import Opened
from html_tags import sections_of
from train_report_samples import rich

from tasks.report.training import training_page

pytestmark = [pytest.mark.full, pytest.mark.browser]


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "training.html"
    path.write_text(training_page(rich(), "fold")[0], encoding="utf-8")
    return path


def test_the_page_opens_without_complaint_or_request_and_has_all_sections(chromium: Any, page_file: Path) -> None:
    opened = Opened(chromium, page_file)
    assert opened.complaints == [] and opened.foreign == []
    for name in sections_of(page_file.read_text(encoding="utf-8")):
        assert opened.page.locator(f"#{name}").is_visible()
        assert opened.page.locator(f'nav a[href="#{name}"]').count() == 1


def test_no_text_runs(chromium: Any, page_file: Path) -> None:
    opened = Opened(chromium, page_file)
    assert opened.page.evaluate("window.hit") is None
    assert opened.page.locator("script").count() + opened.page.locator("img").count() == 0
    assert "<img src=x onerror=hit=1>" in opened.page.locator("#samples").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_wider_than_the_screen(chromium: Any, page_file: Path, width: int, scheme: str) -> None:
    opened = Opened(chromium, page_file, viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    spilled = "cells => cells.filter(cell => cell.scrollWidth > cell.clientWidth + 1).map(cell => cell.textContent)"
    assert opened.page.eval_on_selector_all("td, th, dd, li > div, .prompt", spilled) == []
