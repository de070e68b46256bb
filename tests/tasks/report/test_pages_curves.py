"""Line charts: nothing that happened is hidden, whatever the values; scales end in round numbers."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.report.curves import (
    NARROW,
    LinePlot,
    Mark,
    Series,
    line_chart,
    line_figure,
)
from tasks.report.ticks import exact, rounded_step, scale_of, short

NUMBER = r"[-\d.]+"


def plot(*values: float, **more: object) -> LinePlot:
    """One series over the steps 1, 2, ..."""
    return LinePlot("p", "Loss", "a note", [Series("loss", range(1, len(values) + 1), values)], **more)  # type: ignore[arg-type]


def paths(markup: str, class_: str = r"line line-\d( pale)?") -> list[list[tuple[float, float]]]:
    """Points of the lines."""
    found = re.findall(rf'<path d="M([^"]*)" class="{class_}"', markup)
    drawn = [one if isinstance(one, str) else one[0] for one in found]
    return [[tuple(map(float, point.split())) for point in one.split("L")] for one in drawn]  # type: ignore[misc]


def dots(markup: str) -> int:
    return markup.count('class="knot')


@pytest.mark.parametrize("log", [False, True])
def test_a_spike_of_one_step_among_a_hundred_thousand_is_drawn(log: bool) -> None:
    values = [2.0] * 100_000
    values[54_321] = 9.0
    drawn = line_chart(plot(*values, log=log))
    (points,) = paths(drawn.body)
    assert len(points) < 4 * NARROW, "few enough for a page"
    heights = [y for _, y in points]
    assert min(heights) < min(sorted(heights)[1:]) - 50, "one point stands far above all others"


def test_what_is_no_number_breaks_the_line_and_is_told() -> None:
    drawn = line_chart(plot(3, 2, math.nan, 2, 1, math.inf, 5))
    assert [len(points) for points in paths(drawn.body)] == [2, 2]
    assert dots(drawn.body) == 5, "a value between gaps is a dot"
    assert "2 values that cannot be drawn" in drawn.description


def test_gaps_do_not_make_the_drawing_grow() -> None:
    values = [1.0, math.nan] * 50_000
    assert len(line_chart(plot(*values)).body) < 200_000


def test_zero_and_less_have_no_place_on_a_logarithmic_axis() -> None:
    drawn = line_chart(plot(100, 0, -1, 10, log=True))
    assert "2 values that cannot be drawn" in drawn.description
    assert "logarithmic" in drawn.body


@pytest.mark.parametrize("values", [(), (math.nan,), (math.inf, -math.inf)])
def test_nothing_to_draw_is_said_in_words(values: tuple[float, ...]) -> None:
    drawn = line_chart(plot(*values))
    assert "value" in drawn.body and "<path" not in drawn.body


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(), max_size=30), st.booleans())
def test_any_values_can_be_drawn_within_the_drawing(values: list[float], log: bool) -> None:
    drawn = line_chart(plot(*values, log=log))
    assert "nan" not in re.sub(r"<title>[^<]*</title>", "", drawn.body)
    for points in paths(drawn.body):
        assert all(-1 <= x <= drawn.width + 1 and -1 <= y <= drawn.height + 1 for x, y in points)


def test_a_pointer_finds_the_values_of_all_lines() -> None:
    series = [Series("training", [1, 2, 3], [5, 4, 3]), Series("validation", [2], [4.5])]
    body = line_chart(LinePlot("p", "Loss", "", series)).body
    assert "<title>training 4 at step 2; validation 4.5 at step 2</title>" in body
    assert "<title>training 3 at step 3</title>" in body


def test_the_words_of_a_drawing_tell_its_course() -> None:
    words = line_chart(plot(5, 1, 2)).description
    assert "3 values, 5 at step 1, 2 at 3, lowest 1 at 2, highest 5 at 1" in words


def test_marks_are_lines_with_words_and_those_beyond_the_steps_are_left_out() -> None:
    marks = [Mark(3, "<resumed>"), Mark(90, "later")]
    drawn = line_chart(plot(*range(10), marks=marks))
    assert drawn.body.count('class="mark"') == 1
    assert "<title>&lt;resumed&gt;, at 3</title>" in drawn.body
    assert "later at step 90" in drawn.description


def test_names_and_words_are_only_text() -> None:
    hostile = "</svg><script>1</script>"
    series = [Series(hostile, [1, 2], [1, 2]), Series("b", [1], [1])]
    drawn = line_figure(LinePlot("p", hostile, hostile, series, [Mark(1, hostile)], over=hostile))
    assert "<script" not in drawn and drawn.count("</svg>") == 3, "two of the legend, one chart"


@pytest.mark.parametrize(
    ("values", "intervals", "ticks"),
    [
        ([0, 10], 5, [0, 2, 4, 6, 8, 10]),
        ([0.02, 0.29], 3, [0, 0.1, 0.2, 0.3]),
        ([-3, 4], 4, [-4, -2, 0, 2, 4]),
        ([7, 7], 2, [6, 7, 8]),
        ([0, 0], 2, [0, 0.5, 1]),
    ],
)
def test_ticks_are_round_numbers_around_all_values(values: list[float], intervals: int, ticks: list[float]) -> None:
    assert list(scale_of(values, intervals).ticks) == ticks


def test_numbers_are_short_but_not_wrong() -> None:
    assert [short(value) for value in (-0.00031, 3e-05, 1234.56, -2e120, 0.1)] == [
        "−0.00031", "3e-5".replace("-", "−"), "1235", "−2e120", "0.1"
    ]  # fmt: skip
    assert [rounded_step(step) for step in (0, 9500, 10_250, 1_250_000)] == ["0", "9,500", "10.25k", "1.25M"]
    assert [exact(step) for step in (1000.0, 0.5)] == ["1,000", "0.5"]
