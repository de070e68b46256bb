"""What torch's own operations are slow at on a CPU; the network calls these by name and nothing else knows them.

Products: torch multiplies float32 matrices with MKL, which uses the widest instructions of Intel's processors only: on
others it reaches less than half of what oneDNN does, which torch carries too but uses for other types. So the products
of the linear layers, forward and backward, go to oneDNN where that is the faster of the two. The arithmetic is the
same; sums are added up in another order. Which library it is follows from the processor and not from a measurement, so
that a run that goes on later has the same bits.

Attention over short sequences: torch's kernel is made for long ones, never holds the weights and computes them twice.

The last layer and its loss: with a small network the logits (rows times vocabulary) are the largest thing there is, and
the time goes into moving them through memory three times over. Here a block of rows is turned from features into its
loss and straight into its gradient while it still lies in the processor's cache.
"""

from __future__ import annotations

import ctypes
import math
import platform
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .query_blocks import MAX_TOKENS, block_bounds, query_block

# mallopt's numbers, and what keeps freed memory: no block is one of the system's own, the top of the heap stays, and a
# heap of another thread than the first, which is of 64 MiB in the GNU C library, is not given up when it is empty
_MMAP_MAX, _TRIM_THRESHOLD, _TOP_PAD = -4, -1, -2
_KEEPING = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 2**26))


def product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """a @ b.T + bias.

    Args:
        a: (N, K), of any strides.
        b: (M, K), of any strides.
        bias: (M,), of any stride.

    Returns:
        (N, M).
    """
    if a.dtype == torch.float32 and a.device.type == "cpu" and has_fast_products():
        joined = None if bias is None else bias.contiguous()  # the one operand whose strides are not looked at
        found: Tensor = torch.ops.mkldnn._linear_pointwise(a, b, joined, "none", [], "")
        return found
    return torch.mm(a, b.T) if bias is None else torch.addmm(bias, a, b.T)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, training: bool = False) -> Tensor:
    """x @ weight.T + bias over the last axis, by the fastest way there is here.

    Args:
        x: (..., K).
        weight: (M, K).
        bias: (M,).
        training: whether gradients are those of a training step; for others torch's own graph is kept.

    Returns:
        (..., M).
    """
    ready = _packed_for(x, weight)
    if ready is not None and len(ready.sizes) == 1:
        return ready.product(x)
    only_read = torch.is_inference_mode_enabled()
    if not (only_read or (training and torch.is_grad_enabled())) or not (is_plain(x) and is_plain(weight)):
        return F.linear(x, weight, bias)
    if torch.is_autocast_enabled("cpu") or not has_fast_products():
        return F.linear(x, weight, bias)
    if only_read:
        return product(x.reshape(-1, x.shape[-1]), weight, bias).view(*x.shape[:-1], len(weight))
    return LinearProduct.apply(x, weight, bias)


class Linear(nn.Linear):
    """torch's linear layer by `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias, training=self.training)


def linears(x: Tensor, *layers: Linear) -> Sequence[Tensor]:
    """What several layers make of one input; of a few rows by one product where their weights are packed."""
    ready = _packed_for(x, layers[0].weight)
    if ready is not None and len(ready.sizes) == len(layers):
        return ready.product(x).split(ready.sizes, dim=-1)
    return [layer(x) for layer in layers]


LEAST_ROWS = 2  # for a single row oneDNN has a kernel that adds up in another order, and is no faster


@dataclass(frozen=True)
class _Ready:
    """Weights of one or more layers in oneDNN's own layout, with their biases and numbers of columns."""

    weight: Tensor
    bias: Tensor | None
    sizes: list[int]

    def product(self, x: Tensor) -> Tensor:
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return found


_packed = threading.local()


def _packed_for(x: Tensor, weight: Tensor) -> _Ready | None:
    if torch.compiler.is_compiling():
        return None
    ready: dict[int, _Ready] | None = getattr(_packed, "weights", None)
    if ready is None or x.dtype != torch.float32 or x.numel() < LEAST_ROWS * x.shape[-1]:
        return None
    return ready.get(id(weight))


