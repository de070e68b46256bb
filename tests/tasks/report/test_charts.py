"""Charts: nothing that happened is hidden, whatever the values, and words stay words."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.report.charts import SIDE, Layer, Mark, Series, bar_figure, line_figure


def line_chart(*values: float, **more: Any) -> str:
    """One series over the steps 1, 2, ..."""
    return line_figure("p", "Loss", "a note", [Series("loss", range(1, len(values) + 1), values)], **more)


def paths(markup: str, class_: str = r"line line-\d( pale)?") -> list[list[tuple[float, float]]]:
    """Points of the lines."""
    found = re.findall(rf'<path d="M([^"]*)" class="{class_}"', markup)
    drawn = [one if isinstance(one, str) else one[0] for one in found]
    return [[tuple(map(float, point.split())) for point in one.split("L")] for one in drawn]  # type: ignore[misc]


def dots(markup: str) -> int:
    return markup.count('class="knot')


def test_a_spike_of_one_step_among_a_hundred_thousand_is_drawn() -> None:
    values = [2.0] * 100_000
    values[54_321] = 9.0
    drawn = line_chart(*values)
    (points,) = paths(drawn)
    assert len(points) < SIDE, "few enough for a page"
    heights = [y for _, y in points]
    assert min(heights) < min(sorted(heights)[1:]) - 50, "one point stands far above all others"


def test_what_is_no_number_breaks_the_line_and_is_told() -> None:
    drawn = line_chart(3, 2, math.nan, 2, 1, math.inf, 5)
    assert [len(points) for points in paths(drawn)] == [2, 2]
    assert dots(drawn) == 5, "a value between gaps is a dot"
    assert "2 values not finite" in drawn


def test_gaps_do_not_make_the_drawing_grow() -> None:
    values = [1.0, math.nan] * 50_000
    assert len(line_chart(*values)) < 200_000


@pytest.mark.parametrize("values", [(), (math.nan,), (math.inf, -math.inf)])
def test_nothing_to_draw_is_said_in_words(values: tuple[float, ...]) -> None:
    drawn = line_chart(*values)
    assert "value" in drawn and "<path" not in drawn


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(), max_size=30))
def test_any_values_can_be_drawn_within_the_drawing(values: list[float]) -> None:
    for points in paths(line_chart(*values)):
        assert all(-1 <= x <= SIDE + 1 and -1 <= y <= SIDE + 1 for x, y in points)


def test_a_pointer_finds_the_values_of_all_lines() -> None:
    series = [Series("training", [1, 2, 3], [5, 4, 3]), Series("validation", [2], [4.5])]
    body = line_figure("p", "Loss", "", series)
    assert 'title="training 4 at step 2; validation 4.5 at step 2"' in body
    assert 'title="training 3 at step 3"' in body


def test_the_words_of_a_drawing_tell_its_course() -> None:
    words = line_chart(5, 1, 2)
    assert "3 values, first 5 at 1, last 2 at 3, lowest 1 at 2, highest 5 at 1" in words


def test_marks_are_lines_with_words_and_those_beyond_the_steps_are_left_out() -> None:
    marks = [Mark(3, "<resumed>"), Mark(90, "later")]
    drawn = line_chart(*range(10), marks=marks)
    assert drawn.count('class="mark"') == 1
    assert 'title="&lt;resumed&gt;, at 3"' in drawn


def test_names_and_words_are_only_text() -> None:
    hostile = "</svg><script>1</script>"
    series = [Series(hostile, [1, 2], [1, 2]), Series("b", [1], [1])]
    drawn = line_figure("p", hostile, hostile, series, [Mark(1, hostile)], over=hostile)
    assert "<script" not in drawn and drawn.count("</svg>") == 3, "two of the legend, one chart"


def bars(*counts: int) -> str:
    """A histogram with edges 0, 1, 2, ..."""
    layers = [Layer("kept", "tone-ink", counts), Layer("dropped", "tone-contrary", [1] + [0] * (len(counts) - 1))]
    return bar_figure("b", "Lengths", "a note", list(range(len(counts) + 1)), layers)


def test_a_bin_with_a_single_value_beside_a_million_is_seen() -> None:
    drawn = bars(1_000_000, 1, 0)
    assert drawn.count('class="tone-ink"') == 2, "the style sheet gives each a pixel at least"
    assert 'title="between 1 and 2: 1 kept, 0 dropped"' in drawn
    assert "1,000,002 values; the fullest bin is between 0 and 1" in drawn


def test_bars_of_nothing_say_so() -> None:
    nothing = bar_figure("b", "Lengths", "", [0, 1], [Layer("kept", "tone-ink", [0])])
    assert "No value was recorded." in nothing


def test_bars_over_powers_of_ten_have_powers_as_ticks() -> None:
    edges = [10 ** (place / 4) for place in range(4, 21)]
    drawn = bar_figure("b", "Lengths", "", edges, [Layer("kept", "tone-ink", [5] * 16)], log=True)
    assert all(f">{tick}</span>" in drawn for tick in ("10", "100", "1k", "10k", "100k"))


def test_names_of_bars_are_only_text() -> None:
    hostile = "</svg><script>1</script>"
    drawn = bar_figure("p", hostile, hostile, [0, 1], [Layer(hostile, "tone-ink", [1])])
    assert "<script" not in drawn and "</svg>" not in drawn
