"""The sections of the page that follow one prompt through the network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from model.trace import Step
from tasks.report.inspect import charts
from tasks.report.inspect.inspection import Inspection, next_tokens, rounded
from tasks.report.inspect.labels import short
from tasks.report.inspect.layout import section
from tasks.report.inspect.steps import sentence, title
from tasks.report.inspect.svg import element, escape
from tasks.report.inspect.tables import Cell, figure, more, scrolled, table

COLUMNS = 4  # of each value that the tables show
DIMENSIONS = 32  # of a state that the map shows
CANDIDATES = 12
_ROWS = 12  # of a step's table; of longer prompts the first and the last are shown
SHADES = (0.05, 0.22, 0.4, 0.6, 0.8, 1.0)  # ink of the value classes


def trace_section(inspection: Inspection) -> str:
    """Every step with its sentence, shape and first columns."""
    config, groups = inspection.subject.config, ""
    steps = inspection.trace.steps
    first = [step for step in steps if step.block is None and step.kind not in ("norm", "logits", "probabilities")]
    last = [step for step in steps if step.block is None and step not in first]
    groups += _steps("Into the network", first, inspection, True)
    for number in range(1, config.n_layer + 1):
        of_block = [step for step in steps if step.block == number]
        groups += _steps(f"Block {number}", of_block, inspection, number == 1)
    groups += _steps("Out of the network", last, inspection, True)
    why = (
        "Every value on the way from text to probabilities: what the step does, its shape, and its first columns for "
        "each token. Of values with several heads, the first head is shown."
    )
    return section("trace", "Step by step", why, groups)


def _steps(name: str, steps: Sequence[Step], inspection: Inspection, open_: bool) -> str:
    inside = "".join(_step(step, inspection) for step in steps)
    return more(name, element("div", inside, class_="steps"), open_)


def _step(step: Step, inspection: Inspection) -> str:
    config = inspection.subject.config
    shape = " × ".join(map(str, step.tensor.shape))
    words = element("h4", escape(title(step, config))) + f' <span class="shape">{escape(shape)}</span>'
    words += element("p", escape(sentence(step, config)))
    values = step.tensor[0] if step.tensor.dim() == 3 else step.tensor
    rows: list[list[Cell | str | float]] = []
    for place in shown_rows(inspection.n_tokens):
        if place is None:
            rows.append([Cell(f"… {inspection.n_tokens - _ROWS + 1} more …", "left")])
            continue
        token = Cell(f"{place} {short(inspection.labels[place], 12)}", "token")
        rows.append([token, *([str(int(values[place]))] if values.dim() == 1 else _columns(values[place].tolist()))])
    n = values.shape[-1] if values.dim() > 1 else 1
    head = [
        "token",
        *(["id"] if values.dim() == 1 else [*map(str, range(min(n, COLUMNS))), *(["…"] if n > COLUMNS else [])]),
    ]
    return element("div", words + scrolled(table(head, rows, ""), title(step, config)), class_="step")


def _columns(row: list[float]) -> list[Cell | str | float]:
    return [*(float(value) for value in row[:COLUMNS]), *(["…"] if len(row) > COLUMNS else [])]


def shown_rows(n: int) -> list[int | None]:
    """Rows of a step's table: all of a short prompt, the first and the last of a long one, None for the gap."""
    return list(range(n)) if n <= _ROWS else [*range(_ROWS - 4), None, *range(n - 3, n)]


