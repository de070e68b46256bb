"""Detect the encoding of a text file, decode and clean it.

Detection tries, in this order: a byte-order mark; UTF-16 and UTF-32 by the positions of zero bytes (East Asian text by
its characters); strict UTF-8; the declared encoding of HTML and XML, if the bytes agree; a statistical detector on a
sample. UTF-7 and HZ are ASCII and out of use, and not detected.
`clean` normalises line ends and removes control characters and lone surrogates, which UTF-8 and thus Parquet cannot
hold. Both are linear, and work in slices, so that memory holds the bytes, the text, and the text again while joining.
"""

from __future__ import annotations

import codecs
import re
from contextlib import suppress
from dataclasses import dataclass

SAMPLE_BYTES = 64 * 1024
# Low, because short texts never score high.
MINIMUM_CONFIDENCE = 0.05
FALLBACK_ENCODING = "cp1252"
FALLBACK_CONFIDENCE = 0.01
UNSURE = 0.3  # The detector's confidence below which its other guesses are considered.
NEAR_BEST = 0.75  # Share of the best guess's confidence that a coherent guess needs to replace it,
USUAL_NEAR_BEST = 0.85  # and that the most common encoding, `FALLBACK_ENCODING`, needs to be preferred.
SLICE_BYTES = 1 << 20
LONGEST_TITLE = 1000  # characters
DECLARED_WITHIN = 4096
DECLARED_CONFIDENCE = 0.9

_BOMS = (  # UTF-32 first: its little-endian mark starts with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f]")
_CONTROL_BYTES = bytes({*range(0x20), 0x7F} - {*b"\t\n\r\f"})
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]+")
_EAST_ASIAN = re.compile(r"[\u3041-\u30ff\u3400-\u9fff\uac00-\ud7a3]")
_EAST_ASIAN_SIGNS = re.compile(r"[\u3001\u3002\uff0c\uff0e\uff1f\uff01\u3041-\u3096\n ]")
# Adjacent letters of two scripts, or C1 control characters: rare in correctly decoded text.
_INCOHERENT = re.compile("[\x80-\x9f]|[a-zA-Zß-öø-ſ][Ͱ-ۿ]|[Ͱ-ۿ][a-zA-Zß-öø-ſ]")
_XML_ENCODING = re.compile(rb"<\?xml\s[^>]{0,200}?encoding\s{0,20}=\s{0,20}[\"']([A-Za-z0-9._:-]{1,40})")
_META_CHARSET = re.compile(rb"<meta\s[^>]{0,300}?charset\s{0,20}=\s{0,20}[\"']?\s{0,20}([A-Za-z0-9._:-]{1,40})", re.I)
# Supersets of encodings that browsers use for their names.
_WIDER = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "shift_jis": "cp932",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "euc_kr": "cp949",
    "big5": "big5hkscs",
    "tis-620": "cp874",
}
_EBCDIC = {"cp037", "cp273", "cp424", "cp500", "cp875", "cp1026", "cp1140"}


@dataclass(frozen=True, slots=True)
class Decoded:
    """The text of a file, with properties of the document.

    Attributes:
        text: The whole text, cleaned; always encodes to UTF-8.
        encoding: Python's name of the encoding; None if the format fixes it.
        confidence: 0 to 1; 1 if a byte-order mark or strict UTF-8 proves the encoding.
        title: Title from the document's own metadata, or None.
        programming_language: Language of a notebook, or None.
        media_type: Media type, if reading showed another than was detected; else "".
        note: Parts left out or not found, for the document's reason.
        engine: Reader of its page.
    """

    text: str
    encoding: str | None
    confidence: float
    title: str | None = None
    programming_language: str | None = None
    media_type: str = ""
    note: str = ""
    engine: str = "decoder"


