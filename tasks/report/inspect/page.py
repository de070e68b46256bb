"""The inspection as one HTML file that needs nothing else: no network, no fonts, no other files."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from model.gains import Gain
from storage.errors import UserError
from tasks.report.inspect import circuits, diagrams
from tasks.report.inspect.charts import BINS
from tasks.report.inspect.elements import control_elements
from tasks.report.inspect.inspection import Inspection, rounded
from tasks.report.inspect.labels import visible
from tasks.report.inspect.layout import fact_list, html_page, links, section
from tasks.report.inspect.script import JAVASCRIPT
from tasks.report.inspect.sections import (
    DIMENSIONS,
    SHADES,
    attention_section,
    candidates_of,
    next_section,
    sequence_section,
    states_section,
    trace_section,
    vectors_section,
)
from tasks.report.inspect.subject import Subject
from tasks.report.inspect.svg import Picture, element, escape
from tasks.report.inspect.tables import Cell, more, scrolled, table

_NO_ANSWER = 0.001  # a gain below it

SECTIONS = {
    "trace": "Step by step",
    "attention": "Attention",
    "vectors": "Vectors",
    "states": "Hidden states",
    "next": "Next token",
    "sequence": "Probability",
    "gains": "Local gain",
    "diagrams": "Block diagrams",
    "elements": "Control elements",
}


def write_page(inspection: Inspection, path: Path) -> Path:
    """Write the page and return its path.

    Raises:
        UserError: if the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(to_html(inspection), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); give another file with --out") from error
    return path


