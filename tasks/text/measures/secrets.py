"""Secrets in a text: keys in the formats of well-known services, private keys, tokens, and passwords in assignments."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator

_TAIL = r"(?![A-Za-z0-9_\-])"
# what a key begins with, and the whole key; each is tried only where the beginning stands
_KEYS = {
    "AKIA": re.compile(r"AKIA[0-9A-Z]{16}(?![0-9A-Za-z])"),
    "ASIA": re.compile(r"ASIA[0-9A-Z]{16}(?![0-9A-Za-z])"),
    "ghp_": re.compile(r"ghp_[A-Za-z0-9]{36,255}(?![A-Za-z0-9])"),
    "gho_": re.compile(r"gho_[A-Za-z0-9]{36,255}(?![A-Za-z0-9])"),
    "ghu_": re.compile(r"ghu_[A-Za-z0-9]{36,255}(?![A-Za-z0-9])"),
    "ghs_": re.compile(r"ghs_[A-Za-z0-9]{36,255}(?![A-Za-z0-9])"),
    "ghr_": re.compile(r"ghr_[A-Za-z0-9]{36,255}(?![A-Za-z0-9])"),
    "github_pat_": re.compile(r"github_pat_[A-Za-z0-9_]{22,255}(?![A-Za-z0-9_])"),
    "glpat-": re.compile(rf"glpat-[A-Za-z0-9_\-]{{20,64}}{_TAIL}"),
    "xox": re.compile(rf"xox[abeoprs]-(?=[A-Za-z\-]{{0,16}}[0-9])[A-Za-z0-9\-]{{15,250}}{_TAIL}"),
    "AIza": re.compile(rf"AIza[0-9A-Za-z_\-]{{35}}{_TAIL}"),
    "sk-": re.compile(rf"sk-(?=[A-Za-z_\-]{{0,60}}[0-9])[A-Za-z0-9_\-]{{20,250}}{_TAIL}"),
    "sk_live_": re.compile(r"sk_live_[A-Za-z0-9]{20,250}(?![A-Za-z0-9])"),
    "rk_live_": re.compile(r"rk_live_[A-Za-z0-9]{20,250}(?![A-Za-z0-9])"),
    "hf_": re.compile(r"hf_[A-Za-z0-9]{34}(?![A-Za-z0-9])"),
    "eyJ": re.compile(r"eyJ[A-Za-z0-9_\-]{8,2000}+\.eyJ[A-Za-z0-9_\-]{8,8000}+\.[A-Za-z0-9_\-]{8,2000}+"),
}
_PRIVATE_KEY = re.compile(r"-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----")
_KEY_BODY = re.compile(r"[A-Za-z0-9+/=]{16}")
_PRIVATE_KEY_CHARS = 16_384

# what the names of secrets begin with, and how they go on
_NAMES = {
    name: re.compile(rest)
    for name, rest in {
        "pass": r"w(?:or)?d|phrase",
        "pwd": r"",
        "secret": r"",
        "token": r"",
        "api": r"[_\-]?key",
        "access_key": r"",
    }.items()
}
_ASSIGNED = re.compile(
    r"""
    [A-Za-z0-9_\-]{0,24} ["'\]]{0,2} [ \t]{0,8} (?: := | => | [:=] ) [ \t]{0,8}
    (?: "([^"\n]{8,200})" | '([^'\n]{8,200})' | ([A-Za-z0-9+/_\-.~!@$%^&*]{16,200}=?=?) (?=[\s,;]|$) )
    """,
    re.VERBOSE,
)
_PLACEHOLDER = re.compile(
    r"example|sample|dummy|change.?me|placeholder|your|xxx|\*\*\*|\.\.\.|1234567|abcdef|<|>|\$\{|\{\{|%\(|\(|\)|://|^\$|\s",
    re.IGNORECASE,
)
_MIN_ENTROPY = 3.0  # bits per character, of a value in quotation marks
_MIN_BARE_ENTROPY = 3.5


_MIN_KEY = 20  # characters of the shortest key


def find_secrets(text: str, lowered: str, longest_word: int | None = None) -> Iterator[tuple[int, int]]:
    """Start and length of each secret, in characters, by kind rather than in order.

    Args:
        lowered: the text in lower case.
        longest_word: characters of the text's longest word at most, if that is known.
    """
    if longest_word is None or longest_word >= _MIN_KEY:
        yield from _keys(text)
    if "PRIVATE KEY" in text:
        yield from _private_keys(text)
    if len(lowered) != len(text):  # the one character that is two in lower case would move all places
        lowered = text.replace("\u0130", "I").lower()
    yield from _assignments(text, lowered)


def _keys(text: str) -> Iterator[tuple[int, int]]:
    for opening, pattern in _KEYS.items():
        for start in _places(text, opening):
            # so that each stretch that a key could be made of is read once
            if start and (text[start - 1].isalnum() or text[start - 1] in "_-"):
                continue
            found = pattern.match(text, start)
            if found and len(set(found[0])) > 7:
                yield start, len(found[0])


def _places(text: str, needle: str) -> Iterator[int]:
    at = text.find(needle)
    while at >= 0:
        yield at
        at = text.find(needle, at + len(needle))


def _private_keys(text: str) -> Iterator[tuple[int, int]]:
    done = 0
    for start in _places(text, "-----BEGIN "):
        opening = _PRIVATE_KEY.match(text, start)
        if opening is None or start < done:
            continue
        closing = opening[0].replace("BEGIN", "END", 1)
        end = text.find(closing, opening.end(), opening.end() + _PRIVATE_KEY_CHARS)
        # code that reads and writes such files holds both lines, too, with no key between
        if end >= 0 and _KEY_BODY.search(text, opening.end(), end):
            done = end + len(closing)
            yield start, done - start


def _assignments(text: str, lowered: str) -> Iterator[tuple[int, int]]:
    """Values that names like `password` and `api_key` are given, if they look random."""
    for name, rest in _NAMES.items():
        for start in _places(lowered, name):
            if lowered.endswith("publickey", 0, start):  # the name of a .NET assembly has a token that is public
                continue
            named = rest.match(lowered, start + len(name))
            found = _ASSIGNED.match(text, named.end()) if named else None
            if found is None:
                continue
            group = 1 if found[1] else 2 if found[2] else 3
            if _looks_random(found[group], bare=group == 3):
                yield found.start(group), len(found[group])


def _looks_random(value: str, bare: bool) -> bool:
    """Whether a value is no word, no name of something and no stand-in."""
    letters = any(char.isalpha() for char in value)
    digits = sum(char.isdigit() for char in value)
    if not (letters and digits) or _PLACEHOLDER.search(value):
        return False
    if bare and (digits < 3 or "." in value):  # an expression of a program rather than a value
        return False
    return entropy(value) >= (_MIN_BARE_ENTROPY if bare else _MIN_ENTROPY)


def entropy(value: str) -> float:
    """Bits per character by the frequencies of a value's characters."""
    counts = Counter(value).values()
    return -sum(n / len(value) * math.log2(n / len(value)) for n in counts)
