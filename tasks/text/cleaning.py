"""Normalise the text of a document's pages to one canonical text, which always encodes to UTF-8.

Every step starts with a cheap check (is it ASCII? does the character occur?), because most text is clean. All steps are
linear and the whole is idempotent. Special tokens such as "<|endoftext|>" in a document are ordinary text.

Mojibake, UTF-8 that was decoded with another encoding ("GrÃ¶ÃŸe"), is repaired by ftfy, after two checks, because a
wrong repair does more harm than none: its sequences must make up nearly all characters beyond ASCII, and a text about
encodings is not changed, since it quotes them.

Words that are hyphenated at line ends of printed text are joined. The hyphen may be the typesetter's ("exam-ple") or
the author's ("self-contained"): a compound that has its hyphen within a line elsewhere in the document keeps it.
Otherwise the word is joined, which is right far more often.

A line is a running head if it is at the same edge of most pages (or of most left or right ones) disregarding numbers,
if it is a number that increases with the pages, or if it is the outermost line and begins or ends with such a number
("Chapter 3: Wool 41").
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic.dataclasses import dataclass

from tasks.core.option import STRICT, option

PAGE_BREAK = "\n\n"
PRINT = ("pdf", "image")
# Not code, where it may be intended (a test of an encoder, a table of names), and not OCR, which decodes nothing.
REPAIRED = ("pdf", "text")
MAX_REPAIRS = 8

_REPLACED = {"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st", "\u00ad": "", "\ufeff": ""}
_ASCII_CONTROLS = bytes({*range(0x20), 0x7F} - {*b"\t\n"})
# control characters, lone surrogates (which UTF-8 cannot encode) and two noncharacters
_OTHER_CONTROLS = re.compile("[\x80-\x9f\ud800-\udfff\ufffe\uffff]")
# all but Latin letters, punctuation, arrows, operators, boxes and ligatures, which are in NFC in any context
_MAY_COMPOSE = re.compile("[^\x80-\u02ff\u2002-\u20cf\u2190-\u2328\u2500-\u27ff\ufb00-\ufb06\ufeff]")
_BLANK_LINES = re.compile(r"\n{3,}")
# a soft hyphen at a line end divides a word; elsewhere it only may
_SOFT_BREAK = re.compile("\u00ad[ \t\u00a0]*\n[ \t]*(?=[^\\W\\d_])")
_SPACES_AT_END = (" \n", "\t\n", "\u00a0\n")


@dataclass(frozen=True, config=STRICT)
class NormaliseSettings:
    """Optional steps of text normalisation."""

    strip_running_heads: bool = option(
        False, "Remove headers, footers and page numbers that repeat from page to page; Markdown of PDFs has none."
    )
    repair_mojibake: bool = option(True, "Repair text that was decoded with the wrong encoding; never in code.")


def document_text(pages: Sequence[Mapping[str, Any]], kind: str, settings: NormaliseSettings) -> str:
    """Return the canonical text of a document.

    Args:
        pages: Its pages in order, with `page` (the number) and `text`.
        kind: `pdf`, `image`, `text` or `code`.
        settings: Optional steps.

    Returns:
        The texts of the pages, separated by a blank line, or joined where a word continues on the next page.
    """
    filled = [page for page in pages if page["text"]]
    texts = [str(page["text"]) for page in filled]
    if settings.strip_running_heads and kind in PRINT:
        texts = strip_running_heads(texts, [int(page["page"]) for page in filled])
    joined = _join_pages(texts) if kind in PRINT else PAGE_BREAK.join(texts)
    return normalise_text(joined, kind, repair=settings.repair_mojibake)


def _join_pages(texts: Sequence[str]) -> str:
    """Join pages by blank lines, or by a line feed between a hyphen and a lower-case letter."""
    parts: list[str] = []
    for text in texts:
        text = text.strip("\r\n\f ") if len(texts) > 1 else text
        if parts and text:
            before = parts[-1]
            divided = before[-2:-1].isalpha() and before[-1] in "-\u2010" and text[0].islower()
            parts.append("\n" if divided else PAGE_BREAK)
        if text:
            parts.append(text)
    return "".join(parts)


def normalise_text(text: str, kind: str, *, repair: bool = True) -> str:
    """Return the canonical form of a document's text.

    NFC, Unix line ends, no control characters, no spaces at line ends. Ligatures and soft hyphens are replaced except
    in code, where they may be intended; hyphenation is joined in printed text (PDFs, images); mojibake is repaired in
    PDFs and text. Idempotent.

    Args:
        text: Any text, including lone surrogates.
        kind: `pdf`, `image`, `text` or `code`.
        repair: True to repair mojibake.
    """
    if not repair or kind not in REPAIRED or text.isascii():
        return _canonical(text, kind)
    text = _canonical(repair_mojibake(text), kind)
    for _ in range(MAX_REPAIRS):  # normalisation may complete a sequence
        repaired = repair_mojibake(text)
        if repaired == text:
            break
        text = _canonical(repaired, kind)
    return text


def _canonical(text: str, kind: str) -> str:
    rest = beyond_ascii(text)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = text.replace("\f", "\n").replace("\x85", "\n")  # a form feed and NEL end lines, too
    if _OTHER_CONTROLS.search(rest):
        text = _OTHER_CONTROLS.sub("", text)
    encoded = text.encode()
    kept = encoded.translate(None, _ASCII_CONTROLS)  # never part of a multi-byte sequence
    if len(kept) < len(encoded):
        text = kept.decode()
    if kind != "code":
        if "\u00ad" in rest:
            text = _SOFT_BREAK.sub("", text)
        for old, new in _REPLACED.items():
            if old in rest:
                text = text.replace(old, new)
    # after the removals, which may bring a letter and its accent together
    if _MAY_COMPOSE.search(rest):
        text = _compose(text)
    if any(spaces in text for spaces in _SPACES_AT_END) or text[-1:] in (" ", "\t", "\u00a0"):
        text = "\n".join([line.rstrip(" \t\u00a0") for line in text.split("\n")])  # linear, unlike a regular expression
    if kind in PRINT:
        text = join_hyphenation(text)
    if kind != "code" and "\n\n\n" in text:
        text = _BLANK_LINES.sub("\n\n", text)
    return "" if text.isspace() else text.strip("\n")


def _compose(text: str) -> str:
    if unicodedata.is_normalized("NFC", text):
        return text
    lines = text.split("\n")  # no line end takes part in a composition
    return "\n".join(line if line.isascii() else unicodedata.normalize("NFC", line) for line in lines)


MIN_COVERAGE = 0.8  # share of the characters beyond ASCII in sequences; no-break spaces may have been lost
MIN_COVERAGE_OF_LINE = 0.9  # the same for a line of a text that is otherwise sound
MIN_SEQUENCES_OF_LINE = 3
SEQUENCES_PER_MENTION = 20  # minimum per mention of an encoding
LONGEST_PIECE = 10_000  # characters passed to ftfy at once
PIECES_REMEMBERED = 128  # cached: ftfy takes up to 1 s for a million characters, and broken text repeats itself

# The bytes 0x80 to 0xBF, which continue a UTF-8 sequence, in Latin-1 and Windows-1252 ...
_WESTERN = "\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ"
# ... and in Windows-1251.
_CYRILLIC = "\x80-\x9f\xa0ЂЃ‚ѓ„…†‡€‰Љ‹ЊЌЋЏђ‘’“”•–—™љ›њќћџЎўЈ¤Ґ¦§Ё©Є«¬\xad®Ї°±Ііґµ¶·ё№є»јЅѕї"
# One class of first characters, then a branch for each, so that the search skips other characters fast.
_HINT = re.compile(f"[Â-ôРСв‚√├][{_WESTERN}{_CYRILLIC}Ä╝ñ⌐í║╢▒ü†º]")  # a prefilter, three times as fast
_SEQUENCE = re.compile(
    "[Â-ôРСв‚√├](?:"
    f"(?<=[Â-ÖØ-ß])[{_WESTERN}]|(?<=×)[{_WESTERN}](?:×[{_WESTERN}])+|(?<=[à-ï])[{_WESTERN}]{{2}}|(?<=[ð-ô])[{_WESTERN}]{{3}}"
    f"|(?<=[РС])[{_CYRILLIC}](?:[РС][{_CYRILLIC}]){{2}}|(?<=в)[Ђ„][{_CYRILLIC}]"
    # Mac Roman and the code page of the IBM PC, except where they may be formulae or frames
    "|(?<=‚)Ä[^\x00-\x7f]|(?<=√)[©®§ü†º¥]|(?<=├)[╝ñ⌐í║╢▒])"
)
_TOPIC = re.compile(
    r"mojibake|utf-?8|latin-?1\b|iso[- ]?8859|windows-125\d|cp-?125\d|code ?page|charset|character (?:set|encoding)"
    r"|zeichensatz|zeichenkodierung|encodage|кодировк|文字化け",
    re.IGNORECASE,
)
# Windows-1252 decoded as Latin-1: quotation marks and dashes become control characters next to a letter.
_WINDOWS_MARK = re.compile("[A-Za-z,.][\x91-\x94\x96\x97]|[\x91-\x94\x96\x97][A-Za-z]")
_WINDOWS_MARKS = str.maketrans(
    {code: bytes([code]).decode("cp1252") for code in range(0x80, 0xA0) if code not in (0x81, 0x8D, 0x8F, 0x90, 0x9D)}
)
_CONTROLS = re.compile("[\x80-\x9f]")
MAX_SHARE_OF_CONTROLS = 0.125  # a line with a larger share is not text


def repair_mojibake(text: str) -> str:
    """Repair mojibake; a text without it, or without sufficient evidence, is returned unchanged.

    To be called before cleaning, which removes control characters, soft hyphens and no-break spaces of sequences.
    """
    # a cheap check first: splitting into lines takes several times the memory of the text
    rest = beyond_ascii(text)
    if not (_CONTROLS.search(rest) or (_HINT.search(rest) and _HINT.search(text))):
        return text
    lines = text.split("\n")
    odd = "\n".join([line for line in lines if not line.isascii()])  # often a small part of the text
    if _HINT.search(odd) and _SEQUENCE.search(odd):
        lines = _repair_sequences(lines, odd)
    if _CONTROLS.search(odd) and _WINDOWS_MARK.search(odd):
        lines = [_repair_windows_marks(line) for line in lines]
    return "\n".join(lines)


def _repair_sequences(lines: list[str], odd: str) -> list[str]:
    """Repair the lines with sufficient evidence; `odd` has those that are not ASCII."""
    n_sequences, coverage = _evidence(odd)
    sound = coverage < MIN_COVERAGE
    if sound and n_sequences < MIN_SEQUENCES_OF_LINE:
        return lines
    repaired = [_repair_line(line, sound) for line in lines]
    if repaired == lines:
        return lines
    n_mentions = sum(sum(1 for _ in _TOPIC.finditer(line)) for line in lines)
    return lines if n_sequences < SEQUENCES_PER_MENTION * n_mentions else repaired


def _evidence(text: str) -> tuple[int, float]:
    """Return the number of mojibake sequences in a text, and their share of its characters beyond ASCII."""
    rest, n_sequences = _SEQUENCE.subn("", text)  # ten times as fast as a loop over the sequences
    n_characters = len(text) - len(rest)  # sequences contain no ASCII
    return n_sequences, n_characters / max(1, len(text) - len(text.encode("ascii", "ignore")))


def _repair_line(line: str, sound: bool) -> str:
    """Repair a line; in an otherwise `sound` text this takes more evidence."""
    if line.isascii():
        return line
    n_sequences, coverage = _evidence(line)
    doubtful = sound and (n_sequences < MIN_SEQUENCES_OF_LINE or coverage < MIN_COVERAGE_OF_LINE)
    if doubtful or not n_sequences:
        return line
    return "".join(map(_repair_piece, _pieces(line)))


def _pieces(line: str) -> list[str]:
    """Cut a line, at spaces if possible, into pieces that ftfy repairs in bounded time."""
    pieces, start = [], 0
    while len(line) - start > LONGEST_PIECE:
        space = line.rfind(" ", start, start + LONGEST_PIECE)
        end = space + 1 if space > start else start + LONGEST_PIECE
        pieces.append(line[start:end])
        start = end
    return [*pieces, line[start:]]


@functools.lru_cache(PIECES_REMEMBERED)
def _repair_piece(piece: str) -> str:
    import ftfy  # only here: slow to import, and rarely needed

    repaired = ftfy.fix_encoding(piece, replace_lossy_sequences=False)
    worse = len(repaired) > len(piece) or repaired.count("\ufffd") > piece.count("\ufffd")
    return piece if worse else repaired


def _repair_windows_marks(line: str) -> str:
    if not _WINDOWS_MARK.search(line):
        return line
    n_controls = len(line) - len(_CONTROLS.sub("", line))
    # a short line may consist of quotations
    return line.translate(_WINDOWS_MARKS) if n_controls <= max(4, MAX_SHARE_OF_CONTROLS * len(line)) else line


_LONGEST_TOKEN = 256  # characters examined before a hyphen; longer tokens are not words
_LONGEST_WORD = 40

_FIRST_WORD = re.compile(r"[^\W\d_]+")
_LAST_WORD = re.compile(r"[^\W\d_]+\Z")
# "Haupt- und Nebensatz", "pre- and post-war": a suspended hyphen, which replaces an omitted word
_SUSPENDED = re.compile(r"(?:und|oder|bzw\.|(?:and|or|to)(?=[ \n][^\W\d_]{1,40}-))(?=[ \n])")


def join_hyphenation(text: str) -> str:
    """Join words that are hyphenated at line ends.

    Only a lower-case continuation is joined, so "Baden-" and "Württemberg", "1990-" and "2000" are unchanged. A divided
    word loses hyphen and line end; a compound that the document also writes with a hyphen, a single letter ("e-mail")
    and a web address keep the hyphen; a suspended hyphen is followed by a space.

    Args:
        text: Text without spaces at the ends of its lines.
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
    """Return the replacement of the hyphen and line end between a token and the next piece; "" joins them."""
    if not (token and piece and token[-1].isalpha()):
        return "-\n"
    if "://" in token or token.startswith("www."):
        return "-" if piece[0].isalnum() else "-\n"  # addresses are not hyphenated, so the hyphen is part of it
    if not piece[0].islower():
        return "-\n"
    if _SUSPENDED.match(piece):
        return "- "
    single = not token[-2:-1].isalpha() or not piece[1:2].isalpha()
    return "-" if single else ""  # hyphenation never separates a single letter


