"""A decoder-only Transformer: token ids in, logits of the next token out.

One network for every architecture: the switches of ModelConfig choose positions, norms, attention, activation, head and
initial weights. The named parts (embed, blocks, norm, head) are the operators whose composition is the model.

Shapes in comments: B rows, T tokens, D d_model, V padded vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .architecture import ModelConfig
from .attention import Attention, Reading, attention_mask
from .cache import KVCache
from .data import IGNORE
from .kernels import Linear
from .loss import linear_nll
from .norms import build_norm
from .positions import rotary_table, sinusoidal_table


def activate(x: Tensor, act: str) -> Tensor:
    """The feed-forward layer's activation (Hendrycks and Gimpel 2016 for GELU, So et al. 2021 for ReLU squared)."""
    if act == "relu":
        return F.relu(x)
    if act == "relu2":
        return F.relu(x).square()
    return F.gelu(x, approximate="tanh" if act == "gelu_tanh" else "none")


class FeedForward(nn.Module):
    """Two linear layers with an activation between them: (B, T, D) -> (B, T, D).

    With act="swiglu" a third one gates them: down(silu(gate(x)) * up(x)) (Shazeer 2020).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.act = config.act
        gated = config.act == "swiglu"
        self.gate = Linear(config.d_model, config.d_ff, bias=config.ffn_bias) if gated else None
        self.up = Linear(config.d_model, config.d_ff, bias=config.ffn_bias)
        self.down = Linear(config.d_ff, config.d_model, bias=config.ffn_bias)
        self.dropout = nn.Dropout(config.drop_ffn)

    def forward(self, x: Tensor) -> Tensor:
        hidden = activate(self.up(x), self.act) if self.gate is None else F.silu(self.gate(x)) * self.up(x)
        output: Tensor = self.down(self.dropout(hidden))
        return output


class Block(nn.Module):
    """Attention and feed-forward, each beside a residual path.

    Pre-norm: x + branch(norm(x)). Post-norm: norm(x + branch(x)).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm_attention = build_norm(config)
        self.attention = Attention(config)
        self.norm_mlp = build_norm(config)
        self.mlp = FeedForward(config)
        self.dropout = nn.Dropout(config.drop_resid)
        self.post_norm = config.norm_order == "post"

    def forward(self, x: Tensor, layer: int, reading: Reading) -> Tensor:
        if self.post_norm:
            x = self.norm_attention(x + self.dropout(self.attention(x, layer, reading)))
            return self.norm_mlp(x + self.dropout(self.mlp(x)))
        x = x + self.dropout(self.attention(self.norm_attention(x), layer, reading))
        return x + self.dropout(self.mlp(self.norm_mlp(x)))


