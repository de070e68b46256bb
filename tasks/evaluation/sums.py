"""What an evaluation adds up over documents, and the figures that follow from the sums.

Every figure is a quotient of two sums, so that those of a slice, of a document and of everything follow the same rule,
and no mean is ever taken of means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from model.metrics import bits_per_byte, perplexity

BASELINES = ("uniform", "unigram", "ngram")


@dataclass(frozen=True)
class Sums:
    """Sums over the predicted tokens of some documents; two of them add.

    Attributes:
        documents: how many documents.
        tokens: predicted tokens.
        bytes, characters: of the documents' texts; bytes in UTF-8.
        lost_bytes: bytes that the tokeniser cannot give back.
        top1, top5: tokens than which no other token, or at most four others, were at least as likely.
        nll_nats: negative log-likelihood of the tokens, in nats.
        charged_nats: what first tokens cost that nothing predicts: as much as if all tokens were equally likely.
        uniform_nats: the same tokens where all are equally likely.
        unigram_nats: by their share of the training text.
        ngram_nats: by the n-gram model of the training text; None where there is none.
    """

    documents: int = 0
    tokens: int = 0
    bytes: int = 0
    characters: int = 0
    lost_bytes: int = 0
    top1: int = 0
    top5: int = 0
    nll_nats: float = 0.0
    charged_nats: float = 0.0
    uniform_nats: float = 0.0
    unigram_nats: float = 0.0
    ngram_nats: float | None = 0.0

    def __add__(self, other: Sums) -> Sums:
        values: dict[str, Any] = {}
        for name in SUMS:
            one, more = getattr(self, name), getattr(other, name)
            values[name] = None if one is None or more is None else one + more
        return Sums(**values)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Sums:
        """From a row of a table that has these columns, among others."""
        return cls(**{name: row[name] for name in SUMS})

    @property
    def loss(self) -> float:
        """Nats per token; NaN where nothing is predicted."""
        return self.nll_nats / self.tokens if self.tokens else math.nan

    @property
    def perplexity(self) -> float:
        """Exponential of the loss."""
        return perplexity(self.nll_nats, self.tokens)

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of text, what was lost and what nothing predicts among them; NaN without text."""
        return self._bits_per_byte(self.nll_nats)

    @property
    def bits_per_character(self) -> float:
        """The same bits per character."""
        return self.bits_per_byte * self.bytes / self.characters if self.characters else math.nan

    @property
    def top1_share(self) -> float:
        """Share of tokens that were the likeliest one."""
        return self.top1 / self.tokens if self.tokens else math.nan

    @property
    def top5_share(self) -> float:
        """Share of tokens that were among the five likeliest."""
        return self.top5 / self.tokens if self.tokens else math.nan

    def baseline_loss(self, name: str) -> float | None:
        """Nats per token of one of `BASELINES`; None where it was not measured."""
        nats = getattr(self, f"{name}_nats")
        return None if nats is None else nats / self.tokens if self.tokens else math.nan

    def baseline_bits_per_byte(self, name: str) -> float | None:
        """Bits per byte of one of `BASELINES`, charged for the same; None where it was not measured."""
        nats = getattr(self, f"{name}_nats")
        return None if nats is None else self._bits_per_byte(nats)

    def _bits_per_byte(self, nats: float) -> float:
        return bits_per_byte(nats + self.charged_nats, self.bytes, self.lost_bytes) if self.bytes else math.nan

    def figures(self) -> dict[str, float | None]:
        """All figures by name; what is not a number is None."""
        found: dict[str, float | None] = {name: getattr(self, name) for name in FIGURES}
        found |= {f"{name}_bits_per_byte": self.baseline_bits_per_byte(name) for name in BASELINES}
        return {name: None if value is None or math.isnan(value) else value for name, value in found.items()}


SUMS = tuple(field.name for field in fields(Sums))
FIGURES = ("loss", "perplexity", "top1_share", "top5_share", "bits_per_byte", "bits_per_character")


def baselines_of(metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    """The baselines among the figures of an evaluation, the strongest first, as people know them and as figures do."""
    named = {"ngram": f"{metrics.get('val/ngram_order', 0):.0f}-gram", "unigram": "unigram", "uniform": "uniform"}
    return [(name, of) for of, name in named.items() if f"val/{of}_loss" in metrics]