class Packed:
    """Within it, this thread's products use copies of a network's weights in oneDNN's own layout.

    The weights of a decoding step are read from memory once per token, so their layout decides how fast it is, and
    with few rows a product costs more to begin than to compute: so those of one input are one.

    Args:
        products: weights and biases, those of one input together, as they are now.
        n_rows: about how many rows a product will have; below LEAST_ROWS nothing is packed.
    """

    def __init__(self, products: Iterable[list[tuple[Tensor, Tensor | None]]], n_rows: int) -> None:
        self.weights: dict[int, _Ready] = {}
        self.originals = []  # as long as they are kept their ids are theirs
        for group in products:
            weights, biases = [weight.detach() for weight, _ in group], [bias for _, bias in group if bias is not None]
            if n_rows < LEAST_ROWS or not all(map(is_plain, weights)) or not has_fast_products():
                continue
            self.originals.append(group)
            joined = torch.ops.mkldnn._reorder_linear_weight(torch.cat(weights), n_rows)
            bias = torch.cat(biases).detach() if biases else None
            self.weights[id(group[0][0])] = _Ready(joined, bias, [len(weight) for weight in weights])

    def __enter__(self) -> None:
        _packed.weights = self.weights

    def __exit__(self, *_: object) -> None:
        _packed.weights = None


def is_plain(x: Tensor) -> bool:
    """Whether it is a float32 tensor in memory, neither shared out over processes nor traced by a compiler."""
    return (
        x.dtype == torch.float32
        and x.device.type == "cpu"
        and type(x) in (Tensor, nn.Parameter)
        and not torch.compiler.is_compiling()
    )


class LinearProduct(torch.autograd.Function):
    """x @ weight.T + bias over the last axis, and its three gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return product(x.reshape(-1, x.shape[-1]), weight, bias).view(*x.shape[:-1], len(weight))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        flat = gradient.reshape(-1, gradient.shape[-1])
        for_x, for_weight, for_bias = ctx.needs_input_grad
        return (
            product(flat, weight.T).view_as(x) if for_x else None,
            product(flat.T, x.reshape(-1, x.shape[-1]).T) if for_weight else None,
            flat.sum(0) if ctx.has_bias and for_bias else None,
        )


@cache
def has_fast_products() -> bool:
    """Whether this processor is one on which oneDNN's float32 products are the faster ones, and torch has them."""
    if not torch.backends.mkldnn.is_available() or processor_vendor() in ("GenuineIntel", ""):
        return False
    a, b, bias = torch.arange(6.0).view(2, 3), torch.arange(12.0).view(4, 3), torch.arange(4.0)
    try:  # an operator for torch's own compiler, of which no later torch promises anything
        found = torch.ops.mkldnn._linear_pointwise(a, b, bias, "none", [], "")
    except (AttributeError, RuntimeError, TypeError):
        return False
    return isinstance(found, Tensor) and torch.equal(found, F.linear(a, b, bias))


@cache
def processor_vendor() -> str:
    """What an x86 processor calls its maker, such as "GenuineIntel"; empty where that is not known."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return ""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


@cache
def keep_freed_memory() -> bool:
    """Makes this process keep the memory it frees, and use it again, instead of handing it back to the system.

    A step frees all its activations and the next one needs them again. Large blocks are handed back by default, and the
    system clears every page of them before it lends them anew: a tenth of a step's time on a CPU.

    Returns:
        Whether it was done; only the GNU C library has this setting.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        library = ctypes.CDLL(None)
        return all(library.mallopt(name, value) for name, value in _KEEPING)
    except (AttributeError, OSError):
        return False


def release_freed_memory() -> None:
    """Hands back what keep_freed_memory kept so far."""
    if keep_freed_memory.cache_info().currsize:
        try:
            ctypes.CDLL(None).malloc_trim(0)
        except (AttributeError, OSError):
            return


