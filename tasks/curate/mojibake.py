"""Mojibake: UTF-8 that somebody once decoded as something else ("GrÃ¶ÃŸe"), turned back into what it was.

In goes a text, out comes the same object, or the text with its broken lines repaired by ftfy. Two things decide
before ftfy sees a line, because a wrong repair does more harm than none: the sequences that such an accident leaves
must account for (nearly) all of the characters beyond ASCII, as they do when a whole text was decoded wrongly; and
a text that is *about* encodings is left alone, since there they are quotations. Correct text in any script costs
one pass of a regular expression.
"""

from __future__ import annotations

import functools
import re

from tasks.curate.beyond_ascii import beyond_ascii

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
    """Repairs what a wrong decoding broke.

    Args:
        text: Any text; best before anything was taken out of it, since control characters, soft hyphens and no-break
            spaces are among the pieces.

    Returns:
        The repaired text, or `text` itself where nothing is broken or nothing is certain.
    """
    if text.isascii():
        return text
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
    repaired = "\n".join(lines)
    return repaired if repaired != text else text


def _repair_sequences(lines: list[str], odd: str) -> list[str]:
    """The lines, those repaired that the evidence speaks for; `odd` is those of them that are not ASCII."""
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
    """How many sequences a text has, and what share of its characters beyond ASCII they account for."""
    rest, n_sequences = _SEQUENCE.subn("", text)  # ten times as fast as a loop over the sequences
    n_characters = len(text) - len(rest)  # no sequence holds a character of ASCII
    return n_sequences, n_characters / max(1, len(text) - len(text.encode("ascii", "ignore")))


def _repair_line(line: str, sound: bool) -> str:
    """A line, repaired if it is broken; in an otherwise `sound` text it must be beyond doubt."""
    if line.isascii() or not _HINT.search(line) or not _SEQUENCE.search(line):
        return line
    if sound:
        n_sequences, coverage = _evidence(line)
        if n_sequences < MIN_SEQUENCES_OF_LINE or coverage < MIN_COVERAGE_OF_LINE:
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
    """A piece as ftfy repairs it, unless that would lose something."""
    import ftfy  # only here: it takes longer to import than most texts to clean

    repaired = ftfy.fix_encoding(piece, replace_lossy_sequences=False)
    worse = len(repaired) > len(piece) or repaired.count("\ufffd") > piece.count("\ufffd")
    return piece if worse else repaired


def _repair_windows_marks(line: str) -> str:
    """A line with the marks of Windows-1252 for control characters, if these are few."""
    if not _WINDOWS_MARK.search(line):
        return line
    n_controls = len(line) - len(_CONTROLS.sub("", line))
    # a short line may well be all quotation
    return line.translate(_WINDOWS_MARKS) if n_controls <= max(4, MAX_SHARE_OF_CONTROLS * len(line)) else line
