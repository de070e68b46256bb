"""Tokenisers behind one small interface: fit, encode, decode, save, load, fingerprint.

    interface   what every tokeniser can do
    tables      characters, ASCII codes, bytes, words
    subword     byte-level BPE, and whatever `tokenizers` runs

These modules travel inside served models under another package name. Text that looks like a special token is encoded
as text: no document can forge a control token.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from .interface import (
    BOS,
    EOS,
    N_SPECIAL,
    PAD,
    SPECIAL_TOKENS,
    TOKENIZER_FILE,
    UNK,
    Tokenizer,
    TokenizerError,
    check_vocab_size,
    smallest_dtype,
)
from .subword import MIN_BPE_VOCAB, BpeTokenizer, EngineTokenizer, HfTokenizer
from .tables import AsciiTokenizer, ByteTokenizer, CharTokenizer, TableTokenizer, WordTokenizer

__all__ = [
    "BOS",
    "EOS",
    "MIN_BPE_VOCAB",
    "N_SPECIAL",
    "PAD",
    "SPECIAL_TOKENS",
    "TOKENIZER_FILE",
    "UNK",
    "AsciiTokenizer",
    "BpeTokenizer",
    "ByteTokenizer",
    "CharTokenizer",
    "EngineTokenizer",
    "HfTokenizer",
    "TableTokenizer",
    "Tokenizer",
    "TokenizerError",
    "WordTokenizer",
    "check_vocab_size",
    "load_tokenizer",
    "smallest_dtype",
]


def load_tokenizer(path: Path, fingerprint: str = "") -> Tokenizer:
    """Read what `Tokenizer.save` wrote.

    Args:
        fingerprint: of the tokeniser that is expected there; empty takes any.

    Raises:
        TokenizerError: for a broken file, one of another kind, and another tokeniser than expected.
    """
    data = path.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if fingerprint and found != fingerprint:
        raise TokenizerError(
            f"{path}: the tokeniser's fingerprint is {found[:12]}, expected {fingerprint[:12]}: the file was changed "
            "after it was written; put the right one back, or fit a new one"
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
    kind, reserved = record.get("kind"), record.get("reserved", 0)
    if kind == CharTokenizer.kind:
        return CharTokenizer(record["alphabet"], reserved)
    if kind == AsciiTokenizer.kind:
        return AsciiTokenizer(reserved)
    if kind == ByteTokenizer.kind:
        return ByteTokenizer(reserved)
    if kind == WordTokenizer.kind:
        return WordTokenizer(record["vocabulary"], reserved)
    if kind == BpeTokenizer.kind:
        return BpeTokenizer(json.dumps(record["spec"], ensure_ascii=False), reserved)
    if kind == HfTokenizer.kind:
        named = {name: record[name] for name in ("pad_id", "unk_id", "bos_id", "eos_id")}
        return HfTokenizer(json.dumps(record["spec"], ensure_ascii=False), **named, reserved=reserved)
    raise ValueError(f"tokenizer kind is {kind!r}, expected char, ascii, bytes, word, bpe or hf")
