"""Cleaning: the text of a document in one canonical form, whatever its extractor and its maker did to it.

Takes the texts of a document's pages and returns one text that always encodes to UTF-8. Every step first asks a cheap
question (is it ASCII? does the character occur at all?), because most text is clean and should cost next to nothing.
All steps are linear, and the whole is a projection: cleaning twice changes nothing. Text is never read for meaning:
"<|endoftext|>" in a document is eleven letters and signs.

Mojibake, UTF-8 that was once decoded as something else ("GrÃ¶ÃŸe"), is repaired by ftfy, after two checks, because a
wrong repair does more harm than none: the sequences that such an accident leaves must account for (nearly) all of the
characters beyond ASCII, and a text that is about encodings is left alone, since there they are quotations.

Words divided at the ends of printed lines are joined. A hyphen there may be the typesetter's ("exam-ple") or the
author's ("self-contained"), and only the document itself tells which: a compound that stands with its hyphen elsewhere
keeps it here too. Where nothing tells, the word is taken for divided, which it is far more often.

A line counts as a running head when it stands at the same edge of most pages (or of most left or right ones) once its
numbers are disregarded, when it is a number that keeps step with the pages, or when it is the outermost and begins or
ends with such a number ("Chapter 3: Wool 41").
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
# Code may mean what looks broken (a test of an encoder, a table of names), and OCR reads what stands on the page.
REPAIRED = ("pdf", "text")
MAX_REPAIRS = 8  # text broken nine times over is hardly text

_REPLACED = {"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st", "\u00ad": "", "\ufeff": ""}
_ASCII_CONTROLS = bytes({*range(0x20), 0x7F} - {*b"\t\n"})
# control characters, lone surrogates (no UTF-8 holds them) and two code points that are no characters
_OTHER_CONTROLS = re.compile("[\x80-\x9f\ud800-\udfff\ufffe\uffff]")
# all but Latin letters, punctuation, arrows, operators, boxes and ligatures: those are in NFC whatever is beside them
_MAY_COMPOSE = re.compile("[^\x80-\u02ff\u2002-\u20cf\u2190-\u2328\u2500-\u27ff\ufb00-\ufb06\ufeff]")
_BLANK_LINES = re.compile(r"\n{3,}")
# a soft hyphen at a line end is where a word was divided; elsewhere it only could be
_SOFT_BREAK = re.compile("\u00ad[ \t\u00a0]*\n[ \t]*(?=[^\\W\\d_])")
_SPACES_AT_END = (" \n", "\t\n", "\u00a0\n")


@dataclass(frozen=True, config=STRICT)
class NormaliseSettings:
    """Optional steps of text normalisation."""

    strip_running_heads: bool = option(False, "Remove headers, footers and page numbers that repeat from page to page.")
    repair_mojibake: bool = option(True, "Repair text that was decoded with the wrong encoding; never in code.")


def document_text(pages: Sequence[Mapping[str, Any]], kind: str, settings: NormaliseSettings) -> str:
    """Return the canonical text of a document.

    Args:
        pages: Its pages in order, with `page` (the number) and `text`.
        kind: `pdf`, `image`, `text` or `code`.
        settings: What is done beyond the canonical form.

    Returns:
        The texts of the pages that have any, with a blank line between two, or none where a word goes on from one
        page to the next.
    """
    filled = [page for page in pages if page["text"]]
    texts = [str(page["text"]) for page in filled]
    if settings.strip_running_heads and kind in PRINT:
        texts = strip_running_heads(texts, [int(page["page"]) for page in filled])
    joined = _join_pages(texts) if kind in PRINT else PAGE_BREAK.join(texts)
    return normalise_text(joined, kind, repair=settings.repair_mojibake)


def _join_pages(texts: Sequence[str]) -> str:
    """Pages as one text; where a hyphen ends one and a small letter begins the next, as two lines of one page."""
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

    NFC, Unix line ends, no control characters, no spaces at line ends. Prose (not code, where such a thing may be
    meant) also loses ligatures and soft hyphens, and print (PDFs, images) the hyphenation of its lines. Mojibake is
    repaired in PDFs and text, never in code or in what OCR read. Normalising twice changes nothing.

    Args:
        text: Any text, lone surrogates included.
        kind: `pdf`, `image`, `text` or `code`.
        repair: True to repair mojibake.
    """
    if not repair or kind not in REPAIRED or text.isascii():
        return _canonical(text, kind)
    text = _canonical(repair_mojibake(text), kind)
    for _ in range(MAX_REPAIRS):  # what is left out or composed may bring the pieces of a sequence together
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
    kept = encoded.translate(None, _ASCII_CONTROLS)  # these bytes are never part of a longer sequence
    if len(kept) < len(encoded):
        text = kept.decode()
    if kind != "code":
        if "\u00ad" in rest:
            text = _SOFT_BREAK.sub("", text)
        for old, new in _REPLACED.items():
            if old in rest:
                text = text.replace(old, new)
    # only now: what stood between a letter and its accent is gone
    if _MAY_COMPOSE.search(rest):
        text = _compose(text)
    if any(spaces in text for spaces in _SPACES_AT_END) or text[-1:] in (" ", "\t", "\u00a0"):
        text = "\n".join([line.rstrip(" \t\u00a0") for line in text.split("\n")])  # linear, as no pattern would be
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


