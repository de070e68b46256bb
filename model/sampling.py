"""Sampling of the next token: penalties, temperature, the filters top-k, top-p, min-p and typical, then one draw.

All functions work on a batch on the device of the logits. A token is drawn by inverting the cumulative distribution at
one uniform number per row, so that the noise of a row has its own key and does not depend on other rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .config import GenerationConfig


def filter_top_k(logits: Tensor, k: int) -> Tensor:
    """Set all but the k largest logits of each row to -inf.

    Args:
        logits: (..., V).
        k: number of logits to keep, capped at V. Logits equal to the k-th are kept too.
    """
    kth = logits.topk(min(k, logits.shape[-1]), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < kth, -torch.inf)


def filter_top_p(logits: Tensor, p: float | Tensor) -> Tensor:
    """Keep the smallest set of likeliest tokens whose probabilities reach p (Holtzman et al. 2020).

    At least one token is kept. Ties are broken by the lower id.

    Args:
        logits: (..., V).
        p: 0 to 1; 1 keeps everything. A tensor (..., 1) has one value per row.
    """
    if not isinstance(p, Tensor) and p >= 1.0:
        return logits
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    return _kept(logits, order, ordered.double().softmax(dim=-1), p)


def filter_min_p(logits: Tensor, p: float) -> Tensor:
    """Keep tokens whose probability is at least p times that of the likeliest (Nguyen et al. 2024).

    Args:
        logits: (..., V).
        p: 0 to 1; 0 keeps everything, 1 only the likeliest tokens.
    """
    if p <= 0.0:
        return logits
    least = logits.max(dim=-1, keepdim=True).values + math.log(p)
    return logits.masked_fill(logits < least, -torch.inf)


def filter_typical(logits: Tensor, p: float) -> Tensor:
    """Keep the smallest set of most typical tokens whose probabilities reach p (Meister et al. 2023).

    Tokens are ordered by |-log probability - entropy|, ties by the lower id. At least one token is kept.

    Args:
        logits: (..., V).
        p: 0 to 1; 1 keeps everything.
    """
    if p >= 1.0:
        return logits
    surprise = -logits.double().log_softmax(dim=-1)
    probability = surprise.neg().exp()
    # p log p is 0 at p = 0, where 0 * inf would be NaN
    entropy = (probability * surprise.masked_fill(probability == 0, 0.0)).sum(dim=-1, keepdim=True)
    order = (surprise - entropy).abs().sort(dim=-1, stable=True).indices
    return _kept(logits, order, probability.gather(-1, order), p)


def _kept(logits: Tensor, order: Tensor, ordered: Tensor, p: float | Tensor) -> Tensor:
    """Mask all but the first tokens of `order` whose probabilities `ordered` (..., V) reach p; keeps at least one."""
    drop = running_sum(ordered) - ordered >= p  # the tokens before already reach p
    drop[..., 0] = False
    return logits.masked_fill(torch.zeros_like(drop).scatter(-1, order, drop), -torch.inf)


def token_probabilities(
    logits: Tensor,
    temperature: float,
    top_k: int | None = None,
    top_p: float | Tensor | None = None,
    min_p: float | None = None,
    typical_p: float | None = None,
) -> Tensor:
    """Return the distribution that a token is drawn from.

    Args:
        logits: (..., V), after penalties.
        temperature: above 0.
        top_k, top_p, min_p, typical_p: as for the filters; None does not filter.

    Returns:
        (..., V) float64 probabilities.
    """
    # Shifted before the division, so that a tiny temperature does not overflow to +inf.
    logits = (logits.double() - logits.max(dim=-1, keepdim=True).values.double()) / temperature
    if top_k is not None:
        logits = filter_top_k(logits, top_k)
    if top_p is not None:
        logits = filter_top_p(logits, top_p)
    if min_p is not None:
        logits = filter_min_p(logits, min_p)
    if typical_p is not None:
        logits = filter_typical(logits, typical_p)
    return logits.softmax(dim=-1)


def draw(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Return the token at which each row's cumulative probability exceeds its uniform number.

    Args:
        probabilities: (B, V), none negative.
        uniform: (B,) numbers in [0, 1).

    Returns:
        (B,) int64 tokens, never one of probability 0; the last token in a row of NaN.
    """
    cumulative = running_sum(probabilities.double())
    total = cumulative[:, -1:]
    # rounding up to the total would leave no token
    target = torch.minimum(uniform[:, None].double() * total, torch.nextafter(total, torch.zeros_like(total)))
    # clamped for rows of NaN: an index out of range aborts CUDA
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp_(max=probabilities.shape[-1] - 1)


