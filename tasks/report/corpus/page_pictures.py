"""The section of pages: how they were read, which could not be, and pictures of those that OCR was unsure of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.report.corpus.figures import Figures, WorstPage
from tasks.report.corpus.sections import Row, doubtful_words, path_cell, reason_cell
from tasks.report.inspect.labels import legible
from tasks.report.inspect.layout import section
from tasks.report.inspect.svg import element, escape
from tasks.report.inspect.tables import Cell, scrolled, table
from tasks.report.wording import cut_middle, share

if TYPE_CHECKING:
    from tasks.report.corpus.thumbnails import Thumbnail, Thumbnails

PICTURES_BYTES = 1_500_000  # of all pictures together; the page stays small enough to send
_METHODS = {
    "text": "text layer or file",
    "ocr": "OCR",
    "both": "text layer and OCR",
    "none": "nothing to read",
}


def pages_section(figures: Figures, thumbnails: Thumbnails | None) -> str:
    """Pages by method and engine, errors, the most doubtful ones."""
    total = sum(kind.n for kind in figures.pages) or 1
    rows: list[Row] = [
        [
            Cell(_METHODS.get(kind.method, kind.method), "left"),
            Cell(kind.engine, "left"),
            Cell(f"{kind.n:,}", share=kind.n / total),
            f"{kind.errors:,}" if kind.errors else "–",
            "–" if kind.confidence is None else share(kind.confidence, 1),
        ]
        for kind in figures.pages
    ]
    head = ["read from", "engine", "pages", "with errors", "mean confidence"]
    body = scrolled(table(head, rows, ""), "Pages by method") if rows else element("p", "No page was read.")
    if figures.page_errors:
        listed: list[Row] = [
            [path_cell(item.path, 60), str(item.page), reason_cell(item.error)] for item in figures.page_errors
        ]
        errors = sum(kind.errors for kind in figures.pages)
        caption = f"Pages with errors: {errors:,}" + (f", of which {len(listed)}" if errors > len(listed) else "")
        body += scrolled(table(["document", "page", "error"], listed, caption), "Pages with errors")
    body += element("h3", "The pages that OCR was least sure of") + element("p", escape(doubtful_words(figures)))
    body += _cards(figures, thumbnails)
    why = "A file of text or code counts as one page. Confidence is OCR's own, or that of a guessed encoding."
    return section("pages", "Pages", why, body)


def _cards(figures: Figures, thumbnails: Thumbnails | None) -> str:
    cards, room = "", PICTURES_BYTES
    for page in figures.worst_pages:
        drawn = thumbnails and thumbnails.draw(page.sha256, page.media_type, page.page, page.container)
        if drawn and len(drawn.uri) > room:
            drawn = None
        room -= len(drawn.uri) if drawn else 0
        cards += _card(page, drawn or None)
    return element("div", cards, class_="cards")


def _card(page: WorstPage, drawn: Thumbnail | None) -> str:
    name = legible(page.path)
    if drawn and drawn.uri:
        words = f"Picture of page {page.page} of {name}"
        picture = f'<img src="{drawn.uri}" width="{drawn.width}" height="{drawn.height}" alt="{escape(words)}">'
    else:
        picture = element("div", escape(f"no picture: {legible(drawn.reason) if drawn else 'none was asked for'}"))
    state = "" if page.kept is not False else " · dropped"
    text = legible(" ".join(page.text.split())) or "(no text)"
    return element(
        "figure",
        element("div", picture, class_="picture" if drawn and drawn.uri else "picture none")
        + element("figcaption", f"<b>{escape(share(page.confidence, 1))}</b> sure · page {page.page:,}{state}")
        + element("div", escape(cut_middle(name, 70)), class_="path", title=name)
        + element("blockquote", escape(text)),
        class_="card",
    )
