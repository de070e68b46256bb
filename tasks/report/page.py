"""Report pages and cards: templates of `templates/`, rendered to Markdown or to one HTML file that needs no other file.

Whatever a template prints is escaped for its language, and characters that hide or reorder others are replaced by
signs, unless it is markup already. The head forbids the browser to fetch or run anything; only the page of `inspect`
has a script.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tasks.report import wording
from tasks.report.markdown import MAX_WORDS, plain

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
    """Return a page or a card as text.

    Args:
        template: file name in `templates/`; a page extends `base.html`, which says what every page has to be given; a
            card ends in `.md`.
        values: names that the template uses; one that is missing is an error.
    """
    return _environment(template.endswith(".md")).get_template(template).render(values)


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
    )
    made.filters.update({function.__name__: function for function in FILTERS})
    made.filters["plain"] = _markdown
    made.globals["source"] = _source
    return made


def _markdown(value: object, length: int = MAX_WORDS) -> Markup:
    """A value as Markdown shows it; nothing for None."""
    return value if isinstance(value, Markup) else Markup(plain("" if value is None else str(value), length))


def _source(name: str) -> Markup:
    """A style sheet or script of `templates/`, to stand in the page."""
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))
