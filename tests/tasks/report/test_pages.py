"""Parts shared by all pages: rounded numbers, and escaped words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from markupsafe import Markup

from tasks.report import page
from tasks.report.page import notices_of
from tasks.report.wording import lines, plain, share, shown


@pytest.mark.parametrize(("part", "words"), [(0, "0 %"), (1, "< 0.1 %"), (9_999, "> 99 %"), (10_000, "100 %")])
def test_shares_do_not_round_to_all_or_nothing(part: int, words: str) -> None:
    assert share(part, 10_000) == words


def test_markup_in_words_takes_no_effect_in_markdown() -> None:
    assert plain("<b>|*x*_y_`z`[a](b)#!&~\n") == r"\<b\>\|\*x\*\_y\_\`z\`\[a\](b)\#\!\&\~⏎"


def test_long_words_are_cut_before_they_are_escaped() -> None:
    assert plain("*" * 500, 10) == r"\*" * 9 + "…"


def test_warnings_come_by_severity(monkeypatch: pytest.MonkeyPatch) -> None:
    def render(template: str, notice: Callable[..., None]) -> None:
        notice("note", "a", "good <i>", "", 9)
        notice("lost", "b", "gone", "look", 1, "\u202epath")
        notice("lost", "b", "more gone", "", 2)

    monkeypatch.setattr(page, "render", render)
    assert [notice.title for notice in notices_of("notices.html")] == ["more gone", "gone", "good <i>"]


def test_what_a_template_prints_is_escaped_and_what_hides_or_reorders_words_is_a_sign() -> None:
    assert shown("</title>\u202e\x00") == "&lt;/title&gt;&lt;U+202E&gt;\\x00"
    assert lines("<a>\n\u200bb") == "&lt;a&gt;\n&lt;U+200B&gt;b"
    assert shown(Markup("<b>")) == "<b>"
