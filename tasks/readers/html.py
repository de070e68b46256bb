"""The main content of HTML: the text of a page without its menus, footers, cookie notices and scripts.

Resiliparse parses as browsers do and decides by tags, class names and places what belongs to the content. Code,
tables, lists and captions of figures stay.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tasks.readers.declared import decode_declared
from tasks.readers.decode import clean
from tasks.readers.parsed import Parsed

if TYPE_CHECKING:
    from resiliparse.parse.html import DOMContext, HTMLTree

LONGEST_TITLE = 1000
# The search for the main content takes time in proportion to the square of the depth; pages have below 100 levels.
MAX_DEPTH = 1000
MAX_LISTS = 100  # each costs time in proportion to the size of the page
_PLAIN_LIST_NEAR_TOP = "body > ul:not(:has(a)), body > * > ul:not(:has(a))"
# Left out with all that is in them, such as code, unless the alternative texts of pictures are asked for.
_FIGURE = re.compile(r"<(/?)fig(?:ure|caption)\b", re.IGNORECASE)
_HIDDEN = ["[hidden]", "[style*='display:none' i]", "[style*='display: none' i]"]


def read_html(data: bytes) -> Parsed:
    """Read an HTML document.

    Args:
        data: The whole file.

    Returns:
        Its title and its main content. Where no main content is found, its whole visible text, with a note.
    """
    # Only here: a worker that meets no HTML need not load it.
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    text, encoding, confidence = decode_declared(data)
    tree = HTMLTree.parse(_FIGURE.sub(r"<\1div", text))
    note, content = "", ""
    if _is_deep(tree, text):
        note = f"elements are nested more than {MAX_DEPTH} deep, so the whole text was read, menus and all"
    else:
        _protect_lists(tree)
        content = extract_plain_text(tree, main_content=True, alt_texts=False)
        if not content:
            note = "no main content was found, so the whole text was read, menus and all"
    if not content:
        content = extract_plain_text(tree, alt_texts=False, skip_elements=_HIDDEN)
    title = clean(" ".join((tree.title or "").split())[:LONGEST_TITLE])
    return Parsed(clean(content), encoding, confidence, title=title or None, note=note)


def _is_deep(tree: HTMLTree, text: str) -> bool:
    from resiliparse.parse.html import traverse_dom

    if text.count("<") <= MAX_DEPTH or tree.body is None:
        return False
    deepest = 0

    def look(context: DOMContext) -> None:
        nonlocal deepest
        deepest = max(deepest, context.depth)

    traverse_dom(tree.body, look, elements_only=True)
    return deepest > MAX_DEPTH


def _protect_lists(tree: HTMLTree) -> None:
    """Resiliparse takes any list near the top for a menu: one without links is moved deeper."""
    for _ in range(MAX_LISTS):
        # One at a time: going through a list of nodes costs time in proportion to its square.
        inner: Any = tree.body.query_selector(_PLAIN_LIST_NEAR_TOP) if tree.body is not None else None
        if inner is None:
            return
        for _ in range(3):
            box: Any = tree.create_element("div")
            inner.parent.replace_child(box, inner)
            box.append_child(inner)
            inner = box
