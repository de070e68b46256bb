"""From logits to the next token: penalties, temperature, the filters top-k, top-p, min-p and typical, then one draw.

All functions work on a batch and on the device of the logits. The draw inverts the cumulative distribution
with one uniform number per row, so a row's noise is a number that can be keyed, not a place in a shared
stream.
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
    """Sets all but the k largest logits of each row to -inf.

    Args:
        logits: (..., V).
        k: how many to keep, capped at V. Logits equal to the k-th are kept too: nothing tells them apart.
    """
    kth = logits.topk(min(k, logits.shape[-1]), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < kth, -torch.inf)


def filter_top_p(logits: Tensor, p: float | Tensor) -> Tensor:
    """Keeps the smallest set of likeliest tokens whose probabilities reach p (Holtzman et al. 2020).

    At least one token is kept. Of equally likely tokens the one with the lower id goes first.

    Args:
        logits: (..., V).
        p: 0 to 1; 1 keeps everything. A tensor (..., 1) gives each row its own.
    """
    if not isinstance(p, Tensor) and p >= 1.0:
        return logits
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    return _kept(logits, order, ordered.double().softmax(dim=-1), p)


def filter_min_p(logits: Tensor, p: float) -> Tensor:
    """Keeps tokens whose probability is at least p times that of the likeliest (Nguyen et al. 2024).

    Args:
        logits: (..., V).
        p: 0 to 1; 0 keeps everything, 1 the likeliest tokens alone.
    """
    if p <= 0.0:
        return logits
    least = logits.max(dim=-1, keepdim=True).values + math.log(p)
    return logits.masked_fill(logits < least, -torch.inf)


def filter_typical(logits: Tensor, p: float) -> Tensor:
    """Keeps the smallest set of tokens of the most typical surprise whose probabilities reach p (Meister et al. 2023).

    Tokens are taken in the order of |-log probability - entropy|. At least one is kept; of equally typical tokens the
    one with the lower id goes first.

    Args:
        logits: (..., V).
        p: 0 to 1; 1 keeps everything.
    """
    if p >= 1.0:
        return logits
    surprise = -logits.double().log_softmax(dim=-1)
    probability = surprise.neg().exp()
    # what has no probability adds nothing to the entropy, though its surprise is infinite
    entropy = (probability * surprise.masked_fill(probability == 0, 0.0)).sum(dim=-1, keepdim=True)
    order = (surprise - entropy).abs().sort(dim=-1, stable=True).indices
    return _kept(logits, order, probability.gather(-1, order), p)


def _kept(logits: Tensor, order: Tensor, ordered: Tensor, p: float | Tensor) -> Tensor:
    """Logits of the first tokens of an order whose probabilities (..., V), in that order, reach p; at least one."""
    drop = running_sum(ordered) - ordered >= p  # those before it hold enough already
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
    """The distribution that a token is drawn from.

    Args:
        logits: (..., V), after penalties.
        temperature: above 0.
        top_k, top_p, min_p, typical_p: as for the filters; None keeps all.

    Returns:
        (..., V) float64 probabilities.
    """
    # Shifted before the division: a tiny temperature may send the others to -inf, never the largest to +inf.
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
    """The token at which each row's cumulative probability passes its uniform number.

    Args:
        probabilities: (B, V), none negative.
        uniform: (B,) numbers in [0, 1).

    Returns:
        (B,) int64 tokens, never one of probability 0; of a row of NaN the last.
    """
    cumulative = running_sum(probabilities.double())
    total = cumulative[:, -1:]
    # Rounding must not carry the target up to the total, where no token would be left.
    target = torch.minimum(uniform[:, None].double() * total, torch.nextafter(total, torch.zeros_like(total)))
    # a NaN is passed nowhere, and a place behind the last would be fatal on a GPU
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp_(max=probabilities.shape[-1] - 1)


def uniform_noise(seed: int, key: int, n: int, *, sample: int = 0, first: int = 0) -> np.ndarray:
    """Numbers in [0, 1) of the counter-based stream that belongs to (seed, key, sample).

    Args:
        seed: of all noise.
        key: names the prompt.
        n: how many numbers.
        sample: which of the prompt's samples, from 0.
        first: number of the first one, a multiple of 4.
    """
    counter = [first // 4, 0, 0, sample % 2**64]  # each count makes four numbers
    return np.random.Generator(np.random.Philox(key=[seed % 2**64, key % 2**64], counter=counter)).random(n)


def running_sum(values: Tensor) -> Tensor:
    """Cumulative sum over the last axis; a GPU's kernel gives no fixed bits, and raises where those are asked for."""
    if values.device.type != "cpu" and torch.are_deterministic_algorithms_enabled():
        return values.cpu().cumsum(dim=-1).to(values.device)
    return values.cumsum(dim=-1)


