"""A decoder-only Transformer: token ids in, logits of the next token out.

One network for every architecture: the switches of ModelConfig choose positions, norms, attention, activation, head and
initial weights. And one forward pass for every purpose: training, scoring, reading a prompt, decoding and tracing are
`Transformer.read` with another `Pass`.

Shapes in comments: B rows, T tokens, D d_model, H query heads, K key-value heads, E head_dim, S key slots, V padded
vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .architecture import ModelConfig
from .attention import (
    AttentionMask,
    additive,
    attend,
    attention_mask,
    block_mask,
    rotary_table,
    sinusoidal_table,
    spread,
    turn,
)
from .data import IGNORE
from .kernels import Linear, linear, linears
from .kv_cache import CacheSlots, KVCache

Record = Callable[[int | None, str, Tensor], None]
See = Callable[[str, Tensor], None]


@dataclass(frozen=True)
class Pass:
    """What all layers of one forward pass have in common.

    Attributes:
        positions: index of the position tables: a slice of them, or (B, T) numbers.
        rotation: cosines and signed sines (T, 1, rope_dim) or (B, T, 1, rope_dim); None without rotary positions.
        mask: what is added to the scores, broadcastable to (B, H, T, S), or a mask of blocks; None is plain causal
            attention without a cache or for a prompt, else all slots that are read are seen.
        slots: where the new keys and values go, and which are read; None without a cache.
        record: told (layer, name, value) of each intermediate value, without which nothing is kept.
    """

    positions: Tensor | slice = field(default_factory=lambda: slice(None))
    rotation: tuple[Tensor, Tensor] | None = None
    mask: AttentionMask | None = None
    slots: CacheSlots | None = None
    record: Record | None = None

    def seer(self, layer: int | None) -> See | None:
        """What is told the values of a layer by name; None if nobody looks on."""
        return None if self.record is None else partial(self.record, layer)


WHOLE = Pass()  # sequences from position 0, without rotary positions


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * gain over the last axis (Zhang and Sennrich 2019)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def build_norm(config: ModelConfig) -> nn.Module:
    """The norm over the residual stream that the configuration asks for."""
    if config.norm == "rmsnorm":
        return RMSNorm(config.d_model, config.norm_eps)
    return nn.LayerNorm(config.d_model, eps=config.norm_eps, bias=config.norm_bias)


class Attention(nn.Module):
    """Causal multi-head self-attention: (B, T, D) -> (B, T, D)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim, self.rope_layout = config.head_dim, config.rope_layout
        self.dropout = config.drop_attn
        width, kv_width = config.n_head * config.head_dim, config.n_kv_head * config.head_dim
        self.q = Linear(config.d_model, width, bias=config.qkv_bias)
        self.k = Linear(config.d_model, kv_width, bias=config.qkv_bias)
        self.v = Linear(config.d_model, kv_width, bias=config.qkv_bias)
        self.proj = Linear(width, config.d_model, bias=config.attn_bias)
        self.norm_q = RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else None
        self.norm_k = RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else None

    def project(
        self, x: Tensor, rotation: tuple[Tensor, Tensor] | None = None, see: See | None = None
    ) -> tuple[Tensor, ...]:
        """Queries (B, H, T, E), keys and values (B, K, T, E), normalised and rotated as configured."""
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)) for part in linears(x, self.q, self.k, self.v))
        if self.norm_q is not None and self.norm_k is not None:
            q, k = self.norm_q(q), self.norm_k(k)
        if rotation is not None:
            if see is not None:
                see("q_unrotated", q.transpose(1, 2))
                see("k_unrotated", k.transpose(1, 2))
            q, k = turn(q, rotation, self.rope_layout), turn(k, rotation, self.rope_layout)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def forward(self, x: Tensor, layer: int, now: Pass) -> Tensor:
        see = now.seer(layer)
        q, k, v = self.project(x, now.rotation, see)
        if see is not None:
            see("q", q)
            see("k", k)
            see("v", v)
        if now.slots is not None:
            k, v = now.slots.write(layer, k, v)
        is_causal = now.slots is None or now.slots.is_prompt
        dropout = self.dropout if self.training else 0.0
        mixed = attend(q, k, v, now.mask, is_causal, dropout, see)
        output: Tensor = self.proj(mixed.transpose(1, 2).flatten(2))
        return output


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

    def forward(self, x: Tensor, layer: int = 0, now: Pass = WHOLE) -> Tensor:
        see = now.seer(layer)
        up, gate = linears(x, self.up, self.gate) if self.gate is not None else (self.up(x), None)
        opened = None if gate is None else F.silu(gate)
        hidden = activate(up, self.act) if opened is None else opened * up
        if see is not None:
            for name, value in (("up", up), ("gate", gate), ("silu_gate", opened), ("hidden", hidden)):
                if value is not None:
                    see(name, value)
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
        of_mlp = config.drop_resid if config.drop_resid_mlp is None else config.drop_resid_mlp
        self.drop_attention, self.drop_mlp = nn.Dropout(config.drop_resid), nn.Dropout(of_mlp)
        self.post_norm = config.norm_order == "post"

    def forward(self, x: Tensor, layer: int, now: Pass) -> Tensor:
        see = now.seer(layer)
        for name, norm, branch, dropout in (
            ("attention", self.norm_attention, self.attention, self.drop_attention),
            ("ffn", self.norm_mlp, self.mlp, self.drop_mlp),
        ):
            added = branch(x if self.post_norm else _normed(norm, x, f"norm_{name}", see), layer, now)
            summed = x + dropout(added)
            if see is not None:
                see(name, added)
                see(f"sum_{name}", summed)
            x = _normed(norm, summed, f"norm_{name}", see) if self.post_norm else summed
        return x


