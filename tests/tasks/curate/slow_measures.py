"""The measures of one text by the shortest Python that says what they mean: the standard for the fast ones."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

TERMINAL = tuple(".!?…。！？｡؟।॥")
QUOTES = tuple("\"'”’»」』")
BRACKETS = (")", "）")
BULLETS = "•‣◦▪▫■□●○◆◇▶►–—-*·"
STOP_WORDS = {"the", "be", "to", "of", "and", "that", "have", "with"}


def ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def ngrams(words: list[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(words[place : place + n]) for place in range(len(words) - n + 1)]


def top_characters(words: list[str], n: int) -> int:
    counts = Counter(ngrams(words, n))
    frequent = max(counts.values(), default=0)
    if frequent < 2:
        return 0
    return frequent * max(len("".join(gram)) for gram, count in counts.items() if count == frequent)


def duplicate_characters(words: list[str], n: int) -> int:
    seen, covered = set(), set()
    for place, gram in enumerate(ngrams(words, n)):
        if gram in seen:
            covered.update(range(place, place + n))
        seen.add(gram)
    return sum(len(words[place]) for place in covered)


def repeats(units: list[str]) -> list[str]:
    """Second and later occurrences, by their words."""
    seen, found = set(), []
    for unit in units:
        words = tuple(unit.split())
        if words in seen:
            found.append(unit)
        seen.add(words)
    return found


def solid(text: str) -> int:
    return len("".join(text.split()))


def ends_sentence(word: str) -> bool:
    return word.endswith(TERMINAL) or (len(word) > 1 and word.endswith((*QUOTES, *BRACKETS)) and word[-2] in TERMINAL)


def ends_line(line: str) -> bool:
    line = line.rstrip()
    in_brackets = len(line) > 1 and line.endswith(BRACKETS) and line[-2] in TERMINAL
    return line.endswith((*TERMINAL, *QUOTES)) or in_brackets


def slow_measures(text: str) -> dict[str, Any]:
    """Word, line and phrase measures of a text."""
    words = text.split()
    lines = text.split("\n") if text else []
    written = [line.strip() for line in lines if line.strip()]
    paragraphs = [part for part in re.split(r"\n(?:[^\S\n]*\n)+", text) if part.strip()]
    size = solid(text)
    letters = sum(map(str.isalpha, text))
    phrases = ngrams(words, 5)
    measures = {
        "n_chars": len(text),
        "n_words": len(words),
        "n_lines": len(lines),
        "n_paragraphs": len(paragraphs),
        "n_sentences": sum(len(word) > 1 and ends_sentence(word) for word in words),
        "mean_word_length": ratio(size, len(words)),
        "longest_word": max(map(len, words), default=0),
        "longest_line": max(map(len, lines), default=0),
        "mean_line_length": ratio(sum(map(len, lines)), len(lines)),
        "letter_share": ratio(letters, size),
        "digit_share": ratio(sum(char.isdigit() and not char.isalpha() for char in text), size),
        "upper_share": ratio(sum(char.isupper() and char.isalpha() for char in text), letters),
        "space_share": ratio(len(text) - size, len(text)),
        "alpha_word_share": ratio(sum(any(map(str.isalpha, word)) for word in words), len(words)),
        "stop_words": len(STOP_WORDS & set(words)),
        "bullet_line_share": ratio(
            sum(line[0] in BULLETS and (line[0] not in "–—-*·" or line[1:2].strip() == "") for line in written),
            len(written),
        ),
        "ellipsis_line_share": ratio(sum(line.endswith(("...", "…")) for line in written), len(written)),
        "terminal_line_share": ratio(sum(map(ends_line, written)), len(written)),
        "few_words_line_share": ratio(sum(len(line.split()) < 5 for line in written), len(written)),
        "short_line_share": ratio(sum(len(line) <= 30 for line in written), len(written)),
        "list_ratio": ratio(text.count("\n"), len(words)),
        "duplicate_line_share": ratio(len(repeats(written)), len(written)),
        "duplicate_line_char_share": ratio(sum(map(solid, repeats(written))), size),
        "duplicate_paragraph_share": ratio(len(repeats(paragraphs)), len(paragraphs)),
        "duplicate_paragraph_char_share": ratio(sum(map(solid, repeats(paragraphs))), size),
        "distinct_share": ratio(len(set(phrases)), len(phrases)) if len(words) >= 100 else 1.0,
    }
    for n in (2, 3, 4):
        measures[f"top_{n}gram_char_share"] = min(1.0, ratio(top_characters(words, n), size))
    for n in (5, 6, 7, 8, 9, 10):
        measures[f"duplicate_{n}gram_char_share"] = ratio(duplicate_characters(words, n), size)
    return measures
