"""Tensors and networks of the golden numbers, all in float64, so that nine digits can be compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from model import ModelConfig, Transformer
from tasks.tokens.tokenizer_kinds import CharTokenizer


def numbers(values: Any) -> Tensor:
    """Nested lists as float64; "inf" and "-inf" are strings in the file."""

    def plain(value: Any) -> Any:
        return [plain(item) for item in value] if isinstance(value, list) else float(value)

    return torch.tensor(plain(values), dtype=torch.float64)


@contextmanager
def float64() -> Iterator[None]:
    """Networks built here have float64 weights from the start."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def small_config(**fields: Any) -> ModelConfig:
    """A shape for a single layer of it."""
    return ModelConfig(**{"vocab_size": 8, "max_seq_len": 8, "n_layer": 1, "n_head": 1, "pos": "none", **fields})


def built(config: ModelConfig, seed: int = 0) -> Transformer:
    """A network in float64 and evaluation mode."""
    with float64(), torch.random.fork_rng():
        torch.manual_seed(seed)
        return Transformer(config).eval()


Calls = dict[nn.Module, list[tuple[tuple[Any, ...], Any]]]


@contextmanager
def watched(*modules: nn.Module) -> Iterator[Calls]:
    """(arguments, output) of each call of these modules, in order."""
    calls: Calls = {module: [] for module in modules}
    hooks = [
        module.register_forward_hook(lambda module, given, out: calls[module].append((given, out)))
        for module in modules
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def solved(increasing: Any, wanted: Tensor, low: float, high: float) -> Tensor:
    """Where an increasing function has the wanted values, by bisection."""
    least, most = torch.full_like(wanted, low), torch.full_like(wanted, high)
    for _ in range(100):
        middle = (least + most) / 2
        is_below = increasing(middle) < wanted
        least, most = torch.where(is_below, middle, least), torch.where(is_below, most, middle)
    return most


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def same(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=0, atol=1e-9)


def printable() -> CharTokenizer:
    return CharTokenizer("".join(map(chr, range(32, 127))))
