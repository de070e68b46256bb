"""Tokenisers with one interface: characters, ASCII codes, bytes, words, byte-level BPE, and foreign ones.

This module and `hf_spec` are copied into served models under another package name, and import nothing of Sheepfold.
Ids 0 to 3 are pad, unk, bos and eos in all kinds but `hf`, which has its own. Reserved ids at the end of a vocabulary
are special too. Text that spells a special token is encoded as text, so that documents cannot inject control tokens.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, compress
from pathlib import Path
from typing import Any

import numpy as np

from .hf_spec import (
    LARGEST_VOCAB,
    LEFT_OUT,
    PIECE_BYTES,
    cut_text,
    cuts_before_spaces,
    drops_text,
    library_tokenizer,
    with_left_out,
    without_control_tokens,
)

PAD, UNK, BOS, EOS = 0, 1, 2, 3
N_SPECIAL = 4
SPECIAL_TOKENS = ("<|pad|>", "<|unk|>", "<|bos|>", "<|eos|>")
MIN_BPE_VOCAB = 256 + N_SPECIAL
SPECIAL_IDS = ("pad_id", "unk_id", "bos_id", "eos_id")
TOKENIZER_FILE = "tokenizer.json"
CODE_POINTS = 0x110000
_WORD_OR_SPACES = re.compile(r"\S+|\s+")


class TokenizerError(ValueError):
    """A file that is not a tokeniser, or not the expected one."""


class Tokenizer(ABC):
    """Text to ids and back.

    Attributes:
        reserved: number of ids kept free at the end of the vocabulary.
        used_ids: number of ids, including special and excluding reserved ones.
        pad_id, unk_id, bos_id, eos_id: ids of padding, unknown text, and the begin and end of a document; None if
            missing.
        parts: names of the saved attributes, which are also arguments of the class.
    """

    kind: str
    parts: tuple[str, ...] = ()
    used_ids: int
    pad_id: int | None = PAD
    unk_id: int | None = UNK
    bos_id: int | None = BOS
    eos_id: int | None = EOS

    def __init__(self, reserved: int = 0) -> None:
        if not is_id(reserved):
            raise ValueError(f"reserved is {reserved!r}, expected a number of ids from 0 to {LARGEST_VOCAB - 1:,}")
        self.reserved = reserved

    @property
    def vocab_size(self) -> int:
        """Number of ids, including reserved ones."""
        return self.used_ids + self.reserved

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text (1-D int64), without bos and eos."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special ids."""

    def decode_continuation(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """Return the text of ids that follow others."""
        return self.decode(ids)

    def record(self) -> dict[str, Any]:
        """Return the JSON record to save, without the number of reserved ids."""
        return {"kind": self.kind, **{name: getattr(self, name) for name in self.parts}}

    @property
    def start_id(self) -> int | None:
        """Id that begins a text: bos, else eos, which separates texts; None if there is neither."""
        return self.eos_id if self.bos_id is None else self.bos_id

    def beginning(self, bos: bool = True) -> str:
        """Return a description of the first id of prompts; `bos` is False if training documents had none."""
        if not bos or self.start_id is None:
            return "nothing"
        return f"bos (id {self.bos_id})" if self.bos_id is not None else f"eos (id {self.eos_id}), as there is no bos"

    @property
    def special_ids(self) -> tuple[int, ...]:
        """All ids without text, ascending, including unassigned ids of a table."""
        return (*range(N_SPECIAL), *range(self.used_ids, self.vocab_size))

    @property
    def may_lose(self) -> bool:
        """True if parts of a text may become unk or be dropped."""
        return False

    def lost_bytes(self, text: str, ids: np.ndarray) -> int:
        """Return the number of UTF-8 bytes of `text` that became unk or were dropped."""
        return 0

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Cut UTF-8 text into pieces whose concatenated ids are those of the text."""
        return cut_text(data, PIECE_BYTES)

    @property
    def described(self) -> str:
        """Kind of the tokeniser, for messages."""
        return self.kind

    @property
    def saved(self) -> str:
        """The tokeniser as canonical JSON."""
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
    """Return True for an int in the range of ids; False for JSON's `true` and `1.0`."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST_VOCAB


def smallest_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the smallest unsigned type for all ids."""
    return np.min_scalar_type(max(vocab_size - 1, 0))


def most_frequent(counts: Mapping[str, int], room: int | None) -> list[str]:
    """Return at most `room` of the most frequent items, sorted; ties go to the lower ones."""
    return sorted(sorted(counts, key=lambda item: (-counts[item], item))[:room])


def numbered(items: Iterable[str]) -> dict[str, int]:
    """Return consecutive ids of items, after the special ones."""
    return {item: index for index, item in enumerate(items, N_SPECIAL)}


class TableTokenizer(Tokenizer):
    """A table of characters or words and their ids; other text becomes unk.

    Args:
        vocabulary: entries and their ids, from 4 on; gaps are allowed.

    Raises:
        ValueError: an entry is empty, or its id is invalid, special or already used.
    """

    parts: tuple[str, ...] = ("vocabulary",)
    may_lose = True

    def __init__(self, vocabulary: Mapping[str, int], reserved: int = 0) -> None:
        super().__init__(reserved)
        self.vocabulary = dict(vocabulary)
        self._entries: dict[int, str] = {}
        for entry, index in self.vocabulary.items():
            if not entry:
                raise ValueError(f"the entry of id {index!r} is empty; remove it")
            if not is_id(index) or index < N_SPECIAL:
                raise ValueError(
                    f"the id of {entry!r} is {index!r}, expected a whole number from {N_SPECIAL} (0 to "
                    f"{N_SPECIAL - 1} are special) to {LARGEST_VOCAB - 1:,}"
                )
            other = self._entries.setdefault(index, entry)
            if other != entry:
                raise ValueError(f"{other!r} and {entry!r} have the same id {index}, expected different ids")
        self.used_ids = max(self._entries, default=N_SPECIAL - 1) + 1

    @property
    def special_ids(self) -> tuple[int, ...]:
        return tuple(index for index in range(self.vocab_size) if index not in self._entries)


class CharTableTokenizer(TableTokenizer):
    """One id per character, by a lookup table over all code points."""

    kind = "table"

    def __init__(self, vocabulary: Mapping[str, int], reserved: int = 0) -> None:
        for entry in vocabulary:
            if len(entry) > 1 or "\ud800" <= entry <= "\udfff":
                raise ValueError(
                    f"{entry!r} is not one character, expected a table of single characters and their ids; a "
                    "vocabulary of tokens needs its merges.txt or vocab.bpe beside it"
                )
        super().__init__(vocabulary, reserved)
        self._table = np.full(CODE_POINTS, UNK, dtype=smallest_dtype(self.used_ids))
        self._table[_code_points("".join(self.vocabulary))] = list(self.vocabulary.values())

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self._table[_code_points(text)].astype(np.int64) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self._entries.get(int(index), "") for index in ids)

    def lost_bytes(self, text: str, ids: np.ndarray) -> int:
        return sum(len(text[place].encode()) for place in np.flatnonzero(ids == UNK))


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


class CharTokenizer(CharTableTokenizer):
    """One id per character of the training text.

    Args:
        alphabet: the characters in the order of their ids, which start at 4.
    """

    kind = "char"
    parts = ("alphabet",)

    def __init__(self, alphabet: str, reserved: int = 0) -> None:
        if len(set(alphabet)) != len(alphabet):
            raise ValueError("the alphabet has a character twice")
        self.alphabet = alphabet
        super().__init__(numbered(alphabet), reserved)

    @classmethod
    def fit(cls, texts: Iterable[str], vocab_size: int = 0, reserved: int = 0) -> CharTokenizer:
        """Use all characters of texts, or the most frequent ones if `vocab_size` is not 0."""
        room = max(0, vocab_size - N_SPECIAL - reserved) if vocab_size else None
        return cls("".join(most_frequent(Counter(chain.from_iterable(texts)), room)), reserved)


class AsciiTokenizer(CharTableTokenizer):
    """The id of a character is its ASCII code; nothing is fitted.

    Other characters become unk, and so do the control characters 0 to 3, whose ids are special.
    """

    kind = "ascii"
    parts = ()

    def __init__(self, reserved: int = 0) -> None:
        super().__init__({chr(code): code for code in range(N_SPECIAL, 128)}, reserved)


class ByteTokenizer(Tokenizer):
    """The id of a byte of UTF-8 is its value plus 4; nothing is fitted and no text is lost."""

    kind = "bytes"
    used_ids = 256 + N_SPECIAL

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64) + N_SPECIAL for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; bytes that are not valid UTF-8 give U+FFFD."""
        data = bytes(index - N_SPECIAL for index in map(int, ids) if N_SPECIAL <= index < self.used_ids)
        return data.decode(errors="replace")


class WordTokenizer(TableTokenizer):
    """One id per word between white space, for worked examples.

    A single space between words has no id, so "Hi Thomas" has two ids. Other white space is a word too, so that text of
    known words is reproduced exactly.
    """

    kind = "word"

    @classmethod
    def fit(cls, texts: Iterable[str], vocab_size: int, reserved: int = 0) -> WordTokenizer:
        """Use the most frequent words, sorted."""
        counts = Counter(chain.from_iterable(map(_words, texts)))
        return cls(numbered(most_frequent(counts, max(0, vocab_size - N_SPECIAL - reserved))), reserved)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        known = self.vocabulary
        return [np.array([known.get(word, UNK) for word in _words(text)], dtype=np.int64) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        words: list[str] = []
        for word in (self._entries.get(int(index)) for index in ids):
            if word is not None:
                between = words and not words[-1][-1].isspace() and not word[0].isspace()
                words += [" ", word] if between else [word]
        return "".join(words)

    def decode_continuation(self, before: Sequence[int], ids: Sequence[int]) -> str:
        return self.decode([*before, *ids])[len(self.decode(before)) :]

    def lost_bytes(self, text: str, ids: np.ndarray) -> int:
        return sum(len(word.encode()) for word, index in zip(_words(text), ids, strict=True) if index == UNK)

    def pieces(self, data: bytes) -> Iterator[bytes]:
        return iter([data])


def _words(text: str) -> Iterator[str]:
    """Yield the words of a text, and white space other than single spaces between words."""
    for match in _WORD_OR_SPACES.finditer(text):
        if match[0] != " " or match.start() == 0 or match.end() == len(text):
            yield match[0]


class LibraryTokenizer(Tokenizer):
    """A tokeniser run by Hugging Face's `tokenizers`.

    Args:
        spec: the library's own JSON.

    Raises:
        ValueError: the library cannot read the spec.
    """

    parts: tuple[str, ...] = ("spec",)

    def __init__(self, spec: str, reserved: int = 0) -> None:
        super().__init__(reserved)
        self.spec = spec
        self._tokenizer = library_tokenizer(spec)
        self.used_ids = int(self._tokenizer.get_vocab_size())

    def vocabulary(self) -> dict[str, int]:
        """Return the ids of all tokens in the library's spelling."""
        return dict(self._tokenizer.get_vocab(with_added_tokens=True))

    @property
    def encoding_spec(self) -> str:
        """JSON of the tokeniser that encodes, which may differ from `spec`."""
        return self.spec

    @cached_property
    def _encoder(self) -> Any:
        return self._tokenizer if self.encoding_spec == self.spec else library_tokenizer(self.encoding_spec)

    @cached_property
    def cuts_before_spaces(self) -> bool:
        """True if words always end before a space."""
        return cuts_before_spaces(json.loads(self.spec))

    def pieces(self, data: bytes) -> Iterator[bytes]:
        return super().pieces(data) if self.cuts_before_spaces else iter([data])

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        if all(len(text) <= PIECE_BYTES // 2 for text in texts):
            return self._encode_short(texts)
        pieces = ((piece.decode() for piece in self.pieces(text.encode())) for text in texts)
        return [np.concatenate([self._encode_short([piece])[0] for piece in of_text]) for of_text in pieces]

    def _encode_short(self, texts: Sequence[str]) -> list[np.ndarray]:
        encodings = self._encoder.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        kept = [int(index) for index in ids if int(index) not in self._no_text]
        return str(self._tokenizer.decode(kept, skip_special_tokens=False))

    @cached_property
    def _no_text(self) -> frozenset[int]:
        return frozenset(self.special_ids)

    def record(self) -> dict[str, Any]:
        return {**super().record(), "spec": json.loads(self.spec)}


class BpeTokenizer(LibraryTokenizer):
    """Byte-level byte-pair encoding; no text is lost."""

    kind = "bpe"


class HfTokenizer(LibraryTokenizer):
    """A foreign tokeniser with its own special ids, any of which may be missing.

    It encodes by a changed spec, see `without_control_tokens`.

    Args:
        spec: the library's own JSON.
        pad_id, unk_id, bos_id, eos_id: special ids; None if missing.

    Raises:
        ValueError: the library cannot read the spec, or a special id is outside the vocabulary.
    """

    kind = "hf"
    parts = ("spec", *SPECIAL_IDS)

    def __init__(
        self,
        spec: str,
        *,
        pad_id: int | None = None,
        unk_id: int | None = None,
        bos_id: int | None = None,
        eos_id: int | None = None,
        reserved: int = 0,
    ) -> None:
        super().__init__(spec, reserved)
        largest = max(self.vocabulary().values(), default=-1)
        if largest < 0:
            raise ValueError("its vocabulary is empty; choose another tokeniser")
        if largest >= LARGEST_VOCAB:
            raise ValueError(f"its largest id is {largest:,}, expected less than {LARGEST_VOCAB:,}")
        self.used_ids = largest + 1
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = {index for index, token in added.items() if token.special}
        self.pad_id, self.unk_id, self.bos_id, self.eos_id = pad_id, unk_id, bos_id, eos_id
        for name in SPECIAL_IDS:
            value = getattr(self, name)
            if value is None:
                continue
            if not (is_id(value) and value <= largest):
                raise ValueError(f"{name} is {value!r}; expected an id of the vocabulary, 0 to {largest}")
            self._special.add(value)

    @cached_property
    def encoding_spec(self) -> str:
        return without_control_tokens(self.spec, self._special)

    @property
    def described(self) -> str:
        return f"{json.loads(self.spec)['model'].get('type', 'one')} from elsewhere"

    @property
    def special_ids(self) -> tuple[int, ...]:
        without_token = set(range(self.vocab_size)).difference(self.vocabulary().values())
        return tuple(sorted(self._special | without_token))

    def decode_continuation(self, before: Sequence[int], ids: Sequence[int]) -> str:
        # many decoders drop the space before the first word of a text
        start, whole = self.decode(before), self.decode([*before, *ids])
        return whole[len(start) :] if whole.startswith(start) else self.decode(ids)

    @cached_property
    def may_lose(self) -> bool:
        return self._left_out is not None or self.unk_id is not None

    @cached_property
    def _left_out(self) -> Any:
        """A tokeniser that marks dropped text (see `with_left_out`); None if no text is dropped."""
        spec = json.loads(self.encoding_spec)
        return library_tokenizer(with_left_out(spec)) if drops_text(spec) else None

    def lost_bytes(self, text: str, ids: np.ndarray) -> int:
        """Return the bytes that became unk or were dropped; changes by a normaliser (case, accents) do not count."""
        if self._left_out is not None:
            encoding = self._left_out.encode(text, add_special_tokens=False)
            unknown = [token == LEFT_OUT for token in encoding.tokens]
        elif self.unk_id is None or not np.any(ids == self.unk_id):
            return 0
        else:
            encoding = self._encoder.encode(text, add_special_tokens=False)
            unknown = [index == self.unk_id for index in encoding.ids]
        lost = bytearray(len(text))  # by character, as several of its bytes may be unknown
        for first, last in compress(encoding.offsets, unknown):
            lost[first:last] = b"\1" * (last - first)
        return len("".join(compress(text, lost)).encode())


KINDS: tuple[type[Tokenizer], ...] = (
    CharTokenizer,
    CharTableTokenizer,
    AsciiTokenizer,
    ByteTokenizer,
    WordTokenizer,
    BpeTokenizer,
    HfTokenizer,
)


def load_tokenizer(path: Path, fingerprint: str = "") -> Tokenizer:
    """Read what `Tokenizer.save` wrote.

    Args:
        fingerprint: expected fingerprint; empty accepts any.

    Raises:
        TokenizerError: the file is invalid, or has another fingerprint.
    """
    data = path.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if fingerprint and found != fingerprint:
        raise TokenizerError(
            f"{path}: the tokeniser's fingerprint is {found[:12]}, expected {fingerprint[:12]}: the file was changed "
            "after it was written; restore it, or fit a new one"
        )
    try:
        record = json.loads(data)
        if not isinstance(record, dict):
            raise ValueError(f"a {type(record).__name__}, expected the JSON of a tokeniser")
        return _tokenizer_of(record)
    except KeyError as error:
        raise TokenizerError(f"{path}: the tokeniser lacks {error}; the file is broken") from error
    except RecursionError as error:
        raise TokenizerError(f"{path}: its JSON is nested too deep for a tokeniser; the file is broken") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise TokenizerError(f"{path}: {error}") from error


def _tokenizer_of(record: dict[str, Any]) -> Tokenizer:
    for found in KINDS:
        if found.kind == record.get("kind"):
            saved = {name: record[name] for name in found.parts}
            if "spec" in saved:
                saved["spec"] = json.dumps(saved["spec"], ensure_ascii=False)
            return found(**saved, reserved=record.get("reserved", 0))
    raise ValueError(f"tokenizer kind is {record.get('kind')!r}, expected {', '.join(one.kind for one in KINDS)}")
