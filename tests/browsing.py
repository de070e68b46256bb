"""Pages of ours in a headless browser, with all that they complained of and asked for."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
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


class Opened:
    """A page that was opened from a file.

    Attributes:
        page: the page itself.
        complaints: what it wrote to the console, and its errors.
        foreign: addresses it asked for beside its own and what it holds itself.
    """

    def __init__(self, browser: Any, path: Path, **context: Any) -> None:
        self.page = browser.new_context(**context).new_page()
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