def _last_token(before: str, text: str) -> str:
    """Return the last token of a text, which continues the token before."""
    end = (before + text[-_LONGEST_TOKEN:])[-_LONGEST_TOKEN:]
    return end.split()[-1] if end and not end[-1].isspace() else ""


def _compound(left: str, right: str) -> str:
    """Return the words before and after a hyphen, joined by it, in lower case; "" if one is missing."""
    before, after = _LAST_WORD.search(left[-_LONGEST_WORD:]), _FIRST_WORD.match(right[:_LONGEST_WORD])
    return f"{before[0]}-{after[0]}".lower() if before and after else ""


def _compounds(text: str) -> set[str]:
    """Return all compounds with a hyphen inside a line."""
    # most hyphens are dashes, signs and ranges: checking their neighbours is ten times as fast as the two patterns
    pairs = itertools.pairwise(text.split("-"))
    found = {_compound(left, right) for left, right in pairs if left[-1:].isalnum() and right[:1].isalnum()}
    return found - {""}


_ASCII = bytes(range(0x80))


def beyond_ascii(text: str) -> str:
    """Return the characters beyond ASCII in order, including lone surrogates."""
    if text.isascii():
        return ""
    # bytes of multi-byte sequences are never ASCII
    return text.encode("utf-8", "surrogatepass").translate(None, _ASCII).decode("utf-8", "surrogatepass")


