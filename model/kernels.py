"""Products of matrices on a CPU, by the faster of two libraries that torch carries; nothing else knows of them.

torch multiplies float32 matrices with MKL, which uses the widest instructions of Intel's processors only: on others it
reaches less than half of what oneDNN does, which torch carries too but uses for other types. So there the products of
the linear layers, forward and backward, go to oneDNN. And the weights of a decoding step, which multiply a few rows
over and over, are put into the library's own layout beforehand. The arithmetic is the same; sums are added up in
another order. Which library it is follows from the processor and not from a measurement, so that a run that goes on
later has the same bits.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
        return ready(x)
    only_read = torch.is_inference_mode_enabled()
    if not has_fast_products() or not (only_read or (training and torch.is_grad_enabled())):
        return F.linear(x, weight, bias)
    if torch.is_autocast_enabled("cpu") or not (is_plain(x) and is_plain(weight)):
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
        return ready(x).split(ready.sizes, dim=-1)
    return [layer(x) for layer in layers]


@dataclass(frozen=True)
class _Ready:
    """Weights of one or more layers, together and in a library's own layout, their biases and numbers of columns."""

    weight: Tensor
    packed: Tensor | None
    bias: Tensor | None
    sizes: list[int]
    n_rows: int

    def __call__(self, x: Tensor) -> Tensor:
        found: Tensor
        if self.packed is None:
            found = F.linear(x, self.weight, self.bias)
        elif has_fast_products():
            found = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        else:
            found = torch.ops.mkl._mkl_linear(x, self.packed, self.weight, self.bias, self.n_rows)
        return found


_packed = threading.local()


def _packed_for(x: Tensor, weight: Tensor) -> _Ready | None:
    if torch.compiler.is_compiling():
        return None
    ready: dict[int, _Ready] | None = getattr(_packed, "weights", None)
    found = None if ready is None or x.dtype != torch.float32 else ready.get(id(weight))
    return found if found is not None and x.numel() == found.n_rows * x.shape[-1] else None


class Packed:
    """Within it, this thread's products use copies of a network's weights in the library's own layout.

    The weights of a decoding step are read from memory once per token, so their layout decides how fast it is, and
    with few rows a product costs more to begin than to compute: so those of one input are one.

    Args:
        products: weights and biases, those of one input together, as they are now.
        n_rows: rows of the products it is for. For a single row both libraries have a kernel that no layout makes
            faster.
    """

    def __init__(self, products: Iterable[list[tuple[Tensor, Tensor | None]]], n_rows: int) -> None:
        self.weights: dict[int, _Ready] = {}
        self.originals = []  # as long as they are kept their ids are theirs
        pack = _packing() if n_rows > 1 else None
        for group in products:
            weights, biases = [weight.detach() for weight, _ in group], [bias for _, bias in group if bias is not None]
            if not all(map(is_plain, weights)) or (pack is None and len(group) == 1):
                continue
            self.originals.append(group)
            joined = torch.cat(weights) if len(weights) > 1 else weights[0]
            bias = torch.cat(biases).detach() if biases else None
            sizes = [len(weight) for weight in weights]
            self.weights[id(group[0][0])] = _Ready(joined, pack and pack(joined, n_rows), bias, sizes, n_rows)

    def __enter__(self) -> None:
        _packed.weights = self.weights

    def __exit__(self, *_: object) -> None:
        _packed.weights = None


def _packing() -> Callable[[Tensor, int], Tensor] | None:
    """The function that packs weights into the layout of oneDNN or MKL; None where torch lacks it."""
    if has_fast_products():
        found: Callable[[Tensor, int], Tensor] = torch.ops.mkldnn._reorder_linear_weight
        return found
    if processor_vendor() != "GenuineIntel" or not torch.backends.mkl.is_available():
        return None
    # made for torch's own compiler, so that a later torch may lack it
    return getattr(torch.ops.mkl, "_mkl_reorder_linear_weight", None)


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