def attention_section(inspection: Inspection) -> str:
    """Maps of every layer and head, and the mask."""
    found, labels, config = inspection.trace, inspection.labels, inspection.subject.config
    seen = found.mask.tolist()
    first = found.weights[0, 0].tolist()
    drawing = charts.square_map(
        "attention-map",
        "Attention weights of one head",
        "Each row is a token that looks, each column a token that is looked at; darker means more.",
        labels,
        seen,
        first,
    ).markup()
    layers = "".join(f'<option value="{index}">{index + 1}</option>' for index in range(config.n_layer))
    heads = "".join(f'<option value="{index}">{index + 1}</option>' for index in range(config.n_head))
    controls = (
        f'<div class="controls"><label>Layer <select id="layer">{layers}</select></label>'
        f'<label>Head <select id="head">{heads}</select></label>'
        '<label><input type="checkbox" id="bins"> value classes</label></div>'
    )
    ends = (0.0, *charts.BINS)
    names = [f"{low:.2f}–{high:.2f}" for low, high in zip(ends, charts.BINS, strict=False)] + ["above 0.50"]
    classes = "".join(
        f'<span><i style="--share:{share}"></i>{name}</span>' for share, name in zip(SHADES, names, strict=True)
    )
    legend = (
        '<div class="legend" id="scale"><span>0 <i class="ramp"></i> 1</span><span><i style="--tone:var(--off)"></i>'
    )
    legend += f'not allowed</span></div><div class="legend" id="bin-legend" hidden>{classes}</div>'
    numbers = ""
    if inspection.n_tokens <= 32:
        rows: list[list[Cell | str | float]] = [
            [Cell(f"{place} {short(labels[place])}", "token"), *(figure(value) for value in row)]
            for place, row in enumerate(first)
        ]
        head = ["", *(f"{place} {short(text, 6)}" for place, text in enumerate(labels))]
        written = table(head, rows, "Weights of the chosen layer and head; rows add to one.", "attention-table")
        numbers = more("The same as a table", scrolled(written, "Attention weights", tall=True))
    mask = charts.mask_picture(labels, seen, config.window).markup()
    body = (
        f'{controls}{legend}<noscript><p class="why">Choosing another head or token needs '
        f"scripts; shown are the first head and the last token.</p></noscript>"
        f'<p class="status" id="attention-status" role="status"></p>'
        f'<div class="beside"><div>{drawing}</div><div><h3>All layers (rows) and heads (columns)</h3>'
        f'<div id="heads" class="heads"></div></div></div>{numbers}'
        f"<h3>Who may look at whom</h3><p>{escape(_mask_words(config.window))}</p>{mask}"
    )
    why = "Where each token looks when it gathers information. Rows look, columns are looked at; every row adds to one."
    return section("attention", "Attention", why, body)


def _mask_words(window: int | None) -> str:
    reach = f" This network looks at most {window - 1} tokens back." if window else ""
    return f"A token sees itself and what came before, never what follows: that is what it has to predict.{reach}"


def vectors_section(inspection: Inspection) -> str:
    """Projections, trajectory and distances."""
    labels = inspection.labels
    drawn = ""
    for index, (name, plane) in enumerate(inspection.planes.items()):
        points = [(float(x), float(y)) for x, y in plane.points.tolist()]
        picture = charts.scatter(f"plane-{index}", f"Plane of the {name}", labels, points, plane.shares)
        drawn += f"<div><h3>{escape(name.capitalize())}</h3>{picture.markup()}</div>"
    places = "".join(
        f"<tr><th scope=row class=token>{place} {escape(short(labels[place], 12))}</th>"
        + "".join(
            f"<td>{figure(float(value))}</td>" for plane in inspection.planes.values() for value in plane.points[place]
        )
        + "</tr>"
        for place in range(inspection.n_tokens)
    )
    names = "".join(f'<th scope="colgroup" colspan="2">{escape(name)}</th>' for name in inspection.planes)
    coordinates = (
        f"<table><caption>Coordinates in both planes</caption><thead><tr><th></th>{names}</tr></thead>{places}</table>"
    )
    first_of: dict[str, int] = {}
    for place, text in enumerate(labels):
        first_of.setdefault(text, place)
    chosen = list(first_of.values())[:12]
    rows: list[list[Cell | str | float]] = [
        [Cell(short(labels[row], 12), "token"), *(float(inspection.distances[row, column]) for column in chosen)]
        for row in chosen
    ]
    left_out = f" The first 12 of {len(first_of)} different tokens." if len(first_of) > 12 else ""
    vectors = inspection.subject.config.d_model
    distances = table(
        ["", *(short(labels[column], 12) for column in chosen)],
        rows,
        f"Distance between the vectors of each two tokens, over all {vectors} dimensions.{left_out}",
    )
    body = f'<div class="split">{drawn}</div>' + scrolled(distances, "Distances", tall=len(chosen) > 12)
    body += more("Coordinates of every token", scrolled(coordinates, "Coordinates", tall=True))
    why = (
        "The tokens’ vectors, seen from where they differ most. The line joins them in the order of the prompt; a "
        "token that comes again is at the same place until its position is added. Numbers beside it are its places."
    )
    return section("vectors", "Vectors in the plane", why, body)


