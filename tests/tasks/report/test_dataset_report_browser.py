"""The report of a dataset in a real browser: every token is seen, in its order and apart from its neighbours."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from browsing import Opened, page_in
from report_pages import dataset

pytestmark = [pytest.mark.full, pytest.mark.browser]


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a dataset with something in every section."""
    return page_in(tmp_path_factory.mktemp("report"), dataset)


def test_the_name_of_a_source_is_seen_as_it_is(chromium: Any, page_file: Path) -> None:
    opened = Opened(chromium, page_file)
    assert "<img src=x onerror=hit=1>" in opened.page.locator("#tokens").inner_text()


def test_neighbouring_tokens_have_different_colours(chromium: Any, page_file: Path) -> None:
    opened = Opened(chromium, page_file)
    colours = opened.page.eval_on_selector_all(
        ".sample:first-of-type span", "tokens => tokens.map(t => getComputedStyle(t).backgroundColor)"
    )
    assert len(colours) > 30
    assert all(one != other for one, other in pairwise(colours))


def test_tokens_follow_one_another_whatever_their_script(chromium: Any, page_file: Path) -> None:
    opened = Opened(chromium, page_file)
    turned = opened.page.evaluate(
        """() => [...document.querySelectorAll('.sample')].flatMap(sample => {
          const tokens = [...sample.querySelectorAll('span')].filter(token => token.getClientRects().length == 1);
          return tokens.slice(1).filter((token, index) => {
            const here = token.getBoundingClientRect(), before = tokens[index].getBoundingClientRect();
            return Math.abs(here.top - before.top) < 2 && here.left < before.left;
          }).map(token => token.textContent);
        })"""
    )
    assert turned == []
