"""The sections of a training's report, each from the figures alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tasks.report.curves import TALL, WIDE, LinePlot, Mark, Series, line_figure, smooth
from tasks.report.inspect.labels import legible
from tasks.report.inspect.layout import fact_list, section
from tasks.report.inspect.svg import element, escape
from tasks.report.inspect.tables import Cell, scrolled, table
from tasks.report.training.figures import Curve, TrainingFigures
from tasks.report.training.words import event_name, number, worries
from tasks.report.wording import amount, counted, cut, share
from tasks.report.worries import look_first
from tasks.training.journal import Event, Sample

_SMOOTHED_FROM = 40  # values from which on a mean is drawn over them
_TALL_FROM = 14  # rows
_SAMPLES = 6  # of a prompt: the first and last, and others evenly between
_EVENTS = 200
_KEY = 12  # letters of a key or digest that are shown


def first_section(figures: TrainingFigures) -> str:
    """What to look at."""
    why = "What looks wrong comes first, then what is good to know."
    return look_first("first", worries(figures), why, "Nothing: the losses fell, and nothing happened on the way.")


def loss_section(figures: TrainingFigures) -> str:
    """Training and validation loss, twice: as they are and on a logarithmic axis."""
    why = (
        "Mean negative log-likelihood of a token, in nats. Training loss is that of each step's own sequences; "
        "validation loss that of a fixed sample of held-out sequences."
    )
    lines = [*_smoothed("training", figures.loss), _series("validation", figures.validation)]
    marks = _marks(figures)
    body = line_figure(LinePlot("curve-loss", "Loss", "nats a token", lines, marks, width=WIDE, height=TALL))
    log = LinePlot(
        "curve-loss-log", "Loss, logarithmic", "nats a token", lines, marks, log=True, width=WIDE, height=TALL
    )
    body += line_figure(log) + _losses(figures)
    return section("loss", "Loss", why, body)


def _losses(figures: TrainingFigures) -> str:
    """Where the curves began, were lowest and ended; and the figures on the whole evaluation set."""
    rows: list[list[Cell | str | float]] = []
    for name, curve in (("training", figures.loss), ("validation sample", figures.validation)):
        step, lowest = curve.lowest
        if curve:
            rows.append([name, number(curve.values[0]), f"{number(lowest)} at {step:,}", number(curve.last)])
    body = scrolled(table(["loss", "first", "lowest", "last"], rows, ""), "Losses") if rows else ""
    known = figures.evaluation
    named = {
        "Loss, whole evaluation set": known.get("val/loss"),
        "Perplexity": known.get("val/perplexity"),
        "Bits per byte": known.get("val/bits_per_byte"),
        "Bits per byte, unigram": known.get("val/unigram_bits_per_byte"),
    }
    found = {name: f"{value:.4f}" for name, value in named.items() if value is not None}
    return body + (fact_list(found) if found else "")


def pace_section(figures: TrainingFigures) -> str:
    """Learning rate, gradient, speed, memory."""
    marks = _marks(figures)
    plots = [
        _plot("lr", "Learning rate", "as the schedule sets it", [_series("learning rate", figures.curve("lr"))], marks),
        _plot("gradient", "Gradient norm", "before clipping", _smoothed("norm", figures.curve("grad_norm")), marks),
        _plot(
            "speed",
            "Tokens per second",
            "labels by the time of a step",
            _smoothed("tokens/s", figures.curve("time/tokens_per_second")),
            marks,
        ),
        _plot("memory", "Memory", "MB of the process that trains", _memory(figures), marks),
    ]
    body = element("div", "".join(line_figure(plot) for plot in plots), class_="plots")
    why = "What stood behind the loss. Speeds and memory are of the last time that a step was computed."
    return section("pace", "Rate, gradient, speed, memory", why, body + _machine(figures))


def _memory(figures: TrainingFigures) -> list[Series]:
    known = {"resident": "memory/resident_mb", "GPU, highest so far": "memory/cuda_peak_mb"}
    return [_series(name, figures.curve(metric)) for name, metric in known.items() if figures.curve(metric)]


def _machine(figures: TrainingFigures) -> str:
    start, rate, portion = figures.last_start, figures.tokens_per_second, figures.share
    cost = figures.cost.flops_per_token
    known = {
        "Device": figures.tools.get("device", "–"),
        "Tokens per second": "–" if math.isnan(rate) else f"{rate:,.0f}",
        "FLOP a token": amount(cost),
        "FLOP/s reached": "–" if math.isnan(rate) else amount(rate * cost),
        "FLOP/s of the machine": "–" if start is None else amount(start.limit),
        "Share": "–" if portion is None else share(portion, 1),
    }
    body = f"<h3>Machine</h3>{fact_list({name: legible(value) for name, value in known.items()})}"
    if start is not None:
        words = (
            f"The limit is {legible(start.limit_source)}. A token costs 6 N + 12 L n_head head_dim T operations, N all "
            f"parameters but those of positions (Chowdhery et al. 2022); only labels count as tokens."
        )
        body += element("p", escape(words), class_="why")
    return body


def samples_section(figures: TrainingFigures) -> str:
    """What it wrote along the way."""
    why = (
        "Continuations of the beginnings of training documents, at a low temperature, after some of the evaluations. "
        "The prompts are never held-out text."
    )
    body = ""
    for prompt, samples in figures.samples_by_prompt.items():
        rows: list[list[Cell | str | float]] = [
            [f"{sample.step:,}", Cell(legible(sample.text) or "(nothing)", "wrap")] for sample in _chosen(samples)
        ]
        body += element("p", escape(legible(prompt)), class_="prompt")
        body += scrolled(table(["step", "continuation"], rows, ""), "Samples", tall=len(rows) > _TALL_FROM)
    return section("samples", "Samples", why, body or element("p", "No samples were drawn."))


def _chosen(samples: Sequence[Sample]) -> list[Sample]:
    if len(samples) <= _SAMPLES:
        return list(samples)
    places = {round(number * (len(samples) - 1) / (_SAMPLES - 1)) for number in range(_SAMPLES)}
    return [samples[place] for place in sorted(places)]


def data_section(figures: TrainingFigures) -> str:
    """What it read."""
    per_step, length = figures.sequences_per_step, int(figures.model.get("max_seq_len", 0))
    known = {
        "Tokens trained on": f"{figures.tokens:,}",
        "Sequences a step": f"{per_step:,}",
        "Places a step": f"{per_step * length:,}",
        "Tokens a parameter": f"{figures.tokens / max(1, figures.cost.parameters):.2f}",
    }
    if figures.epoch is not None:
        known |= {
            "Sequences an epoch": f"{figures.epoch.sequences:,}",
            "Tokens an epoch": f"{figures.epoch.tokens:,.0f}",
            "Epochs": "–" if figures.epochs is None else f"{figures.epochs:.2f}",
        }
        if figures.epoch.documents is not None:
            known["Training documents"] = f"{figures.epoch.documents:,}"
    why = "Tokens are labels: places that a token is to be predicted at. An epoch reads what the mix says, once."
    return section("data", "Data", why, fact_list(known))


def settings_section(figures: TrainingFigures) -> str:
    """Complete configurations."""
    body = '<div class="split">'
    for title, values in (("Network", figures.model), ("Training", figures.train)):
        body += element("div", f"<h3>{title}</h3>{_settings(values, title)}")
    body += "</div>"
    kept = {**figures.modes, **figures.tools}
    if kept:
        body += f"<h3>Recorded beside it</h3>{_settings(kept, 'Recorded')}"
    why = "Everything that shaped the weights, nothing left to defaults; the same settings and data give the same bits."
    return section("settings", "Settings", why, body)


def _settings(values: Mapping[str, Any], title: str) -> str:
    rows: list[list[Cell | str | float]] = [
        [name, Cell(_value(value), "wrap")] for name, value in sorted(values.items())
    ]
    return scrolled(table(["name", "value"], rows, ""), title, tall=len(rows) > _TALL_FROM)


def _value(value: Any) -> str:
    return legible(value if isinstance(value, str) else json.dumps(value))


def events_section(figures: TrainingFigures) -> str:
    """What happened besides steps."""
    events = sorted(figures.notes.events, key=lambda event: (event.step, event.at))
    n_starts = len(figures.notes.starts)
    words = f"It was started {counted(n_starts, 'time')}." if n_starts else "Nobody noted when it was started."
    body = element("p", words)
    if events:
        rows = [_event(event) for event in events[:_EVENTS]]
        caption = f"The first {_EVENTS} of {len(events):,}" if len(events) > _EVENTS else ""
        head = ["step", "what", "", "when (UTC)"]
        body += scrolled(table(head, rows, caption), "Events", tall=len(rows) > _TALL_FROM)
    else:
        body += element("p", "Nothing happened besides its steps: no interruption, no spike.")
    why = "Interruptions, spikes, and whatever else the training had to say."
    return section("events", "Events", why, body)


def _event(event: Event) -> list[Cell | str | float]:
    when = datetime.fromtimestamp(event.at, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return [f"{event.step:,}", Cell(event_name(event.kind), "left"), Cell(legible(event.message), "wrap"), when]


def lineage_section(figures: TrainingFigures) -> str:
    """What it was made from."""
    rows: list[str] = [_ancestor("this training", "train", figures.digest, [figures.key], "")]
    rows += [_ancestor(one.name, one.stage, one.digest, one.keys, one.page) for one in figures.ancestors]
    head = "".join(f'<th scope="col" class="left">{name}</th>' for name in ("what", "stage", "digest", "key", "report"))
    body = scrolled(f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>", "Lineage")
    words = f"sheepfold why train/{figures.key[:_KEY]}"
    body += element("p", f"All of it, down to the files: <code>{escape(words)}</code>")
    why = "A digest names contents, a key what something was computed from. Each row can be asked for by its key."
    return section("lineage", "Where it comes from", why, body)


def _ancestor(name: str, stage: str, digest: str, keys: Sequence[str], page: str) -> str:
    shown = keys[0][:_KEY] if len(keys) == 1 else f"{len(keys):,} artefacts"
    link = element("a", "open", href=page) if page else ""
    cells = [
        element("th", escape(legible(name)), scope="row"),
        element("td", escape(stage), class_="left"),
        element("td", escape(digest[:_KEY]), class_="token left", title=digest),
        element("td", escape(shown), class_="token left", title=", ".join(keys[:3])),
        element("td", link, class_="left"),
    ]
    return element("tr", "".join(cells))


def _plot(name: str, title: str, note: str, series: Sequence[Series], marks: Sequence[Mark]) -> LinePlot:
    return LinePlot(f"curve-{name}", title, note, series, marks)


def _series(name: str, curve: Curve) -> Series:
    return Series(name, curve.steps, curve.values)


def _smoothed(name: str, curve: Curve) -> list[Series]:
    """A curve, and where it is long its mean before it."""
    raw = _series(name, curve)
    if len(curve.steps) < _SMOOTHED_FROM:
        return [raw]
    pale = Series(f"{name}, each step", raw.steps, raw.values, pale=True)
    return [pale, smooth(raw, f"{name}, mean", max(5, len(curve.steps) // 100))]


def _marks(figures: TrainingFigures) -> list[Mark]:
    return [
        Mark(event.step, cut(f"{event_name(event.kind)}: {legible(event.message)}", 120))
        for event in figures.notes.events
        if event.step > 0
    ]
