"""The decoding step as a CUDA graph: hundreds of small kernels, started by one call.

A graph has fixed addresses and shapes. So tokens and positions are copied to where it expects them, and the number of
cache slots that it reads is rounded up: each multiple gets a graph of its own when it is first needed. Where a graph
cannot be captured the step is computed as it is, and a warning says why.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from .kv_cache import CacheSlots, KVCache
from .transformer import Transformer

SLOTS = 128  # graphs are made for multiples of so many cache slots
_WARM_UP = 2  # libraries allocate and choose their kernels in the first calls, which a graph must not record


class GraphedStep:
    """`Transformer.next_logits` over all rows of one cache.

    Args:
        model: computes it.
        cache: whose tensors stay where they are.
    """

    def __init__(self, model: Transformer, cache: KVCache) -> None:
        self.model, self.cache = model, cache
        n_rows, device = len(cache.lengths), cache.keys.device
        self.ids = torch.zeros(n_rows, dtype=torch.int64, device=device)
        self.positions = torch.zeros(n_rows, 1, dtype=torch.int64, device=device)
        self.rows = torch.arange(n_rows, device=device)
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self.works = True

    def __call__(self, tokens: Tensor) -> Tensor:
        """Logits (R, vocab_size) behind one more token (R,) of each row; they are overwritten by the next call."""
        now = self.cache.slots(len(tokens), 1)
        if not self.works:
            return self.model.next_logits(tokens, now)
        self.ids.copy_(tokens)
        self.positions.copy_(now.positions)
        end = min(-(-now.end // SLOTS) * SLOTS, self.cache.capacity)
        if end not in self.graphs:
            try:
                self.graphs[end] = self._captured(end)
            except RuntimeError as error:  # memory for graphs, or an operation that cannot be recorded
                self.works = False
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                warnings.warn(
                    "the decoding step cannot be captured as a CUDA graph and is computed without one, which is "
                    f"slower: {reason}",
                    stacklevel=2,
                )
                return self.model.next_logits(tokens, now)
        graph, logits = self.graphs[end]
        graph.replay()
        return logits

    def _captured(self, end: int) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        slots = CacheSlots(self.cache, self.rows, slice(None), self.positions, end)

        def step() -> Tensor:
            return self.model.next_logits(self.ids, slots)

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
