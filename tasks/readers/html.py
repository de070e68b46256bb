"""The visible text of HTML: headings, paragraphs and rows on lines of their own, without scripts and styles.

libxml2 parses as a stream of events, so that there is no tree: neither depth nor size of the markup costs memory, and
broken markup is read as far as it goes, as a browser does.
"""

from __future__ import annotations

from tasks.readers.declared import decode_declared
from tasks.readers.decode import clean
from tasks.readers.flow import TextFlow
from tasks.readers.parsed import Parsed

FEED_CHARACTERS = 1024 * 1024
LONGEST_TITLE = 1000


def _words(names: str) -> frozenset[str]:
    """Names between spaces, as a set."""
    return frozenset(names.split())


_INVISIBLE = _words(
    "applet area audio canvas datalist embed frame iframe map noembed noframes noscript object param script select "
    "source style svg template track video"
)
_PARAGRAPHS = _words(
    "address article aside blockquote body details dialog dl fieldset figure footer form h1 h2 h3 h4 h5 h6 header "
    "hgroup hr main nav ol p pre section summary table ul"
)
_LINES = _words("br caption center dd dir div dt figcaption legend li option tbody tfoot thead tr")
_CELLS = frozenset(("td", "th"))
_PREFORMATTED = frozenset(("listing", "plaintext", "pre", "textarea", "xmp"))
_VOID = _words("area base br col embed hr img input link meta param source track wbr")


def read_html(data: bytes) -> Parsed:
    """Read an HTML document.

    Args:
        data: The whole file.

    Returns:
        Its visible text and its title.
    """
    from lxml import etree

    text, encoding, confidence = decode_declared(data)
    reader = _Reader()
    # As UTF-8, whatever a meta element says: it is decoded already.
    parser = etree.HTMLParser(target=reader, encoding="utf-8", huge_tree=True)
    for start in range(0, max(len(text), 1), FEED_CHARACTERS):
        parser.feed(text[start : start + FEED_CHARACTERS].encode("utf-8") or b" ")
    parser.close()
    title = " ".join("".join(reader.title).split())[:LONGEST_TITLE]
    return Parsed(clean(reader.flow.result()), encoding, confidence, title=clean(title) or None)


class _Reader:
    """Take the parser's events."""

    def __init__(self) -> None:
        self.flow = TextFlow()
        self.title: list[str] = []
        self._in_title = False
        self._has_title = False
        self._skipped: list[str] = []  # Open elements from the invisible one inwards.
        self._preformatted = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """An element begins."""
        if self._skipped:
            if tag not in _VOID:
                self._skipped.append(tag)
            return
        if tag == "title":
            self._in_title = True
        elif tag in _INVISIBLE or _is_hidden(attributes):
            if tag not in _VOID:
                self._skipped.append(tag)
        else:
            self._break(tag)
            self._preformatted += tag in _PREFORMATTED

    def end(self, tag: str) -> None:
        """An element ends."""
        if self._skipped:
            if tag == self._skipped[-1]:
                self._skipped.pop()
            return
        if tag == "title":
            self._in_title, self._has_title = False, bool(self.title)
        elif tag in _CELLS:
            self.flow.cell()
        else:
            self._preformatted -= tag in _PREFORMATTED and self._preformatted > 0
            if tag != "br":
                self._break(tag)

    def data(self, data: str) -> None:
        """Text."""
        if self._in_title:
            # Later ones belong to pictures.
            if not self._has_title:
                self.title.append(data)
        elif self._preformatted and not self._skipped:
            self.flow.preformatted(data)
        elif not self._skipped:
            self.flow.text(data)

    def close(self) -> None:
        """The document ends."""

    def _break(self, tag: str) -> None:
        """End the line or the paragraph where an element begins or ends."""
        if tag in _PARAGRAPHS:
            self.flow.paragraph()
        elif tag in _LINES:
            self.flow.line()


def _is_hidden(attributes: dict[str, str]) -> bool:
    return "hidden" in attributes or "display:none" in attributes.get("style", "").replace(" ", "").lower()
