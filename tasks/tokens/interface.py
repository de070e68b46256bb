"""The interface of every tokeniser, and the tokenisers that look up characters, bytes or words.

This module travels inside served models, so it imports nothing of Sheepfold. Ids 0 to 3 are pad, unk, bos and eos in
every kind that is fitted here; a tokeniser from elsewhere says which are its own. Every kind may keep ids free at the
end of its vocabulary for later use; they are special too.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
        """Return the JSON to be saved, without reserved ids."""

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
        """Id that begins a text: bos, or else eos, which stands between texts; None where there is neither."""
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
        """True if encoding may leave out parts of a text without an unk in their place."""
        return False

    @property
    def may_lose(self) -> bool:
        """True if parts of a text may become unk or be left out."""
        return self.drops_text or (self.unk_id is not None and type(self).lost_bytes is not Tokenizer.lost_bytes)

    def lost_bytes(self, text: str, ids: np.ndarray) -> int:
        """UTF-8 bytes of `text` that `ids` cannot give back, because they became unk or were left out."""
        return 0

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """A text as UTF-8 in pieces whose ids, one after the other, are its own."""
        yield data

    @property
    def described(self) -> str:
        """Kind of the tokeniser, for messages."""
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
    """Return True for a whole number that an id can be; JSON's `true` and `1.0` are none."""
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


CODE_POINTS = 0x110000
_WORD_OR_SPACES = re.compile(r"\S+|\s+")


class TableTokenizer(Tokenizer):
    """One id per character by a look-up table over all code points: encoding is a single NumPy index.

    Args:
        characters: those with an id of their own; all others become unk.
        ids: their ids.
    """

    def __init__(self, characters: str, ids: np.ndarray, reserved: int = 0) -> None:
        super().__init__(reserved)
        self.table = np.full(CODE_POINTS, UNK, dtype=smallest_dtype(int(ids.max(initial=UNK)) + 1))
        self.table[code_points(characters)] = ids
        self._characters = dict(zip(ids.tolist(), characters, strict=True))

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self.table[code_points(text)].astype(np.int64) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self._characters.get(int(index), "") for index in ids)

    def lost_bytes(self, text: str, ids: np.ndarray) -> int:
        return sum(len(text[place].encode()) for place in np.flatnonzero(ids == UNK))


def code_points(text: str) -> np.ndarray:
    """(n,) uint32 of the characters of a text."""
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


class CharTokenizer(TableTokenizer):
    """One id per character of the training text; other characters become unk.

    Args:
        alphabet: the characters in the order of their ids, which start at 4.
    """

    kind = "char"

    def __init__(self, alphabet: str, reserved: int = 0) -> None:
        if len(set(alphabet)) != len(alphabet):
            raise ValueError("the alphabet names a character twice")
        self.alphabet = alphabet
        super().__init__(alphabet, np.arange(N_SPECIAL, N_SPECIAL + len(alphabet)), reserved)

    @classmethod
    def fit(cls, texts: Iterable[str], vocab_size: int = 0, reserved: int = 0) -> CharTokenizer:
        """Alphabet of the texts: all characters, or the most frequent ones when `vocab_size` limits them.

        Raises:
            ValueError: if the limit leaves no room for a character.
        """
        room = vocab_size - N_SPECIAL - reserved
        if vocab_size and room < 1:
            raise ValueError(
                f"vocab_size is {vocab_size}; {N_SPECIAL} ids are special and {reserved} reserved, so at least "
                f"{N_SPECIAL + reserved + 1} are needed"
            )
        counts = np.zeros(CODE_POINTS, dtype=np.int64)
        for block in _blocks(texts):
            counts += np.bincount(code_points(block), minlength=CODE_POINTS)
        seen = np.flatnonzero(counts)
        ranked = seen[np.argsort(-counts[seen], kind="stable")]  # of equally frequent ones the lower code point first
        chosen = ranked[:room] if vocab_size else ranked
        return cls("".join(map(chr, np.sort(chosen).tolist())), reserved)

    @property
    def used_ids(self) -> int:
        return N_SPECIAL + len(self.alphabet)

    def record(self) -> dict[str, Any]:
        return {"kind": self.kind, "alphabet": self.alphabet}


