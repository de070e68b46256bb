"""One decoding step: the newest token of every row in, the logits of the next ones out.

It computes what `Transformer.forward` computes with a cache, written for one token per row: with so little to compute,
the number of operations and the layout of weights decide. Every architecture goes the same way.

Shapes in comments: B rows, D d_model, H query heads, K key-value heads, G = H / K, E head_dim, S cache slots that are
read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..architecture import ModelConfig
from ..cache import KVCache
from ..norms import RMSNorm
from ..positions import rotate
from ..transformer import Block, Transformer
from .blocks import BlockCache, BlockStep
from .products import LEAST_ROWS, Gated, Product, build_product, can_pack


@dataclass(frozen=True)
class Reach:
    """Rows that attend together.

    Attributes:
        first, last: the rows, the last one not included.
        end: number of cache slots that they read.
        equal: all of these slots are seen by all of these rows, so that nothing has to be masked.
    """

    first: int
    last: int
    end: int
    equal: bool = False


Cache = BlockCache | KVCache

# Networks that are asked again and again keep their packed weights, with what tells that these have not changed.
_READY: WeakKeyDictionary[Transformer, tuple[Any, Decoder]] = WeakKeyDictionary()


def decoder_for(model: Transformer, n_rows: int, *, keep: bool) -> Decoder:
    """A decoder with the network's weights as they are now.

    Args:
        model: the network, in evaluation mode.
        n_rows: about how many rows a step will have.
        keep: hold on to the packed weights for the next call; they take as much memory as the network.
    """
    if not keep or not can_pack(model.head_weight):
        return Decoder(model, n_rows)
    state = _state_of(model)
    ready = _READY.get(model)
    if ready is None or ready[0] != state:
        ready = _READY[model] = state, Decoder(model, n_rows)
    return ready[1]


def _state_of(model: Transformer) -> Any:
    """Equal for equal weights; sums find what was written past the tensors' own counters."""
    parameters = list(model.parameters())
    counters = [-1 if one.is_inference() else one._version for one in parameters]
    sums = torch.stack([one.detach().sum(dtype=torch.float32) for one in parameters])
    return [one.data_ptr() for one in parameters], counters, sums.numpy().tobytes()


class _Layer:
    """The products and norms of one block.

    Args:
        block: the block.
        n_rows: about how many rows a step will have.
        order: (E,) the order of a head's columns in queries and keys; None is the network's own.
    """

    def __init__(self, block: Block, n_rows: int, order: Tensor | None) -> None:
        attention, mlp = block.attention, block.mlp
        self.norm_attention = _Norm(block.norm_attention, folds=not block.post_norm)
        self.norm_mlp = _Norm(block.norm_mlp, folds=not block.post_norm)
        n_query, n_kv, _ = attention.heads
        weight: Tensor = attention.qkv.weight
        bias: Tensor | None = attention.qkv.bias
        self.norm_q, self.norm_k = attention.norm_q, attention.norm_k
        if order is not None:
            n_turned = n_query + n_kv
            weight = _reordered(weight, order, n_turned)
            bias = None if bias is None else _reordered(bias, order, n_turned)
            self.norm_q, self.norm_k = (_reordered_norm(norm, order) for norm in (self.norm_q, self.norm_k))
        self.qkv = build_product(self.norm_attention.folded_into(weight), bias, n_rows)
        self.proj = build_product(attention.proj.weight, attention.proj.bias, n_rows)

        up = self.norm_mlp.folded_into(mlp.up.weight)
        if mlp.gate is None:
            self.up: Product | Gated = build_product(up, mlp.up.bias, n_rows)
        else:
            biases = None if mlp.gate.bias is None else (mlp.gate.bias.detach(), mlp.up.bias.detach())
            self.up = Gated(self.norm_mlp.folded_into(mlp.gate.weight), up, biases, n_rows)
        self.down = build_product(mlp.down.weight, mlp.down.bias, n_rows)


