"""What the pages share: a frame, numbers that do not lie by rounding, words that are only words, drawings, joins."""

from __future__ import annotations

import re

import pytest
from html_tags import Tags, assert_alone

from tasks.report.frame import report_page
from tasks.report.inspect.layout import section
from tasks.report.markdown import plain
from tasks.report.old_charts import Part, whole_bar
from tasks.report.wording import percent, share
from tasks.report.worries import Worry, ordered, worry_list


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0.00 %"), (1, "100.00 %"), (0.99999, "> 99.99 %"), (0.00001, "< 0.01 %"), (0.12345, "12.35 %")],
)
def test_what_is_not_all_is_not_written_as_all_and_what_is_not_nothing_not_as_nothing(value: float, words: str) -> None:
    assert percent(value) == words


@pytest.mark.parametrize(("part", "words"), [(0, "0 %"), (1, "< 0.1 %"), (9_999, "> 99 %"), (10_000, "100 %")])
def test_shares_do_not_round_to_all_or_nothing(part: int, words: str) -> None:
    assert share(part, 10_000) == words


def test_markup_in_words_takes_no_effect_in_markdown() -> None:
    assert plain("<b>|*x*_y_`z`[a](b)#!&~\n") == r"\<b\>\|\*x\*\_y\_\`z\`\[a\](b)\#\!\&\~⏎"


def test_long_words_are_cut_before_they_are_escaped() -> None:
    assert plain("*" * 500, 10) == r"\*" * 9 + "…"


def test_a_bar_of_a_whole_says_every_part_in_words() -> None:
    drawn = whole_bar([Part("kept", "read", 3), Part("cut", "<lost>", 1, "25 kB")], "what became of it")
    assert re.findall(r"<b>([^<]*)</b> <small>([^<]*)</small>", drawn) == [("3", "75 %"), ("1", "25 % · 25 kB")]
    assert "&lt;lost&gt;" in drawn and "<lost>" not in drawn


def test_worries_come_gravest_first_and_their_words_are_only_words() -> None:
    listed = ordered([
        Worry("note", 9, "good <i>", "", "", "a"), Worry("lost", 1, "gone", "look", "\u202epath", "b"),
        Worry("lost", 2, "more gone", "", "", "b"),
    ])  # fmt: skip
    assert [worry.title for worry in listed] == ["more gone", "gone", "good <i>"]
    drawn = worry_list(listed)
    assert "good &lt;i&gt;" in drawn and "\u202e" not in drawn and "&lt;U+202E&gt;path" in drawn


NAMES = {"first": "One <i>", "second": "Two"}
HOSTILE = "</title></style><script>hit=1</script>\u202e"


def framed(**changes: object) -> str:
    made = {
        "title": HOSTILE, "lead": HOSTILE, "facts": {HOSTILE: HOSTILE}, "names": NAMES,
        "sections": {name: section(name, "A", "", f"<p>{name}</p>") for name in ("second", "first")},
    }  # fmt: skip
    return report_page(**{**made, **changes})  # type: ignore[arg-type]


def test_a_page_stands_alone_whatever_its_words() -> None:
    page = framed(footer=HOSTILE)
    assert_alone(page, NAMES)
    assert "\u202e" not in page
    assert "".join(Tags(page).words).count("<script>hit=1</script><U+202E>") >= 5


def test_sections_stand_in_the_order_of_their_links() -> None:
    page = framed()
    assert page.index("<p>first</p>") < page.index("<p>second</p>")
    assert re.findall(r'<a href="#(\w+)">([^<]*)</a>', page) == [("first", "One &lt;i&gt;"), ("second", "Two")]
    assert 'class="skip" href="#first"' in page


@pytest.mark.parametrize("names", [{"first": "One"}, {**NAMES, "third": "Three"}])
def test_a_section_without_a_link_and_a_link_without_a_section_are_refused(names: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"no name for the link to it: (second|third)$"):
        framed(names=names)
