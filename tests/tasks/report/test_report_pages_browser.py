"""Every report page in a real browser: it opens alone, everything is seen and can be read, nothing spills."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browsing import Opened, page_in
from html_tags import sections_of
from report_pages import REPORTS

pytestmark = [pytest.mark.full, pytest.mark.browser]
SCREENS = [(width, scheme) for width in (360, 1200) for scheme in ("light", "dark")]


@pytest.fixture(scope="module", params=REPORTS)
def page_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_in(tmp_path_factory.mktemp("report"), REPORTS[request.param])


@pytest.fixture(params=SCREENS, ids=lambda screen: f"{screen[0]}-{screen[1]}")
def opened(request: pytest.FixtureRequest, chromium: Any, page_file: Path) -> Opened:
    width, scheme = request.param
    return Opened(chromium, page_file, viewport={"width": width, "height": 800}, color_scheme=scheme)


def test_the_page_opens_without_complaint_or_request_and_has_all_sections(chromium: Any, page_file: Path) -> None:
    opened = Opened(chromium, page_file)
    assert opened.complaints == [] and opened.foreign == []
    for name in sections_of(page_file.read_text(encoding="utf-8")):
        assert opened.page.locator(f"#{name}").is_visible()
        assert opened.page.locator(f"#{name} h2").count() == 1
        assert opened.page.locator(f'nav a[href="#{name}"]').count() == 1


def test_nothing_of_a_name_or_a_text_runs(chromium: Any, page_file: Path) -> None:
    opened = Opened(chromium, page_file)
    assert opened.page.evaluate("window.hit") is None
    assert opened.page.locator("script").count() == 0
    assert opened.page.locator('img:not([src^="data:"])').count() == 0


def test_nothing_is_wider_than_its_place(opened: Opened) -> None:
    assert opened.spilled() == []


def test_all_words_can_be_read(opened: Opened) -> None:
    assert opened.faint() == []


def test_drawings_have_all_their_parts_within_and_no_label_on_another(opened: Opened) -> None:
    assert opened.outside() == []
    assert opened.covered() == []


def test_light_and_dark_are_not_the_same(chromium: Any, page_file: Path) -> None:
    papers = [
        Opened(chromium, page_file, color_scheme=scheme).page.evaluate(
            "getComputedStyle(document.body).backgroundColor"
        )
        for scheme in ("light", "dark")
    ]
    assert papers[0] != papers[1]
