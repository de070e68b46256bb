"""How much of a text layer is text: tells broken font mappings from prose, code, tables, formulae and other scripts.

A PDF whose fonts have no usable mapping to Unicode looks right on paper and gives garbage as text: private-use and
unassigned characters, control characters, one letter for another, two scripts in one word. Each of these has a
plain sign, counted line by line; none needs a dictionary or a trained model, so it works on any language. A wrong
alarm costs a page of OCR, hence the thresholds are far on the safe side: real text of any kind is well above them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

LEGIBLE_SHARE = 0.7  # Below this share of legible characters a text layer does not say what the page shows.

# The eight most frequent letters of European languages make up 64 % of English and 50 % and more of all languages in
# Latin script, and of source code. Of letters that stand for others, or for nothing, they are about 30 %.
COMMON_LETTERS = b"etaoinsrETAOINSR"
COMMON_SHARE = 0.3
PLAINLY_COMMON_SHARE = 0.45
LETTERS_JUDGED = 30  # Fewer letters are no sample.

_ACCENTED_SHARE = 0.6  # Vietnamese has 0.3; Cyrillic bytes read as Latin-1 have nearly 1.
_SIGNS_SHARE = 0.2
_SALAD_SHARE = 0.6
_SALAD_KINDS = 12
_CONTROL_COST = 2  # Besides itself: where a glyph's number stands for one character, it does for its neighbours too.
_JUNCTION_COST = 2  # Characters that a word in two scripts makes doubtful.

_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NOT_LETTERS = bytes(set(range(256)) - set(_LETTERS))
_NOT_COMMON = bytes(set(range(256)) - set(COMMON_LETTERS))
_CONTROLS = bytes(code for code in range(32) if code not in b"\t\n\r\f")
_JUNK = re.compile(
    "[\x00-\x08\x0b\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ue000-\uf8ff\ufff0-\ufffb\ufffd-\uffff\U000f0000-\U0010ffff]"
)
_CONTROL = re.compile("[\x00-\x08\x0b\x0e-\x1f]")
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")
_ACCENTED = re.compile("[\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u00ff]")
_SIGNS = re.compile("[\u00a1-\u00a6\u00a8\u00aa\u00ac\u00ae\u00af\u00b2-\u00b6\u00b8-\u00ba\u00bc-\u00bf]")
_SYMBOLS = re.compile(r"[!-,/:-<>-@\[-^`{}~]")
_LEADERS = re.compile(r"[.=|_-]")  # Dots up to a page number, rules, frames of tables: any number of them is in order.
_WORDS = re.compile(r"[A-Za-z]{3,}")  # Not the letters of formulae.
_LATIN = "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f"
_OTHER = "\u0400-\u052f\u0531-\u058f\u0590-\u05ff\u0600-\u06ff\u0900-\u0e7f\u10a0-\u10ff"
_GREEK = "\u0370-\u03ff"
# Of fixed width, so that a run of a million letters is looked at once. A Greek letter beside a Latin one is a formula.
_JUNCTION = re.compile(
    f"(?<=[{_LATIN}])[{_OTHER}]|(?<=[{_OTHER}])[{_LATIN}]"
    f"|(?<=[{_LATIN}]{{2}})[{_GREEK}]{{2}}|(?<=[{_GREEK}]{{2}})[{_LATIN}]{{2}}"
)


def count_visible(text: str) -> int:
    """Return the number of characters that are no white space."""
    return sum(map(len, text.split()))


def is_legible(text: str) -> bool:
    """Whether a text layer says what its page shows, as far as the text alone can tell.

    Args:
        text: The layer as the PDF engine gives it, control characters included.

    Returns:
        True for an empty text too: that is missing, not garbled.
    """
    if is_plain(text) or _is_plainly_words(text):
        return True
    visible = count_visible(text)
    return count_legible(text) >= LEGIBLE_SHARE * visible


def is_plain(text: str) -> bool:
    """Whether a glance settles that the text is legible, as it does for most pages in Latin script."""
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        return False
    letters = len(encoded.translate(None, _NOT_LETTERS))
    return (
        letters >= max(LETTERS_JUDGED, 0.3 * len(text))
        and len(encoded.translate(None, _NOT_COMMON)) >= PLAINLY_COMMON_SHARE * letters
        and len(encoded) <= 1.1 * len(text)  # Each character beyond ASCII has one more byte, or two or three.
        and len(encoded.translate(None, _CONTROLS)) >= 0.98 * len(encoded)
    )


def _is_plainly_words(text: str) -> bool:
    """The same for pages with many figures, leaders or signs: what words there are settle it."""
    if _JUNK.search(text) or _JUNCTION.search(text):
        return False
    words = "".join(_WORDS.findall(text)).encode()
    others = len(text) - sum(map(text.count, ". _-=|\r\n"))  # Leaders up to a page number may be most of a page.
    if len(words) < max(3 * LETTERS_JUDGED, 0.2 * others) or len(_ACCENTED.findall(text)) > 0.3 * len(words):
        return False
    return len(words.translate(None, _NOT_COMMON)) >= PLAINLY_COMMON_SHARE * len(words)


def count_legible(text: str) -> int:
    """Return the number of visible characters that belong to legible text.

    Args:
        text: The text; lines are judged one by one, those too short to judge together.
    """
    unassigned = _unassigned(text)
    legible = 0
    for line in _judged_together(text):
        visible = count_visible(line)
        junk = len(_JUNK.findall(line)) + _JUNCTION_COST * len(_JUNCTION.findall(line))
        junk += _CONTROL_COST * len(_CONTROL.findall(line))
        if unassigned:
            junk += len(unassigned.findall(line))
        if 2 * junk <= visible and not _is_garbled(line, visible):
            legible += max(0, visible - junk)
    return legible


def _judged_together(text: str) -> Iterator[str]:
    """The lines with enough letters to be judged alone, then the others as one."""
    short = []
    for line in text.splitlines():
        if _count_letters(line) >= LETTERS_JUDGED:
            yield line
        else:
            short.append(line)
    yield "\n".join(short)


def _count_letters(line: str) -> int:
    return len(line.encode("ascii", "ignore").translate(None, _NOT_LETTERS))


def _is_garbled(line: str, visible: int) -> bool:
    """Whether the characters, each of them possible, form no text."""
    words = "".join(_WORDS.findall(line)).encode()
    letters = len(words)
    if letters >= LETTERS_JUDGED and len(words.translate(None, _NOT_COMMON)) < COMMON_SHARE * letters:
        return True
    if not line.isascii():
        accented = len(_ACCENTED.findall(line))
        if accented >= LETTERS_JUDGED // 2 and accented >= _ACCENTED_SHARE * (accented + _count_letters(line)):
            return True
        signs = len(_SIGNS.findall(line))
        if signs >= LETTERS_JUDGED // 2 and signs >= _SIGNS_SHARE * visible:
            return True
    symbols = _SYMBOLS.findall(line)
    return (
        len(symbols) >= LETTERS_JUDGED
        and len(symbols) >= _SALAD_SHARE * (visible - len(_LEADERS.findall(line)))
        and len(set(symbols)) >= _SALAD_KINDS
    )


def _unassigned(text: str) -> re.Pattern[str] | None:
    """A pattern for the characters in the text that Unicode has given to nobody; None if there are none."""
    found = sorted(
        character for character in set(_BEYOND_ASCII.findall(text)) if unicodedata.category(character) == "Cn"
    )
    found = [character for character in found if not _JUNK.match(character)]
    return re.compile("[" + re.escape("".join(found)) + "]") if found else None
