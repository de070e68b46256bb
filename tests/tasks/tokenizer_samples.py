"""Texts that tokenisers are tried on, and a byte-level engine of Hugging Face's library that was learned from some."""

from __future__ import annotations

import random
from typing import Any

from tasks.tokens.tokenizer_kinds import SPECIAL_TOKENS

WORDS = "the shepherd counts his sheep and the fold is full of wool über straße 東京 naïve it's x=1;\n"

HOSTILE = {
    "special-tokens": "".join(SPECIAL_TOKENS) + " <|endoftext|> <|bos|><|pad|>\n<|unk|>x",
    "emoji": "👩‍👩‍👧‍👦 🏳️‍🌈 😀",
    "nul": "a\x00b\x00 and \x02\x03",
    "controls": "".join(map(chr, range(32))),
    "long-line": "a" * 100_000,
    "spaces": " \t  \n\n   \u00a0\u2028\u3000\x1c ",
    "many-spaces": " " * 500 + "x" + "\n" * 500,
    "indented": " two  spaces\t and \n\n    lines ",
    "combining": "e\u0301\u0302\u0303" * 50,
    "astral": "\U0010ffff\U00010000",
    "empty": "",
    "digits": "1234567890" * 20,
    "unseen-script": "Ελληνικά עברית العربية ไทย 東京",
    "apostrophes": "don't I'LL 1234.5 --- _x_ o'clock.",
}


def prose(seed: int = 0, n_words: int = 2_000) -> str:
    return " ".join(random.Random(seed).choices(WORDS.split(" "), k=n_words))


def byte_level_engine(size: int) -> Any:
    """Learned from prose as GPT-2's was: the bytes first, then `size` less 256 merges, and no special token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    engine.train_from_iterator(
        [prose()], trainers.BpeTrainer(vocab_size=size, initial_alphabet=letters, show_progress=False)
    )
    return engine
