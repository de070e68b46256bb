"""A decoder-only Transformer.

ModelConfig selects positions, norms, attention, activation, head and initial weights. Training, scoring, prefill,
decoding and tracing all call `Transformer.read` with another `Pass`.

Shapes in comments: B rows, T tokens, D d_model, H query heads, K key-value heads, E head_dim, S key slots, V padded
vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .architecture import ModelConfig
from .attention import (
    AttentionMask,
    additive_mask,
    apply_rotary,
    attend,
    attention_mask,
    block_mask,
    rotary_columns,
    rotary_table,
    sinusoidal_table,
)
from .data import IGNORE
from .kernels import Linear, linear, linears
from .kv_cache import CacheSlots, KVCache

Record = Callable[[int | None, str, Tensor], None]
RecordValue = Callable[[str, Tensor], None]


@dataclass(frozen=True)
class Pass:
    """Arguments of one forward pass, of all layers or of one.

    Attributes:
        positions: index into the position tables: a slice, or (B, T) positions.
        rotation: cosines and signed sines (T, 1, rope_dim) or (B, T, 1, rope_dim); None without rotary positions.
        mask: added to the scores, broadcastable to (B, H, T, S), or a BlockMask. None means causal attention without a
            cache and in prefill, and attention to all slots that are read otherwise.
        slots: cache slots that are written and read; None without a cache.
        record: called with (layer, name, value) of each intermediate value; None records nothing.
        layers: the Pass of each layer, where layers differ; else empty.
    """

    positions: Tensor | slice = field(default_factory=lambda: slice(None))
    rotation: tuple[Tensor, Tensor] | None = None
    mask: AttentionMask | None = None
    slots: CacheSlots | None = None
    record: Record | None = None
    layers: tuple[Pass, ...] = ()

    def of(self, layer: int) -> Pass:
        """Return the Pass of a layer."""
        if not self.layers:
            return self
        own = self.layers[layer]
        return own if self.record is None else replace(own, record=self.record)

    def recorder(self, layer: int | None) -> RecordValue | None:
        """Return `record` bound to a layer; None if nothing is recorded."""
        return None if self.record is None else partial(self.record, layer)


WHOLE = Pass()  # sequences from position 0, without rotary positions


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * gain over the last axis (Zhang and Sennrich 2019)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_inference_mode_enabled() and x.device.type == "cpu" and x.dtype == torch.float32:
            # the same bits; torch's own takes twice as long for a few rows
            return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def build_norm(config: ModelConfig) -> nn.Module:
    """Return the configured norm of width d_model."""
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
        self, x: Tensor, rotation: tuple[Tensor, Tensor] | None = None, record: RecordValue | None = None
    ) -> tuple[Tensor, ...]:
        """Return queries (B, H, T, E), keys and values (B, K, T, E), normalised and rotated as configured."""
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)) for part in linears(x, self.q, self.k, self.v))
        if self.norm_q is not None and self.norm_k is not None:
            q, k = self.norm_q(q), self.norm_k(k)
        if rotation is not None:
            if record is not None:
                record("q_unrotated", q.transpose(1, 2))
                record("k_unrotated", k.transpose(1, 2))
            q, k = apply_rotary(q, rotation, self.rope_layout), apply_rotary(k, rotation, self.rope_layout)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def forward(self, x: Tensor, layer: int, ctx: Pass) -> Tensor:
        record = ctx.recorder(layer)
        q, k, v = self.project(x, ctx.rotation, record)
        if record is not None:
            record("q", q)
            record("k", k)
            record("v", v)
        if ctx.slots is not None:
            k, v = ctx.slots.write(layer, k, v)
        is_causal = ctx.slots is None or ctx.slots.is_prompt
        dropout = self.dropout if self.training else 0.0
        mixed = attend(q, k, v, ctx.mask, is_causal, dropout, record)
        output: Tensor = self.proj(mixed.transpose(1, 2).flatten(2))
        return output


def activate(x: Tensor, act: str) -> Tensor:
    """Apply the activation (Hendrycks and Gimpel 2016 for GELU, So et al. 2021 for squared ReLU)."""
    if act == "relu":
        return F.relu(x)
    if act == "relu2":
        return F.relu(x).square()
    return F.gelu(x, approximate="tanh" if act == "gelu_tanh" else "none")


class FeedForward(nn.Module):
    """Two linear layers with an activation between them: (B, T, D) -> (B, T, D).

    With act="swiglu" a third layer gates them: down(silu(gate(x)) * up(x)) (Shazeer 2020); with "geglu" by GELU.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.act = config.act
        self.gate = Linear(config.d_model, config.d_ff, bias=config.ffn_bias) if config.is_gated else None
        self.up = Linear(config.d_model, config.d_ff, bias=config.ffn_bias)
        self.down = Linear(config.d_ff, config.d_model, bias=config.ffn_bias)
        self.dropout = nn.Dropout(config.drop_ffn)

    def forward(self, x: Tensor, layer: int = 0, ctx: Pass = WHOLE) -> Tensor:
        record = ctx.recorder(layer)
        up, gate = linears(x, self.up, self.gate) if self.gate is not None else (self.up(x), None)
        opened = None
        if gate is not None:
            opened = F.silu(gate) if self.act == "swiglu" else F.gelu(gate, approximate="tanh")
        hidden = activate(up, self.act) if opened is None else opened * up
        if record is not None:
            for name, value in (("up", up), ("gate", gate), ("silu_gate", opened), ("hidden", hidden)):
                if value is not None:
                    record(name, value)
        output: Tensor = self.down(self.dropout(hidden))
        return output