def to_html(inspection: Inspection) -> str:
    """The page."""
    title = f"Inside {inspection.subject.name}: {visible(inspection.prompt[:40])}"
    made = "".join(
        make(inspection)
        for make in (
            trace_section,
            attention_section,
            vectors_section,
            states_section,
            next_section,
            sequence_section,
            gains_section,
            diagrams_section,
            elements_section,
        )
    )
    # "<" cannot end the script element or begin a comment in it when it is written as an escape
    data = json.dumps(page_data(inspection), ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    scripts = f'<script type="application/json" id="data">{data}</script><script>{JAVASCRIPT}</script>'
    footer = "Made by sheepfold inspect. Dropout is off, as in generation."
    return html_page(title, ("trace", "Skip to the trace"), _header(inspection), made, footer, scripts)


def page_data(inspection: Inspection) -> dict[str, Any]:
    """What the script needs in order to show another head or token."""
    found = inspection.trace
    mask = found.mask
    # only what the mask allows, 16 bits a weight: a page of a deep network stays small enough to send
    weights = (found.weights[:, :, mask] * 65535).round().clamp(0, 65535).cpu().numpy().astype("<u2")
    states = found.hidden[..., :DIMENSIONS].transpose(0, 1)
    return {
        "labels": inspection.labels,
        "ids": found.ids.tolist(),
        "layers": weights.shape[0],
        "heads": weights.shape[1],
        "cells": mask.nonzero().tolist(),
        "weights": base64.b64encode(weights.tobytes()).decode(),
        "bins": BINS,
        "shades": SHADES,
        "next": candidates_of(inspection),
        "states": rounded(states, 3),
        "norms": rounded(found.hidden.norm(dim=-1), 4),
    }


def _header(inspection: Inspection) -> str:
    subject, config = inspection.subject, inspection.subject.config
    parameters = sum(parameter.numel() for parameter in subject.model.parameters())
    heads = f"{config.n_head} × {config.head_dim}"
    heads += f" ({config.n_kv_head} key-value)" if config.n_kv_head != config.n_head else ""
    facts = {
        "Parameters": f"{parameters:,}",
        "Blocks": str(config.n_layer),
        "Heads": heads,
        "Width": f"{config.d_model}, feed-forward {config.d_ff}",
        "Vocabulary": f"{config.vocab_size:,} ids ({subject.tokenizer.kind})",
        "Context": f"{config.max_seq_len} tokens",
        "Positions": config.pos,
        "Norm": f"{config.norm}, {config.norm_order}",
        "Weights": _origin(subject),
    }
    likeliest = candidates_of(inspection)[-1]["candidates"][0]
    lead = (
        f"{inspection.n_tokens} tokens go in; the likeliest next one is “{likeliest['text']}” "
        f"with {likeliest['probability']:.1%}. This page shows all that happens between."
    )
    if subject.fresh:
        lead += " The weights are fresh and untrained, so what it predicts is chance."
    return (
        f'<h1>Inside {escape(subject.name)}</h1><div class="prompt" dir="ltr" tabindex="0" role="group" '
        f'aria-label="Prompt">{escape(visible(inspection.prompt))}</div><p class="lead" style="margin-top:12px">'
        f"{escape(lead)}</p>{fact_list(facts)}{links(SECTIONS)}"
    )


def _origin(subject: Subject) -> str:
    if subject.fresh:
        return f"fresh, seed {subject.seed}"
    return f"trained, {subject.training.max_steps:,} steps" if subject.train else "trained elsewhere"


def gains_section(inspection: Inspection) -> str:
    """Local gain and linearity of every part."""
    parts: dict[str, dict[str, Any]] = {}
    for gain in inspection.gains:
        parts.setdefault(gain.component, {})[gain.direction] = gain
    largest = max(gain.gain for gain in inspection.gains) or 1.0
    rows: list[list[Cell | str | float]] = []
    for name, found in parts.items():
        state, random = found["state"], found["random"]
        rows.append(
            [
                Cell(_component(name), "left"),
                *(Cell(_gain(item), share=item.gain / largest) for item in (state, random)),
                *(_deviation(item) for item in (state, random)),
                Cell(", ".join(state.nonlinear) or "linear", "wrap"),
            ]
        )
    head = ["part", "gain along x", "gain, random", "deviation along x", "deviation, random", "nonlinear through"]
    caption = "Gain |J u| / |u|; deviation of f(x + u) from f(x) + J u for a u of a tenth of |x|."
    why = (
        "How a small change of a part’s input comes out of it, at this prompt: 1 keeps its length, above 1 amplifies "
        "it, below 1 damps it. J is the part’s Jacobian, taken by forward-mode differentiation along the input itself "
        "and along a fixed random direction. The deviation says how far it is from linear there: 0% if it is linear."
    )
    norm = (
        "A norm hardly answers to a push along its own input, because it divides the length out again, and neither do "
        "parts that read through one. A part behind a norm can have a large gain where its input is short: the norm "
        "stretches it."
    )
    body = scrolled(table(head, rows, caption), "Local gains", tall=len(rows) > 24) + element(
        "p", escape(norm), class_="why"
    )
    return section("gains", "Local gain and linearity", why, body)


def _gain(gain: Gain) -> str:
    return "< 0.001" if 0 < gain.gain < _NO_ANSWER else f"{gain.gain:.3f}"


def _deviation(gain: Gain) -> str:
    """How far from linear; what hardly answers at all is not judged, its digits are mostly rounding."""
    return "–" if gain.gain < _NO_ANSWER else f"{gain.deviation:.1%}"


def _component(name: str) -> str:
    if name == "model":
        return "all, from h0 to logits"
    block, _, branch = name.partition(".")
    words = block.replace("_", " ")
    return f"{words}, {'feed-forward' if branch == 'ffn' else branch}" if branch else words


def _drawn(letter: str, picture: Picture, note: str = "") -> str:
    words = element("p", escape(note), class_="why") if note else ""
    return f"<div><h3>{escape(letter)} {escape(picture.title)}</h3>{words}{picture.markup()}</div>"


def diagrams_section(inspection: Inspection) -> str:
    """Block diagrams of this network."""
    subject = inspection.subject
    first = _drawn("(a)", diagrams.one_block(subject)) + _drawn("(b)", diagrams.one_line_block(subject))
    second = _drawn("(c)", diagrams.whole_model(subject)) + _drawn("(d)", circuits.training_loop(subject))
    loop = _drawn("(e)", circuits.attention_detail(subject)) + _drawn("", diagrams.reduced_attention(subject))
    reduced = "".join(_drawn("", picture) for picture in diagrams.reductions(subject))
    feedback = (
        "In a scalar linear loop, a forward gain G with feedback H would reduce to G / (1 + G H). That is only an "
        "illustration: a network’s forward pass is a chain without feedback, and its parts are no scalars. Feedback "
        "comes from outside: through the update in training, and through the chosen token in generation."
    )
    body = f'<div class="gallery">{first}{second}{loop}</div>'
    body += more(
        "From many operators to one", f'<div class="gallery">{reduced}</div><p class="why">{escape(feedback)}</p>'
    )
    why = (
        "Drawn from this network’s own modules: names, sizes and order are those of the code, and what the network "
        "does not have is not drawn. The coloured line is the residual path, or the loop that is closed."
    )
    return section("diagrams", "Block diagrams", why, body)


def elements_section(inspection: Inspection) -> str:
    """The ten control elements."""
    rows: list[list[Cell | str | float]] = [
        [
            Cell(f"{number}. {item.name}", "left"),
            Cell(item.role, "left"),
            Cell(item.module, "wrap token"),
            Cell(item.detail, "wrap"),
        ]
        for number, item in enumerate(control_elements(inspection.subject), 1)
    ]
    body = scrolled(table(["element", "controls", "module", "here"], rows, "Ten elements"), "Control elements")
    why = "The language model as a controlled system, and the part of the code that each element is."
    return section("elements", "Ten control elements", why, body)