def clean(text: str) -> str:
    """Return the text with line feeds only, without control characters (except tab, form feed) and lone surrogates."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        # joins surrogate pairs, replaces lone surrogates
        return _CONTROLS.sub("", text).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    # a count of control bytes is faster than the regular expression, which most pages then do not need
    return text if len(encoded.translate(None, _CONTROL_BYTES)) == len(encoded) else _CONTROLS.sub("", text)


def one_line(value: object) -> str:
    """Return a value, such as a title, as one line of clean text; "" for None."""
    return "" if value is None else " ".join(clean(str(value)).split())


def decode(data: bytes) -> Decoded:
    """Return the cleaned text of a file, its detected encoding and the confidence; undecodable bytes become U+FFFD."""
    encoding, confidence, mark = _find_encoding(data)
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    view = memoryview(data)
    texts: list[str] = []
    held = ""  # a carriage return whose line feed may be in the next slice
    for start in range(mark, max(len(data), mark + 1), SLICE_BYTES):
        last = start + SLICE_BYTES >= len(data)
        text = held + decoder.decode(bytes(view[start : start + SLICE_BYTES]), final=last)
        held = "\r" if text.endswith("\r") and not last else ""
        text = text.removesuffix(held)
        if encoding in _EBCDIC:
            text = text.replace("\x85", "\n")  # the usual line end of EBCDIC
        texts.append(clean(text))
    return Decoded("".join(texts), encoding, confidence)


def decode_declared(data: bytes) -> Decoded:
    """Decode HTML or XML, by its declared encoding if that is valid."""
    declared = _declared(data[:DECLARED_WITHIN])
    is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if declared and not is_utf16 and _first_broken_byte(data) is not None:
        with suppress(ValueError):  # the declaration is wrong
            return Decoded(clean(data.decode(declared)), declared, DECLARED_CONFIDENCE)
    return decode(data)


def _declared(head: bytes) -> str | None:
    """Return Python's name of the declared encoding; None for none, an unknown or an impossible one."""
    match = _XML_ENCODING.search(head) or _META_CHARSET.search(head)
    if match is None:
        return None
    try:
        name = codecs.lookup(match[1].decode("ascii")).name
        b"".decode(name)  # fails for Python's codecs that are not text encodings
    except LookupError:
        return None
    # in UTF-16 or UTF-32 the declaration would not have matched
    return None if name.startswith(("utf-16", "utf-32", "utf-7")) else _WIDER.get(name, name)


def _find_encoding(data: bytes) -> tuple[str, float, int]:
    """Return Python's name of the encoding, the confidence from 0 to 1, and the length of the byte-order mark."""
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            return encoding, 1.0, len(mark)
    wide = utf16_without_mark(data)
    if wide:
        return wide, 0.95, 0
    sample = data[:SAMPLE_BYTES]
    if b"\x1b$" in sample:  # 7-bit encodings, which are valid UTF-8
        encoding = "iso2022_kr" if b"\x1b$)C" in sample else "iso2022_jp_2"
        if _is_plausible(sample, encoding):
            return encoding, 0.95, 0
    broken = _first_broken_byte(data)
    if broken is None:
        return "utf-8", 1.0, 0
    return (*_guess(data, broken), 0)


def _first_broken_byte(data: bytes) -> int | None:
    """Return the offset of the first byte that is not UTF-8, or None."""
    if data.isascii():
        return None
    view = memoryview(data)
    start = 0
    while start < len(data):
        last = start + SLICE_BYTES >= len(data)
        try:
            start += codecs.utf_8_decode(view[start : start + SLICE_BYTES], "strict", last)[1]
        except UnicodeDecodeError as error:
            return start + error.start
    return None


