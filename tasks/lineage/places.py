"""The page of a document on which a passage of its text stands, and the box of the block in which it begins.

Texts are compared by their letters and digits alone: line ends, divided words and Markdown do not matter.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

from storage.schemas import PAGES_FILE
from storage.store import Store
from tasks.ingest.extract import extract
from tasks.lineage.training_data import rows_of

SIGN = 60  # letters by which a passage is found

_OTHERS = re.compile(r"[\W_]+")


def spot_on_page(store: Store, segment: str, doc_id: str, passage: str) -> dict[str, Any]:
    """Return `page`, from 1, and `box` of a passage; empty for a document whose pages have gone or do not have it.

    Args:
        segment: key of the document's extraction segment.
    """
    made = store.find(extract.name, segment)
    if made is None:
        return {}
    table = store.folder(made.ref, PAGES_FILE) / PAGES_FILE
    pages = rows_of(table, {doc_id}, ["doc_id", "page", "text", "blocks"])
    return find_spot(passage, sorted(pages, key=lambda page: page["page"]))


def find_spot(passage: str, pages: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return `page` and `box` (points from the lower left corner; null if the layout is not known) of a passage."""
    sign = _letters(passage)[:SIGN]
    for page in pages:
        if sign not in _letters(page["text"]):
            continue
        texts = [_letters(block["text"]) for block in page["blocks"]]
        at = "".join(texts).find(sign)
        box = None
        if at >= 0:
            block = page["blocks"][bisect_right(list(accumulate(map(len, texts))), at)]
            box = [block[side] for side in ("x0", "y0", "x1", "y1")]
        return {"page": page["page"], "box": box}
    return {}


def _letters(text: str) -> str:
    return _OTHERS.sub("", text).casefold()
