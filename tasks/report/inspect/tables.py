"""Tables of the page: rows of text and numbers, everything escaped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.report.inspect.svg import element, escape


@dataclass(frozen=True)
class Cell:
    """A cell that is not a plain number.

    Attributes:
        class_: `token` for token text, `wrap` for sentences, `left`.
        share: 0 to 1, draws a small bar in front of the text.
        hint: shown when a pointer rests on it, such as what the text was shortened from.
    """

    text: str
    class_: str = ""
    share: float | None = None
    hint: str | None = None

    def markup(self, tag: str = "td", scope: str | None = None) -> str:
        """The cell."""
        inside = escape(self.text)
        if self.share is not None:
            bar = f'<span class="mini"><i style="width:{100 * self.share:.1f}%"></i></span>'
            inside = f'{bar}<span class="count">{inside}</span>'  # of one width, so that bars stand in line
        return element(tag, inside, class_=self.class_ or None, scope=scope, title=self.hint)


def figure(value: float) -> str:
    """A number in few digits, minus signs and all."""
    if value != value:
        return "–"
    text = f"{value:.3f}" if 0.0005 <= abs(value) < 10000 or value == 0 else f"{value:.1e}".replace("e-0", "e-")
    return text.replace("-", "−")


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[Cell | str | float]],
    caption: str,
    name: str | None = None,
    last_is_sum: bool = False,
) -> str:
    """A table whose first column names its rows."""
    first = rows[0] if rows else []
    top = ""
    for index, text in enumerate(head):
        cell = first[index] if index < len(first) else None
        left = not index or (isinstance(cell, Cell) and ("left" in cell.class_ or "wrap" in cell.class_))
        top += element("th", escape(text), scope="col", class_="left" if left else None)
    body = ""
    for number, row in enumerate(rows):
        cells = [
            cell if isinstance(cell, Cell) else Cell(figure(cell) if isinstance(cell, float) else cell) for cell in row
        ]
        inside = cells[0].markup("th", "row") + "".join(cell.markup() for cell in cells[1:])
        body += element("tr", inside, class_="sum-row" if last_is_sum and number == len(rows) - 1 else None)
    inside = (
        (element("caption", escape(caption)) if caption else "")
        + element("thead", element("tr", top))
        + element("tbody", body)
    )
    return element("table", inside, id=name)


def scrolled(markup: str, label: str, tall: bool = False) -> str:
    """Markup that may be wider or, if `tall`, longer than its place."""
    class_ = "scroll tall" if tall else "scroll"
    return element("div", markup, class_=class_, tabindex="0", role="group", aria_label=label)


def more(summary: str, content: str, open_: bool = False) -> str:
    """Content that is folded away until it is asked for."""
    return f"<details{' open' if open_ else ''}><summary>{escape(summary)}</summary>{content}</details>"
