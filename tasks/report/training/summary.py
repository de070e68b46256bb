"""A training in a few lines of Markdown, for the run's own page; without words of documents, which its samples have."""

from __future__ import annotations

from tasks.report.markdown import plain, table
from tasks.report.training.figures import TrainingFigures
from tasks.report.training.words import event_name, facts, lead, number, worries

_ROWS = 12  # of evaluations
_NOTES = 6


def training_summary(figures: TrainingFigures) -> str:
    """Figures, evaluations, what to look at: at most 50 lines of Markdown."""
    lines = [plain(lead(figures), 600), ""]
    lines += table(["", ""], [[name, plain(value)] for name, value in facts(figures).items()])
    if figures.validation:
        lines += ["", *table(["step", "loss", "validation loss"], _evaluations(figures))]
    if figures.notes.events:
        shown = figures.notes.events[-_NOTES:]
        lines += ["", "Events:", ""]
        lines += [f"- step {item.step:,}: {plain(event_name(item.kind))}: {plain(item.message)}" for item in shown]
    found = worries(figures)[:_NOTES]
    if found:
        lines += ["", "Look at first:", "", *(f"- {plain(f'{item.title}. {item.remedy}'.strip())}" for item in found)]
    return "\n".join(lines) + "\n"


def _evaluations(figures: TrainingFigures) -> list[list[str]]:
    """Evenly spread evaluations, the first and the last among them."""
    loss = dict(zip(figures.loss.steps, figures.loss.values, strict=True))
    held_out = list(zip(figures.validation.steps, figures.validation.values, strict=True))
    if len(held_out) > _ROWS:
        places = {round(place * (len(held_out) - 1) / (_ROWS - 1)) for place in range(_ROWS)}
        held_out = [held_out[place] for place in sorted(places)]
    return [[f"{step:,}", number(loss.get(step, float("nan"))), number(value)] for step, value in held_out]
