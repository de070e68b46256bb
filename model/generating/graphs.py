"""The decoding step as a CUDA graph: hundreds of small kernels, started by one call.

A graph has fixed addresses and shapes. So tokens and positions are copied to where it expects them, and the number of
cache slots that it reads is rounded up: each multiple gets a graph of its own when it is first needed. Where a graph
cannot be captured the step is computed as it is, and a warning says why.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ..cache import KVCache
from .decoder import Cache, Decoder, Reach

SLOTS = 128  # graphs are made for multiples of so many cache slots
_WARM_UP = 2  # libraries allocate and choose their kernels in the first calls, which a graph must not record


def step_for(decoder: Decoder, cache: Cache) -> Callable[..., Tensor]:
    """`Decoder.step` over this cache, as a graph where there can be one."""
    if isinstance(cache, KVCache) and cache.keys.device.type == "cuda":
        return GraphedStep(decoder, cache)
    return partial(decoder.step, cache)


class GraphedStep:
    """`Decoder.step` over all rows of one cache.

    Args:
        decoder: computes it.
        cache: whose tensors stay where they are.
    """

    def __init__(self, decoder: Decoder, cache: KVCache) -> None:
        self.decoder, self.cache = decoder, cache
        n_rows = len(cache.lengths)
        self.ids = torch.zeros(n_rows, dtype=torch.int64, device=cache.keys.device)
        self.positions = torch.zeros_like(self.ids)
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self.works = True

    def __call__(self, ids: Tensor, positions: Tensor, reaches: list[Reach], first: int = 0) -> Tensor:
        """Arguments and result as for `Decoder.step`; the result is overwritten by the next call."""
        if not self.works or len(reaches) > 1 or len(ids) < len(self.ids):
            return self.decoder.step(self.cache, ids, positions, reaches, first)
        self.ids.copy_(ids)
        self.positions.copy_(positions)
        end = min(-(-reaches[0].end // SLOTS) * SLOTS, self.cache.capacity)
        if end not in self.graphs:
            try:
                self.graphs[end] = self._captured(Reach(0, len(ids), end))
            except RuntimeError as error:  # memory for graphs, or an operation that cannot be recorded
                self.works = False
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                warnings.warn(
                    "the decoding step cannot be captured as a CUDA graph and is computed without one, which is "
                    f"slower: {reason}",
                    stacklevel=2,
                )
                return self.decoder.step(self.cache, ids, positions, reaches, first)
        graph, logits = self.graphs[end]
        graph.replay()
        return logits

    def _captured(self, reach: Reach) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        def step() -> Tensor:
            return self.decoder.step(self.cache, self.ids, self.positions, [reach])

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # a step repeated writes the same keys and values to the same slots
            for _ in range(_WARM_UP):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = step()
        return graph, logits