MIN_PAGES = 4
MIN_SHARE = 0.6  # of all pages, or of the left or right ones
MIN_REPEATS = 3
MAX_LINES = 3  # removed at an edge of a page
MAX_HEAD_CHARS = 200  # longer lines are text

_DIGITS = re.compile(r"\d+")
# Roman numerals below 200
_ROMAN = {
    "".join(parts): value
    for value, parts in enumerate(
        itertools.product(
            ("", "c"),
            ("", "x", "xx", "xxx", "xl", "l", "lx", "lxx", "lxxx", "xc"),
            ("", "i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix"),
        )
    )
    if value
}
# "12", "- 12 -", "xiv", "[3]", "Page 3", "3 / 20", "Seite 3 von 20"
_PAGE_NUMBER = re.compile(
    r"[-–—\[(|·.\s]*(?:(?:page|seite|p\.|s\.)\s*)?(\d{1,5}|[ivxlc]{1,8})(?:\s*(?:/|of|von|sur|de)\s*\d{1,5})?[-–—\])|·.\s]*"
)

Key = tuple[str, int]


class _Edge(NamedTuple):
    """The top or bottom of a page: indices of its lines from the edge inwards, and their keys."""

    lines: tuple[int, ...]
    keys: tuple[Key, ...]
    most: int  # lines that may be removed
    numbered: tuple[Key, ...] = ()  # differences of the first and last number in the outermost line from the page's


