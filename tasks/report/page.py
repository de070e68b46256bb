"""Report pages: a template of `templates/` rendered to one HTML file that needs no network and no other file.

Whatever a template prints is escaped, and characters that hide or reorder others are replaced by signs, unless it is
markup already. The head forbids the browser to fetch or run anything; only the page of `inspect` has a script.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

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
    wording.integer,
    wording.lines,
    wording.number,
    wording.percent,
    wording.share,
    wording.size_of,
)


def render(template: str, **values: object) -> str:
    """Return a page as text.

    Args:
        template: file name in `templates/`; a report extends `base.html`, which says what every page has to be given.
        values: names that the template uses; one that is missing is an error.
    """
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=wording.shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update({function.__name__: function for function in FILTERS})
    made.globals["source"] = _source
    return made


def _source(name: str) -> Markup:
    """A style sheet or script of `templates/`, to stand in the page."""
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))
