"""A bundle: the folder that is a trained model, weights and tokeniser together, and what can be asked of it.

    model.safetensors   the weights
    config.json         shape of the network, settings of the training, what stood around its documents
    tokenizer.json      the tokeniser
    token_counts.parquet  how often each id occurred in training (for baselines)

This module travels inside served models under another package name. So it imports its neighbours relatively, and is
handed the network's package instead of importing it by name.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .tokens.tokenizer import TOKENIZER_FILE, Tokenizer, load_tokenizer

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"


@dataclass(frozen=True)
class TextCompletion:
    """A continuation as text.

    Attributes:
        finish_reason: `stop` at the end of a document, `length` at the limit.
        logprobs: natural log-probability of each chosen id.
    """

    text: str
    finish_reason: str
    n_tokens: int
    logprobs: list[float]


class Bundle:
    """A trained model, ready to be asked.

    Args:
        folder: the bundle.
        device: where the network runs.
        network: the package with the network; `model` when None.

    Attributes:
        bos, eos: whether documents had the ids that begin and end a text around them in training, as far as the
            tokeniser has such ids; True where config.json does not say.
    """

    def __init__(self, folder: Path, device: str = "cpu", network: Any = None) -> None:
        self.network = network if network is not None else importlib.import_module("model")
        self.config: dict[str, Any] = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        self.bos, self.eos = (bool(self.config.get(name, True)) for name in ("bos", "eos"))
        self.tokenizer: Tokenizer = load_tokenizer(folder / TOKENIZER_FILE)
        self.model_config = self.network.ModelConfig.from_dict(self.config["model"])
        self.model = self.network.load_weights(folder / WEIGHTS_FILE, self.model_config).to(device).eval()
        self.device = device

    @property
    def start_id(self) -> int | None:
        """Id that a prompt begins with: bos, or else eos, which stands between texts; None if training had neither."""
        return self.tokenizer.start_id if self.bos else None

    @property
    def end_id(self) -> int | None:
        """Id that ends a text: eos, if it stood behind texts in training or, for want of bos, before them."""
        eos = self.tokenizer.eos_id
        return eos if self.eos or self.start_id == eos else None

    def complete(
        self,
        prompts: Sequence[str],
        *,
        max_new_tokens: int = 64,
        temperature: float = 0.8,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        keys: Sequence[int] | None = None,
        on_step: Callable[[int, int], None] | None = None,
    ) -> list[TextCompletion]:
        """Continue each prompt.

        Args:
            temperature: 0 means greedy.
            top_k: 0 means off.
            top_p: 1 means off.
            keys: names each prompt's noise; its place in the list when None.
            on_step: told prompts finished and prompts in all.

        Returns:
            One continuation per prompt, without the prompt.

        Raises:
            ValueError: a prompt is empty, and the model knows no token that a text could begin with.
        """
        if not prompts:
            return []
        config = self.network.GenerationConfig(
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k or None,
            top_p=top_p if top_p < 1 else None,
            seed=seed,
            eos_id=self.end_id,
            min_new_tokens=1,  # whoever asks for a continuation wants one
            suppress=self.ids_without_text(),
        )
        encoded = self.encode_prompts(prompts)
        found = self.network.generate(
            self.model,
            encoded,
            config,
            keys=list(keys) if keys is not None else None,
            on_step=on_step,
        )
        return [
            TextCompletion(
                self.tokenizer.decode_continuation(prompt, item.ids),
                item.finish_reason,
                len(item.ids),
                list(item.logprobs),
            )
            for prompt, item in zip(encoded, found, strict=True)
        ]

    def encode_prompts(self, prompts: Sequence[str]) -> list[list[int]]:
        """Ids of each prompt behind the token that begins a text, if the model knows one.

        Raises:
            ValueError: a prompt is empty, and the model knows none. One that it never saw would not do: what follows
                such a token is as random as its vector.
        """
        begin = [] if self.start_id is None else [self.start_id]
        encoded = [[*begin, *ids.tolist()] for ids in self.tokenizer.encode(list(prompts))]
        if not all(encoded):
            why = "'s tokeniser has" if self.bos else " was trained with"
            raise ValueError(
                f"prompt {encoded.index([]) + 1} of {len(encoded)} is empty, and this model{why} no token to begin "
                "with; give a text"
            )
        return encoded

    def ids_without_text(self) -> tuple[int, ...]:
        """Ids never drawn: special ones but the end of a text, and rows of the network unknown to the tokeniser."""
        tokenizer = self.tokenizer
        unknown = range(tokenizer.vocab_size, self.model_config.vocab_size)
        return tuple(index for index in (*tokenizer.special_ids, *unknown) if index != self.end_id)