MIN_COVERAGE = 0.8  # share of the characters beyond ASCII; a repaired copy may have lost no-break spaces on its way
MIN_COVERAGE_OF_LINE = 0.9  # of a line in a text that is otherwise sound
MIN_SEQUENCES_OF_LINE = 3
SEQUENCES_PER_MENTION = 20  # so many for each time that encodings are spoken of
LONGEST_PIECE = 10_000  # characters given to ftfy at once
PIECES_REMEMBERED = 128  # ftfy takes up to 1 s for a million characters, and what is broken repeats itself

# What the bytes 0x80 to 0xBF, which continue a UTF-8 sequence, look like in Latin-1 and Windows-1252 ...
_WESTERN = "\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ"
# ... and in Windows-1251.
_CYRILLIC = "\x80-\x9f\xa0ЂЃ‚ѓ„…†‡€‰Љ‹ЊЌЋЏђ‘’“”•–—™љ›њќћџЎўЈ¤Ґ¦§Ё©Є«¬\xad®Ї°±Ііґµ¶·ё№є»јЅѕї"
# One class of first characters, then a branch for each: so the search skips everything else at full speed.
_HINT = re.compile(f"[Â-ôРСв‚√├][{_WESTERN}{_CYRILLIC}Ä╝ñ⌐í║╢▒ü†º]")  # thrice as fast, and mostly finds nothing
_SEQUENCE = re.compile(
    "[Â-ôРСв‚√├](?:"
    f"(?<=[Â-ÖØ-ß])[{_WESTERN}]|(?<=×)[{_WESTERN}](?:×[{_WESTERN}])+|(?<=[à-ï])[{_WESTERN}]{{2}}|(?<=[ð-ô])[{_WESTERN}]{{3}}"
    f"|(?<=[РС])[{_CYRILLIC}](?:[РС][{_CYRILLIC}]){{2}}|(?<=в)[Ђ„][{_CYRILLIC}]"
    # Mac Roman and the code page of the IBM PC, where they cannot be formulas or frames
    "|(?<=‚)Ä[^\x00-\x7f]|(?<=√)[©®§ü†º¥]|(?<=├)[╝ñ⌐í║╢▒])"
)
_TOPIC = re.compile(
    r"mojibake|utf-?8|latin-?1\b|iso[- ]?8859|windows-125\d|cp-?125\d|code ?page|charset|character (?:set|encoding)"
    r"|zeichensatz|zeichenkodierung|encodage|кодировк|文字化け",
    re.IGNORECASE,
)
# Windows-1252 read as Latin-1: its quotation marks and dashes become control characters at the edge of a word.
_WINDOWS_MARK = re.compile("[A-Za-z,.][\x91-\x94\x96\x97]|[\x91-\x94\x96\x97][A-Za-z]")
_WINDOWS_MARKS = str.maketrans(
    {code: bytes([code]).decode("cp1252") for code in range(0x80, 0xA0) if code not in (0x81, 0x8D, 0x8F, 0x90, 0x9D)}
)
_CONTROLS = re.compile("[\x80-\x9f]")
MAX_SHARE_OF_CONTROLS = 0.125  # more of them in a line, and it is no text


