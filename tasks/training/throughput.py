"""Throughput of a training: tokens per second, model FLOPs utilisation (MFU), time left, memory.

The limit of the machine is that of matrix products, which is nearly all that a training computes: measured in a moment
at the start, or published for a GPU. Nothing here draws random numbers or shapes a result.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

    from model.architecture import ModelConfig

T = TypeVar("T")

WINDOW_SECONDS = 20.0  # over which tokens per second are averaged
MEASURED_SECONDS = 0.1  # of matrix products of one size, by which a limit is measured
# Sides of the matrices. Small ones are done before another process takes a core away, large ones come nearer the limit.
_CPU_SIDES, _GPU_SIDES = (512, 1024), (4096,)

# Dense bfloat16 and float16 with sums in float32, in FLOP/s, as the makers publish them; the first name found counts.
_PUBLISHED = (
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H100", 989e12),
    ("H200", 989e12),
    ("A100", 312e12),
    ("L40S", 362e12),
)


@dataclass(frozen=True)
class Limit:
    """Peak throughput of a machine."""

    flops: float  # floating-point operations per second; a multiply-add is two
    source: str  # origin of the number, in a few words


class Speedometer:
    """Pace of a training from the tokens of each step.

    The time left comes from all steps since the start, because evaluations and checkpoints take their share of it; the
    first step is left out of it, because it is slower than all others.

    Args:
        flops_per_token: FLOPs per token of training.
        limit: FLOP/s of the machine.
        clock: returns seconds.
    """

    def __init__(self, flops_per_token: float, limit: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._share_per_token = flops_per_token / limit
        self._clock = clock
        self._first: tuple[float, int] | None = None
        self._last = 0
        self._recent: deque[tuple[float, float]] = deque()

    def pace(self, step: int, total: int, tokens: float) -> str:
        """Return tokens per second of the last seconds, MFU and time left, in words; empty after the first step.

        Args:
            step: the last step that is done.
            total: number of steps of the training.
            tokens: labels trained on since the beginning of the run.
        """
        now = self._clock()
        if self._first is None or step < self._last:  # it begins, or went back
            self._first = (now, step)
            self._recent.clear()
        self._last = step
        self._recent.append((now, tokens))
        while len(self._recent) > 2 and now - self._recent[1][0] > WINDOW_SECONDS:
            self._recent.popleft()
        began, tokens_then = self._recent[0]
        started, first_step = self._first
        if now == began or step == first_step:
            return ""
        rate = (tokens - tokens_then) / (now - began)
        left = (now - started) / (step - first_step) * (total - step)
        return f"{rate:,.0f} tokens/s, {100 * rate * self._share_per_token:.0f} % MFU, {duration(left)} left"


def flops_per_token(network: ModelConfig) -> int:
    """Return 6 N + 12 L n_head head_dim T, the FLOPs per token of training (Chowdhery et al. 2022, appendix B)."""
    from model.accounting import estimate_cost

    return estimate_cost(network, batch_size=1, n_tokens=network.max_seq_len).rule_palm


def limit_of(device: str, precision: str = "fp32") -> Limit:
    """Return the limit of matrix products on a device, measured once in a process.

    Args:
        device: `cpu` or `cuda`.
        precision: as in a TrainConfig; if float32 is faster than it, that is the limit.
    """
    import torch

    threads = torch.get_num_threads()
    return in_thread_that_ends(lambda: _limit(device, precision, threads))


def in_thread_that_ends(function: Callable[[], T]) -> T:
    """Call a function that computes in a thread of its own, which is gone when this returns, and return its result.

    OpenMP keeps a team of threads for each thread that ever computed. Those of a team wait for the next product by
    spinning, but where the teams of a process have more threads than there are processors they sleep instead, and a
    training, which waits some thousand times a second, then takes up to a third longer. A team ends with its thread.
    """
    with ThreadPoolExecutor(1) as alone:
        return alone.submit(function).result()


@lru_cache
def _limit(device: str, precision: str, threads: int) -> Limit:
    import torch

    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    if device.startswith("cuda"):
        name = torch.cuda.get_device_name(device)
        published = next((flops for part, flops in _PUBLISHED if part in name), None)
        if half is not None and published is not None:
            return Limit(published, f"published for {name}, {precision}")
    found = [_measured(device, torch.float32, "float32", threads)]
    if half is not None:
        found.append(_measured(device, half, precision, threads))
    return max(found, key=lambda limit: limit.flops)


def _measured(device: str, dtype: torch.dtype, name: str, threads: int) -> Limit:
    """Measure products of square matrices of a few sizes and return the fastest."""
    import torch

    on_gpu = device.startswith("cuda")
    sides = _GPU_SIDES if on_gpu else _CPU_SIDES
    flops, side = max((2 * side**3 / _product_seconds(device, dtype, side), side) for side in sides)
    if on_gpu:  # this memory does not count as the training's
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    where = "this GPU" if on_gpu else f"{threads} thread{'' if threads == 1 else 's'}"
    return Limit(flops, f"measured: {name} products of {side} by {side} on {where}")


def _product_seconds(device: str, dtype: torch.dtype, side: int) -> float:
    """Return the shortest time of a product; the first one warms up."""
    import torch

    one, other = (torch.full((side, side), 0.5, dtype=dtype, device=device) for _ in range(2))
    out = torch.empty_like(one)
    seconds: list[float] = []
    with torch.no_grad():
        began = time.perf_counter()
        while len(seconds) < 3 or time.perf_counter() - began < MEASURED_SECONDS:
            started = time.perf_counter()
            torch.mm(one, other, out=out)
            if device.startswith("cuda"):
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def memory(device: str) -> dict[str, float]:
    """Return the memory of this process in MB as metrics: `memory/resident_mb`, on a GPU `memory/cuda_peak_mb`."""
    import psutil

    found = {"memory/resident_mb": psutil.Process().memory_info().rss / 1e6}
    torch = sys.modules.get("torch")
    if device.startswith("cuda") and torch is not None:
        found["memory/cuda_peak_mb"] = torch.cuda.max_memory_allocated() / 1e6
    return found


def duration(seconds: float) -> str:
    """Return a time in words, in two units at most."""
    if seconds < 1:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours < 48:
        return f"{hours}:{minutes:02} h"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days} d {hours} h"
