"""The page on which a model can be tried, in a browser: what it shows, and that it fits."""

from __future__ import annotations

from typing import Any

import pytest
from test_serving import alone, bundle_at, running

from tasks.core.settings import load_settings
from tasks.serving.served import Served

pytestmark = [pytest.mark.full, pytest.mark.browser]

PROMPT = "Wool is warm"


@pytest.mark.parametrize("width", [400, 1280])
def test_a_completion_is_shown_with_its_sources_and_fits(
    chromium: Any, tmp_path_factory: pytest.TempPathFactory, width: int
) -> None:
    bundle = bundle_at(tmp_path_factory.mktemp("page") / "one", 1)
    expected = alone(bundle, PROMPT, max_new_tokens=16, temperature=0.0).text
    place = {"path": "notes/fold.txt", "doc_id": "d", "page": 3, "doc_start": 0}
    span = {"start": 0, "text": expected[:4], "documents": 1, "found_in": [place]}
    with running(bundle) as (server, address):
        usual = load_settings(None, {}).generate_with({}).sampling()
        server.current = Served("sheepfold/1", ("sheepfold",), "one", bundle, usual, lambda _: {"spans": [span]})
        page = chromium.new_context(viewport={"width": width, "height": 800}).new_page()
        complaints: list[str] = []
        asked: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        page.fill("textarea", PROMPT)
        page.fill("[name=max_tokens]", "16")
        page.fill("[name=temperature]", "0")
        page.click("#go")
        page.wait_for_selector("#sources li")
        assert page.text_content("#text") == expected
        assert page.text_content("#text mark").startswith(expected[:1])
        assert page.text_content("#sources .path") == "notes/fold.txt, page 3"
        assert all(url.startswith((address, "data:")) for url in asked)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.fill("textarea", "x" * 200)  # longer than the context
        page.click("#go")
        page.wait_for_selector("#status.failed")
        assert "the model's context holds 64" in page.text_content("#status")
        assert all("400" in text for text in complaints), complaints  # the browser tells that answer itself