def chips(inspection: Inspection) -> str:
    """Buttons that choose a token."""
    last = inspection.n_tokens - 1
    made = "".join(
        element(
            "button",
            escape(short(text, 16)),
            type="button",
            class_="chip",
            data_token=place,
            aria_pressed="true" if place == last else "false",
            title=f"position {place}",
        )
        for place, text in enumerate(inspection.labels)
    )
    return element("div", made, class_="chips", role="group", aria_label="Choose a token")


def states_section(inspection: Inspection) -> str:
    """Lengths, values and increments of the hidden state."""
    found, labels = inspection.trace, inspection.labels
    norms = found.hidden.norm(dim=-1).tolist()
    n_states, width = len(norms), min(DIMENSIONS, inspection.subject.config.d_model)
    lengths: list[list[Cell | str | float]] = [
        [Cell(f"{token} {short(labels[token], 12)}", "token"), *(row[token] for row in norms)]
        for token in range(inspection.n_tokens)
    ]
    head = ["token", *(f"h{layer}" for layer in range(n_states))]
    body = "<h3>Length through the layers</h3>" + charts.norms_chart(labels, norms).markup()
    body += '<p class="status" id="norms-status" role="status"></p>'
    body += more("The same as a table", scrolled(table(head, lengths, "Length of each state"), "Lengths", tall=True))
    state = found.hidden[:, -1, :width].tolist()
    body += "<h3>One token’s values through the layers</h3>" + chips(inspection)
    body += charts.dimension_map(state).markup()
    body += (
        '<div class="legend"><span><i></i>positive</span><span><i style="--tone:var(--contrary)"></i>negative</span>'
    )
    body += "</div>"
    body += '<p class="status" id="state-status" role="status"></p>'
    values: list[list[Cell | str | float]] = [[f"h{layer}", *row[:COLUMNS]] for layer, row in enumerate(state)]
    dimensions = [f"dimension {column}" for column in range(min(COLUMNS, width))]
    written = table(["state", *dimensions], values, "First dimensions of the chosen token", "state-table")
    body += more("The first dimensions as a table", scrolled(written, "Values"))
    body += "<h3>What each block adds</h3>"
    body += "<p>Δ(x) = block(x) − x, as a length; the last state is the first plus all of them.</p>"
    body += charts.increment_map(labels, found.increments.norm(dim=-1).tolist()).markup()
    added: list[list[Cell | str | float]] = []
    for number, (delta, before) in enumerate(zip(found.increments, found.hidden, strict=False), 1):
        size = delta.norm(dim=-1)
        share = float((size / before.norm(dim=-1).clamp_min(1e-30)).mean())
        added.append([f"block {number}", float(size.mean()), float(size.max()), f"× {share:.2f}"])
    columns = ["", "mean length", "largest", "relative to the state"]
    body += scrolled(table(columns, added, "Increments over all tokens"), "Increments")
    why = (
        "Each token carries a state that every block reads and adds to: h0 enters the first block, the last one leaves."
    )
    return section("states", "Hidden states through the layers", why, body)


