"""Documents for the tests of deduplication, and the plain Python that the fast code has to agree with."""

from __future__ import annotations

import random
import re
import tracemalloc
from collections.abc import Callable
from itertools import combinations

WORD = re.compile(r"[\u3041-\u30ff\u3400-\u9fff]|[^\W\u3041-\u30ff\u3400-\u9fff]+")
VOCABULARY = [f"{first}{second}" for first in "bdfgklmnprst" for second in ("a", "en", "ilo", "ora", "umster", "yx9")]


def plain_words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def plain_runs(text: str, n: int) -> list[tuple[str, ...]]:
    words = plain_words(text)
    return [tuple(words[place : place + n]) for place in range(max(len(words) - n + 1, min(len(words), 1)))]


def all_pairs(texts: list[str], threshold: float) -> dict[tuple[int, int], float]:
    """Every pair of at least the threshold, by comparing all with all."""
    sets = [set(plain_runs(text, 5)) for text in texts]
    similar = {}
    for one, other in combinations(range(len(texts)), 2):
        if sets[one] and sets[other]:
            common = len(sets[one] & sets[other])
            similarity = common / (len(sets[one]) + len(sets[other]) - common)
            if similarity >= threshold:
                similar[one, other] = similarity
    return similar


def prose(n_words: int, seed: int) -> str:
    draw = random.Random(seed)
    return " ".join(draw.choice(VOCABULARY) + draw.choice(["", "", "", ",", ".\n"]) for _ in range(n_words))


def edited(text: str, share: float, seed: int) -> str:
    """The text with about that share of its words replaced."""
    draw = random.Random(seed)
    return " ".join(f"new{draw.randrange(10**6)}" if draw.random() < share else word for word in text.split())


def planted(n_originals: int, shares: tuple[float, ...]) -> list[str]:
    """Originals of 40 to 300 words, each followed by copies edited at those rates."""
    texts = []
    for number in range(n_originals):
        original = prose(40 + number * 13 % 260, seed=number)
        texts.append(original)
        texts += [edited(original, share, seed=100 * number + place) for place, share in enumerate(shares)]
    return texts


def peak_memory(work: Callable[[], object]) -> int:
    """Bytes that work takes at once, beyond what was there before; tables that are made but once are not counted."""
    work()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
