"""Token shards: the type of the ids, and what a document is in ids."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tasks.tokens.shards import encode_document, smallest_dtype
from tasks.tokens.tokenizer import BOS, EOS, UNK, BpeTokenizer, CharTokenizer, HfTokenizer


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
