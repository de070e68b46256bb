"""The entries of a vocabulary as a person can see them, and how often they are used.

What an id stands for is bytes: an entry of a byte-level vocabulary may be a part of a character. Bytes that are no text
by themselves are shown as \\xNN, spaces and line ends by signs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.report.dataset.figures import Token, Vocabulary
from tasks.report.inspect.labels import token_label, visible
from tasks.report.wording import cut
from tasks.tokens.tokenizers import N_SPECIAL

if TYPE_CHECKING:
    from tasks.tokens.tokenizers import Tokenizer

FREQUENT, LONGEST, UNUSED = 40, 30, 80  # entries that are listed
RARE = 10  # occurrences below which a network sees an entry too seldom to learn it
SHOWN = 48  # characters of an entry
COVERED = (0.5, 0.9, 0.99)
MOST_BYTES = 4096  # of an entry that are looked at
_RUN = re.compile(r"([^0-9A-Fa-fx\\<>+U])\1{11,}")  # of one sign; not of what numbers of bytes are written with
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Spelling:
    """What each id of a tokeniser stands for, as bytes.

    Args:
        tokenizer: any.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.special = frozenset(tokenizer.special_ids)
        self._tokenizer = tokenizer
        self._entries = _entries(tokenizer)

    def __len__(self) -> int:
        return self._tokenizer.vocab_size

    def bytes_of(self, index: int) -> bytes:
        """Bytes of one id; none for special ids."""
        return b"" if index in self.special else self._entries.get(index, b"")

    def lengths(self) -> np.ndarray:
        """(vocab_size,) bytes of each id."""
        return np.array([len(self.bytes_of(index)) for index in range(len(self))], dtype=np.int64)

    def text_of(self, index: int, shown: int = SHOWN) -> str:
        """One id as a person can see it."""
        if index in self.special:
            return token_label(self._tokenizer, index)
        # an entry of thousands of bytes is cut before it is made visible
        seen = visible(self.bytes_of(index)[:MOST_BYTES].decode("utf-8", "backslashreplace"))
        return cut(_RUN.sub(lambda run: f"{run[1]}×{len(run[0])}", seen), shown)

    def token(self, index: int, count: int = 0) -> Token:
        """One id with all that is said of it."""
        code = self.bytes_of(index)
        return Token(index, self.text_of(index), code[:SHOWN].hex(" "), len(code), count)


def _entries(tokenizer: Tokenizer) -> dict[int, bytes]:
    record = tokenizer.record()
    if "spec" in record:
        return _engine_entries(record["spec"])
    if tokenizer.kind == "bytes":
        return {N_SPECIAL + byte: bytes([byte]) for byte in range(256)}
    return {index: tokenizer.decode([index]).encode() for index in range(tokenizer.vocab_size)}


def _engine_entries(spec: dict[str, Any]) -> dict[int, bytes]:
    """The entries of a vocabulary in the layout of `tokenizers`, as they are before a decoder joins them."""
    written = spec["model"].get("vocab", {})
    named = list(written.items()) if isinstance(written, dict) else [(item[0], n) for n, item in enumerate(written)]
    parts = set(_types(spec.get("pre_tokenizer"))) | set(_types(spec.get("decoder")))
    if "ByteLevel" in parts:
        alphabet = _byte_alphabet()
        entries = {
            index: bytes(alphabet[char] for char in text) if alphabet.keys() >= set(text) else text.encode()
            for text, index in named
        }
    else:
        fallback = "ByteFallback" in parts
        spaced = fallback or "Metaspace" in parts
        entries = {index: _piece(text, fallback, spaced) for text, index in named}
    added = {item["id"]: item["content"].encode() for item in spec.get("added_tokens", [])}
    return entries | added


def _piece(text: str, fallback: bool, spaced: bool) -> bytes:
    byte = _BYTE.fullmatch(text) if fallback else None
    if byte:
        return bytes([int(byte[1], 16)])
    return (text.replace("\u2581", " ") if spaced else text).encode("utf-8", "replace")


def _types(part: Any) -> Iterator[str]:
    """Types of a part of an engine, and of those within it."""
    if isinstance(part, dict):
        if isinstance(part.get("type"), str):
            yield part["type"]
        for inner in part.values():
            yield from _types(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from _types(inner)


def _byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in a byte-level vocabulary: itself where it can be printed."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + n): byte for n, byte in enumerate(others)}


def usage(tokenizer: Tokenizer, counts: np.ndarray) -> Vocabulary:
    """How a vocabulary is used.

    Args:
        counts: (vocab_size,) occurrences of each id.
    """
    spelling = Spelling(tokenizer)
    lengths = spelling.lengths()
    spelled = np.flatnonzero(lengths)
    unused = spelled[counts[spelled] == 0]
    merged = spelled[lengths[spelled] > 1]
    by_count = np.lexsort((np.arange(len(counts)), -counts))
    by_length = spelled[np.lexsort((spelled, -counts[spelled], -lengths[spelled]))]

    def listed(indices: Sequence[int] | np.ndarray) -> list[Token]:
        return [spelling.token(int(index), int(counts[index])) for index in indices]

    return Vocabulary(
        size=tokenizer.vocab_size,
        spelled=len(spelled),
        predicted=int(counts.sum()),
        unknown=int(counts[tokenizer.unk_id]) if tokenizer.unk_id is not None else 0,
        frequent=listed([index for index in by_count[:FREQUENT] if counts[index]]),
        longest=listed(by_length[:LONGEST]),
        # those that were merged for nothing come first; single bytes only make sure that no text is lost
        unused=listed(unused[np.argsort(lengths[unused] == 1, kind="stable")][:UNUSED]),
        n_unused=len(unused),
        unused_merges=float(np.mean(counts[merged] == 0)) if len(merged) else 0.0,
        rare=int(np.count_nonzero((counts[spelled] > 0) & (counts[spelled] < RARE))),
        covering=_covering(counts[by_count]),
    )


def _covering(descending: np.ndarray) -> list[tuple[float, int]]:
    total = int(descending.sum())
    if not total:
        return []
    reached = np.cumsum(descending)
    return [(share, int(np.searchsorted(reached, share * total)) + 1) for share in COVERED]
