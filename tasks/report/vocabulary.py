"""Readable spelling of the tokens of a vocabulary, and their use in training text.

A token of a byte-level vocabulary may be part of a character. Bytes that are not valid UTF-8 are shown as \\xNN, spaces
and line feeds by signs.
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

FREQUENT, UNUSED = 40, 80  # most tokens listed
RARE = 10  # tokens that occur less often are reported as rare
SHOWN = 48  # most characters of a token
MOST_BYTES = 4096  # most bytes decoded of a token
_RUN = re.compile(r"([^0-9A-Fa-fx\\<>+U])\1{11,}")  # repeated character, but none of \xNN, <0xNN> and <U+NNNN>
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
        """Return the bytes of an id; empty for special ids."""
        return b"" if index in self._special else self._entries.get(index, b"")

    def text_of(self, index: int) -> str:
        """Return the readable spelling of an id."""
        if index in self._special:
            role = self._special[index]
            return f"<{role}>" if role not in ("special", "reserved") else f"<special {index}>"
        # cut before, as making thousands of bytes visible is slow
        seen = visible(self.bytes_of(index)[:MOST_BYTES].decode("utf-8", "backslashreplace"))
        return cut(_RUN.sub(lambda run: f"{run[1]}×{len(run[0])}", seen), SHOWN)

    def token(self, index: int, count: int = 0) -> SimpleNamespace:
        """Return `index`, `text`, the first bytes as hexadecimal `code`, `count` and `special` of an id."""
        code, special = self.bytes_of(index)[:SHOWN].hex(" "), index in self._special
        return SimpleNamespace(index=index, text=self.text_of(index), code=code, count=count, special=special)


def _engine_entries(spec: dict[str, Any]) -> dict[int, bytes]:
    """Return the bytes of each id of a tokeniser in the JSON of `tokenizers`, before its decoder."""
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
    """Return statistics of the tokens in the training split.

    Args:
        counts: (vocab_size,) occurrences of each id as a label.

    Returns:
        `size`; `spelled`, number of text tokens; `predicted` and `unknown`, occurrences of all ids and of the unknown
        one; the tokens `frequent` and `unused`; `n_unused`; `unused_merges`, share of the tokens of several bytes that
        do not occur; `rare`, number of tokens with fewer than `RARE` occurrences.
    """
    spelling = Spelling(tokenizer)
    lengths = np.array([len(spelling.bytes_of(index)) for index in range(len(spelling))])
    spelled = np.flatnonzero(lengths)
    unused = spelled[counts[spelled] == 0]
    merged = spelled[lengths[spelled] > 1]
    by_count = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    # unused merges first: single bytes are kept for lossless encoding anyway
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
