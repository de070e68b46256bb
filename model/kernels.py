"""Matrix products on a CPU by the faster of MKL and oneDNN, both of which torch includes.

torch multiplies float32 matrices with MKL, which uses the widest vector instructions on Intel processors only; on
others it has less than half of the throughput of oneDNN. There the products of linear layers, forward and backward, use
oneDNN, but for small ones without gradients. The weights of decoding steps are packed into the library's layout in
advance. Results differ by the order of summation only. The library is chosen by the processor's vendor and the sizes,
and not by measurement, so that a resumed run has the same bits.
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

# oneDNN takes 50 us for a product, however small; below these sizes MKL is faster on every processor
LEAST_PRODUCT = 2**21  # multiplications
LEAST_PACKED, LEAST_PACKED_PRODUCT = 2**18, 2**23  # weights, and multiplications


def product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return a @ b.T + bias.

    Args:
        a: (N, K), of any strides.
        b: (M, K), of any strides.
        bias: (M,), of any stride.

    Returns:
        (N, M).
    """
    if a.dtype == torch.float32 and a.device.type == "cpu" and has_fast_products():
        joined = None if bias is None else bias.contiguous()  # the operator ignores the strides of the bias
        found: Tensor = torch.ops.mkldnn._linear_pointwise(a, b, joined, "none", [], "")
        return found
    return torch.mm(a, b.T) if bias is None else torch.addmm(bias, a, b.T)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, training: bool = False) -> Tensor:
    """Return x @ weight.T + bias over the last axis, by the fastest kernel.

    Args:
        x: (..., K).
        weight: (M, K).
        bias: (M,).
        training: the gradients are for a training step; otherwise torch's own autograd graph is used, which can be
            differentiated twice.

    Returns:
        (..., M).
    """
    ready = _packed_for(x, weight)
    if ready is not None and len(ready.sizes) == 1:
        return ready(x)
    inference = torch.is_inference_mode_enabled()
    if inference and x.numel() * len(weight) < LEAST_PRODUCT:
        return F.linear(x, weight, bias)
    if not has_fast_products() or not (inference or (training and torch.is_grad_enabled())):
        return F.linear(x, weight, bias)
    if torch.is_autocast_enabled("cpu") or not (is_plain(x) and is_plain(weight)):
        return F.linear(x, weight, bias)
    if inference:
        return product(x.reshape(-1, x.shape[-1]), weight, bias).view(*x.shape[:-1], len(weight))
    return LinearProduct.apply(x, weight, bias)


class Linear(nn.Linear):
    """nn.Linear whose product is computed by `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias, training=self.training)


def linears(x: Tensor, *layers: Linear) -> Sequence[Tensor]:
    """Return the outputs of several layers for one input, by a single product if their weights are packed together."""
    ready = _packed_for(x, layers[0].weight)
    if ready is not None and len(ready.sizes) == len(layers):
        return ready(x).split(ready.sizes, dim=-1)
    return [layer(x) for layer in layers]


@dataclass(frozen=True)
class _PackedLayers:
    """Concatenated and packed weights of one or more layers, their biases and output widths."""

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


def _packed_for(x: Tensor, weight: Tensor) -> _PackedLayers | None:
    if torch.compiler.is_compiling():
        return None
    ready: dict[int, _PackedLayers] | None = getattr(_packed, "weights", None)
    found = None if ready is None or x.dtype != torch.float32 else ready.get(id(weight))
    return found if found is not None and x.numel() == found.n_rows * x.shape[-1] else None


class Packed:
    """Context manager in which products of this thread use packed copies of the weights.

    Decoding steps are bound by reading the weights from memory, which packing speeds up, and by the overhead per
    product, so that layers with a common input are concatenated.

    Args:
        products: weights and biases of linear layers, grouped by common input; later changes have no effect.
        n_rows: rows of the inputs. With a single row weights are not packed, because that is not faster.
    """

    def __init__(self, products: Iterable[list[tuple[Tensor, Tensor | None]]], n_rows: int) -> None:
        self.weights: dict[int, _PackedLayers] = {}
        self.originals = []  # references keep the ids unique
        pack = _packing() if n_rows > 1 else None
        for group in products:
            weights, biases = [weight.detach() for weight, _ in group], [bias for _, bias in group if bias is not None]
            if not all(map(is_plain, weights)) or (pack is None and len(group) == 1):
                continue
            self.originals.append(group)
            joined = torch.cat(weights) if len(weights) > 1 else weights[0]
            bias = torch.cat(biases).detach() if biases else None
            sizes = [len(weight) for weight in weights]
            size = joined.numel()
            is_small = has_fast_products() and size < LEAST_PACKED and size * n_rows <= LEAST_PACKED_PRODUCT
            packed = None if is_small else pack and pack(joined, n_rows)
            self.weights[id(group[0][0])] = _PackedLayers(joined, packed, bias, sizes, n_rows)

    def __enter__(self) -> None:
        _packed.weights = self.weights

    def __exit__(self, *_: object) -> None:
        _packed.weights = None


def _packing() -> Callable[[Tensor, int], Tensor] | None:
    """Return the function that packs weights for oneDNN or MKL; None if torch has none."""
    if has_fast_products():
        found: Callable[[Tensor, int], Tensor] = torch.ops.mkldnn._reorder_linear_weight
        return found
    if processor_vendor() != "GenuineIntel" or not torch.backends.mkl.is_available():
        return None
    # an operator of torch's compiler, which a later torch may not have
    return getattr(torch.ops.mkl, "_mkl_reorder_linear_weight", None)


def is_plain(x: Tensor) -> bool:
    """Return True for a float32 tensor on the CPU that is neither a DTensor nor traced by a compiler."""
    return (
        x.dtype == torch.float32
        and x.device.type == "cpu"
        and type(x) in (Tensor, nn.Parameter)
        and not torch.compiler.is_compiling()
    )


class LinearProduct(torch.autograd.Function):
    """x @ weight.T + bias over the last axis, with the gradients of x, weight and bias."""

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
    """Return True if oneDNN is faster for float32 products on this processor and torch has its operator."""
    if not torch.backends.mkldnn.is_available() or processor_vendor() in ("GenuineIntel", ""):
        return False
    a, b, bias = torch.arange(6.0).view(2, 3), torch.arange(12.0).view(4, 3), torch.arange(4.0)
    try:  # an operator of torch's compiler, which a later torch may change
        found = torch.ops.mkldnn._linear_pointwise(a, b, bias, "none", [], "")
    except (AttributeError, RuntimeError, TypeError):
        return False
    return isinstance(found, Tensor) and torch.equal(found, F.linear(a, b, bias))


@cache
def processor_vendor() -> str:
    """Return the vendor of an x86 processor, such as "GenuineIntel"; empty if unknown."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return ""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")
