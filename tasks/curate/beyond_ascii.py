"""The characters of a text that are not ASCII: a small string, which answers many questions for the whole text.

What is looked for in a text (traces of a wrong encoding, ligatures, marks of Unicode) is never ASCII, and is mostly
not there. Looking for it in the few characters that it could be costs next to nothing beside a pass over all of them.
"""

from __future__ import annotations

_ASCII = bytes(range(0x80))


def beyond_ascii(text: str) -> str:
    """Returns the characters beyond ASCII in their order, lone surrogates included; those of one run stay together."""
    if text.isascii():
        return ""
    # bytes of longer sequences are never those of ASCII
    return text.encode("utf-8", "surrogatepass").translate(None, _ASCII).decode("utf-8", "surrogatepass")
