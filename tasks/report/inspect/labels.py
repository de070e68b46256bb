"""Tokens as a person can see them: special ones by name, pieces of a character by number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tasks.report.wording import visible

if TYPE_CHECKING:
    from tasks.tokens.tokenizers import Tokenizer


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