class Decoder:
    """A network made ready for many steps; the weights are taken as they are now.

    Args:
        model: the network, in evaluation mode.
        n_rows: about how many rows a step will have.

    Attributes:
        least_rows: fewer rows cannot be decoded.
    """

    def __init__(self, model: Transformer, n_rows: int) -> None:
        config = self.config = model.config
        self.embedding, self.positions = model.token_embedding.weight, model.position_table
        self.rotation = model.rotation_table
        self.least_rows = LEAST_ROWS if can_pack(model.head_weight) else 1
        self.turning = _complex_turns(model)
        self.order = _paired_columns(config).to(self.embedding.device) if self.turning is not None else None
        blocks = [block for block in model.blocks if isinstance(block, Block)]
        self.layers = [_Layer(block, n_rows, self.order) for block in blocks]
        bias = None if model.head_bias is None else model.head_bias[: config.vocab_size]
        self.norm = _Norm(model.norm, folds=True)
        self.head = build_product(self.norm.folded_into(model.head_weight[: config.vocab_size]), bias, n_rows)

    def new_cache(self, batch_size: int, capacity: int) -> Cache:
        """An empty cache, of the kind that is fast here."""
        device, dtype = self.embedding.device, self.embedding.dtype
        if device.type == "cpu":
            return BlockCache(self.config, batch_size, capacity, key_order=self.order, dtype=dtype)
        return KVCache(self.config, batch_size, capacity, device=device, dtype=dtype)

    def step(self, cache: Cache, ids: Tensor, positions: Tensor, reaches: list[Reach], first: int = 0) -> Tensor:
        """Reads one token of each row and writes its keys and values.

        Args:
            cache: from `new_cache`, of at least as many rows; its lengths stay as they are.
            ids: (B,) tokens.
            positions: (B,) where each stands in its row, which is the cache slot that it gets.
            reaches: the rows (counted from `first`) in groups that attend together; on a CPU each attends by itself.
            first: the cache's row that the first of these is.

        Returns:
            (B, vocab_size) logits.
        """
        x = F.embedding(ids, self.embedding)
        if self.positions is not None:
            x = x + self.positions[positions]
        turns = self._turns(positions)
        if isinstance(cache, BlockCache):
            attention: BlockStep | KernelStep = BlockStep(cache, positions, first)
        else:
            attention = KernelStep(cache, positions, reaches, first, self.config.window)
        post = self.config.norm_order == "post"
        for number, layer in enumerate(self.layers):
            q, k, v = self._project(layer, x if post else layer.norm_attention(x), turns)
            x = layer.proj.added(attention.attend(number, q, k, v), x)
            if post:
                x = layer.norm_attention(x)
            x = self._feed(layer, x if post else layer.norm_mlp(x), x)
            if post:
                x = layer.norm_mlp(x)
        return self.head(self.norm(x))

    def _project(self, layer: _Layer, x: Tensor, turns: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, E), keys and values (B, K, E) of x (B, D)."""
        config = self.config
        heads = layer.qkv(x).view(len(x), -1, config.head_dim)
        n_query, n_kv = config.n_head, config.n_kv_head
        qk = heads[:, : n_query + n_kv]
        if layer.norm_q is not None and layer.norm_k is not None:
            qk = torch.cat((layer.norm_q(qk[:, :n_query]), layer.norm_k(qk[:, n_query:])), dim=1)
        if turns is not None and turns.is_complex():
            torch.view_as_complex(qk.view(len(x), n_query + n_kv, -1, 2)).mul_(turns)
        elif turns is not None:
            qk = rotate(qk, turns, config.rope_layout)
        return qk[:, :n_query], qk[:, n_query:], heads[:, n_query + n_kv :]

    def _turns(self, positions: Tensor) -> Tensor | None:
        """(B, 1, E / 2) complex numbers where there are any, else what `rotate` takes."""
        if self.turning is not None:
            return self.turning[positions][:, None]
        return None if self.rotation is None else self.rotation[positions]

    def _feed(self, layer: _Layer, x: Tensor, rest: Tensor) -> Tensor:
        """The feed-forward branch of x, joined to the stream."""
        hidden = layer.up(x) if isinstance(layer.up, Gated) else layer.up.activated(x, self.config.act)
        return layer.down.added(hidden, rest)


class KernelStep:
    """Attention of one step by one call per layer and reach, for a GPU.

    Args:
        cache: of at least as many rows.
        positions: (B,) slots that the new tokens get.
        reaches: the rows in groups that attend together.
        first: the cache's row that the first of these is.
        window: how many tokens a query sees; None means all.
    """

    def __init__(
        self, cache: KVCache, positions: Tensor, reaches: list[Reach], first: int = 0, window: int | None = None
    ) -> None:
        self.cache, self.positions, self.reaches, self.first = cache, positions, reaches, first
        self.rows = torch.arange(first, first + len(positions), device=positions.device)
        self.masks = [_mask(positions, reach, window, cache.keys.dtype) for reach in reaches]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Stores keys and values (B, K, E); what the queries (B, H, E) gather, (B, H E)."""
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        keys[self.rows, :, self.positions], values[self.rows, :, self.positions] = k, v
        grouped = q.reshape(len(q), keys.shape[1], -1, q.shape[-1])  # (B, K, G, E): the heads of a group as its tokens
        parts = []
        for reach, mask in zip(self.reaches, self.masks, strict=True):
            rows = slice(self.first + reach.first, self.first + reach.last)
            seen_keys, seen_values = keys[rows, :, : reach.end], values[rows, :, : reach.end]
            part = grouped[reach.first : reach.last]
            parts.append(F.scaled_dot_product_attention(part, seen_keys, seen_values, attn_mask=mask))
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).flatten(1)


