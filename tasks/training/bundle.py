"""A bundle: the folder of a trained model, and its encoding and generation.

    model.safetensors     weights
    config.json           configuration of network and training; bos and eos around documents
    tokenizer.json        tokeniser
    token_counts.parquet  occurrences of each id in training, for baselines
    chat_template.jinja   form of chats, if an imported model has one

This module is copied into served models under another package name, so it uses relative imports, and takes the
network's package as an argument.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from ..tokens.tokenizer_kinds import TOKENIZER_FILE, Tokenizer, load_tokenizer

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"
CHAT_FILE = "chat_template.jinja"

_CONTEXT = 8  # preceding tokens for decoding: some tokenisers spell a token differently at the start of a text


@dataclass(frozen=True)
class TextCompletion:
    """A completion as text.

    Attributes:
        text: the completion, without a stop string.
        finish_reason: `stop` (end of text or stop string), `length` (token limit), `context` (context full) or
            `exhausted` (every token suppressed).
        n_tokens: number of sampled tokens, including those of a stop string.
        logprobs: natural log-probability of each sampled id.
        sample: number of the completion of its prompt, from 0.
        ids: sampled ids.
        top_logprobs: most likely ids at each position with log-probabilities, if requested.
    """

    text: str
    finish_reason: str
    n_tokens: int
    logprobs: list[float]
    sample: int = 0
    ids: list[int] = field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)


def read_sampling(folder: Path) -> dict[str, Any]:
    """Return the default sampling settings recorded with a model; often empty."""
    found: dict[str, Any] = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8")).get("sampling", {})
    return found


class Bundle:
    """A trained model, for generation.

    Args:
        folder: folder of the bundle.
        device: device of the network.
        network: package of the network; None for `model`.
        stretch: context extension, arguments of `model.ModelConfig.stretched`.

    Raises:
        ValueError: the model does not support that context.

    Attributes:
        bos, eos: True if training documents had bos and eos, provided that the tokeniser has these ids; True if
            config.json does not record it.
    """

    def __init__(self, folder: Path, device: str = "cpu", network: Any = None, **stretch: Any) -> None:
        self.network = network if network is not None else importlib.import_module("model")
        self.config: dict[str, Any] = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        self.bos, self.eos = (bool(self.config.get(name, True)) for name in ("bos", "eos"))
        self.tokenizer: Tokenizer = load_tokenizer(folder / TOKENIZER_FILE)
        self.model_config = self.network.ModelConfig.from_dict(self.config["model"]).stretched(**stretch)
        self.folder, self.device = folder, device

    @cached_property
    def model(self) -> Any:
        """The network, in evaluation mode; loaded when it is first asked for."""
        return self.network.load_weights(self.folder / WEIGHTS_FILE, self.model_config).to(self.device).eval()

    def loaded(self) -> Self:
        """Read the weights now, and return this bundle."""
        _ = self.model
        return self

    @property
    def start_id(self) -> int | None:
        """Id that begins prompts: bos, else eos, which separates texts; None if training had neither."""
        return self.tokenizer.start_id if self.bos else None

    @property
    def end_id(self) -> int | None:
        """Id that ends a text: eos, if training documents ended with it, or began with it for lack of bos."""
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
        """Complete each prompt.

        Args:
            keys: seed of each prompt's random numbers; None for its index.
            batch_size: completions per batch.
            on_step: called with the numbers of finished and of all completions.
            sampling: see `sampling_config`.

        Returns:
            The completions without their prompts: all samples of the first prompt, then of the next.

        Raises:
            ValueError: a prompt cannot be completed (see `prompt_faults`), or a setting is invalid.
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
        return [self.text_of(encoded[item.prompt], item) for item in found]

    def stream(self, prompt: str | list[int], *, key: int = 0, **sampling: Any) -> Iterator[str | TextCompletion]:
        """Complete one prompt, a text or its ids, piece by piece.

        A piece is delayed while it may begin a stop string, or ends in an incomplete character.

        Args:
            key: seed of its random numbers, as in `complete`.
            sampling: see `sampling_config`; one sample is drawn.

        Yields:
            Pieces of text, then the whole completion.

        Raises:
            ValueError: see `complete`.
        """
        config = self.sampling_config(**{**sampling, "n_samples": 1})
        ids = self._window(self.encode_prompts([prompt])[0] if isinstance(prompt, str) else prompt, config)
        if config.is_search:
            (found,) = self.network.generate(self.model, [ids], config, decode=self.tokenizer.decode_continuation)
            whole = self.text_of(ids, found)
            yield from (whole.text, whole)
            return
        pieces, item = Pieces(self, ids, config.stop), None
        # `model.generation.stream`
        for item in self.network.stream(self.model, ids, config, key=key, decode=self.tokenizer.decode_continuation):
            if not item.finish_reason and (piece := pieces.next(item)):
                yield piece
        if rest := pieces.last(item):
            yield rest
        yield self.text_of(ids, item)

    def sampling_config(self, **sampling: Any) -> Any:
        """Return the `model.GenerationConfig` of sampling settings.

        Args:
            sampling: fields of `model.GenerationConfig` but `eos_id`, and `ignore_eos`, which suppresses the id that
                ends a text. `suppress` is added to the ids without text. Defaults are those recorded with the model,
                else a temperature of 0.8 and at least one token.

        Raises:
            ValueError: a name is unknown, or a value is invalid.
        """
        given = {"temperature": 0.8, "min_new_tokens": 1, **self.config.get("sampling", {}), **sampling}
        ignore_eos = given.pop("ignore_eos", False)
        known = {item.name for item in fields(self.network.GenerationConfig)} - {"eos_id"}
        unknown = sorted(given.keys() - known)
        if unknown:
            raise ValueError(f"unknown setting {unknown[0]}; expected {', '.join(sorted(known))}")
        never = [*self.ids_without_text(), *given.get("suppress", ())]
        if ignore_eos and self.end_id is not None:
            never.append(self.end_id)
        given["suppress"] = tuple(never)
        config = self.network.GenerationConfig(eos_id=None if ignore_eos else self.end_id, **given)
        named = [*config.suppress, *config.stop_ids, *(token for token, _ in config.logit_bias)]
        if named and max(named) >= self.model_config.vocab_size:
            raise ValueError(
                f"the settings name token {max(named)}; the model's tokens are 0 to {self.model_config.vocab_size - 1}"
            )
        return config

    def prompt_faults(self, prompts: Sequence[str], **sampling: Any) -> list[str]:
        """Return for each prompt why it cannot be completed, as a predicate of "the prompt"; empty if it can."""
        config = self.sampling_config(**sampling)
        return [
            self.network.prompt_problem(ids, config, self.model_config) if ids else f"is empty, {self._no_begin}"
            for ids in self.encode(prompts)
        ]

    def _window(self, ids: list[int], config: Any) -> list[int]:
        """Return the last ids of a prompt, as many as the context holds, to save memory."""
        counted = config.overflow == "refuse" or config.max_length
        return ids if counted else ids[-self.model_config.max_seq_len :]

    def text_of(self, prompt: Sequence[int], item: Any) -> TextCompletion:
        """Return a `model.Completion` of a prompt as text."""
        text = self.tokenizer.decode_continuation(prompt, item.ids)
        if isinstance(item.stopped_by, str):
            # the last token may contain the stop string several times: find the first one that ends in that token
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
        """Return the ids of each prompt, see `encode`.

        Raises:
            ValueError: a prompt is empty, and the model was not trained with an id that begins a text. The embedding of
                an untrained one would be random.
        """
        encoded = self.encode(prompts)
        if not all(encoded):
            raise ValueError(f"prompt {encoded.index([]) + 1} of {len(encoded)} is empty, {self._no_begin}")
        return encoded

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text after `start_id`, if there is one."""
        begin = [] if self.start_id is None else [self.start_id]
        return [[*begin, *ids.tolist()] for ids in self.tokenizer.encode(list(texts))]

    @property
    def _no_begin(self) -> str:
        why = "'s tokeniser has" if self.bos else " was trained with"
        return f"and this model{why} no token to begin with; give a text"

    def ids_without_text(self) -> tuple[int, ...]:
        """Return the ids to suppress: special ones but `end_id`, and those unknown to the tokeniser."""
        tokenizer = self.tokenizer
        unknown = range(tokenizer.vocab_size, self.model_config.vocab_size)
        return tuple(index for index in (*tokenizer.special_ids, *unknown) if index != self.end_id)


class Pieces:
    """The text of a growing completion, piece by piece.

    A piece is delayed while it may begin a stop string, or ends in an incomplete character.

    Args:
        prompt: ids of the prompt.
        stop: stop strings.
    """

    def __init__(self, bundle: Bundle, prompt: list[int], stop: Sequence[str]) -> None:
        self.bundle, self.prompt, self.stop = bundle, prompt, stop
        self.n_shown, self.place = 0, 0  # characters and tokens

    def next(self, item: Any) -> str:
        """Return the text that an unfinished completion has gained; "" if it is delayed."""
        ids = item.ids
        before = [*self.prompt[-_CONTEXT:], *ids[max(0, self.place - _CONTEXT) : self.place]][-_CONTEXT:]
        piece = self.bundle.tokenizer.decode_continuation(before, ids[self.place :])
        if not piece or _may_grow(piece, self.stop):
            return ""
        self.n_shown, self.place = self.n_shown + len(piece), len(ids)
        return piece

    def last(self, item: Any) -> str:
        """Return the rest of the text of a finished completion."""
        return self.bundle.text_of(self.prompt, item).text[self.n_shown :]


def _may_grow(piece: str, stops: Sequence[str]) -> bool:
    """Return True if a text ends in an incomplete character, or in the beginning of a stop string."""
    return piece.endswith("\ufffd") or any(
        piece.endswith(stop[:n]) for stop in stops for n in range(1, min(len(stop), len(piece)) + 1)
    )
