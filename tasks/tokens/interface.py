"""What every tokeniser can do: encode, decode, save, and say which ids are special.

This module travels inside served models, so it imports nothing of Sheepfold. Ids 0 to 3 are pad, unk, bos and eos in
every kind that is fitted here; a tokeniser from elsewhere says which are its own. Every kind may keep ids free at the
end of its vocabulary for later use; they are special too.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

PAD, UNK, BOS, EOS = 0, 1, 2, 3
N_SPECIAL = 4
SPECIAL_TOKENS = ("<|pad|>", "<|unk|>", "<|bos|>", "<|eos|>")
TOKENIZER_FILE = "tokenizer.json"
LARGEST_VOCAB = 2**24  # every id costs a row of a network and a count: more is a mistake in a file


class TokenizerError(ValueError):
    """A file that holds no tokeniser, or another one than expected."""


class Tokenizer(ABC):
    """Text to ids and back.

    Args:
        reserved: ids that are kept free at the end of the vocabulary.
    """

    kind: str

    def __init__(self, reserved: int = 0) -> None:
        if not is_id(reserved):
            raise ValueError(f"{reserved!r} ids are to be reserved, expected 0 or more, {LARGEST_VOCAB:,} at most")
        self.reserved = reserved

    @property
    @abstractmethod
    def used_ids(self) -> int:
        """Number of ids, special ones included, reserved ones not."""

    @property
    def vocab_size(self) -> int:
        """Number of all ids."""
        return self.used_ids + self.reserved

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text (1-D int64), without bos and eos."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; special ids give nothing."""

    def decode_continuation(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """Text that ids add to the text of the ids before them."""
        return self.decode(ids)

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """What has to be saved, as JSON; reserved ids only where there are some."""

    @property
    def pad_id(self) -> int | None:
        """Id that fills up short sequences; None if there is none (as for the next three)."""
        return PAD

    @property
    def unk_id(self) -> int | None:
        """Id of what has no id."""
        return UNK

    @property
    def bos_id(self) -> int | None:
        """Id that begins a document."""
        return BOS

    @property
    def eos_id(self) -> int | None:
        """Id that ends a document."""
        return EOS

    @property
    def start_id(self) -> int | None:
        """What a text begins with: bos, or else eos, which stands between texts; None where there is neither."""
        return self.eos_id if self.bos_id is None else self.bos_id

    @property
    def special_ids(self) -> tuple[int, ...]:
        """All ids that stand for no text, in ascending order."""
        return (*range(N_SPECIAL), *self._reserved_ids)

    @property
    def _reserved_ids(self) -> range:
        return range(self.used_ids, self.vocab_size)

    @property
    def drops_text(self) -> bool:
        """Whether there are texts of which something is left out and nothing stands in its place."""
        return False

    @property
    def may_lose(self) -> bool:
        """Whether there are texts of which something becomes unk, or is left out."""
        return self.drops_text or (self.unk_id is not None and type(self).lost_bytes is not Tokenizer.lost_bytes)

    def lost_bytes(self, text: str, ids: np.ndarray) -> int:
        """UTF-8 bytes of `text` that `ids` cannot give back, because they became unk or were left out."""
        return 0

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """A text as UTF-8 in pieces whose ids, one after the other, are its own."""
        yield data

    @property
    def described(self) -> str:
        """What kind of tokeniser it is, for messages."""
        return self.kind

    @property
    def saved(self) -> str:
        """The tokeniser as JSON, the same text for the same tokeniser."""
        record = {**self.record(), **({"reserved": self.reserved} if self.reserved else {})}
        return json.dumps(record, ensure_ascii=False, sort_keys=True)

    @property
    def fingerprint(self) -> str:
        """sha256 of what `save` writes."""
        return hashlib.sha256(self.saved.encode()).hexdigest()

    def save(self, path: Path) -> None:
        """Write the tokeniser as JSON."""
        path.write_text(self.saved, encoding="utf-8", newline="")


def is_id(value: Any) -> bool:
    """Whether this is a whole number that an id can be; JSON's `true` and `1.0` are none."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST_VOCAB


def check_vocab_size(vocab_size: int, reserved: int = 0) -> None:
    """Refuse a vocabulary that no engine could be asked for: some end the process for lack of memory.

    Raises:
        ValueError: it is as large as `LARGEST_VOCAB`.
    """
    for name, value in (("vocab_size", vocab_size), ("reserved", reserved)):
        if value >= LARGEST_VOCAB:
            raise ValueError(
                f"{name} is {value:,}, expected less than {LARGEST_VOCAB:,}: every id costs a row of the network"
            )


def smallest_dtype(vocab_size: int) -> np.dtype[Any]:
    """Smallest unsigned type that holds every id."""
    for kind in (np.uint8, np.uint16, np.uint32):
        if vocab_size - 1 <= np.iinfo(kind).max:
            return np.dtype(kind)
    raise ValueError(f"a vocabulary of {vocab_size} ids does not fit 32 bits")
