"""Line charts: nothing that happened is hidden, whatever the values; scales end in round numbers."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.pages.curves import (
    NARROW,
    STYLES,
    TALL,
    WIDE,
    LinePlot,
    Mark,
    Series,
    line_chart,
    line_figure,
    smooth,
)
from tasks.pages.ticks import exact, rounded_step, scale_of, short, steps_between

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


def test_a_line_goes_from_left_to_right_and_falls_where_values_do() -> None:
    (points,) = paths(line_chart(plot(4, 3, 2, 1)).body)
    assert len(points) == 4
    assert all(one[0] < other[0] and one[1] < other[1] for one, other in pairwise(points)), "y grows downwards"


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


def test_a_value_alone_between_gaps_is_seen_in_a_long_series_too() -> None:
    values = [math.nan] * 1000
    values[500] = 1.0
    assert dots(line_chart(plot(*values)).body) == 1


def test_gaps_do_not_make_the_drawing_grow() -> None:
    values = [1.0, math.nan] * 50_000
    assert len(line_chart(plot(*values)).body) < 200_000


def test_zero_and_less_have_no_place_on_a_logarithmic_axis() -> None:
    drawn = line_chart(plot(100, 0, -1, 10, log=True))
    assert "2 values that cannot be drawn" in drawn.description
    assert "logarithmic" in drawn.body


def test_equal_factors_are_equal_ways_on_a_logarithmic_axis() -> None:
    (points,) = paths(line_chart(plot(1000, 100, 10, 1, log=True)).body)
    ways = [other[1] - one[1] for one, other in pairwise(points)]
    assert ways == pytest.approx([ways[0]] * 3, abs=0.05)


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


def test_lines_differ_in_their_style_and_raw_values_share_that_of_their_mean() -> None:
    raw = Series("each step", [1, 2], [3, 1], pale=True)
    drawn = line_figure(LinePlot("p", "Loss", "", [raw, smooth(raw, "mean", 2), Series("validation", [2], [2])]))
    styles = re.findall(
        r'class="line (line-\d(?: pale)?)"', drawn.partition('<p class="legend">')[2].partition("</p>")[0]
    )
    assert styles == ["line-0 pale", "line-0", "line-1"]


def test_more_series_than_styles_take_them_again() -> None:
    many = [Series(f"run {n}", [1, 2], [n, n + 1]) for n in range(STYLES + 1)]
    body = line_chart(LinePlot("p", "Runs", "", many)).body
    assert body.count('"line line-0"') == 2


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


def test_marks_at_one_place_are_one_line() -> None:
    marks = [Mark(step, "spike") for step in range(10_000)]
    body = line_chart(plot(*range(10_000), marks=marks)).body
    assert body.count('class="mark"') <= NARROW / 3
    assert re.search(r"<title>spike, at 0, and \d+ more marks up to \d+</title>", body) is None, "step 0 has no value"
    assert re.search(r"<title>spike, at 1, and \d+ more marks up to \d+</title>", body)


def test_names_and_words_are_only_text() -> None:
    hostile = "</svg><script>1</script>"
    series = [Series(hostile, [1, 2], [1, 2]), Series("b", [1], [1])]
    drawn = line_figure(LinePlot("p", hostile, hostile, series, [Mark(1, hostile)], over=hostile))
    assert "<script" not in drawn and drawn.count("</svg>") == 3, "two of the legend, one chart"


def test_a_wide_chart_is_there_for_small_screens_too() -> None:
    drawn = line_figure(plot(1, 2, width=WIDE, height=TALL))
    sizes = [float(width) for width in re.findall(rf'id="p(?:-narrow)?" viewBox="0 0 ({NUMBER})', drawn)]
    assert sizes == [WIDE, NARROW]


def test_a_mean_begins_at_the_first_value_and_passes_over_gaps() -> None:
    found = smooth(Series("raw", range(4), [4.0, math.nan, 4.0, 0.0]), "mean", 3).values
    assert found[:3] == pytest.approx([4.0] * 3) and 0 < found[3] < 4
    assert math.isnan(smooth(Series("raw", [1], [math.nan]), "mean", 3).values[0])


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


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([3, 4000], [1, 10, 100, 1000, 10000]),
        ([1.5, 80], [2, 5, 10, 20, 50]),
        ([2.01, 2.09], [2, 2.02, 2.04, 2.06, 2.08, 2.1]),
    ],
)
def test_ticks_of_a_logarithmic_axis_are_powers_of_ten_where_there_are_enough(
    values: list[float], ticks: list[float]
) -> None:
    assert list(scale_of(values, 4, log=True).ticks) == pytest.approx(ticks)


@given(st.floats(-1e150, 1e150), st.floats(-1e150, 1e150), st.integers(1, 12))
def test_a_scale_holds_its_values(one: float, other: float, intervals: int) -> None:
    scale = scale_of([one, other], intervals)
    assert scale.low < scale.high and len(scale.ticks) <= intervals + 2
    assert all(-1e-9 <= scale.share(value) <= 1 + 1e-9 for value in (one, other, *scale.ticks))


@given(st.floats(1e-150, 1e150), st.floats(1e-150, 1e150), st.integers(1, 12))
def test_a_logarithmic_scale_holds_its_values(one: float, other: float, intervals: int) -> None:
    scale = scale_of([one, other], intervals, log=True)
    assert scale.low < scale.high and scale.ticks
    assert all(-1e-9 <= scale.share(value) <= 1 + 1e-9 for value in (one, other, *scale.ticks))


def test_ticks_of_steps_are_whole() -> None:
    assert list(steps_between([1, 3], 8).ticks) == [1, 2, 3]
    assert list(steps_between([1, 5000], 4).ticks) == [2000, 4000]
    assert list(steps_between([5], 4).ticks) == [5]


def test_numbers_are_short_but_not_wrong() -> None:
    assert [short(value) for value in (-0.00031, 3e-05, 1234.56, -2e120, 0.1)] == [
        "−0.00031", "3e-5".replace("-", "−"), "1235", "−2e120", "0.1"
    ]  # fmt: skip
    assert [rounded_step(step) for step in (0, 9500, 10_250, 1_250_000)] == ["0", "9,500", "10.25k", "1.25M"]
    assert [exact(step) for step in (1000.0, 0.5)] == ["1,000", "0.5"]