class Transformer(nn.Module):
    """The network.

    Args:
        config: its shape. Initial weights are drawn from torch's global generator; seed that for a given start.

    Attributes:
        recompute: in training, keep what enters each block only, and compute the rest again in the backward pass.
        compiled: what takes the place of `read` and `score`, by their names (see model/compiling.py).
    """

    position_table: Tensor | None
    rotation_table: Tensor | None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.recompute = False
        self.compiled: dict[str, Callable[..., Tensor]] = {}
        self.token_embedding = nn.Embedding(config.padded_vocab_size, config.d_model)
        self._build_positions()
        self.dropout = nn.Dropout(config.drop_embed)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.norm = build_norm(config) if config.final_norm else nn.Identity()
        # A tied head is no module of its own, so that the shared matrix is stored once.
        self.untied_head = None
        if not config.tie_weights:
            self.untied_head = nn.Linear(config.d_model, config.padded_vocab_size, bias=False)
        self.head_bias = nn.Parameter(torch.zeros(config.padded_vocab_size)) if config.head_bias else None
        self._initialise()

    def _build_positions(self) -> None:
        config, added, rotation = self.config, None, None
        if config.pos == "sinusoidal":
            added = sinusoidal_table(config.max_seq_len, config.d_model, config.pos_base).float()
        elif config.pos == "rope":
            rotation = rotary_table(config, config.max_seq_len).float()
        if config.pos == "learned":
            self.position_table = nn.Parameter(torch.empty(config.max_seq_len, config.d_model))
        else:
            self.register_buffer("position_table", added, persistent=False)
        self.register_buffer("rotation_table", rotation, persistent=False)

    @torch.no_grad()
    def _initialise(self) -> None:
        config = self.config
        # Each block adds two branches to the residual stream; dividing what writes to it keeps its variance
        # independent of depth (Radford et al. 2019, section 2.3).
        shrink = 1 / math.sqrt(2 * config.n_layer) if config.init_residual_scaling else 1.0
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                parameter.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
                continue
            if config.init == "normal" or name in ("token_embedding.weight", "position_table"):
                parameter.normal_(0.0, config.init_std)
            else:
                fused = name.endswith("attention.qkv.weight")
                rows = [n * config.head_dim for n in (config.n_head, config.n_kv_head, config.n_kv_head)]
                for matrix in parameter.split(rows) if fused else (parameter,):
                    nn.init.xavier_normal_(matrix)
            if name.endswith(("attention.proj.weight", "mlp.down.weight")):
                parameter.mul_(shrink)

    def forward(
        self,
        ids: Tensor,
        *,
        cache: KVCache | None = None,
        lengths: Tensor | None = None,
        documents: Sequence[Sequence[int]] | None = None,
    ) -> Tensor:
        """Logits of the next token at every position.

        Args:
            ids: (B, T) int64 token ids.
            cache: keys and values read so far; the ids continue each row at that row's own length.
            lengths: (B,) valid ids of each row where rows are right-padded; only with a cache. Logits at padding mean
                nothing.
            documents: the lengths of the documents that lie one after the other in each row, adding up to T at most
                (what is left over is padding). Each is read as if it were alone, from position 0.

        Returns:
            (B, T, V) logits; those of ids from config.vocab_size on are -inf.

        Raises:
            ValueError: the sequence is longer than max_seq_len or than the cache has room for, or the documents do not
                fit it.
        """
        return self.head(self.features(ids, cache=cache, lengths=lengths, documents=documents))

    def features(
        self,
        ids: Tensor,
        *,
        cache: KVCache | None = None,
        lengths: Tensor | None = None,
        documents: Sequence[Sequence[int]] | None = None,
    ) -> Tensor:
        """The normalised hidden states (B, T, D) that the head reads; arguments as for forward."""
        if lengths is not None:
            _check_lengths(lengths, ids, cache)
        positions, reading = self.plan(ids, cache, documents)
        features = self.read(ids, positions, reading)
        if cache is not None:
            cache.advance(ids.shape[1], lengths)
        return features

    def read(self, ids: Tensor, positions: Tensor | slice, reading: Reading) -> Tensor:
        """The normalised hidden states (B, T, D) of ids with their plan."""
        x = self.embed(ids, positions)
        again = self.recompute and self.training and torch.is_grad_enabled()
        for layer, block in enumerate(self.blocks):
            x = checkpoint(block, x, layer, reading, use_reentrant=False) if again else block(x, layer, reading)
        features: Tensor = self.norm(x)
        return features

    def plan(
        self, ids: Tensor, cache: KVCache | None = None, documents: Sequence[Sequence[int]] | None = None
    ) -> tuple[Tensor | slice, Reading]:
        """Positions of the ids, as an index of the position tables, and what all layers need to know of them."""
        n_rows, n_new = ids.shape
        window = self.config.window
        if n_new > self.config.max_seq_len:
            raise ValueError(
                f"a sequence of {n_new} tokens is longer than max_seq_len={self.config.max_seq_len}; "
                f"cut it, or train a model with a longer context"
            )
        positions: Tensor | slice = slice(n_new)
        mask = step = None
        if cache is not None:
            if documents is not None:
                raise ValueError("documents cannot be told apart behind a cache; read them in one pass without it")
            step = cache.plan(n_rows, n_new)
            positions = step.positions
            if step.start > 0 or (window is not None and window < step.end):
                slots = torch.arange(step.end, device=ids.device)
                mask = attention_mask(positions, slots, window)[:, None]
        elif documents is not None:
            numbers, positions = _document_places(documents, n_rows, n_new, ids.device)
            places = torch.arange(n_new, device=ids.device)
            mask = attention_mask(places, places, window, (numbers, numbers))[:, None]
        elif window is not None and window < n_new:
            places = torch.arange(n_new, device=ids.device)
            mask = attention_mask(places, places, window)
        rotation = None if self.rotation_table is None else self.rotation_table[positions]
        return positions, Reading(rotation, mask, None if cache is None or step is None else (cache, step))

    def embed(self, ids: Tensor, positions: Tensor | slice) -> Tensor:
        """Token vectors plus position vectors (B, T, D), with dropout."""
        x: Tensor = self.token_embedding(ids)
        if self.position_table is not None:
            x = x + self.position_table[positions]
        dropped: Tensor = self.dropout(x)
        return dropped

    def head(self, features: Tensor) -> Tensor:
        """Logits (..., V) of hidden states (..., D)."""
        logits = F.linear(features, self.head_weight, self.head_bias)
        if self.config.padded_vocab_size > self.config.vocab_size:
            logits[..., self.config.vocab_size :] = -torch.inf
        return logits

    @property
    def head_weight(self) -> Tensor:
        """The head's matrix (V, D): the token embedding's if they are tied."""
        return self.token_embedding.weight if self.untied_head is None else self.untied_head.weight

    def nll(self, ids: Tensor, labels: Tensor, *, documents: Sequence[Sequence[int]] | None = None) -> Tensor:
        """Summed negative log-likelihood of the labels, in nats.

        Args:
            ids: (B, T) int64.
            labels: (B, T) int64, the ids one place further on; -100 where there is nothing to predict.
            documents: as for forward.
        """
        positions, reading = self.plan(ids, None, documents)
        if ids.device.type != "cpu":
            return self._now("score")(ids, labels, positions, reading)
        features = self._now("read")(ids, positions, reading)
        if features.dtype == torch.bfloat16 or torch.is_autocast_enabled("cpu"):
            return self._nll_of_logits(features, labels)  # autocast needs its own matrix products
        n = self.config.vocab_size  # the rows behind it are padding
        bias = None if self.head_bias is None else self.head_bias[:n]
        return linear_nll(features, self.head_weight[:n], labels, bias)

    def score(self, ids: Tensor, labels: Tensor, positions: Tensor | slice, reading: Reading) -> Tensor:
        """Summed negative log-likelihood by all logits at once, for which a GPU has the memory."""
        return self._nll_of_logits(self.read(ids, positions, reading), labels)

    def _nll_of_logits(self, features: Tensor, labels: Tensor) -> Tensor:
        logits = self.head(features).flatten(0, 1).float()
        return F.cross_entropy(logits, labels.flatten(), ignore_index=IGNORE, reduction="sum")

    def _now(self, name: str) -> Callable[..., Tensor]:
        """A method, or in training what was compiled of it."""
        method: Callable[..., Tensor] = getattr(self, name)
        return self.compiled.get(name, method) if self.training else method

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "compiled": {}}  # compiled code is bound to this network, not to a copy of it

    def loss(self, ids: Tensor, labels: Tensor, *, documents: Sequence[Sequence[int]] | None = None) -> Tensor:
        """Mean of nll over the valid labels; NaN if there are none."""
        return self.nll(ids, labels, documents=documents) / (labels != IGNORE).sum()


