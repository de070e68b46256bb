"""What is continued, and what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..sampling import uniform_noise

_NOISE_AHEAD = 256  # numbers that are drawn at once


@dataclass
class Completion:
    """One continuation of one prompt.

    Attributes:
        prompt: place of its prompt in the list.
        sample: which of the prompt's samples it is, from 0.
        ids: new tokens, without the one that ended them. A stop string's last token is among them.
        finish_reason: "stop" (a token or a string ended it), "length" (max_new_tokens were made), "context" (the
            context is full, with overflow="stop") or "exhausted" (every token was forbidden); "" while it grows.
        logprobs: the model's own log-probability of each of ids, in nats, before penalties, temperature and filters.
        top_logprobs: for each of ids the likeliest tokens and their log-probabilities, the best first.
        stopped_by: the stop string that ended it, or the token; None if neither did. The text goes up to where the
            string begins, which may be within a token.
    """

    prompt: int = 0
    sample: int = 0
    ids: list[int] = field(default_factory=list)
    finish_reason: str = ""
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    stopped_by: str | int | None = None


@dataclass
class Row:
    """A continuation on its way.

    Attributes:
        prompt: all of its tokens.
        key: names its noise.
        completion: what came out so far.
        limit: its longest continuation.
        dropped: tokens of prompt and continuation that lie before the window which the cache holds.
    """

    prompt: Sequence[int]
    key: int
    completion: Completion
    limit: int
    dropped: int = 0
    noise: np.ndarray = field(default_factory=lambda: np.empty(0))

    def uniform(self, seed: int) -> float:
        """The number that the next token is drawn with."""
        place = len(self.completion.ids) % _NOISE_AHEAD
        if place == 0:
            first = len(self.completion.ids)
            n = min(_NOISE_AHEAD, self.limit - first)
            self.noise = uniform_noise(seed, self.key, n, sample=self.completion.sample, first=first)
        return float(self.noise[place])

    def window(self) -> list[int]:
        """The tokens that the next one follows from."""
        n_prompt = len(self.prompt)
        if self.dropped < n_prompt:
            return [*self.prompt[self.dropped :], *self.completion.ids]
        return self.completion.ids[self.dropped - n_prompt :]
