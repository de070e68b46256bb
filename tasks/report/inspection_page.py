"""The page of an inspection: every step from a prompt to the next token."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from markupsafe import Markup
from torch import Tensor

from model.trace import Gain, Step
from tasks.report.charts import Point, Series, line_figure
from tasks.report.diagrams import STYLE, Diagram, Plan, diagrams, to_svg
from tasks.report.inspection import (
    Inspection,
    Subject,
    control_elements,
    described,
    next_tokens,
    rounded,
)
from tasks.report.page import macro, render
from tasks.report.wording import cut, visible

DIMENSIONS = 32  # fewest columns of a state in the heat map
CANDIDATES = 12  # next tokens shown
BINS = (0.15, 0.25, 0.35, 0.48, 0.50)  # upper ends of the bins of an attention map
SHADES = (0.05, 0.22, 0.4, 0.6, 0.8, 1.0)  # opacity of the bins
_LETTER = 7.3  # width of a letter of a label, in pixels
_ROWS = 12  # most rows of a step's table

Rectangle = tuple[float, float, float, float]


def to_html(inspection: Inspection) -> str:
    """Render the page."""
    found, labels, subject = inspection.trace, inspection.labels, inspection.subject
    config, states = subject.config, found.hidden[:, -1, : _dimensions(inspection)]
    norms, increments = found.hidden.norm(dim=-1), found.increments.norm(dim=-1)
    # an escaped "<" can neither end the script element nor open a comment
    data = json.dumps(page_data(inspection), ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    return render(
        "inspect.html",
        title=f"Inside {subject.name}: {visible(inspection.prompt[:40])}",
        inspection=inspection,
        subject=subject,
        config=config,
        labels=labels,
        data=Markup(data),
        prompt=visible(inspection.prompt),
        figure=figure,
        columns=inspection.columns,
        groups=_groups(inspection),
        shown=_shown_rows(inspection.n_tokens),
        described=lambda step: described(step, config),
        values=lambda step: _values(step, inspection.columns),
        weights=found.weights[0, 0].tolist(),
        mask=found.mask.tolist(),
        bins=BINS,
        shades=SHADES,
        planes={
            name: _scatter(f"plane-{place}", f"Projection: {name}", labels, plane.points.tolist(), plane.shares)
            for place, (name, plane) in enumerate(inspection.planes.items())
        },
        chosen=[place for place, text in enumerate(labels) if text not in labels[:place]][:12],
        distances=inspection.distances.tolist(),
        norms=norms.tolist(),
        lengths=_lengths(norms),
        state=states.tolist(),
        strongest=float(states.abs().max()) or 1.0,
        increments=increments.tolist(),
        relative=(increments / norms[:-1].clamp_min(1e-30)).mean(dim=-1).tolist(),
        next=_candidates(inspection)[-1],
        score=found.score,
        conditionals=_conditionals(inspection),
        gains=_gains(inspection),
        diagrams=[(diagram.title, to_svg(diagram)) for diagram in _diagrams(subject)],
        diagram_style=Markup(STYLE),
        elements=control_elements(subject),
    )


def _dimensions(inspection: Inspection) -> int:
    return max(DIMENSIONS, inspection.columns)


def _diagrams(subject: Subject) -> list[Diagram]:
    return diagrams(Plan(subject.config, subject.training, subject.sampling, subject.tokenizer.kind))


def page_data(inspection: Inspection) -> dict[str, Any]:
    """Return the data that the script needs to show another head or token."""
    found = inspection.trace
    mask = found.mask
    # unmasked weights only, 16 bits each, to keep the page of a deep network small
    weights = (found.weights[:, :, mask] * 65535).round().clamp(0, 65535).cpu().numpy().astype("<u2")
    states = found.hidden[..., : _dimensions(inspection)].transpose(0, 1)
    return {
        "labels": inspection.labels,
        "ids": found.ids.tolist(),
        "layers": weights.shape[0],
        "heads": weights.shape[1],
        "cells": mask.nonzero().tolist(),
        "weights": base64.b64encode(weights.tobytes()).decode(),
        "bins": BINS,
        "shades": SHADES,
        "next": _candidates(inspection),
        "states": rounded(states, 3),
    }


def _lengths(norms: Tensor) -> Markup:
    """Return a chart of the norms of all hidden states, (L + 1, T), by layer."""
    layers = range(len(norms))
    ends = {"largest": norms.amax(1), "mean": norms.mean(1), "smallest": norms.amin(1)}
    series = [Series(name, layers, values.tolist()) for name, values in ends.items()]
    note = "Euclidean norm over all tokens; 0 is h0, the input of block 1"
    return line_figure("norms", "Norm of the hidden states", note, series, over="block", size="tall")


def figure(value: float) -> str:
    """Return a number in a few digits."""
    if value != value:
        return "–"
    text = f"{value:.3f}" if 0.0005 <= abs(value) < 10000 or value == 0 else f"{value:.1e}".replace("e-0", "e-")
    return text.replace("-", "−").replace("inf", "∞")


def _groups(inspection: Inspection) -> list[tuple[str, list[Step], bool]]:
    """Return headings, steps, and True for groups that are expanded."""
    steps = inspection.trace.steps
    last = [step for step in steps if step.kind in ("norm_moments", "norm", "logits", "probabilities")]
    first = [step for step in steps if step.block is None and step not in last]
    blocks = range(1, inspection.subject.config.n_layer + 1)
    of_blocks = [
        (f"Block {number}", [step for step in steps if step.block == number], number == 1) for number in blocks
    ]
    return [("Input", first, True), *of_blocks, ("Output", last, True)]


def _shown_rows(n: int) -> list[int | None]:
    """Return the rows of a step's table: first and last ones of a long prompt, with None for the gap."""
    return list(range(n)) if n <= _ROWS else [*range(_ROWS - 4), None, *range(n - 3, n)]