def _check_lengths(lengths: Tensor, ids: Tensor, cache: KVCache | None) -> None:
    if cache is None:
        raise ValueError(
            "lengths say how much of each row a cache keeps, and there is no cache; causal attention needs none"
        )
    n_rows, n_tokens = ids.shape
    if lengths.shape != (n_rows,) or not 1 <= int(lengths.min()) <= int(lengths.max()) <= n_tokens:
        raise ValueError(
            f"lengths={lengths.tolist()}; expected {n_rows} numbers from 1 to {n_tokens}, one for each row"
        )


def _document_places(
    documents: Sequence[Sequence[int]], n_rows: int, n_tokens: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Number of each token's document and its place in it, both (B, T); padding is a document of its own."""
    if len(documents) != n_rows:
        raise ValueError(f"documents are given for {len(documents)} rows, but there are {n_rows} rows of ids")
    numbers, places = [], []
    for row, lengths in enumerate(documents):
        left = n_tokens - sum(lengths)
        if left < 0 or any(length < 1 for length in lengths):
            raise ValueError(
                f"the documents of row {row} have the lengths {list(lengths)}; expected numbers of at least 1 that add "
                f"up to {n_tokens} at most"
            )
        filled = [*lengths, left] if left else list(lengths)
        numbers.append(torch.repeat_interleave(torch.arange(len(filled)), torch.tensor(filled)))
        places.append(torch.cat([torch.arange(length) for length in filled]))
    return torch.stack(numbers).to(device), torch.stack(places).to(device)