def strip_running_heads(texts: Sequence[str], numbers: Sequence[int] | None = None) -> list[str]:
    """Remove the running heads of the pages of a document; see `running_lines`."""
    return [
        "\n".join(line for place, line in enumerate(text.split("\n")) if place not in gone)
        for text, gone in zip(texts, running_lines(texts, numbers), strict=True)
    ]


def running_lines(texts: Sequence[str], numbers: Sequence[int] | None = None) -> list[set[int]]:
    """Return the places of the lines of each page that are running heads, from 0.

    They are found from the edge inwards, at most three per edge, until one does not repeat, and never in the middle
    of a page. If more lines repeat, none are found: the document is a form. Linear in the length of the pages.

    Args:
        texts: The texts of its pages in order.
        numbers: The numbers of these pages, from 1; needed if pages are missing.
    """
    gone: list[set[int]] = [set() for _ in texts]
    if len(texts) < MIN_PAGES:
        return gone
    numbers = list(numbers or range(1, len(texts) + 1))
    split = [text.split("\n") for text in texts]
    for bottom in (False, True):
        edges = [_edge(lines, number, bottom) for lines, number in zip(split, numbers, strict=True)]
        running = _running_keys(edges, numbers)
        for place, edge in enumerate(edges):
            gone[place].update(_running_lines(edge, running))
    return gone