def _values(step: Step, columns: int) -> list[list[str]]:
    """Return the first columns of a step's value for each token, of the first head."""
    values = step.tensor[0] if step.tensor.dim() == 3 else step.tensor
    if values.dim() == 1:
        return [[str(int(value))] for value in values.tolist()]
    return [[figure(value) for value in row] for row in values[:, :columns].tolist()]


def _candidates(inspection: Inspection) -> list[dict[str, Any]]:
    """Return the next tokens at each position, with the range of the logits."""
    logits = inspection.trace["logits"][:, : inspection.subject.config.vocab_size]
    ranges = {"low": rounded(logits.amin(1)), "high": rounded(logits.amax(1)), "mean": rounded(logits.mean(1))}
    found: list[dict[str, Any]] = []
    for place in range(inspection.n_tokens):
        likely = [{**item, "text": cut(item["text"], 14)} for item in next_tokens(inspection, place, CANDIDATES)]
        found.append({"candidates": likely, **{name: values[place] for name, values in ranges.items()}})
    return found


def _conditionals(inspection: Inspection) -> list[tuple[str, float, float, float]]:
    """Return token, probability, log-probability and running sum."""
    values: Sequence[float] = inspection.trace.conditionals.tolist()
    names = [f"{place} {cut(label, 14)}" for place, label in enumerate(inspection.labels)][1:]
    return list(zip(names, map(math.exp, values), values, accumulate(values), strict=True))


def _gains(inspection: Inspection) -> dict[str, dict[str, Gain]]:
    """Return gains by part and direction."""
    parts: dict[str, dict[str, Gain]] = {}
    for gain in inspection.gains:
        block, _, branch = gain.component.partition(".")
        name = "all, from h0 to logits" if block == "model" else block.replace("_", " ")
        name += f", {'feed-forward' if branch == 'ffn' else branch}" if branch else ""
        parts.setdefault(name, {})[gain.direction] = gain
    return parts


def _scatter(name: str, title: str, labels: Sequence[str], points: Sequence[Point], shares: Sequence[float]) -> Markup:
    """Return a scatter plot of projected vectors, joined in token order; equal vectors share a dot."""
    width, height, pad = 450.0, 360.0, 44.0
    low = [min(point[axis] for point in points) for axis in (0, 1)]
    span = [max(point[axis] for point in points) - low[axis] for axis in (0, 1)]
    scale = min((width - 2 * pad - 30) / (span[0] or 1), (height - 2 * pad) / (span[1] or 1))
    offset = [(width - 30 - span[0] * scale) / 2, (height - span[1] * scale) / 2]
    at = [(offset[0] + (x - low[0]) * scale, height - offset[1] - (y - low[1]) * scale) for x, y in points]
    spots: dict[tuple[int, int], list[int]] = {}
    for index, (x, y) in enumerate(at):
        spots.setdefault((round(x), round(y)), []).append(index)
    names = [_spot_name(labels, indices) for indices in spots.values()]
    taken, words = [(x - 7.0, y - 7.0, x + 7.0, y + 7.0) for x, y in spots], []
    for (x, y), text in zip(spots, names, strict=True):
        found = _free_spot(x, y, _LETTER * len(text) + 4, taken, (width, height - 20))
        if found is not None:
            taken.append(found)
            words.append((found[0] + 2, found[3] - 4, text))
    steps = [(one, other) for one, other in pairwise(at) if math.dist(one, other) >= 12]
    dots = [(x, y, len(indices)) for (x, y), indices in spots.items()]
    said = f"{len(spots)} points on the first two principal components, in token order: {', '.join(names)}."
    return macro("charts.html", "scatter", name, title, said, steps, dots, words, shares)


def _spot_name(labels: Sequence[str], indices: Sequence[int]) -> str:
    places = ",".join(map(str, indices[:3])) + ("…" if len(indices) > 3 else "")
    same = {labels[index] for index in indices}
    return f"{cut(labels[indices[0]], 9)}{'+' if len(same) > 1 else ''} {places}"


def _free_spot(x: float, y: float, width: float, taken: Sequence[Rectangle], room: Point) -> Rectangle | None:
    """Return a rectangle for a label beside a dot that covers nothing; None if there is none."""
    for distance in (8, 16, 26):
        for dx, dy in ((1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (-1, -1), (1, 1), (-1, 1)):
            left = x + dx * distance - (width if dx < 0 else width / 2 if dx == 0 else 0)
            top = y + dy * distance - (15 if dy < 0 else 7.5 if dy == 0 else 0)
            box = (left, top, left + width, top + 15)
            if left < 24 or top < 2 or box[2] > room[0] or box[3] > room[1]:
                continue
            if not any(box[0] < r[2] and box[2] > r[0] and box[1] < r[3] and box[3] > r[1] for r in taken):
                return box
    return None