def _blocks(texts: Iterable[str], size: int = 2**20) -> Iterator[str]:
    """The texts in strings of about the same length: few where they are short, several of a long one."""
    waiting: list[str] = []
    length = 0
    for text in texts:
        for start in range(0, len(text), size):
            waiting.append(text[start : start + size])
            length += len(waiting[-1])
            if length >= size:
                yield "".join(waiting)
                waiting, length = [], 0
    yield "".join(waiting)


class AsciiTokenizer(TableTokenizer):
    """The ASCII code of a character is its id; nothing is fitted, so ids are the same in every project.

    Characters beyond ASCII become unk, and so do the control characters 0 to 3, whose ids are the special tokens'.
    """

    kind = "ascii"
    used_ids = 128

    def __init__(self, reserved: int = 0) -> None:
        codes = np.arange(N_SPECIAL, self.used_ids)
        super().__init__("".join(map(chr, codes.tolist())), codes, reserved)

    def record(self) -> dict[str, Any]:
        return {"kind": self.kind}


class ByteTokenizer(Tokenizer):
    """A byte of UTF-8 and four is its id: nothing is fitted and nothing is ever lost."""

    kind = "bytes"
    used_ids = 256 + N_SPECIAL

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64) + N_SPECIAL for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; bytes that are no UTF-8 give U+FFFD."""
        data = bytes(index - N_SPECIAL for index in map(int, ids) if N_SPECIAL <= index < self.used_ids)
        return data.decode(errors="replace")

    def record(self) -> dict[str, Any]:
        return {"kind": self.kind}


class WordTokenizer(Tokenizer):
    """One id per word, for toys: a word is what stands between white space, and other words become unk.

    One space between two words needs no id, so "Hi Thomas" is two ids. All other white space is a word, too, and a text
    of known words comes back as it was.

    Args:
        vocabulary: the words and their ids; ids without a word stand for nothing.
    """

    kind = "word"

    def __init__(self, vocabulary: Mapping[str, int], reserved: int = 0) -> None:
        super().__init__(reserved)
        self.vocabulary = dict(vocabulary)
        for word, index in self.vocabulary.items():
            if not word:
                raise ValueError(f"id {index!r} stands for a word without a character; take it out")
            if not is_id(index):
                raise ValueError(f"the id of {word!r} is {index!r}, expected a whole number below {LARGEST_VOCAB:,}")
        self._words = {index: word for word, index in self.vocabulary.items()}
        if len(self._words) < len(self.vocabulary) or min(self._words, default=N_SPECIAL) < N_SPECIAL:
            raise ValueError(f"every word needs an id of its own, {N_SPECIAL} or more: the ids before are special")

    @classmethod
    def fit(cls, texts: Iterable[str], vocab_size: int, reserved: int = 0) -> WordTokenizer:
        """The most frequent words, in their order."""
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(_words(text))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        chosen = sorted(ranked[: max(0, vocab_size - N_SPECIAL - reserved)])
        return cls({word: index for index, word in enumerate(chosen, N_SPECIAL)}, reserved)

    @property
    def used_ids(self) -> int:
        return max(self._words, default=N_SPECIAL - 1) + 1

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        known = self.vocabulary
        return [np.array([known.get(word, UNK) for word in _words(text)], dtype=np.int64) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        words: list[str] = []
        for word in (self._words.get(int(index)) for index in ids):
            if word is not None:
                between = words and not words[-1][-1].isspace() and not word[0].isspace()
                words += [" ", word] if between else [word]
        return "".join(words)

    def decode_continuation(self, before: Sequence[int], ids: Sequence[int]) -> str:
        return self.decode([*before, *ids])[len(self.decode(before)) :]

    def lost_bytes(self, text: str, ids: np.ndarray) -> int:
        return sum(len(word.encode()) for word in _words(text) if word not in self.vocabulary)

    def record(self) -> dict[str, Any]:
        return {"kind": self.kind, "vocabulary": self.vocabulary}


def _words(text: str) -> Iterator[str]:
    """The words of a text, and the white space between them but for single spaces."""
    for match in _WORD_OR_SPACES.finditer(text):
        if match[0] != " " or match.start() == 0 or match.end() == len(text):
            yield match[0]
