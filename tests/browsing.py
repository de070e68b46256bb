"""Pages of ours in a headless browser, with all that they complained of and asked for."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def headless_chromium() -> Iterator[Any]:
    """A browser for as long as the context lasts; skips where there is none."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium: install it to look at the pages (apt install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
        chromium = playwright.chromium.launch(executable_path=program, args=flags)
        yield chromium
        chromium.close()


def page_in(folder: Path, draw: Callable[[Path], str]) -> Path:
    """The file of a page.

    Args:
        draw: makes its text; it may write into the folder.
    """
    path = folder / "page.html"
    path.write_text(draw(folder), encoding="utf-8")
    return path


class Opened:
    """A page that was opened from a file.

    Attributes:
        page: the page itself.
        width: of the window, in pixels.
        complaints: what it wrote to the console, and its errors.
        foreign: addresses it asked for beside its own and what it holds itself.
    """

    def __init__(self, browser: Any, path: Path, **context: Any) -> None:
        self.page = browser.new_context(**context).new_page()
        self.width = self.page.viewport_size["width"]
        self.complaints: list[str] = []
        self._requests: list[str] = []
        self._own = path.as_uri()
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self._requests.append(request.url))
        self.page.goto(self._own)

    @property
    def foreign(self) -> list[str]:
        return [url for url in self._requests if url != self._own and not url.startswith("data:")]

    def spilled(self, places: str = "td, th, li, li > div, figcaption, .card, .sample") -> list[str]:
        """Texts of the elements that are wider than their place, and of the page if it is wider than the window."""
        script = "all => all.filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.textContent)"
        found: list[str] = self.page.eval_on_selector_all(places, script)
        wide: int = self.page.evaluate("document.documentElement.scrollWidth")
        return found + ([f"the page is {wide} pixels wide"] if wide > self.width else [])

    def outside(self) -> list[str]:
        """Parts of drawings that stand beyond their drawing's edge."""
        found: list[str] = self.page.evaluate(_OUTSIDE)
        return found

    def covered(self) -> list[str]:
        """Pairs of labels of one drawing that cover each other."""
        found: list[str] = self.page.evaluate(_COVERED)
        return found

    def faint(self, least: float = 4.5) -> list[str]:
        """Words that are hard to read: by default, with less contrast than WCAG 2.2 (AA) asks of text."""
        found: list[str] = self.page.evaluate(_FAINT, least)
        return found


_OUTSIDE = """() => [...document.querySelectorAll('svg[id]')].filter(svg => svg.checkVisibility()).flatMap(svg => {
  const edge = svg.viewBox.baseVal;
  return [...svg.querySelectorAll('text, rect, path, circle')].filter(part => {
    const box = part.getBBox(), right = box.x + box.width, bottom = box.y + box.height;
    return box.x < -1 || box.y < -2 || right > edge.width + 1 || bottom > edge.height + 1;
  }).map(part => svg.id + ': ' + part.tagName + ' ' + part.textContent);
})"""

_COVERED = """() => [...document.querySelectorAll('svg[id]')].filter(svg => svg.checkVisibility()).flatMap(svg => {
  const boxes = [...svg.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
  return boxes.flatMap(([word, a], index) => boxes.slice(index + 1).filter(([, b]) =>
    Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3).map(([other]) => svg.id + ': ' + word + ' / ' + other));
})"""

_FAINT = """least => {
  const parts = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(value => value / 255)
    .map(share => share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4)
    .reduce((sum, value, place) => sum + value * [0.2126, 0.7152, 0.0722][place], 0);
  const paper = element => {
    for (; element; element = element.parentElement) {
      const [r, g, b, opacity = 1] = parts(getComputedStyle(element).backgroundColor);
      if (opacity > 0.99) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const found = new Set();
  const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (words.nextNode()) {
    const text = words.currentNode.textContent.trim(), element = words.currentNode.parentElement;
    if (!text || !element.checkVisibility() || element.closest('title, desc')) continue;
    const style = getComputedStyle(element);
    const ink = light(parts(element.closest('svg') ? style.fill : style.color)), under = light(paper(element));
    const contrast = (Math.max(ink, under) + 0.05) / (Math.min(ink, under) + 0.05);
    const place = `${element.tagName} ${element.getAttribute('class')}`;
    if (contrast < least) found.add(`${contrast.toFixed(2)} in ${place}: ${text.slice(0, 40)}`);
  }
  return [...found];
}"""