def repair_mojibake(text: str) -> str:
    """Repair what a wrong decoding broke; a text where nothing is broken or nothing is certain stays as it is.

    Best before anything was taken out of it: control characters, soft hyphens and no-break spaces are among the pieces.
    """
    # what both look for is beyond ASCII; the lines of a text, at several times its memory, are made where it is there
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
    """Repair the lines that the evidence speaks for; `odd` is those of them that are not ASCII."""
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
    """Return the number of sequences in a text, and their share of its characters beyond ASCII."""
    rest, n_sequences = _SEQUENCE.subn("", text)  # ten times as fast as a loop over the sequences
    n_characters = len(text) - len(rest)  # no sequence holds a character of ASCII
    return n_sequences, n_characters / max(1, len(text) - len(text.encode("ascii", "ignore")))


def _repair_line(line: str, sound: bool) -> str:
    """A line, repaired if it is broken; in an otherwise `sound` text it must be beyond doubt."""
    if line.isascii():
        return line
    n_sequences, coverage = _evidence(line)
    doubtful = sound and (n_sequences < MIN_SEQUENCES_OF_LINE or coverage < MIN_COVERAGE_OF_LINE)
    if doubtful or not n_sequences:
        return line
    return "".join(map(_repair_piece, _pieces(line)))


def _pieces(line: str) -> list[str]:
    """A line in pieces that ftfy handles in bounded time, cut after spaces where there are any."""
    pieces, start = [], 0
    while len(line) - start > LONGEST_PIECE:
        space = line.rfind(" ", start, start + LONGEST_PIECE)
        end = space + 1 if space > start else start + LONGEST_PIECE
        pieces.append(line[start:end])
        start = end
    return [*pieces, line[start:]]


@functools.lru_cache(PIECES_REMEMBERED)
def _repair_piece(piece: str) -> str:
    import ftfy  # only here: it takes longer to import than most texts to clean

    repaired = ftfy.fix_encoding(piece, replace_lossy_sequences=False)
    worse = len(repaired) > len(piece) or repaired.count("\ufffd") > piece.count("\ufffd")
    return piece if worse else repaired


def _repair_windows_marks(line: str) -> str:
    if not _WINDOWS_MARK.search(line):
        return line
    n_controls = len(line) - len(_CONTROLS.sub("", line))
    # a short line may well be all quotation
    return line.translate(_WINDOWS_MARKS) if n_controls <= max(4, MAX_SHARE_OF_CONTROLS * len(line)) else line


_LONGEST_TOKEN = 256  # as much of the text before a hyphen is looked at; longer ones are no words
_LONGEST_WORD = 40

_FIRST_WORD = re.compile(r"[^\W\d_]+")
_LAST_WORD = re.compile(r"[^\W\d_]+\Z")
# "Haupt- und Nebensatz", "pre- and post-war": the hyphen stands for a word left out, not for a divided one
_SUSPENDED = re.compile(r"(?:und|oder|bzw\.|(?:and|or|to)(?=[ \n][^\W\d_]{1,40}-))(?=[ \n])")


