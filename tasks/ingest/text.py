"""Bytes to text: finds the encoding of a text file, decodes it, and cleans what would hurt further on.

`decode` tries what can prove itself before what must guess: byte-order mark, strict UTF-8, UTF-16 by the
place of its zero bytes, then a statistical detector on a sample. `clean` is what every extractor's text goes
through: one kind of line end, no control characters, and never a lone surrogate, because Parquet holds UTF-8
and a single one of them would sink the whole batch of rows. Both are linear in the input.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

import chardet

SAMPLE_BYTES = 64 * 1024
# Short texts never score high, so this keeps out noise only.
MINIMUM_CONFIDENCE = 0.05
FALLBACK_ENCODING = "cp1252"
FALLBACK_CONFIDENCE = 0.01

_BOMS = (  # UTF-32 first: its little-endian mark begins with that of UTF-16.
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_LINE_ENDS = re.compile(r"\r\n?")
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f]")
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")
_SURROGATES = re.compile(r"[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded text.

    Attributes:
        text: The cleaned text; always encodes to UTF-8.
        encoding: Python's name of the encoding.
        confidence: 0 to 1; 1 where a byte-order mark or strict UTF-8 proves the encoding.
        controls_removed: How many control characters `clean` took out.
        replaced: How many U+FFFD stand for bytes that the encoding could not explain.
    """

    text: str
    encoding: str
    confidence: float
    controls_removed: int = 0
    replaced: int = 0


def clean(text: str) -> str:
    """Returns the text with line feeds only, no control characters (but tab, form feed) or lone surrogates."""
    if "\r" in text:
        text = _LINE_ENDS.sub("\n", text)
    text = _CONTROLS.sub("", text)
    if _SURROGATES.search(text):
        # Joins halves that belong together, replaces those that do not.
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def decode(data: bytes) -> Decoded:
    """Decodes a text file of unknown encoding.

    Args:
        data: The whole file.

    Returns:
        The cleaned text, the encoding and how sure it is. Never fails: bytes that no encoding explains become
        U+FFFD.
    """
    encoding, confidence, mark = find_encoding(data)
    text = data[mark:].decode(encoding, errors="replace")
    replaced = text.count("\ufffd")
    controls = len(_CONTROLS.findall(text))
    return Decoded(clean(text), encoding, confidence, controls, replaced)


def find_encoding(data: bytes) -> tuple[str, float, int]:
    """Finds the encoding of a text.

    Args:
        data: The whole file.

    Returns:
        Python's name of the encoding, the confidence from 0 to 1, and the length of the byte-order mark to
        skip.
    """
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            return encoding, 1.0, len(mark)
    wide = utf16_without_mark(data)
    if wide:
        return wide, 0.95, 0
    if b"\x1b$" in data[:SAMPLE_BYTES] and _is_plausible(data[:SAMPLE_BYTES], "iso2022_jp_2"):
        return "iso2022_jp_2", 0.95, 0  # Seven bits wide: it would pass for UTF-8, as gibberish.
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return (*_guess(data, error.start), 0)
    return "utf-8", 1.0, 0


def utf16_without_mark(data: bytes) -> str | None:
    """Tells UTF-16 without a byte-order mark by its zero bytes.

    Latin text has zeros in every second byte and none in the others; other scripts still have them at spaces,
    digits and line ends. So one side must be rich in zeros, the other free of them, and the whole must
    decode.

    Args:
        data: The file, or its beginning.

    Returns:
        "utf-16-le", "utf-16-be", or None.
    """
    sample = data[:SAMPLE_BYTES]
    if len(sample) < 4:
        return None
    even, odd = sample[0::2].count(0), sample[1::2].count(0)
    half = len(sample) / 2
    if even + odd < 0.5 * half and _is_plausible(sample.replace(b"\0", b""), "utf-8", controls=0.1):
        return None  # UTF-8 with stray NULs. UTF-16 with so few zeros is no valid UTF-8, or full of control bytes.
    for encoding, zeros, others in (("utf-16-le", odd, even), ("utf-16-be", even, odd)):
        if zeros > 0.05 * half and others <= 0.005 * half and _is_plausible(sample, encoding):
            return encoding
    return None


def _is_plausible(sample: bytes, encoding: str, controls: float = 0.01) -> bool:
    """Whether the sample decodes to text without control characters and unassigned places."""
    try:
        # Not final: the sample may end in the middle of a character.
        text = codecs.getincrementaldecoder(encoding)().decode(sample, final=False)
    except UnicodeDecodeError:
        return False
    strange = len(_CONTROLS.findall(text)) + sum(map(text.count, "\ufffe\uffff"))
    readable = sum(character.isprintable() or character in "\t\n\r\f\ufeff" for character in text[:4096])
    return strange <= controls * len(text) and readable >= (0.96 - controls) * len(text[:4096])


def _guess(data: bytes, first_odd_byte: int) -> tuple[str, float]:
    """Guesses the encoding of data that is not UTF-8, from a sample around the first byte that proves it."""
    if _is_nearly_utf8(data):
        return "utf-8", 0.5
    start = max(0, first_odd_byte - SAMPLE_BYTES // 4)
    sample = data[start : start + SAMPLE_BYTES]
    found = chardet.detect(sample)
    encoding, confidence = found["encoding"], float(found["confidence"] or 0.0)
    if encoding is None or confidence < MINIMUM_CONFIDENCE:
        return FALLBACK_ENCODING, FALLBACK_CONFIDENCE
    try:
        return codecs.lookup(encoding).name, round(confidence, 4)
    except LookupError:  # The detector knows a few encodings that Python does not.
        return FALLBACK_ENCODING, FALLBACK_CONFIDENCE


def _is_nearly_utf8(data: bytes) -> bool:
    """Whether a text is UTF-8 with a few broken bytes, as a file cut in the middle of a character is."""
    text = data.decode("utf-8", errors="replace")
    broken = text.count("\ufffd")
    whole = len(_BEYOND_ASCII.findall(text)) - broken
    # Text in another encoding hardly ever forms valid sequences by chance, so a clear majority is enough.
    return whole >= 10 * broken
