"""What the pages share: a frame, numbers that do not lie by rounding, words that are only words, drawings, joins."""

from __future__ import annotations

import re

import duckdb
import pytest
from html_tags import Tags, assert_alone

from tasks.inspection.layout import section
from tasks.pages.charts import Layer, Part, Plot, histogram, histogram_figure, legend, whole_bar
from tasks.pages.frame import report_page
from tasks.pages.joins import Join, join_in_steps
from tasks.pages.markdown import plain, table
from tasks.pages.wording import percent, share
from tasks.pages.worries import Worry, look_first, ordered, worry_list


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


def test_a_table_has_a_line_for_its_head_one_for_its_columns_and_one_for_each_row() -> None:
    assert table(["name", "n"], [["a", "1"], ["b", "2"]]) == ["| name | n |", "|---|---:|", "| a | 1 |", "| b | 2 |"]


def test_a_bar_of_a_whole_says_every_part_in_words() -> None:
    drawn = whole_bar([Part("kept", "read", 3), Part("cut", "<lost>", 1, "25 kB")], "what became of it")
    assert re.findall(r"<b>([^<]*)</b> <small>([^<]*)</small>", drawn) == [("3", "75 %"), ("1", "25 % · 25 kB")]
    assert "&lt;lost&gt;" in drawn and "<lost>" not in drawn


def test_layers_of_a_histogram_stand_on_each_other() -> None:
    layers = [Layer("kept", "ink", [4, 0]), Layer("dropped", "dropped-ink", [4, 1])]
    drawn = histogram(Plot("name", "title", "note", [0, 1, 2], layers)).body
    bars = [
        (class_, float(y), float(height))
        for y, height, class_ in re.findall(r'y="([\d.]+)" width="[\d.]+" height="([\d.]+)" class="(\S*ink)"', drawn)
    ]
    assert bars == [("ink", 72.0, 56.0), ("dropped-ink", 16.0, 56.0), ("dropped-ink", 114.0, 14.0)]
    assert "0 to 1: 4 kept, 4 dropped" in drawn


def test_joins_in_steps_give_what_one_join_gives() -> None:
    with duckdb.connect(":memory:") as connection:
        connection.execute("create table one as select * from (values ('a', 1), ('b', 2)) t(doc_id, n)")
        connection.execute("create table two as select * from (values ('a', 10), ('c', 30)) t(doc_id, n)")
        joins = [Join("two", "two.n as other"), Join("one o", "o.n as again", "coalesce(d.other, o.n) as other")]
        join_in_steps(connection, "wide", "select doc_id, n from one", joins)
        found = connection.execute("select * from wide order by doc_id").fetchall()
        assert found == [("a", 1, 10, 1), ("b", 2, 2, 2)]
        assert connection.execute("select count(*) from information_schema.tables").fetchall() == [(3,)]


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


def test_a_page_of_its_own_style_has_it_after_the_shared_one() -> None:
    page = framed(style=".mine { color: red; }")
    assert page.index(".fates {") < page.index(".mine {")


def test_between_facts_and_links_stands_what_gives_an_overview() -> None:
    page = framed(overview="<b>bar</b>")
    assert page.index("</dl>") < page.index('<div class="overview"><b>bar</b></div>') < page.index("<nav")
    assert 'overview">' not in framed()


@pytest.mark.parametrize("names", [{"first": "One"}, {**NAMES, "third": "Three"}])
def test_a_section_without_a_link_and_a_link_without_a_section_are_refused(names: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"no name for the link to it: (second|third)$"):
        framed(names=names)


def test_a_page_begins_with_what_to_look_at_or_says_that_there_is_nothing() -> None:
    worry = Worry("check", 1, "odd", "", "", "first")
    assert "odd" in look_first("w", [worry], "why", "nothing") and "nothing" not in look_first(
        "w", [worry], "", "nothing"
    )
    assert "<p>nothing &amp; no more</p>" in look_first("w", [], "why", "nothing & no more")


def test_a_histogram_has_its_title_and_colours_their_names() -> None:
    drawn = histogram_figure(Plot("name", "a < b", "the note", [0, 1, 2], [Layer("kept", "ink", [4, 0])]))
    assert "<h3>a &lt; b</h3>" in drawn and "the note" in drawn
    assert re.findall(r"<i( class=\"contrary\")?></i>(\w+)", legend({"": "kept", "contrary": "lost"})) == [
        ("", "kept"), (' class="contrary"', "lost")
    ]  # fmt: skip
