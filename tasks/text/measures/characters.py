"""Classes of characters: one byte for every code point.

A class decides what a character counts as in every measure. The letters are the highest classes, so that the highest
class in a word says whether it has a letter.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

import numpy as np
import numpy.typing as npt

SPACE, OTHER, MARK, SYMBOL, DIGIT, LETTER, UPPER, UNSPACED = range(8)
N_CLASSES = 8

# letters of scripts that put no spaces between words; Hangul does
_UNSPACED_RANGES = (
    (0x0E00, 0x0E7F),  # Thai
    (0x0E80, 0x0EFF),  # Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3005, 0x3007),  # ideographic iteration marks and zero
    (0x3041, 0x30FF),  # Hiragana, Katakana
    (0x31F0, 0x31FF),  # Katakana extensions
    (0x3400, 0x4DBF),  # ideographs
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),  # half-width Katakana
    (0x20000, 0x3FFFF),
)
_COMMON = 0x3000  # below it are all scripts but those of East Asia, and nearly all punctuation
_LAST_ASSIGNED = 0x3FFFF  # above it there are no letters, digits or spaces: tags, selectors and private use


def classify(char: str) -> int:
    """The class of one character."""
    if char.isspace():
        return SPACE
    if char.isalpha():
        point = ord(char)
        if any(first <= point <= last for first, last in _UNSPACED_RANGES):
            return UNSPACED
        return UPPER if char.isupper() else LETTER
    if char.isdigit():
        return DIGIT
    category = unicodedata.category(char)[0]
    if category == "M":
        return MARK
    return SYMBOL if category in "PS" else OTHER


def classes_of(codes: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
    """The class of each code point."""
    common = int(codes.max(initial=0)) < _COMMON
    found: npt.NDArray[np.uint8] = (_common_table() if common else class_table())[codes]
    return found


@lru_cache(maxsize=1)
def _common_table() -> npt.NDArray[np.uint8]:
    """The beginning of `class_table`, which is built in no time and enough for most texts."""
    return np.array([classify(chr(point)) for point in range(_COMMON)], dtype=np.uint8)


@lru_cache(maxsize=1)
def class_table() -> npt.NDArray[np.uint8]:
    """The class of every code point, as an array to index with them; built at the first use (a fifth of a second)."""
    table = np.full(0x110000, OTHER, dtype=np.uint8)
    table[: _LAST_ASSIGNED + 1] = [classify(chr(point)) for point in range(_LAST_ASSIGNED + 1)]
    table[0xE0100:0xE01F0] = MARK  # variation selectors
    return table
