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


def test_the_page_opens_without_complaint_or_request_has_all_sections_and_runs_nothing_of_a_name_or_a_text(
    chromium: Any, page_file: Path
) -> None:
    opened = Opened(chromium, page_file)
    assert opened.complaints == [] and opened.foreign == []
    for name in sections_of(page_file.read_text(encoding="utf-8")):
        assert opened.page.locator(f"#{name}").is_visible()
        assert opened.page.locator(f"#{name} h2").count() == 1
        assert opened.page.locator(f'nav a[href="#{name}"]').count() == 1
    assert opened.page.evaluate("window.hit") is None
    assert opened.page.locator("script").count() == 0
    assert opened.page.locator('img:not([src^="data:"])').count() == 0


def test_everything_fits_its_place_and_can_be_read_on_each_screen_and_light_is_not_dark(
    chromium: Any, page_file: Path
) -> None:
    papers = {}
    for width, scheme in SCREENS:
        opened = Opened(chromium, page_file, viewport={"width": width, "height": 800}, color_scheme=scheme)
        found = {
            "wider than its place": opened.spilled(),
            "hard to read": opened.faint(),
            "beyond its drawing": opened.outside(),
            "labels on labels": opened.covered(),
        }
        assert not any(found.values()), f"{width} pixels, {scheme}: {found}"
        papers[scheme] = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert papers["light"] != papers["dark"]
