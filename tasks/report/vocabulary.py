"""Entries of a vocabulary as a person can see them, and how often they are used.

An id stands for bytes: an entry of a byte-level vocabulary may be a part of a character. Bytes that are no text by
themselves are shown as \\xNN, spaces and line ends by signs.
"""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import numpy as np

from tasks.report.wording import cut, visible
from tasks.tokens.hf_spec import byte_spellings, spelled_bytes
from tasks.tokens.tokenizer_kinds import N_SPECIAL, Tokenizer

FREQUENT, UNUSED = 40, 80  # entries that are listed
RARE = 10  # occurrences below which a network sees an entry too seldom to learn it
SHOWN = 48  # characters of an entry
MOST_BYTES = 4096  # of an entry that are looked at
_RUN = re.compile(r"([^0-9A-Fa-fx\\<>+U])\1{11,}")  # of one sign; not of what numbers of bytes are written with
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def special_names(tokenizer: Tokenizer) -> dict[int, str]:
    """Return the role of each special id: pad, unk, bos or eos, `reserved` for later use, or `special`."""
    roles = {"pad": tokenizer.pad_id, "unk": tokenizer.unk_id, "bos": tokenizer.bos_id, "eos": tokenizer.eos_id}
    names = {index: "special" if index < tokenizer.used_ids else "reserved" for index in tokenizer.special_ids}
    names |= {index: role for role, index in roles.items() if index is not None}
    return dict(sorted(names.items()))


class Spelling:
    """Bytes and readable text of each id of a tokeniser."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._size = tokenizer.vocab_size
        self._special = special_names(tokenizer)
        record = tokenizer.record()
        if "spec" in record:
            self._entries = _engine_entries(record["spec"])
        elif tokenizer.kind == "bytes":
            self._entries = {N_SPECIAL + byte: bytes([byte]) for byte in range(256)}
        else:
            self._entries = {index: tokenizer.decode([index]).encode() for index in range(self._size)}

    def __len__(self) -> int:
        return self._size

    def bytes_of(self, index: int) -> bytes:
        """Return the bytes of one id; none for special ids."""
        return b"" if index in self._special else self._entries.get(index, b"")

    def text_of(self, index: int) -> str:
        """Return one id as a person can see it."""
        if index in self._special:
            role = self._special[index]
            return f"<{role}>" if role not in ("special", "reserved") else f"<special {index}>"
        # an entry of thousands of bytes is cut before it is made visible
        seen = visible(self.bytes_of(index)[:MOST_BYTES].decode("utf-8", "backslashreplace"))
        return cut(_RUN.sub(lambda run: f"{run[1]}×{len(run[0])}", seen), SHOWN)

    def token(self, index: int, count: int = 0) -> SimpleNamespace:
        """Return one id with its `text`, the hexadecimal `code` of its first bytes, `count`, `special`."""
        code, special = self.bytes_of(index)[:SHOWN].hex(" "), index in self._special
        return SimpleNamespace(index=index, text=self.text_of(index), code=code, count=count, special=special)


def _engine_entries(spec: dict[str, Any]) -> dict[int, bytes]:
    """The entries of a vocabulary in the layout of `tokenizers`, as they are before a decoder joins them."""
    written = spec["model"].get("vocab", {})
    named = list(written.items()) if isinstance(written, dict) else [(item[0], n) for n, item in enumerate(written)]
    layout = json.dumps([spec.get("pre_tokenizer"), spec.get("decoder")])
    parts = set(re.findall(r'"type": "(\w+)"', layout))  # of both, and of those within them
    if "ByteLevel" in parts:
        alphabet = set(byte_spellings())
        entries = {index: spelled_bytes(text) if alphabet >= set(text) else text.encode() for text, index in named}
    else:
        spaced = "\u2581" if parts & {"ByteFallback", "Metaspace"} else ""
        entries = {}
        for text, index in named:
            byte = _BYTE.fullmatch(text) if "ByteFallback" in parts else None
            plain = text.replace(spaced, " ") if spaced else text
            entries[index] = bytes([int(byte[1], 16)]) if byte else plain.encode("utf-8", "replace")
    return entries | {item["id"]: item["content"].encode() for item in spec.get("added_tokens", [])}


def usage(tokenizer: Tokenizer, counts: np.ndarray) -> SimpleNamespace:
    """Return how the training split uses a vocabulary.

    Args:
        counts: (vocab_size,) occurrences of each id as a label.

    Returns:
        `size`; `spelled`, ids that stand for text; `predicted` and `unknown`, occurrences of all ids and of the unknown
        one; the tokens `frequent` and `unused`; `n_unused`; `unused_merges`, share of the ids of more than a
        byte that never occur; `rare`.
    """
    spelling = Spelling(tokenizer)
    lengths = np.array([len(spelling.bytes_of(index)) for index in range(len(spelling))])
    spelled = np.flatnonzero(lengths)
    unused = spelled[counts[spelled] == 0]
    merged = spelled[lengths[spelled] > 1]
    by_count = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    # those that were merged for nothing come first; single bytes only make sure that no text is lost
    by_merge = unused[np.argsort(lengths[unused] == 1, kind="stable")]

    def listed(ids: np.ndarray) -> list[SimpleNamespace]:
        return [spelling.token(int(index), int(counts[index])) for index in ids]

    return SimpleNamespace(
        size=tokenizer.vocab_size,
        spelled=len(spelled),
        predicted=int(counts.sum()),
        unknown=int(counts[tokenizer.unk_id]) if tokenizer.unk_id is not None else 0,
        n_unused=len(unused),
        unused_merges=float(np.mean(counts[merged] == 0)) if len(merged) else 0.0,
        rare=int(np.count_nonzero((counts[spelled] > 0) & (counts[spelled] < RARE))),
        frequent=listed(by_count[:FREQUENT]),
        unused=listed(by_merge[:UNUSED]),
    )
