"""What is looked at: a network with all that belongs to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from model import ModelConfig, TrainConfig, Transformer
from tasks.bundle import Bundle
from tasks.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class Subject:
    """A network with all that belongs to it.

    Attributes:
        name: what to call it.
        train: fields of `model.TrainConfig`; None for a network that was not trained here.
        fresh: whether it was never trained at all.
        bos: whether prompts begin with the token that begins a text, as they did in training.
        seed: of the initial weights.
    """

    name: str
    model: Transformer
    tokenizer: Tokenizer
    train: Mapping[str, Any] | None = None
    fresh: bool = False
    bos: bool = True
    seed: int = 0

    @classmethod
    def of_bundle(cls, bundle: Bundle, name: str) -> Subject:
        """A model that was trained here or elsewhere."""
        train = bundle.config.get("train")
        seed = int((train or {}).get("seed", 0))
        return cls(name, bundle.model, bundle.tokenizer, train, bos=bundle.bos, seed=seed)

    @property
    def config(self) -> ModelConfig:
        """Shape of the network."""
        return self.model.config

    @property
    def training(self) -> TrainConfig:
        """How it was trained, or how it would be by default."""
        return TrainConfig.from_dict(dict(self.train)) if self.train else TrainConfig(max_steps=1000)