def ranked(top: tuple[Tensor, Tensor]) -> list[list[tuple[int, float]]]:
    """Ids and values of each row, as topk finds values and ids."""
    values, ids = (part.tolist() for part in top)
    return [list(zip(*row, strict=True)) for row in zip(ids, values, strict=True)]


_SMALL_VOCABULARY = 1024  # below, to look for the likeliest tokens takes longer than to do without
_ROUNDING = 1e-4  # of float32


@dataclass(frozen=True)
class Choice:
    """What a step chose for each row.

    Attributes:
        tokens: (B,) int64.
        logprobs: (B,) the model's own log-probabilities of them.
        exhausted: (B,) bool, every token was forbidden and the one given means nothing; None if that cannot be.
        top: (B, n) log-probabilities and ids of the likeliest tokens, the best first; None if they are not asked for.
    """

    tokens: Tensor
    logprobs: Tensor
    exhausted: Tensor | None = None
    top: tuple[Tensor, Tensor] | None = None


class Sampler:
    """How a batch draws its tokens.

    Args:
        config: the settings.
        vocab_size: V.
        n_rows: B.
        longest: L, most tokens of a prompt's window and its continuation.
        device: of the logits.
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
        # a filter that keeps everything is none
        self.top_k = config.top_k or None
        self.top_p = config.top_p if config.top_p is not None and config.top_p < 1 else None
        self.typical_p = config.typical_p if config.typical_p is not None and config.typical_p < 1 else None
        self.min_p = config.min_p or None
        self.counting = bool(config.frequency_penalty or config.presence_penalty)
        self.penalising = self.counting or config.repetition_penalty != 1.0
        self.made = torch.zeros(n_rows, dtype=torch.int64, device=device)
        # (B, L) tokens, behind the last one the row's first again; (B, V) how often each was made
        remembers = self.penalising or config.no_repeat_ngram > 0
        self.history = torch.zeros(n_rows, longest if remembers else 0, dtype=torch.int64, device=device)
        self.lengths = torch.zeros(n_rows, dtype=torch.int64, device=device)
        self.counts = torch.zeros(n_rows, vocab_size if self.counting else 0, device=device)

    def begin(self, row: int, prompt: Sequence[int]) -> None:
        """Gives a row to another prompt."""
        self.made[row] = 0
        if self.history.shape[1]:
            self.history[row] = prompt[0]
            self.history[row, : len(prompt)] = torch.tensor(prompt, device=self.device)
            self.lengths[row] = len(prompt)
        self.counts[row] = 0

    def select(self, rows: Tensor) -> None:
        """Keeps only these rows, in this order."""
        self.made, self.history, self.lengths, self.counts = (
            part[rows] for part in (self.made, self.history, self.lengths, self.counts)
        )

    def choose(self, logits: Tensor, uniform: Tensor | None = None) -> Choice:
        """One token for each row, which the row then remembers.

        With config.deterministic each row is drawn by itself, so that no bit of it depends on the others.

        Args:
            logits: (B, V); they are changed. A row with a NaN gets a token that means nothing and the log-probability
                NaN.
            uniform: (B,) float64 numbers in [0, 1); not needed at temperature 0.
        """
        logits = logits.float()
        model_logprobs = logits.log_softmax(dim=-1)
        if logits.device.type == "cpu":
            broken = model_logprobs[:, :1].isnan()  # one NaN of a row makes them all NaN, and leaves nothing to draw
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
        """Logits after penalties, bias and bans."""
        config = self.config
        if self.penalising:
            seen, repetition = logits.gather(1, self.history), config.repetition_penalty
            if repetition != 1.0:
                seen = torch.where(seen > 0, seen / repetition, seen * repetition)
            if self.counting:
                counts = self.counts.gather(1, self.history)
                seen = seen - (config.frequency_penalty * counts + config.presence_penalty * (counts > 0))
            logits.scatter_(1, self.history, seen)  # a token that occurs twice is written twice, with the same number
        if self.biased is not None:
            logits.index_add_(1, self.biased, self.bias.expand(len(logits), -1))
        if self.suppressed is not None:
            logits.index_fill_(1, self.suppressed, -torch.inf)
        if self.ending is not None and config.min_new_tokens:
            early = (self.made < config.min_new_tokens)[:, None]
            logits[:, self.ending] = logits[:, self.ending].masked_fill_(early, -torch.inf)
        if config.no_repeat_ngram:
            self._ban_repeats(logits, config.no_repeat_ngram)
        return logits

    def _ban_repeats(self, logits: Tensor, n: int) -> None:
        """Forbids each token that followed the row's last n - 1 tokens before."""
        n_starts = self.history.shape[1] - n + 1
        if n_starts < 1:
            return
        starts = torch.arange(n_starts, device=logits.device)
        same = starts[None] + n <= self.lengths[:, None]  # (B, starts)
        for place in range(n - 1):
            last = (self.lengths - (n - 1) + place).clamp(min=0)
            same &= self.history[:, place : place + n_starts] == self.history.gather(1, last[:, None])
        rows, columns = same.nonzero(as_tuple=True)
        logits[rows, self.history[rows, columns + n - 1]] = -torch.inf

    def _exhausted(self, logits: Tensor) -> Tensor | None:
        """Rows in which nothing is left; their first token is let go, so that there is something to draw."""
        config = self.config
        if not (config.suppress or config.no_repeat_ngram or (config.min_new_tokens and config.ending_ids)):
            return None
        exhausted = logits.amax(-1) == -torch.inf
        logits[:, 0] = torch.where(exhausted, 0.0, logits[:, 0])
        return exhausted

    def _drawn(self, logits: Tensor, uniform: Tensor) -> Tensor:
        """Tokens (B,) by temperature, filters and noise."""
        temperature = self.config.temperature
        top_p: float | Tensor | None = self.top_p
        listed, ids = self._likeliest(logits) or (logits, None)
        if ids is not None and self.top_k is None and top_p is not None:
            top_p = top_p / _share(listed, logits, temperature)  # of the whole vocabulary, as one of what is listed
        tokens = draw(token_probabilities(listed, temperature, self.top_k, top_p, self.min_p, self.typical_p), uniform)
        return tokens if ids is None else ids.gather(1, tokens[:, None])[:, 0]

    def _likeliest(self, logits: Tensor) -> tuple[Tensor, Tensor] | None:
        """Logits and ids, in the order of the ids, among which all those are that the filters leave; None means all.

        To sort a vocabulary takes longer than a small network's pass, and filters leave little of one.
        """
        n_tokens = logits.shape[1]
        n = n_tokens // 8 if self.top_k is None else 2 * self.top_k
        filtered = self.top_k or self.top_p or self.min_p
        if logits.device.type != "cpu" or not filtered or n_tokens < _SMALL_VOCABULARY or n > n_tokens // 4:
            return None
        values, ids = logits.topk(n, dim=-1)
        rest = values[:, -1:]  # what is as unlikely as this may be missing
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
            # a row that has ended already has no room left, and needs none
            places = self.lengths.clamp(max=self.history.shape[1] - 1)
            self.history.scatter_(1, places[:, None], tokens[:, None])
            self.lengths += 1
        if self.counting:
            self.counts.scatter_add_(1, tokens[:, None], torch.ones_like(tokens, dtype=self.counts.dtype)[:, None])


def _argmax(logits: Tensor) -> Tensor:
    """The largest of each row, of equal ones the first."""
    if logits.device.type != "cpu":
        return logits.argmax(dim=-1)
    return torch.from_numpy(logits.numpy().argmax(axis=-1))  # numpy's search uses the vector units, torch's does not


def _share(listed: Tensor, logits: Tensor, temperature: float) -> Tensor:
    """(B, 1) float64 share of each row's probability that some of its logits (B, N) have."""
    highest = logits.amax(-1, keepdim=True)
    # float32 has no smaller temperatures, and at this one the likeliest tokens are alone already
    weights = [((part - highest) / max(temperature, 1e-30)).exp_() for part in (listed, logits)]
    some, all_of_them = (part.sum(-1, keepdim=True, dtype=torch.float64) for part in weights)
    return some / all_of_them
