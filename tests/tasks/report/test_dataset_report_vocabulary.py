"""Bytes and legible text of each id, for every tokeniser."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from dataset_report_samples import byte_level
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Engine

from tasks.report.vocabulary import Spelling, usage
from tasks.tokens.tokenizer_kinds import (
    AsciiTokenizer,
    ByteTokenizer,
    CharTokenizer,
    HfTokenizer,
    Tokenizer,
)

TEXT = "def shepherd(x):\n\treturn 'é 漢 שלום 🐑'  # dusk"


def sentence_pieces() -> HfTokenizer:
    """A vocabulary with marks for spaces, and single bytes for what is not in it."""
    byte_tokens = {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    words = {"<unk>": 0, **byte_tokens, "▁": 257, "▁d": 258, "d": 259, "u": 260, "s": 261, "k": 262}
    engine = Engine(models.BPE(vocab=words, merges=[("▁", "d")], unk_token="<unk>", byte_fallback=True))
    engine.pre_tokenizer = pre_tokenizers.Metaspace()
    engine.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    engine.add_special_tokens([AddedToken("<s>", special=True)])
    return HfTokenizer(engine.to_str(), unk_id=0, bos_id=263)


LOSSLESS: list[Callable[[], Tokenizer]] = [
    lambda: CharTokenizer.fit([TEXT]),
    ByteTokenizer,
    lambda: byte_level(TEXT, vocab_size=290),
    lambda: HfTokenizer(json.dumps(byte_level(TEXT, vocab_size=290).record()["spec"]), eos_id=3),
]


@pytest.mark.parametrize("make", LOSSLESS)
def test_the_bytes_of_its_ids_are_those_of_a_text(make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()
    spelling = Spelling(tokenizer)
    (ids,) = tokenizer.encode([TEXT])
    assert b"".join(spelling.bytes_of(int(index)) for index in ids) == TEXT.encode()


def test_marks_of_spaces_and_bytes_beside_words_are_read_as_such() -> None:
    tokenizer = sentence_pieces()
    spelling = Spelling(tokenizer)
    (ids,) = tokenizer.encode(["dusk é"])
    assert b"".join(spelling.bytes_of(int(index)) for index in ids) == " dusk é".encode()
    assert spelling.text_of(258) == "␣d" and spelling.text_of(0xC3 + 1) == r"\xc3"


@pytest.mark.parametrize("tokenizer", [AsciiTokenizer(2), ByteTokenizer(2), byte_level(TEXT)])
def test_special_and_reserved_ids_stand_for_no_byte_and_have_a_name(tokenizer: Tokenizer) -> None:
    spelling = Spelling(tokenizer)
    for index in tokenizer.special_ids:
        assert spelling.bytes_of(index) == b"" and spelling.text_of(index).startswith("<")


def test_a_long_token_is_cut_and_invisible_ones_are_shown() -> None:
    spelling = Spelling(byte_level("\u202e" * 300, "x" * 5000, vocab_size=290))
    shown = [spelling.text_of(index) for index in range(len(spelling))]
    assert max(map(len, shown)) <= 48
    assert all(char.isprintable() for text in shown for char in text)


def test_special_ids_are_never_unused() -> None:
    tokenizer = AsciiTokenizer(reserved=3)
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    counts[ord("a")] = 5
    found = usage(tokenizer, counts)
    assert (found.size, found.spelled, found.n_unused) == (131, 124, 123)
    assert [token.text for token in found.frequent] == ["a"]
