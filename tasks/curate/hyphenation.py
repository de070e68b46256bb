"""Words that were divided at the ends of printed lines, put together again.

In goes the text of a page or document whose lines are those of the print, out comes the text with whole words. A
hyphen at a line end may be the typesetter's ("exam-ple") or the author's ("self-contained"), and only the document
itself tells which: a compound that stands with its hyphen elsewhere keeps it here too. Where nothing tells, the
word is taken for divided, which it is far more often. Linear in the length of the text.
"""

from __future__ import annotations

import itertools
import re

_LONGEST_TOKEN = 256  # as much of the text before a hyphen is looked at; longer ones are no words
_LONGEST_WORD = 40

_FIRST_WORD = re.compile(r"[^\W\d_]+")
_LAST_WORD = re.compile(r"[^\W\d_]+\Z")
# "Haupt- und Nebensatz", "pre- and post-war": the hyphen stands for a word left out, not for a divided one
_SUSPENDED = re.compile(r"(?:und|oder|bzw\.|(?:and|or|to)(?=[ \n][^\W\d_]{1,40}-))(?=[ \n])")


def join_hyphenation(text: str) -> str:
    """Joins words that a hyphen at the end of a line divides.

    Only a lower-case continuation is joined, so "Baden-" and "Württemberg", "1990-" and "2000" stay as they are.

    Args:
        text: Text without spaces at the ends of its lines.

    Returns:
        The text. A divided word loses hyphen and line end; a compound that the document also writes with a hyphen,
        a single letter ("e-mail") and a web address keep the hyphen; one that stands for a word left out is followed
        by a space.
    """
    if "\u2010\n" in text:  # the typographic twin of "-"
        text = text.replace("\u2010\n", "-\n")
    if "-\n" not in text:
        return text
    first, *others = text.split("-\n")
    compounds: set[str] | None = None
    joined, token = [first], _last_token("", first)
    for piece in others:
        joint = _joint(token, piece)
        if joint == "":
            compounds = _compounds(text) if compounds is None else compounds
            if _compound(token, piece) in compounds:
                joint = "-"
        joined += (joint, piece)
        token = _last_token(token if joint in ("", "-") else "", joint + piece)
    return "".join(joined)


def _joint(token: str, piece: str) -> str:
    """What takes the place of the hyphen and line end between a token and what follows; "" where a word is whole."""
    if not (token and piece and token[-1].isalpha()):
        return "-\n"
    if "://" in token or token.startswith("www."):
        return "-" if piece[0].isalnum() else "-\n"  # nobody divides an address with a hyphen of his own
    if not piece[0].islower():
        return "-\n"
    if _SUSPENDED.match(piece):
        return "- "
    single = not token[-2:-1].isalpha() or not piece[1:2].isalpha()
    return "-" if single else ""  # no typesetter divides off one letter


def _last_token(before: str, text: str) -> str:
    """The end of a text since its last white space, where it continues another token."""
    end = text[-_LONGEST_TOKEN:]
    if not end or end[-1].isspace():
        return before if not end else ""
    words = end.split()
    if len(words) > 1 or end[0].isspace() or len(text) > _LONGEST_TOKEN:
        return words[-1]
    return (before + end)[-_LONGEST_TOKEN:]


def _compound(left: str, right: str) -> str:
    """The word before and the word after a hyphen, joined by it; "" if one is missing."""
    before, after = _LAST_WORD.search(left[-_LONGEST_WORD:]), _FIRST_WORD.match(right[:_LONGEST_WORD])
    return f"{before[0]}-{after[0]}".lower() if before and after else ""


def _compounds(text: str) -> set[str]:
    """All compounds that a text writes with a hyphen inside a line."""
    # most hyphens are dashes, signs and ranges: a glance at their neighbours is ten times as fast as the two patterns
    pairs = itertools.pairwise(text.split("-"))
    found = {_compound(left, right) for left, right in pairs if left[-1:].isalnum() and right[:1].isalnum()}
    return found - {""}