def _mask(positions: Tensor, reach: Reach, window: int | None, dtype: torch.dtype) -> Tensor | None:
    """(rows, 1, 1, S): 0 where a row may look, -inf where not."""
    if reach.equal and (window is None or window >= reach.end):
        return None
    distance = positions[reach.first : reach.last, None] - torch.arange(reach.end, device=positions.device)
    hidden = distance < 0
    if window is not None:
        hidden |= distance >= window
    zeros = torch.zeros(hidden.shape, dtype=dtype, device=positions.device)
    return zeros.masked_fill_(hidden, -torch.inf)[:, None, None]


class _Norm:
    """A norm of few rows; RMSNorm on a CPU in three operations, x / sqrt(|x|^2 + D eps), and a factor gain sqrt(D).

    Args:
        norm: the norm.
        folds: what follows are products only, whose weights take the factor over.
    """

    def __init__(self, norm: nn.Module, *, folds: bool) -> None:
        self.norm, self.short, self.folds = norm, False, False
        if isinstance(norm, RMSNorm) and can_pack(norm.weight):
            self.short, self.folds, width = True, folds, len(norm.weight)
            self.floor = torch.tensor(math.sqrt(width * norm.eps))
            self.gain = norm.weight.detach() * math.sqrt(width)

    def folded_into(self, weight: Tensor) -> Tensor:
        """Weights (M, D) of a product that follows."""
        return weight.detach() * self.gain if self.folds else weight

    def __call__(self, x: Tensor) -> Tensor:
        if not self.short:
            normed: Tensor = self.norm(x)
            return normed
        unit = x / torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self.floor)
        return unit if self.folds else unit.mul_(self.gain)


def _complex_turns(model: Transformer) -> Tensor | None:
    """Turns (max_seq_len, E / 2) as complex numbers, for wide types on a CPU; None where a head is turned in part."""
    table, config, weight = model.rotation_table, model.config, model.token_embedding.weight
    wide = weight.dtype in (torch.float32, torch.float64)
    if table is None or config.rope_dim != config.head_dim or not wide or weight.device.type != "cpu":
        return None
    return torch.view_as_complex(table.to(weight.dtype).contiguous())


def _paired_columns(config: ModelConfig) -> Tensor:
    """(E,) a head's columns in the order in which those that turn together are neighbours."""
    columns = torch.arange(config.head_dim)
    return columns.view(2, -1).T.flatten() if config.rope_layout == "half" else columns


def _reordered(part: Tensor, order: Tensor, n_heads: int) -> Tensor:
    """Rows of a matrix (or numbers of a bias) of queries, keys and values, with the first heads' in another order."""
    n = n_heads * len(order)
    turned = part.detach()[:n].unflatten(0, (n_heads, -1))[:, order].flatten(0, 1)
    return torch.cat((turned, part.detach()[n:]))


def _reordered_norm(norm: RMSNorm | None, order: Tensor) -> RMSNorm | None:
    if norm is None:
        return None
    other = RMSNorm(len(order), norm.eps).to(norm.weight)
    other.weight.data.copy_(norm.weight.detach()[order])
    return other.eval()