def rms_norm(x: Tensor, gain: Tensor, eps: float, *, training: bool = False) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * gain over the last axis.

    Args:
        x: (..., D).
        gain: (D,).
        eps: added inside the root.
        training: as for linear.
    """
    if not (is_plain(x) and is_plain(gain)):
        return F.rms_norm(x, gain.shape, gain, eps)
    if training and torch.is_grad_enabled():
        normed: Tensor = RMSNormed.apply(x, gain, eps)
        return normed
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * gain


class RMSNormed(torch.autograd.Function):
    """`rms_norm` for training on a CPU: fewer passes over memory than the formula's own graph takes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = torch.rsqrt(norm.square() / x.shape[-1] + eps)
        unit = x * scale
        ctx.save_for_backward(unit, scale, gain)
        return unit * gain

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        unit, scale, gain = ctx.saved_tensors
        product = gradient * unit
        of_gain = product.flatten(0, -2).sum(0)
        # d unit / d x takes the part along x out: what is left is divided by the norm
        along = torch.matmul(product, gain)[..., None] / -unit.shape[-1]
        of_x = torch.mul(gradient, gain, out=product).addcmul_(unit, along).mul_(scale)
        return of_x, of_gain, None


_GROUP_ELEMENTS = 2**18  # attention weights at once: 1 MB of float32


def suits_short_attention(q: Tensor, k: Tensor) -> bool:
    """Whether queries and keys (B, H, T, E) are of a kind and a size that this is made for."""
    return (
        q.device.type == "cpu"
        and q.dtype == k.dtype == torch.float32
        and q.shape == k.shape
        and q.shape[2] <= MAX_TOKENS
        and torch.is_grad_enabled()
        and q.requires_grad
        and type(q) is Tensor
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def short_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(E)) v, each token looking at itself and before; differentiable once.

    Args:
        q: (B, H, T, E).
        k: (B, H, T, E).
        v: (B, H, T, E).

    Returns:
        (B, H, T, E).
    """
    mixed: Tensor = CausalAttention.apply(q, k, v)
    return mixed


class CausalAttention(torch.autograd.Function):
    """Attention block by block; the weights are kept for the backward pass."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # (N, T, E): batched products want one batch axis
        flat_q, flat_k, flat_v = (part.reshape(-1, *part.shape[2:]) for part in (q, k, v))
        n_heads, n_tokens, width = flat_q.shape
        mixed = q.new_empty(q.shape[0], n_tokens, q.shape[1], width)  # (B, T, H, E), as the projection reads it
        by_head = mixed.transpose(1, 2)
        block, bounds = query_block(n_tokens), block_bounds(n_tokens)
        hidden = torch.full((block, block), -math.inf, dtype=q.dtype).triu_(1)
        kept = []
        result = torch.empty_like(flat_q)
        for heads in _groups(n_heads, n_tokens):
            group_q, group_k, group_v = flat_q[heads], flat_k[heads], flat_v[heads]
            for first, last in bounds:
                weights = q.new_empty(len(group_q), last - first, last)  # (G, Q, keys)
                keys = group_k[:, :last].transpose(1, 2)
                torch.baddbmm(weights, group_q[:, first:last], keys, beta=0, alpha=1 / math.sqrt(width), out=weights)
                weights[:, :, first:] += hidden[: last - first, : last - first]
                torch.softmax(weights, dim=-1, out=weights)
                result[heads, first:last] = torch.bmm(weights, group_v[:, :last])
                kept.append(weights)
        by_head.copy_(result.view(q.shape))
        ctx.save_for_backward(flat_q, flat_k, flat_v, *kept)
        return by_head

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, *kept = ctx.saved_tensors
        n_heads, n_tokens, width = q.shape
        shape = gradient.shape
        of_mixed = gradient.reshape(q.shape)
        of_q, of_k, of_v = q.new_empty(q.shape), q.new_empty(q.shape), q.new_empty(q.shape)
        scale = 1 / math.sqrt(width)
        bounds = block_bounds(n_tokens)
        for number, heads in enumerate(_groups(n_heads, n_tokens)):
            group_q, group_k, group_v, group_gradient = q[heads], k[heads], v[heads], of_mixed[heads]
            # the last block sees all keys and writes their gradients; the others add to them
            for place, (first, last) in reversed(list(enumerate(bounds))):
                weights, push = kept[number * len(bounds) + place], group_gradient[:, first:last]
                of_weights = torch.bmm(push, group_v[:, :last].transpose(1, 2))
                torch._softmax_backward_data(of_weights, weights, -1, q.dtype, grad_input=of_weights)
                by_key, scores_by_key = weights.transpose(1, 2), of_weights.transpose(1, 2)
                queries = group_q[:, first:last]
                if last == n_tokens:
                    torch.bmm(by_key, push, out=of_v[heads])
                    torch.baddbmm(of_k[heads], scores_by_key, queries, beta=0, alpha=scale, out=of_k[heads])
                else:
                    of_v[heads, :last] += torch.bmm(by_key, push)
                    of_k[heads, :last].add_(torch.bmm(scores_by_key, queries), alpha=scale)
                torch.mul(torch.bmm(of_weights, group_k[:, :last]), scale, out=of_q[heads, first:last])
        return of_q.view(shape), of_k.view(shape), of_v.view(shape)