class Block(nn.Module):
    """Attention and feed-forward branch, each with a residual connection.

    Pre-norm: x + branch(norm(x)). Post-norm: norm(x + branch(x)). Both: x + norm_out(branch(norm(x))).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm_attention = build_norm(config)
        self.attention = Attention(config)
        self.norm_mlp = build_norm(config)
        self.mlp = FeedForward(config)
        has_both = config.norm_order == "both"
        self.norm_attention_out = build_norm(config) if has_both else None
        self.norm_mlp_out = build_norm(config) if has_both else None
        of_mlp = config.drop_resid if config.drop_resid_mlp is None else config.drop_resid_mlp
        self.drop_attention, self.drop_mlp = nn.Dropout(config.drop_resid), nn.Dropout(of_mlp)
        self.post_norm = config.norm_order == "post"

    def forward(self, x: Tensor, layer: int, ctx: Pass) -> Tensor:
        record = ctx.recorder(layer)
        for name, norm, branch, norm_out, dropout in (
            ("attention", self.norm_attention, self.attention, self.norm_attention_out, self.drop_attention),
            ("ffn", self.norm_mlp, self.mlp, self.norm_mlp_out, self.drop_mlp),
        ):
            added = branch(x if self.post_norm else _normed(norm, x, f"norm_{name}", record), layer, ctx)
            if record is not None:
                record(name, added)
            if norm_out is not None:
                added = _normed(norm_out, added, f"norm_{name}_out", record)
            summed = x + dropout(added)
            if record is not None:
                record(f"sum_{name}", summed)
            x = _normed(norm, summed, f"norm_{name}", record) if self.post_norm else summed
        return x


def _normed(norm: nn.Module, x: Tensor, name: str, record: RecordValue | None) -> Tensor:
    """Return norm(x); records mean and variance of x too."""
    y: Tensor = norm(x)
    if record is not None:
        record(f"{name}_moments", torch.stack([x.mean(-1), x.var(-1, correction=0)], dim=-1))
        record(name, y)
    return y


class Transformer(nn.Module):
    """The network.

    Args:
        config: the configuration. Initial weights are drawn from torch's global generator.

    Attributes:
        recompute: activation checkpointing: in training, keep only the inputs of the blocks.
        compiled: compiled versions of `read` and `score`, by name (see model/step.py).
    """

    position_table: Tensor | None
    rotation_table: Tensor | None
    window_rotation_table: Tensor | None

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
        # A tied head is not a module, so that the state dict has the shared matrix once.
        self.untied_head = None if config.tie_weights else Linear(config.d_model, config.padded_vocab_size, bias=False)
        self.head_bias = nn.Parameter(torch.zeros(config.padded_vocab_size)) if config.head_bias else None
        self._initialise()

    def _build_positions(self) -> None:
        config, added, rotation, in_windows = self.config, None, None, None
        if config.pos == "sinusoidal":
            added = sinusoidal_table(config.max_seq_len, config.d_model, config.pos_base).float()
        elif config.pos == "rope":
            rotation = rotary_table(config, config.max_seq_len).float()
            if config.window_pos_base is not None:
                plain: dict[str, Any] = {
                    "rope_scaling": "none",
                    "rope_factor": 1.0,
                    "rope_original_len": None,
                    "rope_ramp": None,
                }
                own = replace(config, pos_base=config.window_pos_base, **plain)
                in_windows = rotary_table(own, config.max_seq_len).float()
        if config.pos == "learned":
            self.position_table = nn.Parameter(torch.empty(config.max_seq_len, config.d_model))
        else:
            self.register_buffer("position_table", added, persistent=False)
        self.register_buffer("rotation_table", rotation, persistent=False)
        self.register_buffer("window_rotation_table", in_windows, persistent=False)

    @torch.no_grad()
    def _initialise(self) -> None:
        config = self.config
        # Each block adds two branches to the residual stream; scaling their output projections keeps its variance
        # independent of the depth (Radford et al. 2019, section 2.3).
        shrink = 1 / math.sqrt(2 * config.n_layer) if config.init_residual_scaling else 1.0
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                parameter.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
            elif config.init == "xavier" and name not in ("token_embedding.weight", "position_table"):
                nn.init.xavier_normal_(parameter)
            elif config.init == "inverse_cdf":
                # float64 for the upper tail, where float32 is coarse; clamped, because u = 0 gives -inf
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
        documents: Sequence[Sequence[int]] | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """Return the logits of the next token at every position.

        Args:
            ids: (B, T) int64 token ids.
            cache: keys and values of the tokens so far; ids are appended to each row at its own length.
            documents: lengths of the consecutive documents in each row, adding up to at most T; the rest is padding.
                Positions and attention of each document are as if it were read alone.
            attention_mask: broadcastable to (B, H, T, T), added to the scores in addition to the causal mask: 0 for
                allowed pairs, -inf for masked ones, other numbers as a bias.

        Returns:
            (B, T, V) logits; those of ids from config.vocab_size on are -inf.

        Raises:
            ValueError: the sequence is longer than max_seq_len or than the room in the cache, the documents do not
                fit the ids, or a mask is combined with a cache or documents.
        """
        return self.head(self.features(ids, cache=cache, documents=documents, attention_mask=attention_mask))

    def features(
        self,
        ids: Tensor,
        *,
        cache: KVCache | None = None,
        documents: Sequence[Sequence[int]] | None = None,
        attention_mask: Tensor | None = None,
        record: Record | None = None,
    ) -> Tensor:
        """Return the final hidden states (B, T, D), the input of the head; arguments as for forward and Pass."""
        if cache is not None:
            if documents is not None or attention_mask is not None:
                what = "an attention mask" if documents is None else "documents"
                raise ValueError(f"{what} cannot be combined with a cache; use one pass without a cache")
            ctx = self.continued(cache.slots(*ids.shape))
        else:
            ctx = self.plan(ids, documents, attention_mask)
        features = self.read(ids, replace(ctx, record=record))
        if cache is not None:
            cache.lengths += ids.shape[1]
        return features

    def read(self, ids: Tensor, ctx: Pass) -> Tensor:
        """Return the final hidden states (B, T, D) of ids (B, T)."""
        record, x = ctx.recorder(None), self.embed(ids)
        if record is not None:
            record("embedding", x)
        x = self.place(x, ctx)
        if record is not None:
            record("sum", x)
        checkpointed = self.recompute and self.training and torch.is_grad_enabled()
        for layer, block in enumerate(self.blocks):
            own = ctx.of(layer)
            x = checkpoint(block, x, layer, own, use_reentrant=False) if checkpointed else block(x, layer, own)
            if ctx.record is not None:
                ctx.record(layer, "output", x)
        return _normed(self.norm, x, "norm", record)

    def embed(self, ids: Tensor) -> Tensor:
        """Return the token embeddings (B, T, D) of ids (B, T)."""
        x: Tensor = self.token_embedding(ids)
        return x * math.sqrt(self.config.d_model) if self.config.embed_scale else x

    def place(self, x: Tensor, ctx: Pass) -> Tensor:
        """Return embeddings (B, T, D) with position vectors added, after dropout."""
        record = ctx.recorder(None)
        if self.position_table is not None:
            places = self.position_table[ctx.positions]
            x = x + places
            if record is not None:
                record("position", places)
        if self.rotation_table is not None and record is not None:
            record("rotation", self.rotation_table[ctx.positions].flatten(-2))
        placed: Tensor = self.dropout(x)
        return placed

    def plan(
        self,
        ids: Tensor,
        documents: Sequence[Sequence[int]] | None = None,
        added: Tensor | None = None,
    ) -> Pass:
        """Return the Pass over whole sequences; documents as for forward, `added` is its attention_mask."""
        n_rows, n_tokens = ids.shape
        if n_tokens > self.config.max_seq_len:
            raise ValueError(
                f"a sequence of {n_tokens} tokens is longer than max_seq_len={self.config.max_seq_len}; "
                f"cut it, or train a model with a longer context"
            )
        positions: Tensor | slice = slice(n_tokens)
        places = torch.arange(n_tokens, device=ids.device)
        if documents is None:

            def mask_of(window: int | None) -> AttentionMask | None:
                if added is None and (window is None or window >= n_tokens):
                    return None
                mask = self._mask(places, places, window)
                return mask if added is None else mask + added

            return self._pass(positions, mask_of)
        if added is not None:
            raise ValueError("both an attention mask and documents are given; mask the other documents instead")
        numbers, positions = _document_positions(documents, n_rows, n_tokens, ids.device)
        if ids.device.type == "cuda" and not self.config.drop_attn:  # flex_attention has no dropout
            return self._pass(positions, partial(block_mask, numbers))
        return self._pass(positions, lambda window: self._mask(places, places, window, (numbers, numbers))[:, None])

    def continued(self, slots: CacheSlots) -> Pass:
        """Return the Pass over tokens that are appended to rows of a cache."""

        def mask_of(window: int | None) -> AttentionMask | None:
            # any mask rules out the fused kernels, so prefill and rows of equal length have none
            if (window is None or window >= slots.end) and (slots.is_prompt or slots.is_even):
                return None
            places = torch.arange(slots.end, device=slots.positions.device)
            return self._mask(slots.positions, places, window)[:, None]

        return self._pass(slots.positions, mask_of, slots)

    def _mask(
        self, queries: Tensor, keys: Tensor, window: int | None, documents: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        seen = attention_mask(queries, keys, window, documents)
        return additive_mask(seen, self.token_embedding.weight.dtype)

    def _pass(
        self,
        positions: Tensor | slice,
        mask_of: Callable[[int | None], AttentionMask | None],
        slots: CacheSlots | None = None,
    ) -> Pass:
        """Return the Pass of all layers; mask_of gives the mask of a window."""
        config, passes, mask_of = self.config, dict[tuple[bool, bool], Pass](), cache(mask_of)
        kinds = [(config.has_window(layer), config.is_rotated(layer)) for layer in range(config.n_layer)]
        for has_window, is_rotated in dict.fromkeys(kinds):
            table = self.rotation_table
            if has_window and self.window_rotation_table is not None:
                table = self.window_rotation_table
            rotation = (
                rotary_columns(table[positions], config.rope_layout) if is_rotated and table is not None else None
            )
            mask = mask_of(config.window if has_window else None)
            passes[has_window, is_rotated] = Pass(positions, rotation, mask, slots)
        layers = tuple(passes[kind] for kind in kinds) if len(passes) > 1 else ()
        return replace(passes[kinds[0]], layers=layers)

    def head(self, features: Tensor) -> Tensor:
        """Return logits (..., V) of hidden states (..., D)."""
        logits = linear(features, self.head_weight, self.head_bias, training=self.training)
        if self.config.padded_vocab_size > self.config.vocab_size:
            logits = F.pad(
                logits[..., : self.config.vocab_size],
                (0, self.config.padded_vocab_size - self.config.vocab_size),
                value=-torch.inf,
            )
        return logits

    def next_logits(self, tokens: Tensor, slots: CacheSlots) -> Tensor:
        """Return logits (B, vocab_size) after one more token (B,) per row; the lengths of the cache are not changed."""
        features = self.read(tokens[:, None], self.continued(slots))
        return self.head(features[:, 0])[:, : self.config.vocab_size]

    def products(self) -> Iterator[list[tuple[Tensor, Tensor | None]]]:
        """Yield weights and biases of all linear layers, grouped by common input."""
        for block in self.blocks:
            assert isinstance(block, Block)
            attention, mlp = block.attention, block.mlp
            inputs = [mlp.up] if mlp.gate is None else [mlp.up, mlp.gate]
            for group in ([attention.q, attention.k, attention.v], [attention.proj], inputs, [mlp.down]):
                if all(type(layer) is Linear for layer in group):  # others compute more than a product
                    yield [(layer.weight, layer.bias) for layer in group]
        yield [(self.head_weight, self.head_bias)]

    @property
    def head_weight(self) -> Tensor:
        """Weight (V, D) of the head; the token embedding if they are tied."""
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
        """Return the negative log-likelihood of the labels, in nats.

        Args:
            ids: (B, T) int64.
            labels: (B, T) int64, the id after each input, or ignore_index.
            documents: as for forward.
            reduction: "sum" over all labels, (); "sequence", the sum of each row, (B,); or "token", (B, T), 0 at
                ignored labels.
            ignore_index: label of positions that are left out.
        """
        if reduction not in ("sum", "sequence", "token"):
            raise ValueError(f"reduction={reduction!r}; expected 'sum', 'sequence' or 'token'")
        ctx = self.plan(ids, documents)
        if reduction != "sum":
            found = self._nll_of_logits(self.read(ids, ctx), labels, "none", ignore_index).view_as(labels)
            return found.sum(1) if reduction == "sequence" else found
        if ids.device.type != "cpu":
            return self._compiled("score")(ids, labels, ctx, ignore_index)
        features = self._compiled("read")(ids, ctx)
        if features.dtype == torch.bfloat16 or torch.is_autocast_enabled("cpu"):
            return self._nll_of_logits(features, labels, "sum", ignore_index)  # linear_nll bypasses autocast
        n = self.config.vocab_size  # without the rows of padding
        bias = None if self.head_bias is None else self.head_bias[:n]
        return linear_nll(features, self.head_weight[:n], labels, bias, ignore_index)

    def score(self, ids: Tensor, labels: Tensor, ctx: Pass, ignore_index: int = IGNORE) -> Tensor:
        """Return the summed negative log-likelihood, with all logits in memory at once; used on a GPU."""
        return self._nll_of_logits(self.read(ids, ctx), labels, "sum", ignore_index)

    def _nll_of_logits(self, features: Tensor, labels: Tensor, reduction: str, ignore_index: int) -> Tensor:
        logits = self.head(features).flatten(0, 1).float()
        return F.cross_entropy(logits, labels.flatten(), ignore_index=ignore_index, reduction=reduction)

    def _compiled(self, name: str) -> Callable[..., Tensor]:
        method: Callable[..., Tensor] = getattr(self, name)
        return self.compiled.get(name, method) if self.training else method

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "compiled": {}}  # compiled code is bound to this instance

    def loss(
        self,
        ids: Tensor,
        labels: Tensor,
        *,
        documents: Sequence[Sequence[int]] | None = None,
        ignore_index: int = IGNORE,
    ) -> Tensor:
        """Return the mean of nll over the valid labels; NaN if there are none."""
        total = self.nll(ids, labels, documents=documents, ignore_index=ignore_index)
        return total / (labels != ignore_index).sum()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode, and restore the mode of every module afterwards."""
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
    """Return the summed negative log-likelihood in nats of labels (...) under softmax(features weight^T + bias).

    With V > D it is computed in blocks, so that the logits are never all in memory. The gradients are then computed in
    the forward pass, and second derivatives are not available.

    Args:
        features: (..., D).
        weight: (V, D).
        bias: (V,).
    """
    blocks = nn.LinearCrossEntropyOptions() if len(weight) > weight.shape[1] else None
    return F.linear_cross_entropy(
        features.flatten(0, -2), weight, labels.flatten(), linear_bias=bias, reduction="sum",
        ignore_index=ignore_index, options=blocks,
    )  # fmt: skip


def _document_positions(
    documents: Sequence[Sequence[int]], n_rows: int, n_tokens: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return each token's document number and position in it, both (B, T); padding counts as one more document."""
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
