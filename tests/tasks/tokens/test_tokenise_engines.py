"""Engines: the reference's ids whatever the text is, and the reference where an engine fails or differs."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizer_samples import HOSTILE, prose
from tokenizers import Tokenizer as HfEngine
from tokenizers import decoders, models, pre_tokenizers

from tasks.tokens import tokenise as module
from tasks.tokens.tokenise import WORTH_AN_ENGINE, Engine, GigatokenEngine, choose_engine
from tasks.tokens.tokenizer import learn_merges
from tasks.tokens.tokenizer_kinds import (
    UNK,
    AsciiTokenizer,
    ByteTokenizer,
    CharTokenizer,
    HfTokenizer,
    Tokenizer,
    WordTokenizer,
)

BPE = learn_merges([prose(), "<|bos|> <|eos|> " * 200], 500)
HARD = list(HOSTILE.values())


def texts(items: list[str]) -> list[bytes]:
    return [item.encode() for item in items]


def assert_equal(engine: Engine, items: list[str]) -> None:
    found, expected = engine.encode(texts(items)), engine.tokenizer.encode(items)
    assert [ids.tolist() for ids in found] == [ids.tolist() for ids in expected]


@pytest.fixture(scope="module")
def gigatoken() -> Engine:
    return GigatokenEngine(BPE)


def test_the_fast_engine_gives_the_ids_of_the_reference(gigatoken: Engine) -> None:
    assert_equal(gigatoken, [*HARD, prose(1), prose(2, 10)])


@given(items=st.lists(st.text()))
@example(items=["<|bos|>", "<|pad|><|unk|>", "\x85 \u2028"])
@settings(max_examples=60, deadline=None)
def test_the_fast_engine_gives_the_ids_of_the_reference_for_any_text(gigatoken: Engine, items: list[str]) -> None:
    assert_equal(gigatoken, items)


def test_a_cache_that_is_full_is_dropped_and_changes_no_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHE_CHECK_BYTES", 100)
    monkeypatch.setattr(module, "CACHE_BYTES", -(2**40))
    engine = GigatokenEngine(BPE)
    first = engine._backend
    assert_equal(engine, [prose(seed, 50) for seed in range(10)])
    assert engine._backend is not first


def big(items: list[str], tokenizer: Tokenizer, wanted: str = "auto") -> tuple[str, str]:
    module._gigatoken.cache_clear()
    engine, reason = choose_engine(tokenizer, texts(items), WORTH_AN_ENGINE, wanted)
    return engine.name.partition(" ")[0], reason


def test_the_fast_engine_is_taken_where_it_agrees() -> None:
    items = [prose(1), *HARD]
    assert big(items, BPE) == ("gigatoken", "gives the reference's ids on a sample of these documents")
    assert big(items, BPE, "reference") == ("tokenizers", "asked for")
    for tokenizer in (CharTokenizer("ab"), AsciiTokenizer(), ByteTokenizer(), WordTokenizer({})):
        assert big(items, tokenizer) == ("reference", "there is no other for this kind of tokeniser")


class Wrong(GigatokenEngine):
    """Differs by one id where a text holds a certain word."""

    def _encode(self, data: bytes) -> np.ndarray:
        ids = super()._encode(data).copy()
        if b"sheep" in data:
            ids[0] = UNK
        return ids


class Failing(GigatokenEngine):
    """Fails at its first text."""

    def _encode(self, data: bytes) -> np.ndarray:
        raise RuntimeError("no memory left in the cache")


def missing(tokenizer: Tokenizer) -> Engine:
    raise ModuleNotFoundError("No module named 'gigatoken'")


@pytest.mark.parametrize(
    ("first", "told"),
    [
        (Wrong, "gigatoken: other ids than the reference's for a text that begins"),
        (Failing, "gigatoken: it failed (RuntimeError: no memory left in the cache)"),
        (missing, "gigatoken: it cannot be set up (ModuleNotFoundError: No module named 'gigatoken')"),
    ],
)
def test_the_reference_is_taken_where_an_engine_differs_or_fails(
    first: Any, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GigatokenEngine", first)
    name, reason = big([prose()], BPE)
    assert name == "tokenizers"
    assert reason.startswith(told)


def test_an_interruption_is_no_failure_of_the_engine() -> None:
    class Interrupted(GigatokenEngine):
        def _encode(self, data: bytes) -> np.ndarray:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Interrupted(BPE).check(texts(["a"]))


def foreign(**parts: Any) -> HfTokenizer:
    """GPT-2's layout with a special and an ordinary added token, as published files have them."""
    engine = HfEngine.from_str(json.dumps({**json.loads(BPE.spec), "added_tokens": []}))
    engine.add_special_tokens(["<|endoftext|>"])
    if parts.pop("ordinary", False):
        engine.add_tokens(["sheep and"])
    spec = {**json.loads(engine.to_str()), **parts}
    return HfTokenizer(json.dumps(spec), eos_id=BPE.vocab_size)


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"ordinary": True},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}},
        {"normalizer": {"type": "NFC"}},
    ],
)
def test_a_tokeniser_from_elsewhere_gets_the_reference_s_ids_by_whatever_engine(parts: dict[str, Any]) -> None:
    tokenizer = foreign(**parts)
    items = [prose(1), *HARD, "e\u0301 sheep and sheep and wool"]
    engine, _ = choose_engine(tokenizer, texts(items), WORTH_AN_ENGINE)
    assert_equal(engine, items)


def test_a_foreign_tokeniser_that_others_cannot_run_falls_back() -> None:
    engine = HfEngine(models.WordLevel({"<unk>": 0, "the": 1}, unk_token="<unk>"))
    engine.pre_tokenizer = pre_tokenizers.Whitespace()
    engine.decoder = decoders.WordPiece()
    tokenizer = HfTokenizer(engine.to_str(), unk_id=0)
    engine, reason = choose_engine(tokenizer, texts(["the fold", "the"]), WORTH_AN_ENGINE)
    assert engine.name.startswith("tokenizers ")
    assert "gigatoken: it cannot be set up" in reason
    assert_equal(engine, ["the fold", "the"])
