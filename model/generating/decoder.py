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

from ..cache import KVCache
from ..norms import RMSNorm
from ..positions import rotate
from ..transformer import Block, Transformer
from .products import LEAST_ROWS, Product, build_product, can_pack


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
    """The products and norms of one block."""

    def __init__(self, block: Block, n_rows: int) -> None:
        def product(linear: nn.Linear) -> Product:
            return build_product(linear.weight, linear.bias, n_rows)

        self.norm_attention, self.norm_mlp = _Norm(block.norm_attention), _Norm(block.norm_mlp)
        self.norm_q, self.norm_k = block.attention.norm_q, block.attention.norm_k
        self.qkv, self.proj = product(block.attention.qkv), product(block.attention.proj)
        self.gate = None if block.mlp.gate is None else product(block.mlp.gate)
        self.up, self.down = product(block.mlp.up), product(block.mlp.down)


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
        self.rotation, self.norm = model.rotation_table, _Norm(model.norm)
        self.least_rows = LEAST_ROWS if can_pack(model.head_weight) else 1
        blocks = [block for block in model.blocks if isinstance(block, Block)]
        self.layers = [_Layer(block, n_rows) for block in blocks]
        bias = None if model.head_bias is None else model.head_bias[: config.vocab_size]
        self.head = build_product(model.head_weight[: config.vocab_size], bias, n_rows)
        self.turning = _turning_tables(model)

    def step(self, cache: KVCache, ids: Tensor, positions: Tensor, reaches: list[Reach], first: int = 0) -> Tensor:
        """Reads one token of each row and writes its keys and values.

        Args:
            cache: of at least as many rows; its lengths stay as they are.
            ids: (B,) tokens.
            positions: (B,) where each stands in its row, which is the cache slot that it gets.
            reaches: the rows (counted from `first`) in groups that attend together.
            first: the cache's row that the first of these is.

        Returns:
            (B, vocab_size) logits.
        """
        x = F.embedding(ids, self.embedding)
        if self.positions is not None:
            x = x + self.positions[positions]
        turns = self._turns(positions)
        masks = [self._mask(positions, reach, x) for reach in reaches]
        rows = torch.arange(first, first + len(ids), device=ids.device)
        post = self.config.norm_order == "post"
        for number, layer in enumerate(self.layers):
            q, k, v = self._project(layer, x if post else layer.norm_attention(x), turns)
            keys, values = cache.keys[number], cache.values[number]
            keys[rows, :, positions], values[rows, :, positions] = k, v
            mixed = self._attend(q, keys, values, reaches, masks, first)
            x = layer.proj.added(mixed, x)
            if post:
                x = layer.norm_attention(x)
            x = self._feed(layer, x if post else layer.norm_mlp(x), x)
            if post:
                x = layer.norm_mlp(x)
        return self.head(self.norm(x))

    def _project(
        self, layer: _Layer, x: Tensor, turns: tuple[Tensor, Tensor] | Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, E), keys and values (B, K, E) of x (B, D)."""
        config = self.config
        heads = layer.qkv(x).view(len(x), -1, config.head_dim)
        n_query, n_kv = config.n_head, config.n_kv_head
        if layer.norm_q is not None and layer.norm_k is not None:
            q, k = layer.norm_q(heads[:, :n_query]), layer.norm_k(heads[:, n_query : n_query + n_kv])
            qk = torch.cat((q, k), dim=1)
        else:
            qk = heads[:, : n_query + n_kv]
        if turns is not None:
            qk = self._turned(qk, turns)
        return qk[:, :n_query], qk[:, n_query:], heads[:, n_query + n_kv :]

    def _turns(self, positions: Tensor) -> tuple[Tensor, Tensor] | Tensor | None:
        if self.turning is not None:
            cos, sin = self.turning
            return cos[positions][:, None], sin[positions][:, None]
        return None if self.rotation is None else self.rotation[positions]

    def _turned(self, x: Tensor, turns: tuple[Tensor, Tensor] | Tensor) -> Tensor:
        """Queries and keys (B, H + K, E) turned by their positions' angles."""
        if isinstance(turns, Tensor):
            return rotate(x, turns, self.config.rope_layout)
        n_rows, n_heads, width = x.shape
        if self.config.rope_layout == "half":
            swapped = x.reshape(n_rows, n_heads, 2, width // 2).flip(-2)
        else:
            swapped = x.reshape(n_rows, n_heads, width // 2, 2).flip(-1)
        return swapped.view(n_rows, n_heads, width).mul_(turns[1]).addcmul_(x, turns[0])

    def _feed(self, layer: _Layer, x: Tensor, rest: Tensor) -> Tensor:
        """The feed-forward branch of x, joined to the stream."""
        if layer.gate is None:
            hidden = layer.up.activated(x, self.config.act)
        else:
            hidden = layer.up.times(x, layer.gate.activated(x, "silu"))
        return layer.down.added(hidden, rest)

    def _mask(self, positions: Tensor, reach: Reach, like: Tensor) -> Tensor | None:
        """(rows, S): 0 where a row may look, -inf where not."""
        window = self.config.window
        if reach.equal and (window is None or window >= reach.end):
            return None
        distance = positions[reach.first : reach.last, None] - torch.arange(reach.end, device=positions.device)
        hidden = distance < 0
        if window is not None:
            hidden |= distance >= window
        return like.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)

    def _attend(
        self, q: Tensor, keys: Tensor, values: Tensor, reaches: list[Reach], masks: list[Tensor | None], first: int
    ) -> Tensor:
        """What each row's queries (B, H, E) gather (B, H E) from the cache's rows (., K, slots, E)."""
        gathered = gathered_by_products if q.device.type == "cpu" else gathered_by_kernel
        parts = []
        for reach, mask in zip(reaches, masks, strict=True):
            rows = slice(first + reach.first, first + reach.last)
            k, v = keys[rows, :, : reach.end], values[rows, :, : reach.end]
            parts.append(gathered(q[reach.first : reach.last], k, v, mask))
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def gathered_by_kernel(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of q (B, H, E) over keys and values (B, K, S, E), masked by (B, S): (B, H E). One call, for a GPU."""
    grouped = q.reshape(len(q), keys.shape[1], -1, q.shape[-1])  # (B, K, G, E): the heads of a group as its tokens
    seen = None if mask is None else mask[:, None, None]
    return F.scaled_dot_product_attention(grouped, keys, values, attn_mask=seen).flatten(1)


def gathered_by_products(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """The same as products of one batch axis, which on a CPU cost less than the kernel made for many queries."""
    n_rows, n_kv, end, width = keys.shape
    flat = q.reshape(n_rows * n_kv, -1, width)  # (B K, G, E)
    flat_keys, flat_values = keys.flatten(0, 1), values.flatten(0, 1)
    if flat.shape[1] == 1:  # of a matrix and a vector this order is the faster one
        scores = torch.bmm(flat_keys, flat.transpose(1, 2)).transpose(1, 2).mul_(1 / math.sqrt(width))
    else:
        scores = torch.bmm(flat, flat_keys.transpose(1, 2)).mul_(1 / math.sqrt(width))
    if mask is not None:
        scores.view(n_rows, -1, end).add_(mask[:, None])
    return torch.bmm(torch.softmax(scores, dim=-1), flat_values).view(n_rows, -1)


class _Norm:
    """A norm of few rows; RMSNorm on a CPU in four operations: x / sqrt(|x|^2 + D eps) * (gain sqrt(D))."""

    def __init__(self, norm: nn.Module) -> None:
        self.norm, self.short = norm, False
        if isinstance(norm, RMSNorm) and can_pack(norm.weight):
            self.short, width = True, len(norm.weight)
            self.floor = torch.tensor(math.sqrt(width * norm.eps))
            self.gain = norm.weight.detach() * math.sqrt(width)

    def __call__(self, x: Tensor) -> Tensor:
        if self.short:
            length = torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self.floor)
            return (x / length).mul_(self.gain)
        normed: Tensor = self.norm(x)
        return normed


def _turning_tables(model: Transformer) -> tuple[Tensor, Tensor] | None:
    """Cosines and signed sines (max_seq_len, E), by which a turn is two products; None where a head is turned in part.

    Narrow types are turned in float32, which `rotate` does.
    """
    table, config = model.rotation_table, model.config
    wide = model.token_embedding.weight.dtype in (torch.float32, torch.float64)
    if table is None or config.rope_dim != config.head_dim or not wide:
        return None
    cos, sin = table.to(model.token_embedding.weight.dtype).unbind(-1)  # (max_seq_len, E / 2)
    if config.rope_layout == "half":
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
    return torch.stack((cos, cos), dim=-1).flatten(-2), torch.stack((-sin, sin), dim=-1).flatten(-2)
