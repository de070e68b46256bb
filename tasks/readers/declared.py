"""Decodes HTML and XML, which may state their own encoding.

What proves itself comes first: a byte-order mark, UTF-16 by its zeros, strict UTF-8. Then what the document states,
if its bytes agree; statistics only after that.
"""

from __future__ import annotations

import codecs
import re

from tasks.readers.decode import clean, decode

DECLARED_WITHIN = 4096
DECLARED_CONFIDENCE = 0.9

_XML_ENCODING = re.compile(rb"<\?xml\s[^>]{0,200}?encoding\s{0,20}=\s{0,20}[\"']([A-Za-z0-9._:-]{1,40})")
_META_CHARSET = re.compile(rb"<meta\s[^>]{0,300}?charset\s{0,20}=\s{0,20}[\"']?\s{0,20}([A-Za-z0-9._:-]{1,40})", re.I)
# Names that are wider in practice than in their standards: browsers read them so.
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


def decode_declared(data: bytes) -> tuple[str, str, float]:
    """Decode a document that may state its encoding.

    Args:
        data: The whole file.

    Returns:
        The cleaned text, Python's name of the encoding, and the confidence from 0 to 1.
    """
    declared = _declared(data[:DECLARED_WITHIN])
    if declared and not _is_utf8(data) and not data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        try:
            return clean(data.decode(declared)), declared, DECLARED_CONFIDENCE
        except (UnicodeDecodeError, ValueError):
            pass  # It states what it is not; then the bytes must tell.
    found = decode(data)
    return found.text, found.encoding, found.confidence


def _is_utf8(data: bytes) -> bool:
    """Whether the bytes are valid UTF-8, and say so by more than being ASCII."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _declared(head: bytes) -> str | None:
    """The encoding that the document states, under Python's name, if Python knows it and it can be true."""
    match = _XML_ENCODING.search(head) or _META_CHARSET.search(head)
    if match is None:
        return None
    try:
        name = codecs.lookup(match[1].decode("ascii")).name
        b"".decode(name)  # Not all that Python calls encodings are about text.
    except LookupError:
        return None
    # In UTF-16 or UTF-32 the statement could not have been read.
    return None if name.startswith(("utf-16", "utf-32", "utf-7")) else _WIDER.get(name, name)
