"""Vertical block diagrams: boxes in a line, sums with a bypass around what they sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.report.inspect.svg import Picture, arrow, element, label, line

_GAP, _LINE = 24.0, 16.0
_LETTER = 6.1  # width of a note's letter, in pixels


@dataclass(frozen=True)
class Box:
    """One operator.

    Attributes:
        title: its name.
        notes: smaller lines below, such as its module's name and settings.
        kind: class for its colour: io, norm, mix, feed, drop or plain.
    """

    title: str
    notes: tuple[str, ...] = ()
    kind: str = "plain"


@dataclass(frozen=True)
class Tap:
    """Where a bypass leaves the line; the next Sum takes it in again."""


@dataclass(frozen=True)
class Sum:
    """Adds the bypass that the last Tap opened."""

    note: str = ""


Part = Box | Tap | Sum


def box(x: float, y: float, width: float, part: Box) -> str:
    """A box with its words, centred on x."""
    height = box_height(part)
    shape = element(
        "rect",
        x=x - width / 2,
        y=y,
        width=width,
        height=height,
        rx=7 if part.kind != "io" else height / 2,
        class_=f"box {part.kind}",
    )
    words = label(x, y + 19, part.title, "name", text_anchor="middle")
    for index, note in enumerate(part.notes):
        words += label(x, y + 19 + _LINE * (index + 1), note, "note", text_anchor="middle")
    return shape + words


def box_height(part: Box) -> float:
    """Height of a box."""
    return 30 + _LINE * len(part.notes)


def summing(x: float, y: float) -> str:
    """A circle with a plus, centred."""
    cross = line((x - 5, y), (x + 5, y)) + line((x, y - 5), (x, y + 5))
    return element("circle", cx=x, cy=y, r=11, class_="sum") + cross


def chain(name: str, title: str, parts: Sequence[Part], width: float = 216) -> Picture:
    """A diagram of parts from top to bottom.

    The description names every part in order, so that it says what the drawing shows.
    """
    notes = [note for part in parts if isinstance(part, Box) for note in part.notes]
    width = max(width, _LETTER * max(map(len, notes), default=0) + 20)
    centre = width / 2 + 12
    y, drawn, words, taps, bottom = 8.0, [], [], [], None
    for part in parts:
        if isinstance(part, Tap):
            taps.append((bottom or y) + 9)
            drawn.append(element("circle", cx=centre, cy=taps[-1], r=2.5, class_="joint"))
            words.append("the line branches")
            continue
        if bottom is not None:
            y = bottom + _GAP + (6 if taps else 0)
            drawn += [line((centre, bottom), (centre, y)), arrow(centre, y)]
        if isinstance(part, Sum):
            middle, side = y + 11, centre + width / 2 + 22
            start = taps.pop()
            drawn += [line((centre, start), (side, start), (side, middle), (centre + 11, middle), class_="wire bypass")]
            drawn += [arrow(centre + 11, middle, "left"), summing(centre, middle)]
            if part.note:
                drawn.append(label(centre - 18, middle + 4, part.note, "note", text_anchor="end"))
            words.append("the branch is added")
            bottom = y + 22
        else:
            drawn.append(box(centre, y, width, part))
            words.append(" ".join((part.title, *part.notes)))
            bottom = y + box_height(part)
    total = centre + width / 2 + (30 if any(isinstance(part, Sum) for part in parts) else 12)
    return Picture(
        name, title, "From top to bottom: " + "; ".join(words) + ".", total, (bottom or y) + 8, "".join(drawn)
    )