def uniform_noise(seed: int, key: int, n: int, *, sample: int = 0, first: int = 0) -> np.ndarray:
    """Return numbers (n,) in [0, 1) of the counter-based random stream of (seed, key, sample).

    Args:
        seed: seed of all noise.
        key: key of the prompt.
        n: number of values.
        sample: number of the prompt's sample, from 0.
        first: index of the first value in the stream, a multiple of 4.
    """
    counter = [first // 4, 0, 0, sample % 2**64]  # Philox gives four numbers per count
    return np.random.Generator(np.random.Philox(key=[seed % 2**64, key % 2**64], counter=counter)).random(n)


def running_sum(values: Tensor) -> Tensor:
    """Return the cumulative sum over the last axis; on the CPU if a deterministic GPU kernel would be needed."""
    if values.device.type != "cpu" and torch.are_deterministic_algorithms_enabled():
        return values.cpu().cumsum(dim=-1).to(values.device)
    return values.cumsum(dim=-1)


def ranked(top: tuple[Tensor, Tensor]) -> list[list[tuple[int, float]]]:
    """Return pairs (id, value) of each row from the values and ids of topk."""
    values, ids = (part.tolist() for part in top)
    return [list(zip(*row, strict=True)) for row in zip(ids, values, strict=True)]


_SMALL_VOCABULARY = 1024  # smaller ones are not preselected by topk, which would take longer
_ROUNDING = 1e-4  # margin for float32


@dataclass(frozen=True)
class Choice:
    """Sampled tokens of one step.

    Attributes:
        tokens: (B,) int64.
        logprobs: (B,) log-probabilities of the tokens before penalties, temperature and filters.
        exhausted: (B,) bool, True if every token was ruled out and the token is undefined; None if impossible.
        top: (B, n) log-probabilities and ids of the likeliest tokens, the best first; None if not requested.
    """

    tokens: Tensor
    logprobs: Tensor
    exhausted: Tensor | None = None
    top: tuple[Tensor, Tensor] | None = None


class Sampler:
    """Samples tokens for a batch, and keeps the history that penalties need.

    Args:
        config: sampling parameters.
        vocab_size: V.
        n_rows: B.
        longest: L, maximum length of a prompt's window and its continuation.
        device: device of the logits.
    """

    def __init__(
        self, config: GenerationConfig, vocab_size: int, n_rows: int, longest: int, device: torch.device | str = "cpu"
    ) -> None:
        self.config, self.device = config, device

        def ids(tokens: Sequence[int]) -> Tensor | None:
            return torch.tensor(tokens, dtype=torch.int64, device=device) if tokens else None

        self.suppressed, self.ending = ids(config.suppress), ids(config.ending_ids)
        self.biased = ids([token for token, _ in config.logit_bias])
        self.bias = torch.tensor([number for _, number in config.logit_bias], device=device)
        # filters without an effect are skipped
        self.top_k = config.top_k or None
        self.top_p = config.top_p if config.top_p is not None and config.top_p < 1 else None
        self.typical_p = config.typical_p if config.typical_p is not None and config.typical_p < 1 else None
        self.min_p = config.min_p or None
        self.counting = bool(config.frequency_penalty or config.presence_penalty)
        self.penalising = self.counting or config.repetition_penalty != 1.0
        self.made = torch.zeros(n_rows, dtype=torch.int64, device=device)
        # history (B, L): tokens, padded with the row's first token; counts (B, V): occurrences in the continuation
        remembers = self.penalising or config.no_repeat_ngram > 0
        self.history = torch.zeros(n_rows, longest if remembers else 0, dtype=torch.int64, device=device)
        self.lengths = torch.zeros(n_rows, dtype=torch.int64, device=device)
        self.counts = torch.zeros(n_rows, vocab_size if self.counting else 0, device=device)

    def begin(self, row: int, prompt: Sequence[int]) -> None:
        """Assign a row to another prompt."""
        self.made[row] = 0
        if self.history.shape[1]:
            self.history[row] = prompt[0]
            self.history[row, : len(prompt)] = torch.tensor(prompt, device=self.device)
            self.lengths[row] = len(prompt)
        self.counts[row] = 0

    def select(self, rows: Tensor) -> None:
        """Keep these rows only, in this order."""
        self.made, self.history, self.lengths, self.counts = (
            part[rows] for part in (self.made, self.history, self.lengths, self.counts)
        )

    def choose(self, logits: Tensor, uniform: Tensor | None = None) -> Choice:
        """Return one token per row, and add it to the history.

        With config.deterministic each row is sampled separately, so that its bits do not depend on other rows.

        Args:
            logits: (B, V); changed in place. A row with a NaN gets an undefined token with log-probability NaN.
            uniform: (B,) float64 numbers in [0, 1); None for greedy decoding.
        """
        logits = logits.float()
        model_logprobs = logits.log_softmax(dim=-1)
        if logits.device.type == "cpu":
            broken = model_logprobs[:, :1].isnan()  # one NaN in a row makes all NaN
            logits = logits.masked_fill(broken, 0.0) if broken.any() else logits
        logits = self._changed(logits)
        exhausted = self._exhausted(logits)
        if uniform is None:
            tokens = _argmax(logits)
        elif self.config.deterministic:
            tokens = torch.cat([self._drawn(logits[row, None], uniform[row, None]) for row in range(len(logits))])
        else:
            tokens = self._drawn(logits, uniform)
        self._remember(tokens)
        logprobs = model_logprobs.gather(1, tokens[:, None])[:, 0]
        n_top = min(self.config.top_logprobs, logits.shape[1])
        return Choice(tokens, logprobs, exhausted, model_logprobs.topk(n_top, dim=-1) if n_top else None)

    def _changed(self, logits: Tensor) -> Tensor:
        """Return the logits after penalties, bias and suppression."""
        config = self.config
        if self.penalising:
            seen, repetition = logits.gather(1, self.history), config.repetition_penalty
            if repetition != 1.0:
                seen = torch.where(seen > 0, seen / repetition, seen * repetition)
            if self.counting:
                counts = self.counts.gather(1, self.history)
                seen = seen - (config.frequency_penalty * counts + config.presence_penalty * (counts > 0))
            logits.scatter_(1, self.history, seen)  # repeated tokens get the same value twice
        if self.biased is not None:
            logits.index_add_(1, self.biased, self.bias.expand(len(logits), -1))
        if self.suppressed is not None:
            logits.index_fill_(1, self.suppressed, -torch.inf)
        if self.ending is not None and config.min_new_tokens:
            too_early = (self.made < config.min_new_tokens)[:, None]
            logits[:, self.ending] = logits[:, self.ending].masked_fill_(too_early, -torch.inf)
        if config.no_repeat_ngram:
            self._ban_repeats(logits, config.no_repeat_ngram)
        return logits

    def _ban_repeats(self, logits: Tensor, n: int) -> None:
        """Set tokens to -inf that would repeat an n-gram of the row."""
        n_starts = self.history.shape[1] - n + 1
        if n_starts < 1:
            return
        starts = torch.arange(n_starts, device=logits.device)
        same = starts[None] + n <= self.lengths[:, None]  # (B, starts)
        for place in range(n - 1):
            # idle slots count on
            last = (self.lengths - (n - 1) + place).clamp(0, self.history.shape[1] - 1)
            same &= self.history[:, place : place + n_starts] == self.history.gather(1, last[:, None])
        rows, columns = same.nonzero(as_tuple=True)
        logits[rows, self.history[rows, columns + n - 1]] = -torch.inf

    def _exhausted(self, logits: Tensor) -> Tensor | None:
        """Return the rows without an allowed token, and allow their first one so that sampling does not fail."""
        config = self.config
        if not (config.suppress or config.no_repeat_ngram or (config.min_new_tokens and config.ending_ids)):
            return None
        exhausted = logits.amax(-1) == -torch.inf
        logits[:, 0] = torch.where(exhausted, 0.0, logits[:, 0])
        return exhausted

    def _drawn(self, logits: Tensor, uniform: Tensor) -> Tensor:
        """Return tokens (B,) drawn after temperature and filters."""
        temperature = self.config.temperature
        top_p: float | Tensor | None = self.top_p
        listed, ids = self._likeliest(logits) or (logits, None)
        if ids is not None and self.top_k is None and top_p is not None:
            top_p = top_p / _share(listed, logits, temperature)  # p of the vocabulary as a share of the listed tokens
        tokens = draw(token_probabilities(listed, temperature, self.top_k, top_p, self.min_p, self.typical_p), uniform)
        return tokens if ids is None else ids.gather(1, tokens[:, None])[:, 0]

    def _likeliest(self, logits: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return logits and ids, ordered by id, of a superset of the tokens that the filters keep; None means all.

        Sorting the whole vocabulary would take longer than the forward pass of a small network.
        """
        n_tokens = logits.shape[1]
        n = n_tokens // 8 if self.top_k is None else 2 * self.top_k
        filtered = self.top_k or self.top_p or self.min_p
        if logits.device.type != "cpu" or not filtered or n_tokens < _SMALL_VOCABULARY or n > n_tokens // 4:
            return None
        values, ids = logits.topk(n, dim=-1)
        rest = values[:, -1:]  # ties of this value may be missing from the list
        values = values.masked_fill(values <= rest, -torch.inf)
        if self.top_k is not None:
            complete = values[:, self.top_k - 1] > -torch.inf
        elif self.top_p is not None:
            complete = _share(values, logits, self.config.temperature)[:, 0] > self.top_p + _ROUNDING
        else:
            assert self.min_p is not None
            least = self.config.temperature * math.log(self.min_p) - _ROUNDING
            complete = rest[:, 0] < logits.amax(-1) + least
        if not complete.all():
            return None
        ids, order = ids.sort(dim=-1)
        return values.gather(1, order), ids

    def _remember(self, tokens: Tensor) -> None:
        self.made += 1
        if self.history.shape[1]:
            # rows that have ended may be full
            places = self.lengths.clamp(max=self.history.shape[1] - 1)
            self.history.scatter_(1, places[:, None], tokens[:, None])
            self.lengths += 1
        if self.counting:
            self.counts.scatter_add_(1, tokens[:, None], torch.ones_like(tokens, dtype=self.counts.dtype)[:, None])


def _argmax(logits: Tensor) -> Tensor:
    """Return the index of the largest value of each row, the first of equal ones."""
    if logits.device.type != "cpu":
        return logits.argmax(dim=-1)
    return torch.from_numpy(logits.numpy().argmax(axis=-1))  # numpy is vectorised here, torch is not


def _share(listed: Tensor, logits: Tensor, temperature: float) -> Tensor:
    """Return the share (B, 1) float64 of each row's probability that the listed logits (B, n) have."""
    highest = logits.amax(-1, keepdim=True)
    # bounded for float32; this one already leaves only the likeliest tokens
    weights = [((part - highest) / max(temperature, 1e-30)).exp_() for part in (listed, logits)]
    some, all_of_them = (part.sum(-1, keepdim=True, dtype=torch.float64) for part in weights)
    return some / all_of_them