def join_hyphenation(text: str) -> str:
    """Join words that a hyphen at the end of a line divides.

    Only a lower-case continuation is joined, so "Baden-" and "Württemberg", "1990-" and "2000" stay as they are.

    A divided word loses hyphen and line end; a compound that the document also writes with a hyphen, a single letter
    ("e-mail") and a web address keep the hyphen; one that stands for a word left out is followed by a space.

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
    """Return what replaces the hyphen and line end between a token and the next piece; "" where they are one word."""
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
    """The end of a text since its last white space; the text continues the token before."""
    end = (before + text[-_LONGEST_TOKEN:])[-_LONGEST_TOKEN:]
    return end.split()[-1] if end and not end[-1].isspace() else ""


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


_ASCII = bytes(range(0x80))


def beyond_ascii(text: str) -> str:
    """Return the characters beyond ASCII in their order, lone surrogates included; those of one run stay together."""
    if text.isascii():
        return ""
    # bytes of longer sequences are never those of ASCII
    return text.encode("utf-8", "surrogatepass").translate(None, _ASCII).decode("utf-8", "surrogatepass")


MIN_PAGES = 4
MIN_SHARE = 0.6  # of all pages, or of the left or right ones
MIN_REPEATS = 3
MAX_LINES = 3  # on an edge of a page
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
    """One edge of a page: indices of its lines from the edge inwards, and what each is counted as."""

    lines: tuple[int, ...]
    keys: tuple[Key, ...]
    most: int  # lines that may go
    numbered: tuple[Key, ...] = ()  # distances of the numbers at the ends of the outermost line from the page's


def strip_running_heads(texts: Sequence[str], numbers: Sequence[int] | None = None) -> list[str]:
    """Return the pages of a document, as many as there were, without running heads.

    Lines go from the edge inwards and only as long as each is running: at most three on an edge, never the middle of a
    page, and none at all where more lines than that repeat: then it is a form, whose text they are. Linear in the
    length of the pages.

    Args:
        texts: The texts of its pages in order.
        numbers: The numbers of these pages, from 1; needed where pages are missing.
    """
    if len(texts) < MIN_PAGES:
        return list(texts)
    numbers = list(numbers or range(1, len(texts) + 1))
    split = [text.split("\n") for text in texts]
    gone: list[set[int]] = [set() for _ in texts]
    for bottom in (False, True):
        edges = [_edge(lines, number, bottom) for lines, number in zip(split, numbers, strict=True)]
        running = _running_keys(edges, numbers)
        for place, edge in enumerate(edges):
            gone[place].update(_running_lines(edge, running))
    return [
        "\n".join(line for place, line in enumerate(lines) if place not in removed)
        for lines, removed in zip(split, gone, strict=True)
    ]


def _edge(lines: Sequence[str], number: int, bottom: bool) -> _Edge:
    """The top or bottom of a page; one line more than may go, to see whether the repetition ends."""
    filled = [place for place, line in enumerate(lines) if line.strip()]
    most = min(MAX_LINES, (len(filled) - 1) // 2)  # a line between the two edges stays in any case
    if most < 1:
        return _Edge((), (), 0)
    chosen = tuple(filled[::-1][: most + 1] if bottom else filled[: most + 1])
    keys = tuple(_key(lines[place], number) for place in chosen)
    return _Edge(chosen, keys, most, _numbered(lines[chosen[0]], number))


def _key(line: str, number: int) -> Key:
    """Return the key of a line: its words without numbers, or the distance of its number from the page's."""
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
    # numbers and signs alone are a table's more often than a head's
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
    """Keys that stand at an edge of most pages, or of most left or right pages."""
    running: set[Key] = set()
    page_numbers: Counter[Key] = Counter()
    for parity in (None, 0, 1):
        chosen = [edge for edge, number in zip(edges, numbers, strict=True) if parity in (None, number % 2)]
        counts = Counter(key for edge in chosen for key in dict.fromkeys(edge.keys + edge.numbered) if key[0])
        enough = max(MIN_REPEATS, MIN_SHARE * len(chosen))
        running.update(key for key, count in counts.items() if count >= enough)
        if parity is None:
            page_numbers.update({key: n for key, n in counts.items() if key[0] == "#" and n >= MIN_REPEATS})
    # a preface counts for itself: together its numbers and those of the rest must cover the pages
    if page_numbers.total() >= MIN_SHARE * len(edges):
        running.update(page_numbers)
    return running


def _running_lines(edge: _Edge, running: set[Key]) -> tuple[int, ...]:
    n = int(any(key in running for key in edge.numbered))
    while n < len(edge.keys) and edge.keys[n] in running:
        n += 1
    if n > edge.most and edge.most == MAX_LINES:
        return ()  # it goes on repeating: this is text
    return edge.lines[: min(n, edge.most)]
