"""Learning the merges of byte-pair encoding: by `tokenizers`, or by gigatoken where that finds the same ones sooner.

gigatoken is some twenty times as fast, and its merges are the reference's as long as there is enough text. So it is
taken for much text, if both learn the same from a part of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from itertools import islice
from typing import Any

from tasks.tokens.engines import EngineError, engine_errors
from tasks.tokens.tokenizers import (
    MIN_BPE_VOCAB,
    SPECIAL_TOKENS,
    BpeTokenizer,
    byte_spellings,
    check_vocab_size,
    cut_text,
)

WORTH_A_TRAINER = 2**22  # bytes of text; less is learned from by the reference in a moment
SAMPLE_UNITS = 8
SAMPLE_VOCAB = 1024
UNIT_BYTES = 2**16  # one document of megabytes would be one unit of work to the reference
_SEPARATOR = b"\xff"  # a byte that is not in UTF-8

Merge = tuple[str, str]


def learn_merges(texts: Iterable[str], vocab_size: int, reserved: int = 0) -> BpeTokenizer:
    """Learn byte-level byte-pair encoding by `tokenizers`.

    Args:
        vocab_size: ids in all, the reserved ones too; there are fewer when the text is too short for so many.

    Raises:
        ValueError: there is no room for all bytes, or so many ids are asked for that the engine would end the process.
    """
    from tokenizers import pre_tokenizers, trainers

    check_vocab_size(vocab_size, reserved)
    if vocab_size - reserved < MIN_BPE_VOCAB:
        raise ValueError(
            f"vocab_size is {vocab_size}; byte-level BPE needs at least {MIN_BPE_VOCAB}"
            + (f" and the {reserved} reserved ones" if reserved else "")
        )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - reserved,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    engine = _byte_level_engine()
    engine.train_from_iterator(texts, trainer=trainer)
    return BpeTokenizer(str(engine.to_str()), reserved)


def spec_of(merges: Iterable[Merge]) -> str:
    """The JSON with these merges; the same that `learn_merges` gives where it finds them.

    Args:
        merges: pairs of tokens as the engine spells them, the first one first.
    """
    from tokenizers import pre_tokenizers

    merges = list(merges)
    words = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(one + two for one, two in merges)]
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys(words))}
    engine = _byte_level_engine(vocabulary, merges)
    engine.add_special_tokens(list(SPECIAL_TOKENS))
    return str(engine.to_str())


def _byte_level_engine(*model: Any) -> Any:
    """An engine with GPT-2's rule for cutting text into words, which `tokenizers` runs natively."""
    from tokenizers import Tokenizer as Engine
    from tokenizers import decoders, models, pre_tokenizers

    engine = Engine(models.BPE(*model))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    engine.decoder = decoders.ByteLevel()
    return engine


def fit_bpe(texts: Sequence[bytes], vocab_size: int, reserved: int = 0) -> tuple[BpeTokenizer, dict[str, str]]:
    """Learn byte-pair encoding.

    Args:
        texts: UTF-8.
        vocab_size: ids in all, the reserved ones too.

    Returns:
        The tokeniser, and what learned it for which reason.
    """
    n_bytes = sum(map(len, texts))
    if n_bytes < WORTH_A_TRAINER:
        why = f"{n_bytes:,} bytes are too few for another trainer to pay"
    else:
        try:
            _compare(list(islice(_units(texts), SAMPLE_UNITS)), min(vocab_size - reserved, SAMPLE_VOCAB))
            merges = _learn(_units(texts), vocab_size - reserved)
            tools = {"trainer": f"gigatoken {version('gigatoken')}", "trainer_reason": "same merges on a sample"}
            return BpeTokenizer(spec_of(merges), reserved), tools
        except EngineError as error:
            why = f"gigatoken: {error}"
    found = learn_merges((unit.decode() for unit in _units(texts)), vocab_size, reserved)
    return found, {"trainer": f"tokenizers {version('tokenizers')}", "trainer_reason": why}


def _units(texts: Sequence[bytes]) -> Iterator[bytes]:
    for text in texts:
        yield from cut_text(text, UNIT_BYTES)


def _compare(units: list[bytes], vocab_size: int) -> None:
    """Check that both learn the same.

    Raises:
        EngineError: if they do not.
    """
    spec = json.loads(learn_merges((unit.decode() for unit in units), vocab_size).spec)
    expected = [tuple(merge) for merge in spec["model"]["merges"]]
    if list(_learn(iter(units), vocab_size)) != expected:
        raise EngineError("other merges than the reference's on a sample of the text")


def _learn(units: Iterator[bytes], vocab_size: int) -> list[Merge]:
    """gigatoken's merges, spelled as `tokenizers` does.

    Raises:
        EngineError: if it fails.
    """
    with engine_errors("it failed"), _silence():
        from gigatoken import train_bpe

        # its special tokens are none of ours, but as many: they count as ids
        data = _SEPARATOR.join(units)
        _, merges = train_bpe(data, vocab_size, list(SPECIAL_TOKENS), separator=_SEPARATOR)
    spelling = byte_spellings()
    spelled = [tuple("".join(spelling[byte] for byte in token) for token in pair) for pair in merges]
    if len(spelled) != len({one + two for one, two in spelled}) or len(spelled) > vocab_size - MIN_BPE_VOCAB:
        raise EngineError("it learned one token twice, or too many")
    return [(one, two) for one, two in spelled]


@contextmanager
def _silence() -> Iterator[None]:
    """Nothing on standard output and error: the library tells its progress there, whoever reads them."""
    kept = [(number, os.dup(number)) for number in (1, 2)]
    void = os.open(os.devnull, os.O_WRONLY)
    try:
        for number, _ in kept:
            os.dup2(void, number)
        yield
    finally:
        os.close(void)
        for number, copy in kept:
            os.dup2(copy, number)
            os.close(copy)
