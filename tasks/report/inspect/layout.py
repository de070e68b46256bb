"""What every report is laid out with: the page around it, its sections, its list of facts.

A report is one file that needs nothing else: no network, no fonts, no other files.
"""

from __future__ import annotations

from collections.abc import Mapping

from tasks.report.inspect.style import CSS
from tasks.report.inspect.svg import element, escape


def section(name: str, heading: str, why: str, content: str) -> str:
    """A titled part of the page."""
    top = element("h2", escape(heading), id=f"{name}-heading") + element("p", escape(why), class_="why")
    return element("section", top + content, id=name, aria_labelledby=f"{name}-heading")


def fact_list(facts: Mapping[str, str]) -> str:
    """A few figures, each under its name."""
    listed = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    return f'<dl class="facts">{listed}</dl>'


def links(sections: Mapping[str, str]) -> str:
    """Links to sections, by their ids."""
    inside = "".join(f'<a href="#{name}">{escape(text)}</a>' for name, text in sections.items())
    return f'<nav aria-label="Sections">{inside}</nav>'


def html_page(
    title: str, skip: tuple[str, str], header: str, main: str, footer: str, scripts: str = "", style: str = ""
) -> str:
    """A whole page.

    Args:
        title: text.
        skip: id and text of the link that leads past the header.
        header: markup, like `main`.
        footer: text.
        scripts: script elements; none may run where there are none.
        style: rules of its own, after those that all reports share.
    """
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    if scripts:
        policy += "; script-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # nothing may be fetched, whatever a text holds
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{CSS}{style}</style></head>'
        f'<body><a class="skip" href="#{skip[0]}">{escape(skip[1])}</a><header>{header}</header><main>{main}</main>'
        f"<footer>{escape(footer)}</footer>{scripts}</body></html>\n"
    )
