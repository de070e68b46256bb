"""Throughput of a training: tokens per second, model FLOPs utilisation (MFU), time left, memory.

The peak of a device is that of matrix products: measured briefly at the start, or published for a GPU. Nothing here
affects the result of a training.
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

WINDOW_SECONDS = 20.0  # averaging window of tokens per second
MEASURED_SECONDS = 0.1  # time of matrix products of one size in a measurement
# Sides of the matrices: small ones are less disturbed by other processes, large ones come closer to the peak.
_CPU_SIDES, _GPU_SIDES = (512, 1024), (4096,)

# Published dense bfloat16 and float16 peaks in FLOP/s, accumulated in float32; the first matching name is used.
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
    """Peak throughput of a device."""

    flops: float  # FLOP/s; a multiply-add counts as two
    source: str  # origin of the number, for people


class Speedometer:
    """Tokens per second, MFU and time left of a training.

    The time left is estimated from all steps since the start, so that it includes evaluations and checkpoints, but for
    the first step, which is the slowest.

    Args:
        flops_per_token: training FLOPs per token.
        limit: peak FLOP/s of the device.
        clock: returns seconds.
    """

    def __init__(self, flops_per_token: float, limit: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._share_per_token = flops_per_token / limit
        self._clock = clock
        self._first: tuple[float, int] | None = None
        self._last = 0
        self._recent: deque[tuple[float, float]] = deque()

    def pace(self, step: int, total: int, tokens: float) -> str:
        """Return tokens per second, MFU and time left as text; empty after the first step.

        Args:
            step: last finished step.
            total: steps of the training.
            tokens: labels trained on so far.
        """
        now = self._clock()
        if self._first is None or step < self._last:  # started, or resumed from an earlier step
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
    """Return the peak throughput of matrix products on a device, measured once per process.

    Args:
        device: `cpu` or `cuda`.
        precision: as in a TrainConfig; float32 if that is faster.
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
    """Measure products of square matrices and return the highest throughput."""
    import torch

    on_gpu = device.startswith("cuda")
    sides = _GPU_SIDES if on_gpu else _CPU_SIDES
    flops, side = max((2 * side**3 / _product_seconds(device, dtype, side), side) for side in sides)
    if on_gpu:  # leave these matrices out of the training's memory figures
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    where = "this GPU" if on_gpu else f"{threads} thread{'' if threads == 1 else 's'}"
    return Limit(flops, f"measured: {name} products of {side} by {side} on {where}")


def _product_seconds(device: str, dtype: torch.dtype, side: int) -> float:
    """Return the shortest time of a product, without the first."""
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
    """Return a time as text in at most two units."""
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
