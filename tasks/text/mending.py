"""Mend what OCR read for a reason that is known: the long s of old print, a word read as two, the stamp of a scanner.

A mended word is one of the corpus's own clean text. Where both readings are words, the other is taken only if it is far
more frequent.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise, product

Mend = tuple[int, int, str]  # start, end, replacement; "" cuts

LEAST_COUNT = 2  # of a word in clean text
SURER = 20  # times as frequent as what was read
LEAST_LONG_S, LONG_S_SHARE = 10, 0.2  # words of a document with one; share of its words with an s before their end
MOST_OPEN = 4  # letters of a word that may be a long s
LEAST_JOINED = 5  # letters of a word that was read as two

_WORD = re.compile(r"[^\W\d_]+")
# a line of its own, such as "Digitized by the Internet Archive in 2010"; what follows is read worse
_STAMP = re.compile(
    r"^[^\w\n]*(?:(?:digiti[sz]ed|scanned)[ ](?:by|with|at|from)|original[ ]from[ ]the[ ]|google-digitized"
    r"|digitalisiert[ ](?:von|durch|mit)|num[ée]ris[ée][ ]par|digitalizado[ ]por|digitalizzato[ ]da)\b[^\n]{0,80}$",
    re.I | re.M,
)


def word_counts(texts: Iterable[str]) -> dict[str, int]:
    """Return how often each word occurs in clean texts, without rare ones."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_WORD.findall(text.lower()))
    return {word: n for word, n in sorted(counts.items()) if n >= LEAST_COUNT}


def mends(text: str, known: Mapping[str, int]) -> list[Mend]:
    """Return the mends of a text in order.

    Args:
        text: What OCR read.
        known: Words of clean text; see `word_counts`.
    """
    words = list(_WORD.finditer(text))
    long_s = list(_long_s(words, known))
    mended = {start for start, *_ in long_s}
    others = [word for word in words if word.start() not in mended]
    stamps = [(*match.span(), "") for match in _STAMP.finditer(text)]
    within = {place for start, end, _ in stamps for place in range(start, end)}
    found = [mend for mend in (*long_s, *_divided(text, others, known)) if mend[0] not in within]
    return sorted([*found, *stamps])


def _long_s(words: Iterable[re.Match[str]], known: Mapping[str, int]) -> list[Mend]:
    """Return the words in which f is a long s, in a text where that is usual."""
    found: list[Mend] = []
    n_other = 0
    for match in words:
        word = match[0].replace("\u017f", "s")
        places = [place for place, letter in enumerate(word[:-1]) if letter == "f"]
        better = _with_s(word, places, known) if 0 < len(places) <= MOST_OPEN else word
        if better != match[0]:
            found.append((*match.span(), better))
        elif "s" in word[:-1] and word.lower() in known:
            n_other += 1
    return found if len(found) >= max(LEAST_LONG_S, LONG_S_SHARE * (len(found) + n_other)) else []


def _with_s(word: str, places: list[int], known: Mapping[str, int]) -> str:
    """Return the most frequent word with an s at some of the places; the word itself unless it is far more frequent."""
    candidates = []
    for letters in product("fs", repeat=len(places)):
        replaced = dict(zip(places, letters, strict=True))
        candidates.append("".join(replaced.get(place, letter) for place, letter in enumerate(word)))
    best = max(candidates, key=lambda candidate: known.get(candidate.lower(), 0))
    return best if known.get(best.lower(), 0) > SURER * known.get(word.lower(), 0) else word


def _divided(text: str, words: Iterable[re.Match[str]], known: Mapping[str, int]) -> Iterator[Mend]:
    """Yield the pairs of words that are one, of which a part is no word."""
    after = 0
    for first, second in pairwise(words):
        if first.start() < after or text[first.end() : second.start()] not in (" ", "\n") or not second[0].islower():
            continue
        whole = first[0] + second[0]
        parts = min(known.get(part.lower(), 0) for part in (first[0], second[0]))
        if len(whole) >= LEAST_JOINED and not parts and whole.lower() in known:
            yield first.start(), second.end(), whole
            after = second.end()