def utf16_without_mark(data: bytes) -> str | None:
    """Detect UTF-16 or UTF-32 without a byte-order mark in a file or its beginning; return the encoding or None.

    Latin text in UTF-16 has zeros in every second byte and none in the others; other scripts have them at spaces,
    digits and line ends. So one half of the bytes must have many zeros, the other nearly none, and the text must
    decode. East Asian text may have no zeros; it is detected by its characters. In UTF-32 every fourth byte is zero,
    and the byte next to it is at most 16.
    """
    sample = data[:SAMPLE_BYTES]
    if len(sample) < 4 or len(sample.translate(None, _CONTROL_BYTES)) == len(sample):
        return None  # UTF-16 and UTF-32 have zeros or other control bytes, and most files have none
    units = sample[: len(sample) // 4 * 4]
    for encoding, first, second in (("utf-32-le", 3, 2), ("utf-32-be", 0, 1)):
        if not any(units[first::4]) and max(units[second::4]) <= 16 and _is_plausible(units, encoding):
            return encoding
    even, odd = sample[0::2].count(0), sample[1::2].count(0)
    half = len(sample) / 2
    if even + odd < 0.5 * half and _is_plausible(sample.replace(b"\0", b""), "utf-8", controls=0.1):
        return None  # UTF-8 with stray NULs; UTF-16 with so few zeros is invalid UTF-8 or full of control bytes
    for encoding, zeros, others in (("utf-16-le", odd, even), ("utf-16-be", even, odd)):
        if zeros > 0.05 * half and others <= 0.005 * half and _is_plausible(sample, encoding):
            return encoding
    return _east_asian_utf16(sample)


def _east_asian_utf16(sample: bytes) -> str | None:
    """Detect UTF-16 by its characters: ideographs, kana or Hangul, with their usual punctuation."""
    controls = len(sample) - len(sample.translate(None, _CONTROL_BYTES))
    if len(sample) < 48 or controls < 0.005 * len(sample):
        return None  # too few control bytes: half of the bytes of such text have any value
    sample = sample[: len(sample) // 2 * 2]
    for encoding in ("utf-16-le", "utf-16-be"):
        if not _is_plausible(sample, encoding):
            continue
        text = codecs.getincrementaldecoder(encoding)().decode(sample)
        letters, signs = len(_EAST_ASIAN.findall(text)), len(_EAST_ASIAN_SIGNS.findall(text))
        if letters >= 0.6 * len(text) and signs >= max(2, 0.01 * len(text)):
            return encoding
    return None


def _is_plausible(sample: bytes, encoding: str, controls: float = 0.01) -> bool:
    """Return True if the sample decodes to text with few control, unassigned and other unprintable characters."""
    try:
        # not final: the sample may end in the middle of a character
        text = codecs.getincrementaldecoder(encoding)().decode(sample, final=False)
    except UnicodeDecodeError:
        return False
    strange = len(_CONTROLS.findall(text)) + sum(map(text.count, "\ufffe\uffff"))
    readable = sum(character.isprintable() or character in "\t\n\r\f\ufeff" for character in text[:4096])
    return strange <= controls * len(text) and readable >= (0.96 - controls) * len(text[:4096])


def _guess(data: bytes, first_odd_byte: int) -> tuple[str, float]:
    """Guess the encoding and the confidence of data that is not UTF-8, from a sample around its first odd byte.

    An unsure best guess gives way to a coherent or more common one of nearly the same confidence.
    """
    if _is_nearly_utf8(data):
        return "utf-8", 0.5
    import chardet  # only here: it takes a tenth of a worker's start

    start = max(0, first_odd_byte - SAMPLE_BYTES // 4)
    sample = data[start : start + SAMPLE_BYTES]
    guesses: list[tuple[str, float]] = []
    for guess in chardet.detect_all(sample):
        confidence = float(guess["confidence"] or 0.0)
        with suppress(LookupError):  # chardet knows a few encodings that Python does not
            name = codecs.lookup(guess["encoding"] or "").name
            if confidence >= MINIMUM_CONFIDENCE:
                guesses.append((name, confidence))
    if not guesses:
        return FALLBACK_ENCODING, FALLBACK_CONFIDENCE
    encoding, best = guesses[0]
    if best < UNSURE:
        coherent = [guess for guess in guesses if guess[1] >= NEAR_BEST * best and _is_coherent(sample, guess[0])]
        usual = [guess for guess in coherent if guess[0] == FALLBACK_ENCODING and guess[1] >= USUAL_NEAR_BEST * best]
        encoding, best = (usual or coherent or guesses)[0]
    return ("cp1252" if encoding == "iso8859-1" else encoding), round(best, 4)  # a superset, except for controls


def _is_coherent(sample: bytes, encoding: str) -> bool:
    text = sample.decode(encoding, errors="replace")
    beyond = sum(map(len, _BEYOND_ASCII.findall(text)))
    return len(_INCOHERENT.findall(text)) + text.count("\ufffd") <= 0.05 * beyond


def _is_nearly_utf8(data: bytes) -> bool:
    """Return True if a text is UTF-8 with a few broken bytes, such as a file that was cut."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    broken = whole = 0
    for start in range(0, len(data), SLICE_BYTES):
        text = decoder.decode(data[start : start + SLICE_BYTES], final=start + SLICE_BYTES >= len(data))
        replaced = text.count("\ufffd")
        broken += replaced
        whole += len(text) - len(text.encode("ascii", "ignore")) - replaced
    # text in another encoding hardly ever forms valid sequences by chance, so a clear majority is enough
    return whole >= 10 * broken
