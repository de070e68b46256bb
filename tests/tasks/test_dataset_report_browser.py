"""The report of a dataset in a real browser: it opens alone, every token is seen, nothing spills, no text runs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from browsing import Opened
from corpus_report_samples import CORPUS
from dataset_report_samples import rich

from tasks.dataset_report import collect_dataset, dataset_page
from tasks.dataset_report.page import SECTIONS

pytestmark = [pytest.mark.full, pytest.mark.browser]


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a dataset with something in every section."""
    folder = tmp_path_factory.mktemp("report")
    path = folder / "dataset.html"
    figures = collect_dataset(rich(folder / "store").catalog(), CORPUS)
    path.write_text(dataset_page(figures, CORPUS), encoding="utf-8")
    return path


def test_the_page_opens_without_complaint_or_request_and_has_all_sections(chromium: Any, page_file: Path) -> None:
    opened = Opened(chromium, page_file)
    assert opened.complaints == [] and opened.foreign == []
    for name in SECTIONS:
        assert opened.page.locator(f"#{name}").is_visible()
        assert opened.page.locator(f'nav a[href="#{name}"]').count() == 1


def test_no_text_runs(chromium: Any, page_file: Path) -> None:
    opened = Opened(chromium, page_file)
    assert opened.page.evaluate("window.hit") is None
    assert opened.page.locator("script").count() + opened.page.locator("img").count() == 0
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_is_wider_than_the_screen(chromium: Any, page_file: Path, width: int, scheme: str) -> None:
    opened = Opened(chromium, page_file, viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    spilled = "cells => cells.filter(cell => cell.scrollWidth > cell.clientWidth + 1).map(cell => cell.textContent)"
    assert opened.page.eval_on_selector_all("td, th, li, li > div, .sample", spilled) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_tokens_can_be_read_on_every_colour(chromium: Any, page_file: Path, scheme: str) -> None:
    opened = Opened(chromium, page_file, color_scheme=scheme)
    worst = opened.page.evaluate(
        """() => {
          const light = text => {
            const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map(value => {
              const share = value / 255;
              return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
            });
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          return Math.min(...[...document.querySelectorAll('.sample span')].map(token => {
            const style = getComputedStyle(token);
            const [ink, paper] = [light(style.color), light(style.backgroundColor)];
            return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
          }));
        }"""
    )
    assert worst >= 4.5, "the least contrast that WCAG 2.2 (AA) asks of text"
