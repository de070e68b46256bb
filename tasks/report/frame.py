"""The frame of every report page: head, style, header with a few figures, links, sections, footer.

A page is one HTML file that needs nothing else: no network, no script, no other files. In go its words and the markup
of its sections, out comes the text of the file. The head forbids the browser to fetch or run anything, whatever the
words of a document hold.
"""

from __future__ import annotations

from collections.abc import Mapping

from tasks.report import style as shared
from tasks.report.inspect.labels import legible
from tasks.report.inspect.layout import fact_list, html_page, links
from tasks.report.inspect.svg import element, escape

FOOTER = "Made by sheepfold from the tables of the last completed run; ask them anything with sheepfold sql."


def report_page(
    title: str,
    lead: str,
    facts: Mapping[str, str],
    names: Mapping[str, str],
    sections: Mapping[str, str],
    *,
    overview: str = "",
    style: str = "",
    footer: str = FOOTER,
) -> str:
    """A whole page.

    Args:
        title: text, the heading and the name of the window.
        lead: text, what came out, in a sentence or two.
        facts: text, a few figures under their names.
        names: text of the link to each section, by its id, in the order of the page.
        sections: markup of each section, by the same ids; see `tasks.report.inspect.layout.section`.
        overview: markup that stands between the facts and the links, such as one bar of the whole.
        style: rules of this page alone, after those that all reports share.
        footer: text.

    Raises:
        ValueError: if there is a section without a name or a name without a section.
    """
    if sections.keys() != names.keys():
        odd = ", ".join(sorted(sections.keys() ^ names.keys()))
        raise ValueError(f"these have either no section or no name for the link to it: {odd}")
    heading, first = legible(title), next(iter(names))
    header = element("h1", escape(heading)) + element("p", escape(legible(lead)), class_="lead")
    header += fact_list({legible(name): legible(value) for name, value in facts.items()})
    header += (element("div", overview, class_="overview") if overview else "") + links(names)
    body = "".join(sections[name] for name in names)
    skip = (first, f"Skip to: {names[first]}")
    return html_page(heading, skip, header, body, legible(footer), style=shared.CSS + style)
