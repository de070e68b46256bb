"""Text to ids, and ids to chunks."""

from __future__ import annotations

import numpy as np

from golden.registry import Found, by_hand, operation
from model import SpanSource
from tasks.tokens.packing import Pieces, chunk_pieces
from tasks.tokens.tokenizer_kinds import AsciiTokenizer, CharTokenizer


@operation("encode_ascii")
def encode_ascii(text: str) -> np.ndarray:
    return AsciiTokenizer().encode([text])[0]


@operation("lengths")
def lengths(texts: list[str]) -> list[int]:
    return [len(ids) for ids in AsciiTokenizer().encode(texts)]


def printable() -> CharTokenizer:
    return CharTokenizer("".join(map(chr, range(32, 127))))


@operation("encode_offset")
def encode_offset(text: str) -> Found:
    found = {"ascii_scheme": AsciiTokenizer().encode([text])[0], "offset_scheme": printable().encode([text])[0]}
    return Found(found, printed=found["offset_scheme"])


@operation("ascii_offset")
def ascii_offset(char: str, space_id: int) -> Found:
    tokenizer = printable()
    assert tokenizer.encode([" "])[0].tolist() == [space_id]
    return Found(tokenizer.encode([char])[0], extras={"printable_plus_specials": tokenizer.vocab_size})


@operation("next_token_target")
def next_token_target(text: str, row: int) -> int:
    ids = AsciiTokenizer().encode([text])[0].astype(np.uint8)
    source = SpanSource([ids], np.zeros(1), np.zeros(1), np.array([len(ids)]), len(ids), pad_id=0)
    return int(source.batch(np.arange(1))[1][0, row])


@operation("chunk")
def chunk(tokens: list[int], M: int, S: int, pad_id: int) -> np.ndarray:
    pieces = chunk_pieces(np.array([len(tokens)]), M, S)
    return _inputs(np.array(tokens, dtype=np.uint8), pieces, M, pad_id)


@operation("chunk_count")
def chunk_count(L: int, M: int, S: int) -> dict[str, int]:
    pieces = chunk_pieces(np.array([L]), M, S)
    return {"n_chunks": len(pieces), "chunk_len": _inputs(np.zeros(L, dtype=np.uint8), pieces, M, 0).shape[1]}


def _inputs(ids: np.ndarray, pieces: Pieces, seq_len: int, pad_id: int) -> np.ndarray:
    source = SpanSource([ids], pieces.document, pieces.start, pieces.length, seq_len, pad_id)
    return source.batch(np.arange(len(pieces)))[0]


@by_hand("split_lines")
def split_lines(text: str) -> list[str]:
    return text.splitlines()
