"""Two readings of one page made one: the typed text layer and what OCR read of the page's picture.

OCR sees the typed lines too, since they are drawn. Its lines keep their order; where a line says the same as a line of
the layer, the layer's wording stands, for it has no reading errors; layer lines that OCR did not find come first.
"""

from __future__ import annotations

import re
from collections import Counter
from difflib import SequenceMatcher

SAME_LINE = 0.75  # Similarity from which two lines are two readings of one.
LINES_COMPARED = 400  # Of each reading; the pages in question have few typed lines.
AGREEING_WORDS = 0.6

_WORD = re.compile(r"\w+")


def merge_lines(layer: str, read: str) -> str:
    """Merge a layer with an OCR reading of the same page.

    Args:
        layer: The text layer.
        read: What OCR made of the picture.

    Returns:
        Every line of either, each once.
    """
    typed = [line for line in layer.split("\n") if line.strip()][:LINES_COMPARED]
    left = {index: _bare(line) for index, line in enumerate(typed)}
    lines = []
    for line in read.split("\n"):
        match = _find(_bare(line), left)
        if match is None:
            lines.append(line)
        else:
            lines.append(typed[match])
            del left[match]
    rest = [typed[index] for index in left if left[index]]
    return "\n".join([*rest, *lines])


def agree(layer: str, read: str) -> bool:
    """Whether most words of a layer are among those that OCR read, so that the layer says what the page shows."""
    wanted = Counter(_WORD.findall(layer.casefold()))
    found = Counter(_WORD.findall(read.casefold()))
    return bool(wanted) and (wanted & found).total() >= AGREEING_WORDS * wanted.total()


def _bare(line: str) -> str:
    return "".join(line.casefold().split())


def _find(bare: str, candidates: dict[int, str]) -> int | None:
    """The candidate that is the same line; None if there is none."""
    if not bare:
        return None
    matcher = SequenceMatcher(None, autojunk=False)
    matcher.set_seq2(bare)
    for index, candidate in candidates.items():
        if 2 * abs(len(candidate) - len(bare)) > len(candidate) + len(bare):
            continue
        matcher.set_seq1(candidate)
        if matcher.quick_ratio() >= SAME_LINE and matcher.ratio() >= SAME_LINE:
            return index
    return None
