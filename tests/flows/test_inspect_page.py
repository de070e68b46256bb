"""The inspection page in a real browser: it opens alone, its choices change the picture, no prompt breaks it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browsing import Opened, page_in

from tasks.report.inspection import Subject, inspect_prompt
from tasks.report.inspection_page import to_html

pytestmark = [pytest.mark.full, pytest.mark.browser]
HOSTILE = "<script>window.hit=1</script>\x00\u202e<img src=x onerror=hit=1> &amp; '\"\n"


def open_page(chromium: Any, folder: Path, prompt: str, preset: str = "tiny", **context: Any) -> Opened:
    """The page of a prompt."""
    path = page_in(folder, lambda _: to_html(inspect_prompt(Subject.untrained(preset, 0), prompt)))
    return Opened(chromium, path, **context)


def fill(opened: Opened) -> list[str]:
    """Ink of the attention map's cells."""
    found: list[str] = opened.page.eval_on_selector_all(
        "#attention-map .cell", "cells => cells.map(c => c.style.getPropertyValue('--share'))"
    )
    return found


def test_the_page_opens_without_complaint_or_request_and_has_all_sections(chromium: Any, tmp_path: Path) -> None:
    opened = open_page(chromium, tmp_path, "Hello World")
    assert opened.complaints == []
    assert opened.foreign == []
    for name in opened.page.eval_on_selector_all("nav a", "links => links.map(link => link.hash.slice(1))"):
        assert opened.page.locator(f"#{name}").is_visible()
        assert opened.page.locator(f"#{name} h2").count() == 1


def test_another_layer_or_head_changes_the_map_its_words_and_its_table(chromium: Any, tmp_path: Path) -> None:
    opened = open_page(chromium, tmp_path, "Hello World")
    first, words = fill(opened), opened.page.locator("#attention-status").inner_text()
    numbers = opened.page.locator("#attention-map").text_content()
    opened.page.select_option("#layer", index=1)
    second = fill(opened)
    assert second != first
    assert opened.page.locator("#attention-status").inner_text() != words
    assert opened.page.locator("#attention-map").text_content() != numbers
    opened.page.get_by_role("button", name="Show layer 1, head 2").click()
    assert opened.page.locator("#head").input_value() == "1"
    assert fill(opened) not in (first, second)
    opened.page.get_by_role("button", name="Show layer 1, head 1").click()
    assert fill(opened) == first


def test_value_classes_leave_at_most_six_shades(chromium: Any, tmp_path: Path) -> None:
    opened = open_page(chromium, tmp_path, "Hello World")
    assert not opened.page.locator("#bin-legend").is_visible()
    opened.page.check("#bins")
    assert opened.page.locator("#bin-legend").is_visible()
    assert 1 < len(set(fill(opened))) <= 6


def test_another_token_changes_what_comes_next_and_its_state(chromium: Any, tmp_path: Path) -> None:
    opened = open_page(chromium, tmp_path, "Hello World")
    before = [opened.page.locator(place).inner_html() for place in ("#probabilities", "#logits", "#dimensions")]
    opened.page.locator("#next .chip").first.click()
    after = [opened.page.locator(place).inner_html() for place in ("#probabilities", "#logits", "#dimensions")]
    assert all(old != new for old, new in zip(before, after, strict=True))
    assert "marks the actual next token" in opened.page.locator("#next-status").inner_text()


def test_without_scripts_the_first_head_and_the_last_token_are_shown(chromium: Any, tmp_path: Path) -> None:
    scripted = open_page(chromium, tmp_path, "Hello World")
    plain = open_page(chromium, tmp_path, "Hello World", java_script_enabled=False)
    assert plain.page.locator("#probabilities .token").all_inner_texts() == (
        scripted.page.locator("#probabilities .token").all_inner_texts()
    )
    assert [float(ink) for ink in fill(scripted)] == pytest.approx(
        [
            float(cell.get_attribute("style").partition(":")[2])
            for cell in plain.page.locator("#attention-map .cell").all()
        ],
        abs=0.002,
    )


def test_a_hostile_prompt_is_only_text(chromium: Any, tmp_path: Path) -> None:
    opened = open_page(chromium, tmp_path, HOSTILE)
    assert opened.complaints == []
    assert opened.page.evaluate("window.hit") is None
    assert opened.page.locator("main img").count() == 0
    shown = opened.page.locator(".prompt").inner_text()
    assert shown.startswith("<script>window.hit=1</script>\\x00<U+202E><img")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_is_wider_than_the_screen(chromium: Any, tmp_path: Path, width: int, scheme: str) -> None:
    opened = open_page(
        chromium,
        tmp_path,
        "a prompt of sixty tokens " * 2 + "and a bit",
        viewport={"width": width, "height": 800},
        color_scheme=scheme,
    )
    assert opened.spilled("td, th") == []
    ink, paper = (
        opened.page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("color", "backgroundColor")
    )
    assert ink != paper


def test_every_label_of_a_diagram_fits_its_box(chromium: Any, tmp_path: Path) -> None:
    opened = open_page(chromium, tmp_path, "Hello", "sheepop")
    opened.page.evaluate("document.querySelectorAll('#diagrams details').forEach(part => part.open = true)")
    assert opened.page.locator("#diagrams *").count() > 100
    assert opened.spilled("#diagrams span, #diagrams div, #diagrams p, #diagrams li") == []


@pytest.mark.parametrize("prompt", ["Hello World", "the quick brown fox jumps over the lazy dog again"])
def test_labels_of_a_chart_do_not_cover_each_other(chromium: Any, tmp_path: Path, prompt: str) -> None:
    opened = open_page(chromium, tmp_path, prompt)
    covered = opened.page.evaluate(
        """() => ['#plane-0', '#plane-1', '#attention-map', '#mask', '#increments'].flatMap(name => {
          const boxes = [...document.querySelectorAll(name + ' .token')].map(text =>
            [text.textContent, text.getBoundingClientRect()]);
          return boxes.flatMap(([word, a], index) => boxes.slice(index + 1).filter(([, b]) =>
            Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2 &&
            Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4).map(([other]) => name + word + ' / ' + other));
        })"""
    )
    assert covered == []