def _groups(n_heads: int, n_tokens: int) -> Iterator[slice]:
    """Heads at once."""
    size = max(2, _GROUP_ELEMENTS // (query_block(n_tokens) * n_tokens))
    for first in range(0, n_heads, size):
        yield slice(first, min(first + size, n_heads))


_BLOCK_ELEMENTS = 2**21  # 8 MB of float32 logits; 2**19 to 2**22 are within a tenth of each other
_MIN_ROWS = 64  # below this the matrix products lose more than the cache gains


def linear_nll(
    features: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None = None, ignore_index: int = -100
) -> Tensor:
    """Summed negative log-likelihood of the labels under softmax(features @ weight.T + bias).

    Args:
        features: (..., D) what the head reads.
        weight: (V, D) of the head.
        labels: (...) token ids; ignore_index is left out, and no logits are computed for it.
        bias: (V,) of the head.

    Returns:
        float64 scalar, in nats, differentiable once in features, weight and bias.
    """
    flat = labels.flatten()
    valid = (flat != ignore_index).nonzero()[:, 0]
    chosen = features.flatten(0, -2)
    if len(valid) < len(flat):
        chosen, flat = chosen[valid], flat[valid]
    nll: Tensor = _LinearNll.apply(chosen, weight, bias, flat, torch.is_grad_enabled())
    return nll


class _LinearNll(torch.autograd.Function):
    """Computes its gradients in the forward pass: they are linear in the incoming one, which only scales them."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, with_gradient: bool
    ) -> Tensor:
        n, vocab_size = len(features), len(weight)
        n_block = max(_MIN_ROWS, _BLOCK_ELEMENTS // vocab_size)
        fast = features.dtype == torch.float32 and has_fast_products()
        buffer = features.new_empty(0 if fast else min(n, n_block), vocab_size)
        total = torch.zeros((), dtype=torch.float64, device=features.device)
        feature_gradient = torch.empty_like(features) if with_gradient else None
        weight_gradient = torch.zeros_like(weight) if with_gradient else None
        bias_gradient = torch.zeros_like(bias) if with_gradient and bias is not None else None
        for first in range(0, n, n_block):
            x, y = features[first : first + n_block], labels[first : first + n_block, None]
            if fast:
                logits = product(x, weight, bias)
            else:
                logits = torch.mm(x, weight.T, out=buffer[: len(x)])
                if bias is not None:
                    logits += bias
            highest = logits.max(dim=1, keepdim=True).values
            wanted = logits.gather(1, y) - highest
            exponentials = logits.sub_(highest).exp_()  # softmax times its own denominator
            denominator = exponentials.sum(dim=1, keepdim=True)
            total += (denominator.log() - wanted).sum(dtype=torch.float64)
            if feature_gradient is not None and weight_gradient is not None:
                # d nll / d logits = softmax - one_hot; dividing the narrow side instead saves a pass over logits
                exponentials.scatter_add_(1, y, -denominator)
                scaled = x / denominator
                rows = feature_gradient[first : first + len(x)]
                if fast:
                    torch.div(product(exponentials, weight.T), denominator, out=rows)
                    weight_gradient += product(exponentials.T, scaled.T)
                else:
                    torch.mm(exponentials, weight, out=rows)
                    rows /= denominator
                    weight_gradient.addmm_(exponentials.T, scaled)
                if bias_gradient is not None:
                    bias_gradient.addmv_(exponentials.T, 1 / denominator[:, 0])
        ctx.save_for_backward(feature_gradient, weight_gradient, bias_gradient)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        feature_gradient, weight_gradient, bias_gradient = ctx.saved_tensors
        scaled_bias = None if bias_gradient is None else bias_gradient * gradient
        return feature_gradient * gradient, weight_gradient * gradient, scaled_bias, None, None