def _normed(norm: nn.Module, x: Tensor, name: str, see: See | None) -> Tensor:
    """norm(x); who looks on is told the mean and the variance of what it reads, too."""
    y: Tensor = norm(x)
    if see is not None:
        see(f"{name}_moments", torch.stack([x.mean(-1), x.var(-1, correction=0)], dim=-1))
        see(name, y)
    return y


class Transformer(nn.Module):
    """The network.

    Args:
        config: its shape. Initial weights are drawn from torch's global generator; seed that for a given start.

    Attributes:
        recompute: in training, keep what enters each block only, and compute the rest again in the backward pass.
        compiled: what takes the place of `read` and `score`, by their names (see model/step.py).
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
        self.untied_head = None if config.tie_weights else Linear(config.d_model, config.padded_vocab_size, bias=False)
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
            elif config.init == "xavier" and name not in ("token_embedding.weight", "position_table"):
                nn.init.xavier_normal_(parameter)
            elif config.init == "inverse_cdf":
                # u = 0 would be at minus infinity, and float32 has no number between the largest u and 1
                drawn = torch.rand(parameter.shape, dtype=torch.float64).clamp_(min=2**-53)
                parameter.copy_(config.init_std * torch.special.ndtri(drawn))
            else:
                parameter.normal_(0.0, config.init_std)
            if name.endswith(("attention.proj.weight", "mlp.down.weight")):
                parameter.mul_(shrink)

    def forward(
        self,
        ids: Tensor,
        *,
        cache: KVCache | None = None,
        lengths: Tensor | None = None,
        documents: Sequence[Sequence[int]] | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """Logits of the next token at every position.

        Args:
            ids: (B, T) int64 token ids.
            cache: keys and values read so far; the ids continue each row at that row's own length.
            lengths: (B,) valid ids of each row where rows are right-padded; only with a cache. Logits at padding mean
                nothing.
            documents: the lengths of the documents that lie one after the other in each row, adding up to T at most
                (what is left over is padding). Each is read as if it were alone, from position 0.
            attention_mask: broadcastable to (B, H, T, T), added to the scores beside the causal mask: 0 where a token
                may look, -inf where not, numbers between where it is to look less.

        Returns:
            (B, T, V) logits; those of ids from config.vocab_size on are -inf.

        Raises:
            ValueError: the sequence is longer than max_seq_len or than the cache has room for, the documents do not
                fit it, or a mask is given with a cache or documents.
        """
        return self.head(
            self.features(ids, cache=cache, lengths=lengths, documents=documents, attention_mask=attention_mask)
        )

    def features(
        self,
        ids: Tensor,
        *,
        cache: KVCache | None = None,
        lengths: Tensor | None = None,
        documents: Sequence[Sequence[int]] | None = None,
        attention_mask: Tensor | None = None,
        record: Record | None = None,
    ) -> Tensor:
        """The normalised hidden states (B, T, D) that the head reads; arguments as for forward and Pass."""
        if lengths is not None:
            _check_lengths(lengths, ids, cache)
        if cache is not None:
            if documents is not None or attention_mask is not None:
                what = "an attention mask has no place" if documents is None else "documents cannot be told apart"
                raise ValueError(f"{what} behind a cache; read them in one pass without it")
            now = self.continued(cache.slots(*ids.shape))
        else:
            now = self.plan(ids, documents, attention_mask)
        features = self.read(ids, replace(now, record=record))
        if cache is not None:
            cache.lengths += ids.shape[1] if lengths is None else lengths.cpu()
        return features

    def read(self, ids: Tensor, now: Pass) -> Tensor:
        """The normalised hidden states (B, T, D) of ids (B, T): the one forward pass."""
        see, x = now.seer(None), self.token_embedding(ids)
        if see is not None:
            see("embedding", x)
        x = self.place(x, now)
        if see is not None:
            see("sum", x)
        again = self.recompute and self.training and torch.is_grad_enabled()
        for layer, block in enumerate(self.blocks):
            x = checkpoint(block, x, layer, now, use_reentrant=False) if again else block(x, layer, now)
            if now.record is not None:
                now.record(layer, "output", x)
        return _normed(self.norm, x, "norm", see)

    def place(self, x: Tensor, now: Pass) -> Tensor:
        """Token vectors (B, T, D) with position vectors added, and dropout."""
        see = now.seer(None)
        if self.position_table is not None:
            places = self.position_table[now.positions]
            x = x + places
            if see is not None:
                see("position", places)
        if self.rotation_table is not None and see is not None:
            see("rotation", self.rotation_table[now.positions].flatten(-2))
        placed: Tensor = self.dropout(x)
        return placed

    def plan(
        self,
        ids: Tensor,
        documents: Sequence[Sequence[int]] | None = None,
        added: Tensor | None = None,
    ) -> Pass:
        """The pass over whole sequences; documents and what is added to the scores as for forward."""
        n_rows, n_tokens = ids.shape
        if n_tokens > self.config.max_seq_len:
            raise ValueError(
                f"a sequence of {n_tokens} tokens is longer than max_seq_len={self.config.max_seq_len}; "
                f"cut it, or train a model with a longer context"
            )
        positions: Tensor | slice = slice(n_tokens)
        window, places = self.config.window, torch.arange(n_tokens, device=ids.device)
        if documents is not None:
            if added is not None:
                raise ValueError("an attention mask and documents are given; say by the mask who may look at whom")
            numbers, positions = _document_places(documents, n_rows, n_tokens, ids.device)
            if ids.device.type == "cuda" and not self.config.drop_attn:  # which a mask of blocks does not go with
                return self._pass(positions, block_mask(numbers, window))
            return self._pass(positions, self._mask(places, places, (numbers, numbers))[:, None])
        mask = None
        if added is not None or (window is not None and window < n_tokens):
            mask = self._mask(places, places)
        return self._pass(positions, mask if added is None or mask is None else mask + added)

    def continued(self, slots: CacheSlots) -> Pass:
        """The pass over tokens that continue the rows of a cache."""
        sees_all = self.config.window is None or self.config.window >= slots.end
        # a mask of nothing costs the fast kernels; so prompts, and rows of one length, have none
        if sees_all and (slots.is_prompt or slots.is_even):
            return self._pass(slots.positions, None, slots)
        places = torch.arange(slots.end, device=slots.positions.device)
        return self._pass(slots.positions, self._mask(slots.positions, places)[:, None], slots)

    def _mask(self, queries: Tensor, keys: Tensor, documents: tuple[Tensor, Tensor] | None = None) -> Tensor:
        seen = attention_mask(queries, keys, self.config.window, documents)
        return additive(seen, self.token_embedding.weight.dtype)

    def _pass(self, positions: Tensor | slice, mask: AttentionMask | None, slots: CacheSlots | None = None) -> Pass:
        table, layout = self.rotation_table, self.config.rope_layout
        rotation = None if table is None else spread(table[positions], layout)
        return Pass(positions, rotation, mask, slots)

    def head(self, features: Tensor) -> Tensor:
        """Logits (..., V) of hidden states (..., D)."""
        logits = linear(features, self.head_weight, self.head_bias, training=self.training)
        if self.config.padded_vocab_size > self.config.vocab_size:
            logits = F.pad(
                logits[..., : self.config.vocab_size],
                (0, self.config.padded_vocab_size - self.config.vocab_size),
                value=-torch.inf,
            )
        return logits

    def next_logits(self, tokens: Tensor, slots: CacheSlots) -> Tensor:
        """Logits (B, vocab_size) behind one more token (B,) of each row; the cache's lengths stay as they are."""
        features = self.read(tokens[:, None], self.continued(slots))
        return self.head(features[:, 0])[:, : self.config.vocab_size]

    def products(self) -> Iterator[list[tuple[Tensor, Tensor | None]]]:
        """Weights and biases of all products; those of one input together."""
        for block in self.blocks:
            assert isinstance(block, Block)
            attention, mlp = block.attention, block.mlp
            inputs = [mlp.up] if mlp.gate is None else [mlp.up, mlp.gate]
            for group in ([attention.q, attention.k, attention.v], [attention.proj], inputs, [mlp.down]):
                yield [(layer.weight, layer.bias) for layer in group]
        yield [(self.head_weight, self.head_bias)]

    @property
    def head_weight(self) -> Tensor:
        """The head's matrix (V, D): the token embedding's if they are tied."""
        return self.token_embedding.weight if self.untied_head is None else self.untied_head.weight

    def nll(
        self,
        ids: Tensor,
        labels: Tensor,
        *,
        documents: Sequence[Sequence[int]] | None = None,
        reduction: str = "sum",
        ignore_index: int = IGNORE,
    ) -> Tensor:
        """Negative log-likelihood of the labels, in nats.

        Args:
            ids: (B, T) int64.
            labels: (B, T) int64, the ids one place further on; ignore_index where there is nothing to predict.
            documents: as for forward.
            reduction: "sum" over all labels, () ; "sequence", the sum of each row, (B,); or "token", (B, T), 0 where
                there is nothing to predict.
            ignore_index: the label that is left out.
        """
        if reduction not in ("sum", "sequence", "token"):
            raise ValueError(f"reduction={reduction!r}; expected 'sum', 'sequence' or 'token'")
        now = self.plan(ids, documents)
        if reduction != "sum":
            found = self._nll_of_logits(self.read(ids, now), labels, "none", ignore_index).view_as(labels)
            return found.sum(1) if reduction == "sequence" else found
        if ids.device.type != "cpu":
            return self._compiled_or_own("score")(ids, labels, now, ignore_index)
        features = self._compiled_or_own("read")(ids, now)
        if features.dtype == torch.bfloat16 or torch.is_autocast_enabled("cpu"):
            return self._nll_of_logits(features, labels, "sum", ignore_index)  # autocast needs its own products
        n = self.config.vocab_size  # the rows behind it are padding
        bias = None if self.head_bias is None else self.head_bias[:n]
        return linear_nll(features, self.head_weight[:n], labels, bias, ignore_index)

    def score(self, ids: Tensor, labels: Tensor, now: Pass, ignore_index: int = IGNORE) -> Tensor:
        """Summed negative log-likelihood by all logits at once, for which a GPU has the memory."""
        return self._nll_of_logits(self.read(ids, now), labels, "sum", ignore_index)

    def _nll_of_logits(self, features: Tensor, labels: Tensor, reduction: str, ignore_index: int) -> Tensor:
        logits = self.head(features).flatten(0, 1).float()
        return F.cross_entropy(logits, labels.flatten(), ignore_index=ignore_index, reduction=reduction)

    def _compiled_or_own(self, name: str) -> Callable[..., Tensor]:
        """A method, or in training what was compiled of it."""
        method: Callable[..., Tensor] = getattr(self, name)
        return self.compiled.get(name, method) if self.training else method

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "compiled": {}}  # compiled code is bound to this network, not to a copy of it

    def loss(
        self,
        ids: Tensor,
        labels: Tensor,
        *,
        documents: Sequence[Sequence[int]] | None = None,
        ignore_index: int = IGNORE,
    ) -> Tensor:
        """Mean of nll over the valid labels; NaN if there are none."""
        total = self.nll(ids, labels, documents=documents, ignore_index=ignore_index)
        return total / (labels != ignore_index).sum()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards every module has its own mode again."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def linear_nll(
    features: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None = None, ignore_index: int = IGNORE
) -> Tensor:
    """Summed negative log-likelihood, in nats, of labels (...) under softmax(features (..., D) weight^T + bias).

    With more ids than features it goes block by block, so that the logits, by far the largest thing of such a network,
    are never all in memory; gradients are computed at once then, and it is differentiable once.
    """
    blocks = nn.LinearCrossEntropyOptions() if len(weight) > weight.shape[1] else None
    return F.linear_cross_entropy(
        features.flatten(0, -2), weight, labels.flatten(), linear_bias=bias, reduction="sum",
        ignore_index=ignore_index, options=blocks,
    )  # fmt: skip


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
