"""What a person should look at first: the things themselves, and their list on a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from tasks.report.inspect.labels import legible
from tasks.report.inspect.layout import section
from tasks.report.inspect.svg import element, escape
from tasks.report.wording import cut, cut_middle

Level = Literal["lost", "check", "note"]

LEVELS: dict[Level, str] = {"lost": "text is missing", "check": "look at it", "note": "good to know"}
_PATH = 110  # characters of a path
_REMEDY = 260


class Worry(NamedTuple):
    """One thing to look at.

    Attributes:
        level: `lost`: text is missing that can be had; `check`: something looks wrong; `note`: good to know.
        weight: orders worries of one level; roughly the number of files.
        title: what it is, with its number.
        remedy: what to do.
        path: an example; empty where there is none.
        section: id of the section with more.
    """

    level: Level
    weight: int
    title: str
    remedy: str
    path: str
    section: str


def ordered(worries: Iterable[Worry]) -> list[Worry]:
    """The gravest first."""
    levels = list(LEVELS)
    return sorted(worries, key=lambda worry: (levels.index(worry.level), -worry.weight, worry.title))


def look_first(name: str, worries: Sequence[Worry], why: str, nothing: str) -> str:
    """The section that a page begins with.

    Args:
        name: its id.
        why: text, in which order they come.
        nothing: text, said where there are none.
    """
    body = worry_list(worries) if worries else element("p", escape(nothing))
    return section(name, "What to look at first", why, body)


def worry_list(worries: Sequence[Worry]) -> str:
    """The list."""
    return element("ol", "".join(map(_item, worries)), class_="worries")


def _item(worry: Worry) -> str:
    badge = element("span", LEVELS[worry.level], class_=f"badge {worry.level}")
    title = element("b", escape(legible(worry.title)))
    remedy = element("span", escape(cut(legible(worry.remedy), _REMEDY)), class_="remedy")
    example = ""
    if worry.path:
        name = legible(worry.path)
        shown = escape(cut_middle(name, _PATH))
        example = f'<span class="remedy">For example <span class="path" title="{escape(name)}">{shown}</span></span>'
    more = f'<a href="#{worry.section}">more</a>'
    return element("li", f"{badge}<div>{title} {more}<br>{remedy} {example}</div>")
