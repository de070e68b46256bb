"""What a person should look at first in a training, and how its end is said."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from tasks.report.inspect.labels import legible
from tasks.report.training.figures import WORSE, TrainingFigures
from tasks.report.wording import amount, counted, share
from tasks.report.worries import Worry, ordered
from tasks.training.throughput import duration

MANY_EPOCHS = 4  # from which on repeated text teaches much less than new text (Muennighoff et al. 2023)
LITTLE_SHARE = 0.15  # of the machine's limit below which something else than arithmetic takes the time

# what the kinds of events are called; a kind that is not here is shown as it is
EVENTS = {
    "resumed": "resumed",
    "spike": "loss spike",
    "early stop": "early stop",
    "kernel": "attention kernel",
    "advice": "advice",
    "execution": "computed otherwise",
}
_GOOD_TO_KNOW = ("resumed", "early stop", "advice", "execution")
_ONLY_LISTED = ("kernel", "note", "start")  # nothing to look at first


def event_name(kind: str) -> str:
    """A kind of event, for people."""
    return EVENTS.get(kind, legible(kind).replace("_", " "))


def lead(figures: TrainingFigures) -> str:
    """What came out, in two sentences."""
    if not figures.loss:
        return "This training left no curve."
    words = f"{counted(figures.steps, 'step')} over {amount(figures.tokens)} tokens took the loss from "
    words += f"{figures.loss.values[0]:.3f} to {figures.loss.last:.3f}"
    if figures.ended_early:
        words += f"; of {figures.planned:,} steps, it ended here because the validation loss fell no further"
    words += "."
    if figures.validation:
        step, lowest = figures.validation.lowest
        words += f" On held-out text it ended at {figures.validation.last:.3f}"
        words += "." if step == figures.validation.steps[-1] else f"; the lowest was {lowest:.3f} at step {step:,}."
    return words


def facts(figures: TrainingFigures) -> dict[str, str]:
    """A few figures."""
    rate, portion = figures.tokens_per_second, figures.share
    found = {
        "Parameters": amount(figures.cost.parameters),
        "Steps": f"{figures.steps:,}" + (f" of {figures.planned:,}" if figures.ended_early else ""),
        "Tokens": amount(figures.tokens) + ("" if figures.epochs is None else f", {figures.epochs:.2f} epochs"),
        "Loss": number(figures.loss.last),
        "Validation loss": number(figures.validation.last),
        "Speed": "–" if math.isnan(rate) else f"{rate:,.0f} tokens/s",
        "Of the machine": "–" if portion is None else share(portion, 1),
        "Time of the steps": duration(figures.step_seconds) if figures.step_seconds else "–",
    }
    bits = figures.evaluation.get("val/bits_per_byte")
    return found if bits is None else {**found, "Bits per byte": f"{bits:.4f}"}


def number(value: float) -> str:
    """A loss."""
    return "–" if math.isnan(value) else f"{value:.4f}"


def worries(figures: TrainingFigures) -> list[Worry]:
    """The gravest first."""
    return ordered([*_of_losses(figures), *_of_events(figures), *_of_means(figures)])


def _of_losses(figures: TrainingFigures) -> Iterator[Worry]:
    values = figures.loss.values
    if any(not math.isfinite(value) for value in values):
        yield _check("The loss was not finite at some step", "Lower the learning rate, or use precision fp32.", "loss")
    if len(values) > 1 and values[-1] >= values[0]:
        remedy = "Look at the learning rate (train.lr) and at the text: it has learned nothing."
        yield _check(f"The loss did not fall: {values[0]:.3f} at first, {values[-1]:.3f} at the end", remedy, "loss")
    if figures.rises > WORSE:
        step, lowest = figures.validation.lowest
        words = (
            f"The validation loss rose again: {lowest:.3f} at step {step:,}, {figures.validation.last:.3f} at the end"
        )
        remedy = "The network learns the training text by heart: train shorter, on more text, or with train.patience."
        yield _check(words, remedy, "loss")
    elif figures.validation.steps and figures.validation.lowest[0] == figures.validation.steps[-1]:
        remedy = "It was lowest at the last step: longer training may lower it further."
        yield _note("The validation loss was still falling", remedy, "loss")
    if not figures.validation:
        yield _note("No validation loss was measured", "Nothing says how it does on text it has not read.", "loss")
    if figures.curve("val_sample/source_changed"):
        step = figures.curve("val_sample/source_changed").steps[0]
        words = f"From step {step:,} on, validation losses are measured on other sequences than before"
        yield _note(words, "Losses before and after that step do not compare.", "loss")


def _of_events(figures: TrainingFigures) -> Iterator[Worry]:
    kinds = Counter(event.kind for event in figures.notes.events)
    for kind, n in sorted(kinds.items()):
        if kind in _ONLY_LISTED:
            continue
        first = next(event for event in figures.notes.events if event.kind == kind)
        words = event_name(kind).capitalize()
        words += f": {counted(n, 'time')}, first at step {first.step:,}" if n > 1 else f" at step {first.step:,}"
        made = _note if kind in _GOOD_TO_KNOW else _check
        yield made(words, first.message, "events", n)


def _of_means(figures: TrainingFigures) -> Iterator[Worry]:
    if figures.epochs is not None and figures.epochs > MANY_EPOCHS:
        remedy = "From about four readings on, repeated text teaches much less than new text."
        yield _note(f"Each training document was read {figures.epochs:.1f} times", remedy, "data")
    if figures.share is not None and figures.share < LITTLE_SHARE:
        remedy = "Small networks and batches leave a machine waiting; a larger train.batch_size may help."
        yield _note(f"It used {share(figures.share, 1)} of what the machine can compute", remedy, "pace")


def _check(title: str, remedy: str, section: str, weight: int = 1) -> Worry:
    return Worry("check", weight, title, remedy, "", section)


def _note(title: str, remedy: str, section: str, weight: int = 1) -> Worry:
    return Worry("note", weight, title, remedy, "", section)
