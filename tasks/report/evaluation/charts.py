"""The drawings of an evaluation: reliability, loss by position, intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tasks.evaluation.compare import Difference
from tasks.evaluation.tables import CalibrationBin, PositionBucket
from tasks.report.inspect.svg import Picture, element, escape, label, line
from tasks.report.old_charts import Layer, Plot, histogram_figure, legend
from tasks.report.ticks import scale_of, short
from tasks.report.wording import counted

SIDE = 210.0  # of the reliability diagram
WIDTH, HEIGHT = 250.0, 190.0  # of the loss by position
_LEFT, _TOP, _BOTTOM = 40.0, 12.0, 40.0
_LETTER = 6.6  # width of a digit, in pixels
CSS = """
.overconfident-ink { fill: var(--contrary); fill-opacity: .55; }
.modest-ink { fill: var(--mix-rule); }
.ideal { fill: none; stroke: var(--quiet); stroke-dasharray: 4 3; }
.wrong-ink { fill: var(--mix-rule); }
.legend .modest { --tone: var(--mix-rule); }
.legend .overconfident { --tone: var(--contrary); --share: .55; }
td.interval { min-width: 150px; }
.range { position: relative; height: 14px; background: var(--wash); border-radius: 4px; margin-top: 4px; }
.range i { position: absolute; top: 0; bottom: 0; }
.range .zero { width: 1px; background: var(--quiet); left: 50%; }
.range .reach { top: 5px; bottom: 5px; min-width: 2px; background: var(--quiet); border-radius: 2px; }
.range .spot { width: 8px; height: 8px; top: 3px; margin-left: -4px; border-radius: 50%; background: var(--quiet); }
.range.better i:not(.zero) { background: var(--ink); }
.range.worse i:not(.zero) { background: var(--contrary); }
@media print { .range, .range i { print-color-adjust: exact; } }
"""


def reliability_figure(bins: Sequence[CalibrationBin]) -> str:
    """How often the likeliest token was right, by how likely it was held."""
    head = "<h3>Reliability</h3>"
    head += element("p", "how often the likeliest token was right, by how likely it was held", class_="why")
    head += legend({"overconfident": "surer than right", "modest": "more right than sure"})
    return element("figure", head + reliability(bins).markup())


def reliability(bins: Sequence[CalibrationBin]) -> Picture:
    """A bar for each bin; on the dashed line a model is as right as it is sure, and colours say by how much not."""
    bottom = _TOP + SIDE

    def at(x: float, y: float) -> tuple[float, float]:
        return _LEFT + SIDE * x, bottom - SIDE * y

    parts = []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(line(at(0, tick), at(1, tick), class_="grid"))
        parts.append(label(_LEFT - 7, at(0, tick)[1] + 4, f"{tick:g}", "note", text_anchor="end"))
        parts.append(label(at(tick, 0)[0], bottom + 16, f"{tick:g}", "note", text_anchor="middle"))
    parts += [_reliable(item, bottom) for item in bins if item.tokens]
    parts.append(line(at(0, 0), at(1, 1), class_="ideal"))
    parts.append(label(_LEFT, bottom + 33, "probability of the likeliest token", "note"))
    seen = [item for item in bins if item.tokens]
    words = "; ".join(
        f"held for {item.confidence / item.tokens:.2f}, right in {item.hits / item.tokens:.2f} of {item.tokens:,}"
        for item in seen
    )
    size = (_LEFT + SIDE + 14, bottom + _BOTTOM)
    return Picture("reliability", "Reliability diagram", words or "There are no predictions.", *size, "".join(parts))


def _reliable(item: CalibrationBin, bottom: float) -> str:
    hit, sure = item.hits / item.tokens, item.confidence / item.tokens
    x, width = _LEFT + SIDE * item.begin + 0.6, SIDE * (item.end - item.begin) - 1.2
    words = f"{item.begin:.2f} to {item.end:.2f}: right in {hit:.1%}, held for {sure:.1%}, {item.tokens:,} tokens"
    area = element("rect", x=x, y=_TOP, width=width, height=SIDE, class_="target")
    low, high = min(hit, sure), max(hit, sure)
    bar = element("rect", x=x, y=bottom - SIDE * low, width=width, height=SIDE * low, class_="ink")
    side = "modest-ink" if hit > sure else "overconfident-ink"
    gap = element("rect", x=x, y=bottom - SIDE * high, width=width, height=SIDE * (high - low), class_=side)
    return element("g", element("title", escape(words)) + area + bar + gap)


def confidence_figure(bins: Sequence[CalibrationBin]) -> str:
    """How many tokens were held for how likely."""
    edges = [*(item.begin for item in bins), bins[-1].end] if bins else [0.0, 1.0]
    right, wrong = [item.hits for item in bins] or [0], [item.tokens - item.hits for item in bins] or [0]
    layers = [Layer("right", "ink", right), Layer("wrong", "wrong-ink", wrong)]
    note = "tokens by the probability of the likeliest: right ones dark, wrong ones pale"
    return histogram_figure(Plot("confidence", "How sure it is", note, edges, layers))


def positions_figure(buckets: Sequence[PositionBucket]) -> str:
    """Loss by how much context there was."""
    head = "<h3>Loss by position in the context</h3>"
    head += element("p", "nats a token, by how many tokens stood before it", class_="why")
    return element("figure", head + positions(buckets).markup())


def positions(buckets: Sequence[PositionBucket]) -> Picture:
    """A dot for each bucket; they grow with the context, so that each doubling takes as much room."""
    seen = [item for item in buckets if item.tokens]
    title, bottom = "Loss by position in the context", _TOP + HEIGHT
    size = (_LEFT + WIDTH + 14, bottom + _BOTTOM)
    if not seen:
        return Picture("positions", title, "There are no predictions.", *size, label(0, 24, "none", "note"))
    scale = scale_of([item.loss for item in seen], 6)
    step = WIDTH / len(seen)
    places = [
        (_LEFT + (place + 0.5) * step, bottom - HEIGHT * scale.share(item.loss)) for place, item in enumerate(seen)
    ]
    parts = []
    for tick in scale.ticks:
        y = bottom - HEIGHT * scale.share(tick)
        parts.append(line((_LEFT, y), (_LEFT + WIDTH, y), class_="grid"))
        parts.append(label(_LEFT - 7, y + 4, short(tick), "note", text_anchor="end"))
    free = 0.0
    for (x, y), item in zip(places, seen, strict=True):
        words = f"{_range(item)} of context: loss {item.loss:.4f}, top-1 {item.top1 / item.tokens:.1%}, "
        area = element("rect", x=x - step / 2, y=_TOP, width=step, height=HEIGHT, class_="target")
        dot = element("circle", cx=x, cy=y, r=2.6, class_="knot line-0")
        parts.append(element("g", element("title", escape(words + counted(item.tokens, "token"))) + area + dot))
        half = _LETTER * len(f"{item.begin}") / 2
        if x - half >= free and x + half <= _LEFT + WIDTH + 12:
            parts.append(label(x, bottom + 16, f"{item.begin}", "note", text_anchor="middle"))
            free = x + half + 6
    parts.append(line(*places, class_="line line-0"))
    parts.append(label(_LEFT, bottom + 33, "tokens of context, from", "note"))
    told = "; ".join(f"{_range(item)}: {item.loss:.3f}" for item in seen)
    return Picture("positions", title, f"Loss in nats a token by tokens of context. {told}.", *size, "".join(parts))


def _range(item: PositionBucket) -> str:
    return f"{item.begin:,}" if item.begin == item.end else f"{item.begin:,} to {item.end:,}"


def interval(difference: Difference, reach: float) -> str:
    """A difference with its interval as a strip whose middle is 0.

    Args:
        reach: the difference at either end of the strip.
    """
    side = "" if not difference.is_clear else " better" if difference.value < 0 else " worse"

    def place(value: float) -> float:
        share = value / reach if reach else 0.0 if math.isfinite(value) else math.copysign(1.0, value)
        return 50 + 50 * max(-1.0, min(1.0, share))

    low, high = place(difference.low), place(difference.high)
    parts = element("i", class_="zero")
    parts += element("i", class_="reach", style=f"left:{low:.2f}%;width:{high - low:.2f}%")
    parts += element("i", class_="spot", style=f"left:{place(difference.value):.2f}%")
    return element("div", parts, class_=f"range{side}", role="img", aria_label=interval_words(difference))


def interval_words(difference: Difference) -> str:
    """A difference of bits per byte with its interval."""
    value = f"{difference.value:+.4f}".replace("-", "−")
    if not math.isfinite(difference.high - difference.low):
        return f"{value} (one document)"
    return f"{value} ({difference.low:+.4f} to {difference.high:+.4f})".replace("-", "−")
