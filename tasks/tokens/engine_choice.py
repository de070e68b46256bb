"""Which engine encodes: the fastest one that gives the reference's ids on the very documents that are to be encoded.

What is compared is a sample of them and texts that are hard to get right. Where no faster engine is there, can run the
tokeniser and agrees, the reference encodes, and the reason is told.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.tokens.engines import (
    BytesEngine,
    Engine,
    EngineError,
    GigatokenEngine,
    ReferenceEngine,
    TableEngine,
    TiktokenEngine,
    engine_errors,
)
from tasks.tokens.text_arrays import Texts, character_start, texts_of, whole_characters
from tasks.tokens.tokenizers import SPECIAL_TOKENS, ByteTokenizer, EngineTokenizer, TableTokenizer, Tokenizer

# Less text is encoded by the reference before another engine is imported, set up and compared with it.
WORTH_AN_ENGINE = 2**20
SAMPLE_DOCUMENTS = 12
SAMPLE_BYTES = 2**12  # of each document; the reference is slow
PROBES = (
    "".join(SPECIAL_TOKENS) + " <|endoftext|> <s></s> [CLS] <|im_start|>",
    "it's we'll they've I'd I'M don't 'tis '' ''s 3.14 1,000,000 x2y",
    " \t  \n\n   \r\n\u00a0\u2028\u3000 \x1c\x85 a  b   c \n d\t",
    "e\u0301\u0302 n\u0303o \u200d\u200b\ufeff \U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f3f3\ufe0f \U0010ffff",
    "\u6771\u4eac\u90fd\u306f\u300c\u65e5\u672c\u300d\u3002 \u0395\u03bb\u03bb \u05e2\u05d1\u05e8 \u0e44\u0e17\u0e22 "
    "\u00bd\u00b2\u2163\u0661",
    "".join(map(chr, range(128))),
    "a" * 300 + " " * 70 + "=" * 80 + "0" * 50 + "\n" * 40,
    "x = {'a': [1, 2]}  # f(x)\n\tif (a&&b) { return -1; }\n    </div>",
    "",
)


@dataclass(frozen=True)
class Choice:
    """The engine to take.

    Attributes:
        reason: in one sentence.
    """

    engine: Engine
    reason: str


class Engines:
    """The engines of one tokeniser, each made once.

    Args:
        tokenizer: whose ids they give.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.reference = ReferenceEngine(tokenizer)
        self._made: dict[str, Engine | EngineError] = {}

    def choose(self, texts: Texts, size: int, wanted: str = "auto") -> Choice:
        """The fastest engine whose ids are the reference's on a sample of these texts.

        Args:
            size: bytes of all text that is to be encoded, of which these texts are the first.
            wanted: `auto`, or `reference` for no other than that.
        """
        if wanted == "reference":
            return Choice(self.reference, "asked for")
        if isinstance(self.tokenizer, EngineTokenizer) and size < WORTH_AN_ENGINE:
            return Choice(self.reference, f"{size:,} bytes are too few for another engine to pay")
        refused: list[str] = []
        for name, make in _candidates(self.tokenizer):
            try:
                engine = self._make(name, make)
                self.compare(engine, texts_of([*sample_of(texts), *_probes(self.tokenizer)]))
            except EngineError as error:
                refused.append(f"{name}: {error}")
            else:
                return Choice(engine, "; ".join([*refused, "gives the reference's ids on a sample of these documents"]))
        return Choice(self.reference, "; ".join(refused) or "there is no other for this kind of tokeniser")

    def _make(self, name: str, make: Callable[[Any], Engine]) -> Engine:
        """An engine, made once; so is the failure to make it."""
        if name not in self._made:
            try:
                with engine_errors("it cannot be set up"):
                    self._made[name] = make(self.tokenizer)
            except EngineError as error:
                self._made[name] = error
        made = self._made[name]
        if isinstance(made, EngineError):
            raise made
        return made

    def compare(self, engine: Engine, texts: Texts) -> None:
        """Check an engine against the reference.

        Raises:
            EngineError: if it fails, or gives other ids.
        """
        if engine is self.reference:
            return
        with engine_errors("it failed"):
            found = engine.encode(texts)
        with engine_errors("the reference failed"):
            expected = self.reference.encode(texts)
        for row in range(len(texts)):
            same = np.array_equal(found.of_text(row), expected.of_text(row)) and found.lost[row] == expected.lost[row]
            if not same:
                begin = texts[row][:40].decode(errors="replace")
                raise EngineError(f"other ids than the reference's for a text that begins {begin!r}")


def _candidates(tokenizer: Tokenizer) -> list[tuple[str, Callable[[Any], Engine]]]:
    """Engines for a tokeniser, the fastest first."""
    if isinstance(tokenizer, ByteTokenizer):
        return [("numpy", BytesEngine)]
    if isinstance(tokenizer, TableTokenizer):
        return [("numpy", TableEngine)]
    if isinstance(tokenizer, EngineTokenizer):
        return [("gigatoken", GigatokenEngine), ("tiktoken", TiktokenEngine)]
    return []


def sample_of(texts: Texts) -> list[bytes]:
    """Stretches of the first, the last, the longest and some texts between: from the beginning, or from the middle."""
    if not len(texts):
        return []
    spread = np.linspace(0, len(texts) - 1, SAMPLE_DOCUMENTS).astype(np.int64).tolist()
    stretches = []
    for number, row in enumerate(dict.fromkeys([*spread, int(np.argmax(texts.n_bytes))])):
        first, last = (int(place) for place in texts.offsets[row : row + 2])
        if number % 2 and last - first > SAMPLE_BYTES:
            first = character_start(texts.data, (first + last) // 2)
        stretches.append(whole_characters(texts.data, first, min(first + SAMPLE_BYTES, last)))
    return stretches


def _probes(tokenizer: Tokenizer) -> list[bytes]:
    probes = [*PROBES]
    if isinstance(tokenizer, EngineTokenizer):
        added = json.loads(tokenizer.spec).get("added_tokens") or []
        probes.append(" ".join(str(token["content"]) for token in added))
    return [probe.encode() for probe in probes]
