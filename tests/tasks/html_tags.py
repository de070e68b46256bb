"""A page as a browser reads it: its elements, their ids and addresses, its visible words."""

from __future__ import annotations

import re
from html.parser import HTMLParser


class Tags(HTMLParser):
    """Checks that elements are closed in order, and collects names, ids and visible text."""

    VOID = ("meta", "link", "input", "br", "img")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)


def sections_of(page: str) -> list[str]:
    """Ids that the links at the top of a page lead to."""
    found = re.findall(r'href="#([^"]+)"', page.partition("<nav")[2].partition("</nav>")[0])
    assert len(found) > 2
    return found


def assert_alone(page: str) -> None:
    """A page that is whole, has every section once, fetches nothing and runs nothing."""
    tags = Tags(page)
    assert set(sections_of(page)) == {name.removesuffix("-heading") for name in tags.ids if name.endswith("-heading")}
    assert len(tags.ids) == len(set(tags.ids))
    assert not tags.names & {"script", "iframe", "object", "embed", "form", "base"}
    assert "img" not in tags.names
    assert all(address.startswith(("#", "data:")) for address in tags.addresses)
    assert "url(" not in page and "@import" not in page
    assert "default-src 'none'" in page