def _edge(lines: Sequence[str], number: int, bottom: bool) -> _Edge:
    """Return the top or bottom of a page, with one line more than may be removed, to see whether repetition ends."""
    filled = [place for place, line in enumerate(lines) if line.strip()]
    most = min(MAX_LINES, (len(filled) - 1) // 2)  # at least one line remains between the edges
    if most < 1:
        return _Edge((), (), 0)
    chosen = tuple(filled[::-1][: most + 1] if bottom else filled[: most + 1])
    keys = tuple(_key(lines[place], number) for place in chosen)
    return _Edge(chosen, keys, most, _numbered(lines[chosen[0]], number))


def _key(line: str, number: int) -> Key:
    """Return the key of a line: its words without numbers, or the difference of its number from the page's."""
    line = line.strip()
    if len(line) > MAX_HEAD_CHARS:
        return "", 0
    line = line.lower()
    alone = _PAGE_NUMBER.fullmatch(line)
    value = _value(alone[1]) if alone else None
    if value is not None:
        return "#", value - number
    words = line.split()
    for place in (0, -1):
        if words[place] in _ROMAN:
            words[place] = "#"
    folded = _DIGITS.sub("#", " ".join(words))
    # lines of only numbers and signs are more often from tables
    return (folded, 0) if any(map(str.isalpha, folded)) else ("", 0)


def _numbered(line: str, number: int) -> tuple[Key, ...]:
    line = line.strip().lower()
    words = line.split() if len(line) <= MAX_HEAD_CHARS else []
    if len(words) < 2:
        return ()
    values = (("first", _value(words[0])), ("last", _value(words[-1])))
    return tuple((end, value - number) for end, value in values if value is not None)


def _value(word: str) -> int | None:
    return int(word) if word.isdecimal() and len(word) <= 5 else _ROMAN.get(word)


def _running_keys(edges: Sequence[_Edge], numbers: Sequence[int]) -> set[Key]:
    """Return the keys at an edge of most pages, or of most left or right pages."""
    running: set[Key] = set()
    page_numbers: Counter[Key] = Counter()
    for parity in (None, 0, 1):
        chosen = [edge for edge, number in zip(edges, numbers, strict=True) if parity in (None, number % 2)]
        counts = Counter(key for edge in chosen for key in dict.fromkeys(edge.keys + edge.numbered) if key[0])
        enough = max(MIN_REPEATS, MIN_SHARE * len(chosen))
        running.update(key for key, count in counts.items() if count >= enough)
        if parity is None:
            page_numbers.update({key: n for key, n in counts.items() if key[0] == "#" and n >= MIN_REPEATS})
    # a preface has its own numbering: all numberings together must cover the pages
    if page_numbers.total() >= MIN_SHARE * len(edges):
        running.update(page_numbers)
    return running


def _running_lines(edge: _Edge, running: set[Key]) -> tuple[int, ...]:
    n = int(any(key in running for key in edge.numbered))
    while n < len(edge.keys) and edge.keys[n] in running:
        n += 1
    if n > edge.most and edge.most == MAX_LINES:
        return ()  # more lines repeat: a form
    return edge.lines[: min(n, edge.most)]
