"""Measures that look for certain words and marks in one text: cheap substring searches.

Sources: Gopher (Rae et al. 2021, appendix A1.1) for the marks, C4 (Raffel et al. 2020, section 2.2) for the phrases.
"""

from __future__ import annotations

import zlib

POLICY_PHRASES = (
    "terms of use",
    "terms of service",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)
STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
COMPRESSED_CHARS = 8_192


def wording_measures(text: str, lowered: str, n_words: int) -> dict[str, int | float]:
    """Counts of the marks and phrases that quality rules ask for.

    Args:
        text: the text.
        lowered: the same in lower case.
        n_words: its number of words.
    """
    cookies = "cookie" in lowered
    ellipses = text.count("...") + (0 if text.isascii() else text.count("…"))
    return {
        "hash_word_ratio": round(text.count("#") / n_words, 4) if n_words else 0.0,
        "ellipsis_word_ratio": round(ellipses / n_words, 4) if n_words else 0.0,
        "lorem_ipsum": lowered.count("lorem ipsum"),
        "curly_brackets": text.count("{"),
        "javascript": lowered.count("javascript"),
        "policy_phrases": sum(lowered.count(phrase) for phrase in POLICY_PHRASES if cookies or "cookie" not in phrase),
        "compression_ratio": compression_ratio(text),
    }


def compression_ratio(text: str) -> float:
    """Compressed over plain bytes of the first 8,192 characters; 1 for an empty text.

    Near 0 for one phrase over and over, also in scripts without spaces, where no count of phrases sees it. To two
    places, since libraries differ a little in how they compress.
    """
    plain = text[:COMPRESSED_CHARS].encode("utf-8", "surrogatepass")
    return round(len(zlib.compress(plain, 1)) / len(plain), 2) if plain else 1.0
