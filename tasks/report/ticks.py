"""Scales of axes: from where to where, and at which round numbers there is a tick."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import NamedTuple

_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)
_DIGITS = 12  # to which a tick is rounded, so that 3 * 0.1 is 0.3
_SAME = 1e-9  # values whose difference is a smaller part of them are taken for one
_STEPS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


class Scale(NamedTuple):
    """An axis.

    Attributes:
        low, high: its ends; below each other.
        ticks: ascending, within its ends; at least one.
    """

    low: float
    high: float
    ticks: Sequence[float]
    log: bool = False

    def share(self, value: float) -> float:
        """Where a value lies between the ends, 0 to 1."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def scale_of(values: Sequence[float], intervals: int, log: bool = False) -> Scale:
    """A scale that holds all values and ends in ticks.

    Args:
        values: finite, at least one; above zero for a logarithmic scale.
        intervals: how many intervals between ticks there is room for.
    """
    low, high = min(values), max(values)
    if high - low <= _SAME * max(abs(low), abs(high)) or high - low < sys.float_info.min:
        room = 0.1 * abs(low) or 1.0
        low, high = (low - room, high + room) if low else (0.0, room)
    if log:
        return _log_scale(low, high, max(1, intervals))
    step = _step(high - low, max(1, intervals))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [_tidy(step * place) for place in range(first, last + 1)]
    return Scale(min(low, ticks[0]), max(high, ticks[-1]), ticks)


def steps_between(steps: Sequence[float], intervals: int) -> Scale:
    """A scale from the first step to the last, with whole numbers as ticks."""
    low, high = min(steps), max(steps)
    if low == high:
        return Scale(low - 1, high + 1, [low])
    step = max(1.0, math.ceil(_step(high - low, max(1, intervals))))
    ticks = [step * place for place in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return Scale(low, high, ticks or [low, high])


def short(value: float) -> str:
    """A value in at most four digits."""
    text = f"{value:.4g}"
    digits, letter, power = text.partition("e")
    return f"{digits}e{int(power)}".replace("-", "−") if letter else text.replace("-", "−")


def rounded_step(step: float) -> str:
    """A round number of steps, in full below ten thousand."""
    unit, letter = next((unit for unit in _STEPS if step >= 10_000 and step >= unit[0]), (1.0, ""))
    return f"{step / unit:,.7g}{letter}"


def exact(step: float) -> str:
    """A number of steps, whole."""
    return f"{step:,.0f}" if float(step).is_integer() else short(step)


def _log_scale(low: float, high: float, intervals: int) -> Scale:
    """Powers of ten as ticks, or some numbers between them where there are few powers."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    stride = math.ceil((last - first) / intervals)
    if last - first > 2:
        ticks = [10.0**power for power in range(first, last + 1, stride)]
        return Scale(min(low, ticks[0]), max(high, ticks[-1]), ticks, log=True)
    between = [_tidy(part * 10.0**power) for power in range(first, last + 1) for part in (1, 2, 5)]
    ticks = [tick for tick in between if low <= tick <= high]
    if len(ticks) < 3:
        narrow = scale_of([low, high], intervals)
        ticks = [tick for tick in narrow.ticks if tick > 0]
    return Scale(min(low, ticks[0]), max(high, ticks[-1]), ticks, log=True)


def _step(span: float, intervals: int) -> float:
    """The smallest round number of which so many cover a span."""
    power = 10.0 ** math.floor(math.log10(span / intervals))
    return next(power * part for part in _ROUND if power * part * intervals >= span * (1 - 1e-9))


def _tidy(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
