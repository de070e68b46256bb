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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..tokens.tokenizer_kinds import TOKENIZER_FILE, Tokenizer, load_tokenizer

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"

_CONTEXT = 8  # tokens before a piece of text: some tokenisers write a token otherwise at the start of a text


@dataclass(frozen=True)
class TextCompletion:
    """A continuation as text.

    Attributes:
        text: without the string that ended it.
        finish_reason: `stop` at the end of a document or at a stop string, `length` at the limit, `context` where the
            context was full, `exhausted` where every token was forbidden.
        n_tokens: how many were drawn, those of a stop string among them.
        logprobs: natural log-probability of each chosen id.
        sample: which continuation of its prompt it is, from 0.
        ids: the chosen ids.
        top_logprobs: for each of them the likeliest ids and their log-probabilities, if they were asked for.
    """

    text: str
    finish_reason: str
    n_tokens: int
    logprobs: list[float]
    sample: int = 0
    ids: list[int] = field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)


def read_sampling(folder: Path) -> dict[str, Any]:
    """Return the fields of `model.config.Sampling` that were recorded with a model as its defaults; often none."""
    found: dict[str, Any] = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8")).get("sampling", {})
    return found


class Bundle:
    """A trained model, loaded for generation.

    Args:
        folder: the bundle.
        device: device of the network.
        network: the package with the network; `model` when None.
        stretch: another context for the same weights, fields as for `model.ModelConfig.stretched`.

    Raises:
        ValueError: the model cannot have that context.

    Attributes:
        bos, eos: True if documents had the ids that begin and end a text around them in training, as far as the
            tokeniser has such ids; True if config.json does not say.
    """

    def __init__(self, folder: Path, device: str = "cpu", network: Any = None, **stretch: Any) -> None:
        self.network = network if network is not None else importlib.import_module("model")
        self.config: dict[str, Any] = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        self.bos, self.eos = (bool(self.config.get(name, True)) for name in ("bos", "eos"))
        self.tokenizer: Tokenizer = load_tokenizer(folder / TOKENIZER_FILE)
        self.model_config = self.network.ModelConfig.from_dict(self.config["model"]).stretched(**stretch)
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
        keys: Sequence[int] | None = None,
        batch_size: int = 32,
        on_step: Callable[[int, int], None] | None = None,
        **sampling: Any,
    ) -> list[TextCompletion]:
        """Continue each prompt.

        Args:
            keys: names each prompt's noise; its place in the list when None.
            batch_size: continuations that grow at once.
            on_step: told continuations finished and continuations in all.
            sampling: see `sampling_config`.

        Returns:
            The continuations of each prompt, without the prompt: all samples of the first, then of the next.

        Raises:
            ValueError: a prompt cannot be continued (see `prompt_faults`), or a setting has no such value.
        """
        config = self.sampling_config(**sampling)
        if not prompts:
            return []
        encoded = [self._window(ids, config) for ids in self.encode_prompts(prompts)]
        found = self.network.generate(
            self.model,
            encoded,
            config,
            keys=list(keys) if keys is not None else None,
            batch_size=batch_size,
            decode=self.tokenizer.decode_continuation,
            on_step=on_step,
        )
        return [self._text_of(encoded[item.prompt], item) for item in found]

    def stream(self, prompt: str, *, key: int = 0, **sampling: Any) -> Iterator[str | TextCompletion]:
        """Continue one prompt, piece by piece.

        A piece is held back while it may be the beginning of a stop string, or a character of which bytes are missing.

        Args:
            key: names its noise, as in `complete`.
            sampling: see `sampling_config`; one sample is drawn.

        Yields:
            The text as it grows, and at last the whole continuation.

        Raises:
            ValueError: as `complete` does.
        """
        config = self.sampling_config(**{**sampling, "n_samples": 1})
        if config.is_search:
            (whole,) = self.complete([prompt], **{**sampling, "n_samples": 1})
            yield from (whole.text, whole)
            return
        ids = self._window(self.encode_prompts([prompt])[0], config)
        shown, place, item = "", 0, None
        # `model.generation.stream`
        for item in self.network.stream(self.model, ids, config, key=key, decode=self.tokenizer.decode_continuation):
            before = [*ids[-_CONTEXT:], *item.ids[max(0, place - _CONTEXT) : place]][-_CONTEXT:]
            piece = self.tokenizer.decode_continuation(before, item.ids[place:])
            if item.finish_reason or not piece or _may_grow(piece, config.stop):
                continue
            shown, place = shown + piece, len(item.ids)
            yield piece
        whole = self._text_of(ids, item)
        if rest := whole.text[len(shown) :]:
            yield rest
        yield whole

    def sampling_config(self, **sampling: Any) -> Any:
        """Return the `model.GenerationConfig` of settings in the form that people give.

        Args:
            sampling: fields of that configuration, but `eos_id`, which is the model's; `suppress` is added to the ids
                that stand for no text; with `ignore_eos` the id that ends a text is never drawn. What is left out is as
                recorded with the model, or else a temperature of 0.8 and at least one token.

        Raises:
            ValueError: for a name that is none of these, or a value that is not to be had.
        """
        given = {"temperature": 0.8, "min_new_tokens": 1, **self.config.get("sampling", {}), **sampling}
        ignore_eos = given.pop("ignore_eos", False)
        known = {item.name for item in fields(self.network.GenerationConfig)} - {"eos_id"}
        unknown = sorted(given.keys() - known)
        if unknown:
            raise ValueError(f"there is no setting {unknown[0]}; expected some of {', '.join(sorted(known))}")
        never = [*self.ids_without_text(), *given.get("suppress", ())]
        if ignore_eos and self.end_id is not None:
            never.append(self.end_id)
        given["suppress"] = tuple(never)
        config = self.network.GenerationConfig(eos_id=None if ignore_eos else self.end_id, **given)
        named = [*config.suppress, *config.stop_ids, *(token for token, _ in config.logit_bias)]
        if named and max(named) >= self.model_config.vocab_size:
            raise ValueError(
                f"token {max(named)} is named, and the model's tokens are 0 to {self.model_config.vocab_size - 1}"
            )
        return config

    def prompt_faults(self, prompts: Sequence[str], **sampling: Any) -> list[str]:
        """Return why each prompt cannot be continued, as the end of a sentence about it; empty if it can."""
        config = self.sampling_config(**sampling)
        return [
            self.network.prompt_problem(ids, config, self.model_config) if ids else f"is empty, {self._no_begin}"
            for ids in self.encode(prompts)
        ]

    def _window(self, ids: list[int], config: Any) -> list[int]:
        """Return the end of a prompt that the network can see; the rest of a long one would only fill memory."""
        counted = config.overflow == "refuse" or config.max_length
        return ids if counted else ids[-self.model_config.max_seq_len :]

    def _text_of(self, prompt: Sequence[int], item: Any) -> TextCompletion:
        text = self.tokenizer.decode_continuation(prompt, item.ids)
        if isinstance(item.stopped_by, str):
            # the last token completed it, and may hold more of them: it is the first that ends behind the other tokens
            older = self.tokenizer.decode_continuation(prompt, item.ids[:-1]).rstrip("\ufffd")
            place = text.find(item.stopped_by, max(0, len(older) - len(item.stopped_by) + 1))
            text = text if place < 0 else text[:place]
        return TextCompletion(
            text,
            item.finish_reason,
            len(item.ids),
            list(item.logprobs),
            item.sample,
            list(item.ids),
            [list(best) for best in item.top_logprobs],
        )

    def encode_prompts(self, prompts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each prompt as `encode` does.

        Raises:
            ValueError: a prompt is empty, and the model has no token to begin with. One that training never saw would
                not do: what follows such a token is as random as its vector.
        """
        encoded = self.encode(prompts)
        if not all(encoded):
            raise ValueError(f"prompt {encoded.index([]) + 1} of {len(encoded)} is empty, {self._no_begin}")
        return encoded

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text behind the token that begins a text, if training had one."""
        begin = [] if self.start_id is None else [self.start_id]
        return [[*begin, *ids.tolist()] for ids in self.tokenizer.encode(list(texts))]

    @property
    def _no_begin(self) -> str:
        why = "'s tokeniser has" if self.bos else " was trained with"
        return f"and this model{why} no token to begin with; give a text"

    def ids_without_text(self) -> tuple[int, ...]:
        """Return ids never drawn: special ones but the end of a text, and those unknown to the tokeniser."""
        tokenizer = self.tokenizer
        unknown = range(tokenizer.vocab_size, self.model_config.vocab_size)
        return tuple(index for index in (*tokenizer.special_ids, *unknown) if index != self.end_id)


def _may_grow(piece: str, stops: Sequence[str]) -> bool:
    """Return True if a text ends within a character, or with the beginning of a stop string."""
    return piece.endswith("\ufffd") or any(piece.endswith(stop[:n]) for stop in stops for n in range(1, len(stop) + 1))
