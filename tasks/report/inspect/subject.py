"""What is looked at: a network with all that belongs to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from model import PRESETS, ModelConfig, TrainConfig, Transformer, count_parameters, preset
from storage.errors import UserError
from tasks.tokens.tokenizers import AsciiTokenizer, Tokenizer
from tasks.training.bundle import Bundle

MAX_UNTRAINED = 2e9  # parameters; a larger network only fills the memory


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
        """Return a trained model."""
        train = bundle.config.get("train")
        seed = int((train or {}).get("seed", 0))
        return cls(name, bundle.model, bundle.tokenizer, train, bos=bundle.bos, seed=seed)

    @classmethod
    def untrained(cls, name: str, seed: int) -> Subject:
        """Return an untrained network of a preset's shape over the 128 ASCII codes.

        Raises:
            UserError: if there is no such preset, or its network is too large.
        """
        if name not in PRESETS:
            raise UserError(f"no preset {name!r}; choose one of {', '.join(PRESETS)}")
        tokenizer = AsciiTokenizer()
        config = preset(name, tokenizer.vocab_size)
        size = count_parameters(config)["total"]
        if size > MAX_UNTRAINED:
            raise UserError(
                f"{name} has {size:,} parameters; up to {MAX_UNTRAINED:,.0f} are made for a look: take a smaller one"
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = Transformer(config).eval()
        # the source documents begin with the first character, and there is no training to agree with
        return cls(f"{name} (fresh)", network, tokenizer, fresh=True, bos=False, seed=seed)

    @property
    def config(self) -> ModelConfig:
        """Shape of the network."""
        return self.model.config

    @property
    def training(self) -> TrainConfig:
        """How it was trained, or how it would be by default."""
        return TrainConfig.from_dict(dict(self.train)) if self.train else TrainConfig(max_steps=1000)
