"""The few SVG elements that charts and diagrams are made of; everything that is text is escaped here."""

from __future__ import annotations

import html
from dataclasses import dataclass


def escape(value: object) -> str:
    """Text for HTML, in elements and in attributes."""
    return html.escape(str(value), quote=True)


def number(value: float) -> str:
    """A coordinate, without needless digits."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def element(tag: str, content: str = "", /, **attributes: object) -> str:
    """An element; `content` is markup, attributes are escaped, and a trailing underscore in their names is dropped."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{number(value) if isinstance(value, float) else escape(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    return f"<{tag}{written}>{content}</{tag}>"


def label(x: float, y: float, text: str, class_: str = "", **attributes: object) -> str:
    """A line of text."""
    return element("text", escape(text), x=float(x), y=float(y), class_=class_ or None, **attributes)


@dataclass(frozen=True)
class Picture:
    """A drawing with the words that stand for it.

    Attributes:
        name: an id that no other drawing of the page has.
        title: what it is.
        description: what it shows, for those who do not see it.
        body: its markup.
    """

    name: str
    title: str
    description: str
    width: float
    height: float
    body: str

    def markup(self) -> str:
        """The drawing; it keeps its size and is scrolled where the page is narrower."""
        words = element("title", escape(self.title), id=f"{self.name}-title")
        words += element("desc", escape(self.description), id=f"{self.name}-desc")
        drawing = element(
            "svg",
            words + self.body,
            id=self.name,
            viewBox=f"0 0 {number(self.width)} {number(self.height)}",
            width=float(self.width),
            height=float(self.height),
            role="img",
            aria_labelledby=f"{self.name}-title {self.name}-desc",
        )
        return element("div", drawing, class_="scroll", tabindex="0", role="group", aria_label=self.title)


def arrow(x: float, y: float, direction: str = "down") -> str:
    """An arrow head whose tip is at (x, y)."""
    turn = {"down": 0, "left": 90, "up": 180, "right": 270}[direction]
    return element(
        "path", d="M0 0L-4 -7H4Z", class_="tip", transform=f"translate({number(x)} {number(y)}) rotate({turn})"
    )


def line(*points: tuple[float, float], class_: str = "wire") -> str:
    """A polyline."""
    return element("path", d="M" + "L".join(f"{number(x)} {number(y)}" for x, y in points), class_=class_)
