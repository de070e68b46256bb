"""Matrix products on a CPU, each with the library that is fast there.

torch multiplies float32 matrices with MKL, which uses the widest instructions of Intel's processors only: on others it
reaches less than half of what oneDNN does, which torch carries too but uses for other types. So here the products of
the linear layers, forward and backward, go to oneDNN where that is the faster of the two. The arithmetic is the same;
sums are added up in another order. Which library it is follows from the processor and not from a measurement, so that a
run that goes on later has the same bits.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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


class Linear(nn.Linear):
    """torch's linear layer, with the faster products in float32 on a CPU: in training, and in inference mode."""

    def forward(self, x: Tensor) -> Tensor:
        only_read = torch.is_inference_mode_enabled()
        trained = self.training and torch.is_grad_enabled()
        if not (only_read or trained) or not (is_plain(x) and is_plain(self.weight)):
            return F.linear(x, self.weight, self.bias)
        if torch.is_autocast_enabled("cpu") or not has_fast_products():
            return F.linear(x, self.weight, self.bias)
        if only_read:
            return product(x.flatten(0, -2), self.weight, self.bias).unflatten(0, x.shape[:-1])
        found: Tensor = LinearProduct.apply(x, self.weight, self.bias)
        return found


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
        return product(x.flatten(0, -2), weight, bias).unflatten(0, x.shape[:-1])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        flat = gradient.flatten(0, -2)
        for_x, for_weight, for_bias = ctx.needs_input_grad
        return (
            product(flat, weight.T).view_as(x) if for_x else None,
            product(flat.T, x.flatten(0, -2).T) if for_weight else None,
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