def candidates_of(inspection: Inspection) -> list[dict[str, Any]]:
    """Next tokens of every position, with the range of all logits."""
    logits = inspection.trace["logits"][:, : inspection.subject.config.vocab_size]
    low, high, mean = logits.amin(1).tolist(), logits.amax(1).tolist(), logits.mean(1).tolist()
    return [
        {
            "candidates": [
                {**item, "text": short(item["text"], 14)} for item in next_tokens(inspection, place, CANDIDATES)
            ],
            "low": rounded(low[place]),
            "high": rounded(high[place]),
            "mean": rounded(mean[place]),
        }
        for place in range(inspection.n_tokens)
    ]


def percent(value: float) -> str:
    """A share in few digits."""
    return f"{value:.0%}" if value >= 0.0995 else f"{value:.1%}" if value >= 0.00095 else "< 0.1%"


def next_section(inspection: Inspection) -> str:
    """Logits and probabilities of the next token."""
    at = candidates_of(inspection)[-1]
    items, low, span = at["candidates"], at["low"], (at["high"] - at["low"]) or 1.0
    top = max(item["probability"] for item in items) or 1.0
    probabilities = logits = ""
    for item in items:
        name, share = f'<span class="token">{escape(item["text"])}</span>', 100 * (item["logit"] - low) / span
        fill = f'<span class="fill" style="width:{100 * item["probability"] / top:.1f}%"></span>'
        probabilities += f'{name}<span class="track">{fill}</span><span>{percent(item["probability"])}</span>'
        spot = f'<span class="rod" style="width:{share:.1f}%"></span>'
        spot += f'<span class="spot" style="left:calc(6px + (100% - 12px) * {share / 100:.3f})"></span>'
        logits += f'{name}<span class="track">{spot}</span><span>{item["logit"]:.2f}</span>'
    body = chips(inspection) + '<p class="status" id="next-status" role="status"></p>'
    body += f'<div class="split"><div><h3>Probabilities</h3><div class="bars" id="probabilities">{probabilities}</div>'
    body += "</div>"
    body += f'<div><h3>Logits</h3><div class="bars" id="logits">{logits}</div></div></div>'
    why = (
        f"The {len(items)} likeliest tokens after the chosen one, at temperature 1 and without any filter. The logits "
        "are drawn between the smallest and the largest of the whole vocabulary."
    )
    return section("next", "What comes next", why, body)


def sequence_section(inspection: Inspection) -> str:
    """The chain rule, token by token."""
    score, labels = inspection.trace.score, inspection.labels
    why = (
        "Each token’s probability given those before it; multiplied (their logarithms added) they are the prompt’s own."
    )
    if not len(score.log_probs):
        body = element("p", "One token alone has nothing before it that could predict it; give a longer prompt.")
        return section("sequence", "Probability of the prompt", why, body)
    rows: list[list[Cell | str | float]] = []
    total = 0.0
    for place, value in enumerate(score.log_probs.tolist(), 1):
        total += value
        p = math.exp(value)
        token = Cell(f"{place} {short(labels[place], 14)}", "token")
        rows.append([token, Cell(percent(p), share=p), value, total, float(math.exp(-value))])
    rows.append(["in all", "", "", score.total, ""])
    facts = (
        f"Log-probability {figure(score.total)} nats; {figure(score.nll)} nats per token "
        f"({figure(score.nll / math.log(2))} bits); perplexity {score.perplexity:.4g}: on average as unsure as a "
        f"choice among that many tokens. A uniform guess would have {inspection.subject.config.vocab_size}."
    )
    head = ["token", "probability", "log p", "running sum", "1/p"]
    written = table(
        head, rows, "log p(text) = Σ log p(token | tokens before); the first token is given", last_is_sum=True
    )
    body = element("p", escape(facts)) + scrolled(written, "Probability of each token", tall=len(rows) > 16)
    return section("sequence", "Probability of the prompt", why, body)
