"""Report pages and cards: templates of `templates/`, rendered to Markdown or to one HTML file that needs no other file.

Whatever a template prints is escaped for its language, and characters that hide or reorder others are replaced by
signs, unless it is markup already. The head forbids the browser to fetch or run anything; only the page of `inspect`
has a script.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tasks.report import wording

TEMPLATES = Path(__file__).with_name("templates")
FILTERS = (
    wording.amount,
    wording.counted,
    wording.cut,
    wording.cut_middle,
    wording.decimals,
    math.exp,
    wording.integer,
    wording.lines,
    wording.number,
    wording.share,
)


Level = Literal["lost", "check", "note"]


class Notice(NamedTuple):
    """One thing to look at first.

    Attributes:
        level: `lost`: text is missing that can be had; `check`: something looks wrong; `note`: good to know.
        section: id of the section with more.
        title: what it is, with its number.
        advice: what to do.
        weight: orders notices of one level; roughly the number of files.
        path: an example; empty where there is none.
    """

    level: Level
    section: str
    title: str
    advice: str
    weight: int = 1
    path: str = ""


def gravest_first(notices: Iterable[Notice]) -> list[Notice]:
    """Return notices in the order in which they should be read."""
    return sorted(notices, key=lambda item: (("lost", "check", "note").index(item.level), -item.weight, item.title))


def notices_of(template: str, **values: object) -> list[Notice]:
    """Return what a person should look at, the gravest first; empty if there is nothing.

    Args:
        template: file name of the conditions, which call `notice` with the fields of a `Notice` that holds.
        values: other names that the template uses.
    """
    found: list[Notice] = []
    render(template, notice=lambda *fields: found.append(Notice(*fields)), **values)
    return gravest_first(found)


def render(template: str, **values: object) -> str:
    """Return a page or a card as text.

    Args:
        template: file name in `templates/`; a page extends `base.html`, which says what every page has to be given; a
            card ends in `.md`.
        values: names that the template uses; one that is missing is an error.
    """
    return _environment(template.endswith(".md")).get_template(template).render(values)


def draw_page(template: str, notices: Sequence[Notice] = (), **values: object) -> list[str]:
    """Return a page, and its summary in Markdown: its lead, its facts and the first of its notices.

    Args:
        template: file name of a page, which sets `lead` and `facts`.
        notices: the gravest first.
        values: names that the template uses.
    """
    page = _environment(False).get_template(template).make_module({"notices": notices, **values})
    lead, facts = (vars(page)[name] for name in ("lead", "facts"))
    return [str(page), render("summary.md", lead=Markup(lead).unescape(), facts=facts, notices=notices[:6])]


def macro(template: str, name: str, *values: object, **named: object) -> Markup:
    """Return what a macro of a template makes of some values."""
    return Markup(getattr(_environment(False).get_template(template).module, name)(*values, **named))


@cache
def _environment(is_markdown: bool) -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=_markdown if is_markdown else wording.shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        extensions=["jinja2.ext.do"],
    )
    made.filters.update({function.__name__: function for function in FILTERS})
    made.filters |= {"plain": _markdown, "cell": lambda text, *length: Markup(wording.cell(text, *length))}
    made.globals["source"] = _source
    return made


def _markdown(value: object, length: int = wording.MAX_WORDS) -> Markup:
    """A value as Markdown shows it; nothing for None."""
    return value if isinstance(value, Markup) else Markup(wording.plain("" if value is None else str(value), length))


def _source(name: str) -> Markup:
    """A style sheet or script of `templates/`, to stand in the page."""
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))
