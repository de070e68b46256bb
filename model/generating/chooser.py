"""Logits in, one token for each row out: penalties, forbidden tokens, filters, the draw, log-probabilities.

What rows remember (their tokens so far, and how often each occurred) lies in tensors beside the logits, so that a step
takes a fixed number of operations and none per row.

Shapes in comments: B rows, V vocabulary, L longest prompt with its continuation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import GenerationConfig
from ..sampling import draw, penalised, token_probabilities
from .shortlist import Shortlist, draw_from_all, likeliest, near_likeliest, nucleus

_SMALL_VOCABULARY = 1024  # below, to look for a shortlist takes longer than to do without


@dataclass(frozen=True)
class Choice:
    """What a step chose for each row.

    Attributes:
        tokens: (B,) int64.
        logprobs: (B,) the model's own log-probabilities of them.
        exhausted: (B,) bool, every token was forbidden and the one given means nothing; None if that cannot be.
        top_ids, top_logprobs: (B, n) the likeliest tokens, the best first; None if they are not asked for.
    """

    tokens: Tensor
    logprobs: Tensor
    exhausted: Tensor | None = None
    top_ids: Tensor | None = None
    top_logprobs: Tensor | None = None

    def best(self) -> list[list[tuple[int, float]]] | None:
        """The likeliest tokens of each row with their log-probabilities; None if they are not asked for."""
        if self.top_ids is None or self.top_logprobs is None:
            return None
        both = zip(self.top_ids.tolist(), self.top_logprobs.tolist(), strict=True)
        return [list(zip(ids, logprobs, strict=True)) for ids, logprobs in both]


class Chooser:
    """How a batch draws its tokens.

    Args:
        config: the settings.
        vocab_size: V.
        n_rows: B.
        longest: L.
        device: of the logits.
    """

    def __init__(
        self, config: GenerationConfig, vocab_size: int, n_rows: int, longest: int, device: torch.device | str = "cpu"
    ) -> None:
        self.config, self.vocab_size, self.device = config, vocab_size, device

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

    def choose(self, logits: Tensor, uniform: Tensor | None = None, *, alone: bool = False) -> Choice:
        """One token for each row, which the row then remembers.

        Args:
            logits: (B, V); they are changed. A row with a NaN gets a token that means nothing and the log-probability
                NaN.
            uniform: (B,) float64 numbers in [0, 1); not needed at temperature 0.
            alone: draw for each row by itself, so that no bit of it depends on the others.
        """
        logits = logits.float()
        model_logprobs = logits.log_softmax(dim=-1)
        if logits.device.type == "cpu":
            logits = _numbers(logits, model_logprobs)
        logits = self._changed(logits)
        exhausted = self._exhausted(logits)
        if uniform is None:
            tokens = _argmax(logits)
        elif alone:
            tokens = torch.cat([self._drawn(logits[row, None], uniform[row, None]) for row in range(len(logits))])
        else:
            tokens = self._drawn(logits, uniform)
        self._remember(tokens)
        logprobs = model_logprobs.gather(1, tokens[:, None])[:, 0]
        if not self.config.top_logprobs:
            return Choice(tokens, logprobs, exhausted)
        top = model_logprobs.topk(min(self.config.top_logprobs, self.vocab_size), dim=-1)
        return Choice(tokens, logprobs, exhausted, top.indices, top.values)

    def _changed(self, logits: Tensor) -> Tensor:
        """Logits after penalties, bias and bans."""
        config = self.config
        if self.penalising:
            counts = self.counts.gather(1, self.history) if self.counting else torch.zeros((), device=logits.device)
            settings = (config.repetition_penalty, config.frequency_penalty, config.presence_penalty)
            # a token that occurs twice is written twice, with the same number
            logits.scatter_(1, self.history, penalised(logits.gather(1, self.history), counts, *settings))
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
        config = self.config
        found = self._shortlist(logits)
        filters = (self.top_k, self.top_p, self.min_p, self.typical_p)
        if found is None:
            if filters == (None, None, None, None):
                return draw_from_all(logits, config.temperature, uniform)
            return draw(token_probabilities(logits, config.temperature, *filters), uniform)
        top_p: float | Tensor | None = self.top_p
        if found.mass is not None and top_p is not None:
            top_p = top_p / found.mass  # of all, as a share of what is listed
        probabilities = token_probabilities(
            found.logits, config.temperature, self.top_k, top_p, self.min_p, self.typical_p
        )
        places = draw(probabilities, uniform)
        return found.ids.gather(1, places[:, None])[:, 0]

    def _shortlist(self, logits: Tensor) -> Shortlist | None:
        """Tokens among which all those are that the filters leave; None means all."""
        config = self.config
        if logits.device.type != "cpu" or self.vocab_size < _SMALL_VOCABULARY:
            return None
        if self.top_k is not None:
            return likeliest(logits, self.top_k)
        if self.top_p is not None:
            return nucleus(logits, config.temperature, self.top_p)
        if self.min_p is not None:
            return near_likeliest(logits, config.temperature * math.log(self.min_p) - 1e-4)
        return None

    def _remember(self, tokens: Tensor) -> None:
        self.made += 1
        if self.history.shape[1]:
            # a row that has ended already has no room left, and needs none
            places = self.lengths.clamp(max=self.history.shape[1] - 1)
            self.history.scatter_(1, places[:, None], tokens[:, None])
            self.lengths += 1
        if self.counting:
            self.counts.scatter_add_(1, tokens[:, None], torch.ones_like(tokens, dtype=self.counts.dtype)[:, None])


def _numbers(logits: Tensor, logprobs: Tensor) -> Tensor:
    """Logits with something to draw from in rows that have a NaN, which would leave a shortlist nothing."""
    broken = logprobs[:, :1].isnan()  # one of a row's makes them all NaN
    return logits.masked_fill(broken, 0.0) if broken.any() else logits


def _argmax(logits: Tensor) -> Tensor:
    """The largest of each row, of equal ones the first."""
    if logits.device.type != "cpu":
        return logits.argmax(dim=-1)
    return torch.from_numpy(logits.numpy().argmax(axis=-1))  # numpy's search uses the vector units, torch's does not
