"""Spans: how documents are cut, that nothing is skipped or predicted twice, and the padding behind the last chunk."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from model import SpanSource
from model.data import IGNORE
from tasks.tokens.chunk import ChunkSettings, chunk_spans
from tasks.tokens.shards import encode_document, smallest_dtype
from tasks.tokens.tokenizer import BOS, EOS, PAD, UNK, BpeTokenizer, CharTokenizer, HfTokenizer

SHAPES = [(m, s) for m in (1, 2, 5, 8) for s in range(1, m + 1)]


def read(n_ids: int, seq_len: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels of a document whose ids are 10, 11, 12, ..."""
    spans = chunk_spans(n_ids, seq_len, stride)
    start, length = (np.array(values) for values in zip(*spans, strict=True))
    shard = np.arange(10, 10 + n_ids, dtype=np.uint16)
    source = SpanSource([shard], np.zeros(len(spans)), start, length, seq_len, pad_id=PAD)
    return source.batch(np.arange(len(spans)))


@pytest.mark.parametrize(("m", "s"), SHAPES)
def test_the_number_of_chunks_is_the_promised_one(m: int, s: int) -> None:
    for n_ids in range(1, 60):
        expected = 1 if n_ids <= m else math.ceil((n_ids - m) / s) + 1
        assert len(chunk_spans(n_ids, m, s)) == expected


@pytest.mark.parametrize(("m", "s"), SHAPES)
def test_every_id_is_an_input_of_some_chunk(m: int, s: int) -> None:
    for n_ids in range(1, 60):
        inputs, _ = read(n_ids, m, s)
        assert set(range(10, 10 + n_ids)) <= set(inputs.ravel().tolist())


@pytest.mark.parametrize(("m", "s"), SHAPES)
def test_a_label_is_the_id_that_follows_its_input(m: int, s: int) -> None:
    for n_ids in range(1, 40):
        inputs, labels = read(n_ids, m, s)
        valid = labels != IGNORE
        assert np.array_equal(labels[valid], inputs[valid] + 1)


@pytest.mark.parametrize(("m", "s"), SHAPES)
def test_no_chunk_leaves_its_document(m: int, s: int) -> None:
    for n_ids in range(1, 60):
        assert all(start + length <= n_ids and length >= 1 for start, length in chunk_spans(n_ids, m, s))


@pytest.mark.parametrize("m", [1, 2, 5, 8])
def test_without_overlap_every_id_but_the_first_is_predicted_exactly_once(m: int) -> None:
    for n_ids in range(1, 60):
        _, labels = read(n_ids, m, m)
        assert sorted(labels[labels != IGNORE].tolist()) == list(range(11, 10 + n_ids))


@pytest.mark.parametrize(("m", "s"), SHAPES)
def test_with_overlap_every_id_but_the_first_is_predicted_at_least_once(m: int, s: int) -> None:
    for n_ids in range(1, 60):
        _, labels = read(n_ids, m, s)
        assert set(labels[labels != IGNORE].tolist()) == set(range(11, 10 + n_ids))


def test_the_last_label_of_a_full_chunk_looks_ahead_into_the_next() -> None:
    inputs, labels = read(7, 4, 4)
    assert inputs.tolist() == [[10, 11, 12, 13], [14, 15, 16, PAD]]
    assert labels.tolist() == [[11, 12, 13, 14], [15, 16, IGNORE, IGNORE]]


def test_neighbours_of_an_overlap_start_a_stride_apart() -> None:
    inputs, _ = read(10, 4, 2)
    assert inputs[:, 0].tolist() == [10, 12, 14, 16]


def test_a_short_document_is_one_padded_chunk() -> None:
    inputs, labels = read(2, 5, 3)
    assert inputs.tolist() == [[10, 11, PAD, PAD, PAD]]
    assert labels.tolist() == [[11, IGNORE, IGNORE, IGNORE, IGNORE]]


def test_no_stride_means_the_sequence_length() -> None:
    assert chunk_spans(100, 7) == chunk_spans(100, 7, 7)


@pytest.mark.parametrize(("seq_len", "stride"), [(0, 0), (4, 5), (4, -1)])
def test_a_stride_that_would_skip_ids_is_refused(seq_len: int, stride: int) -> None:
    with pytest.raises(ValueError, match="would be skipped"):
        ChunkSettings(seq_len, stride)


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [(5, "uint8"), (256, "uint8"), (257, "uint16"), (65_536, "uint16"), (65_537, "uint32"), (2**32, "uint32")],
)
def test_ids_lie_in_the_smallest_type_that_holds_them(vocab_size: int, dtype: str) -> None:
    assert smallest_dtype(vocab_size) == np.dtype(dtype)


def test_a_vocabulary_beyond_32_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit 32 bits"):
        smallest_dtype(2**32 + 1)


def test_a_document_is_bos_its_ids_eos_with_its_lost_bytes() -> None:
    tokenizer = CharTokenizer("ab")
    text = "ab€"
    sequence, lost = encode_document(tokenizer, text, tokenizer.encode([text])[0])
    assert sequence.tolist() == [BOS, 4, 5, UNK, EOS]
    assert lost == 3


def test_a_document_without_text_is_bos_and_eos() -> None:
    tokenizer = CharTokenizer("ab")
    sequence, lost = encode_document(tokenizer, "", tokenizer.encode([""])[0])
    assert (sequence.tolist(), lost) == ([BOS, EOS], 0)


@pytest.mark.parametrize(
    ("special", "expected"),
    [
        ({"bos_id": 2, "eos_id": 3}, ([2], [3])),
        ({"eos_id": 3}, ([3], [3])),  # GPT-2 has one token for both
        ({}, ([], [])),
    ],
)
def test_a_document_in_foreign_ids_has_the_special_tokens_its_tokeniser_has(
    special: dict[str, int], expected: tuple[list[int], list[int]]
) -> None:
    spec = json.dumps(BpeTokenizer.fit(["some text to learn from"], 300).record()["spec"])
    tokenizer = HfTokenizer(spec, **special)
    ids = tokenizer.encode(["some text"])[0]
    sequence, lost = encode_document(tokenizer, "some text", ids)
    assert (sequence.tolist(), lost) == ([*expected[0], *ids.tolist(), *expected[1]], 0)
