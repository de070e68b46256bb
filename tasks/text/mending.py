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
SHORT, OF_SHORT = 5, 10  # letters of words that may be rare ones, and how often the other one occurs at least
LEAST_LONG_S, LONG_S_SHARE = 10, 0.2  # words of a document with one; share of its words with an s before their end
MOST_OPEN = 4  # letters of a word that may be a long s
LEAST_JOINED = 5  # letters of a word that was read as two

_WORD = re.compile(r"[^\W\d_]+")
_IN_ADDRESS = re.compile(r"[@/\\]")
# a line of its own that is no sentence, such as "Digitized by the Internet Archive"; what follows is read worse
_STAMP = re.compile(
    r"^(?:(?:Digiti[sz]ed|DIGITI[SZ]ED|Scanned|SCANNED)[ ](?:by|BY|with|WITH|at|from)|Google-digitized"
    r"|Digitalisiert[ ](?:von|durch|mit)|Num[ée]ris[ée][ ]par|Digitalizado[ ]por|Digitalizzato[ ]da)\b[^\n]{0,60}"
    r"(?<![.,;:])$",
    re.M,
)


def word_counts(texts: Iterable[str]) -> dict[str, int]:
    """Return how often each word occurs in clean texts, without rare ones."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_WORD.findall(text.lower()))
    return {word: n for word, n in sorted(counts.items()) if n >= LEAST_COUNT}


def mends(text: str, known: Mapping[str, int]) -> list[Mend]:
    """Return the mends of a text, in order and apart.

    Args:
        text: What OCR read.
        known: Words of clean text; see `word_counts`.
    """
    stamps = [(*match.span(), "") for match in _STAMP.finditer(text)]
    found: list[Mend] = []
    # of two at the same place, the first of these kinds is taken
    for mend in sorted([*stamps, *_long_s(text, known), *_divided(text, known)], key=lambda mend: mend[0]):
        if not found or mend[0] >= found[-1][1]:
            found.append(mend)
    return found


def _long_s(text: str, known: Mapping[str, int]) -> list[Mend]:
    """Return the words in which f is a long s, in a text where that is usual."""
    found: list[Mend] = []
    n_other = 0
    for match in _WORD.finditer(text):
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
    least = max(SURER * known.get(word.lower(), 0), OF_SHORT if len(word) <= SHORT else LEAST_COUNT)
    return best if known.get(best.lower(), 0) >= least else word


def _divided(text: str, known: Mapping[str, int]) -> Iterator[Mend]:
    """Yield the pairs of words that are one: a part is no word, and the other one rarer than the whole."""
    for first, second in pairwise(_WORD.finditer(text)):
        start, end = first.start(), second.end()
        if text[first.end() : second.start()] not in (" ", "\n") or not second[0].islower():
            continue
        whole = first[0] + second[0]
        counts = sorted(known.get(part.lower(), 0) for part in (first[0], second[0]))
        if len(whole) < LEAST_JOINED or counts[0] or known.get(whole.lower(), 0) <= counts[1]:
            continue
        before, after = text[max(0, start - 40) : start].split(" ")[-1], text[end : end + 40].split(" ")[0]
        if not _IN_ADDRESS.search(before + after):  # which may be private, and was looked for before
            yield start, end, whole
