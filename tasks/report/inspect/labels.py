"""Tokens and names as a person can see them: nothing invisible, nothing that turns the line around."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tasks.tokens.tokenizers import Tokenizer

_SIGNS = {" ": "␣", "\n": "⏎", "\t": "⇥"}


def visible(text: str) -> str:
    """The text with a sign for every character that cannot be seen or that rearranges its neighbours."""
    return "".join(map(_sign, text))


def legible(text: str) -> str:
    """Text of a document or the name of a file, to be read: a sign only for what would hide or rearrange its line."""
    composed = unicodedata.normalize("NFC", text)
    return "".join(char if char == " " or unicodedata.category(char)[0] == "M" else _sign(char) for char in composed)


def _sign(char: str) -> str:
    if char in _SIGNS:
        return _SIGNS[char]
    if char < " " or "\x7f" <= char <= "\x9f":
        return f"\\x{ord(char):02x}"  # few fonts have Unicode's pictures of them
    kind = unicodedata.category(char)
    if kind in ("Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"):
        return f"<U+{ord(char):04X}>"
    return f"◌{char}" if kind.startswith("M") else char  # a combining mark would sit on whatever stands before it


def token_label(tokenizer: Tokenizer, index: int) -> str:
    """One id as text: a special token by its name, a piece of a character by its number."""
    if index in tokenizer.special_ids:
        roles = {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id, "pad": tokenizer.pad_id, "unk": tokenizer.unk_id}
        return next((f"<{role}>" for role, special in roles.items() if special == index), f"<special {index}>")
    text = tokenizer.decode([index])
    return visible(text) if text and "\ufffd" not in text else f"#{index}"


def token_labels(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """A label for each id."""
    return [token_label(tokenizer, index) for index in ids]


def short(label: str, length: int = 9) -> str:
    """A label that fits beside a row of a chart."""
    return label if len(label) <= length else label[: length - 1] + "…"
