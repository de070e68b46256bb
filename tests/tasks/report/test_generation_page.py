"""The page of a generation: what it says, that no text of a prompt takes effect, and how it looks in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browsing import Opened
from generation_page_samples import HOSTILE, rich
from html_tags import sections_of

from tasks.report.completions import generation_page, text_pieces
from tasks.report.queries import Row
from tasks.tokens.tokenizer import learn_merges
from tasks.tokens.tokenizer_kinds import AsciiTokenizer


def test_every_token_is_shaded_by_how_likely_it_was() -> None:
    page, _ = generation_page(rich(), "fold")
    assert '<i class="shade-0" title="95.12%, -0.05 nats; most likely: ' in page
    assert '<i class="shade-4" title="0.18%, -6.30 nats; most likely: ' in page


def test_the_page_says_how_a_completion_is_traced() -> None:
    shown = [Row(**vars(rich().shown[0]) | {"id": "p7", "sample": 2})]
    figures = Row(**vars(rich()) | {"key": "ab" * 32, "shown": shown})
    assert "<code>sheepfold why abababababab/p7#2</code>" in generation_page(figures, "fold")[0]


def test_no_text_of_a_prompt_or_a_completion_takes_effect() -> None:
    page, _ = generation_page(rich(), HOSTILE[:20])
    assert "<img" not in page
    assert "<script" not in page
    assert "\u202e" not in page
    assert "\0" not in page


def test_a_generation_of_nothing_has_a_page() -> None:
    empty = {"prompts": 0, "endings": {}, "tokens": 0, "n_errors": 0, "errors": [], "shown": [], "settings": {}}
    page, _ = generation_page(Row(**vars(rich()) | empty), "fold")
    assert "No prompt was completed." in page
    assert "None: every prompt was completed." in page


def test_the_summary_says_what_came_of_the_prompts_and_quotes_none() -> None:
    figures = rich()
    _, text = generation_page(figures, "fold")
    assert text.startswith("107 completions of 105 prompts, ")
    assert "; 2 prompts could not be completed." in text
    assert "| Completions | 107 |" in text
    quoted = [words for item in figures.shown for words in (item.prompt, "".join(piece.text for piece in item.pieces))]
    assert [words for words in quoted if words.strip() and words in text] == []
    assert "<img" not in text.replace("\\<img", "")


def test_pieces_are_the_text_with_its_log_probabilities() -> None:
    tokenizer = AsciiTokenizer()
    ids = tokenizer.encode(["fold"])[0].tolist()
    pieces = text_pieces(tokenizer, "the ", ids, [-1.0, -2.0, -3.0, -4.0], length=3)
    assert [(piece.text, piece.logprob) for piece in pieces] == [("f", -1.0), ("o", -2.0), ("l", -3.0), ("", -4.0)]


def test_tokens_that_share_a_character_are_one_piece() -> None:
    tokenizer = learn_merges(["x"], 260)  # a byte is a token
    ids = tokenizer.encode(["a€b"])[0].tolist()
    pieces = text_pieces(tokenizer, "", ids, [-1.0, -0.5, -0.5, -0.5, -2.0])
    assert [(piece.text, piece.logprob) for piece in pieces] == [("a", -1.0), ("€", -1.5), ("b", -2.0)]


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "generation.html"
    path.write_text(generation_page(rich(), "fold")[0], encoding="utf-8")
    return path


@pytest.mark.full
@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_the_page_opens_alone_fits_the_screen_and_can_be_read(
    chromium: Any, page_file: Path, width: int, scheme: str
) -> None:
    opened = Opened(chromium, page_file, viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert (opened.complaints, opened.foreign) == ([], [])
    for name in sections_of(page_file.read_text(encoding="utf-8")):
        assert opened.page.locator(f"#{name}").is_visible()
    assert opened.page.evaluate("window.hit") is None
    assert opened.spilled("td, th, dd, li > div, .text, .head") == []
    assert opened.outside() == []
    assert opened.faint() == []
