"""Positions: sinusoidal tables, frequencies, rotation."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from golden.registry import Found, by_hand, operation
from golden.shared import numbers, small_config
from model import ModelConfig, Transformer
from model.positions import rotary_table, rotate, sinusoidal_table, wavelength_frequencies


@operation("sinusoidal_pe")
def sinusoidal_pe(positions: list[int], dims: list[int], d: int, base: float) -> Tensor:
    return sinusoidal_table(max(positions) + 1, d, base)[positions][:, dims]


@operation("sinusoidal_pe_entries")
def sinusoidal_pe_entries(entries: list[list[int]], d: int, base: float) -> list[Tensor]:
    table = sinusoidal_table(max(place for place, _ in entries) + 1, d, base)
    return [table[place, column] for place, column in entries]


@operation("embed_plus_pe")
def embed_plus_pe(x: Any, positions: list[int], dims: list[int], d: int, base: float) -> Tensor:
    """Through the network's own sum: the stated columns of the embedding are loaded, the table is its table."""
    config = small_config(vocab_size=len(x), max_seq_len=8, d_model=d, pos="sinusoidal", pos_base=float(base))
    model = Transformer(config).double().eval()
    model.position_table = sinusoidal_table(config.max_seq_len, d, base)  # the buffer itself is rounded to float32
    model.token_embedding.weight.data[:, dims] = numbers(x)
    return model.embed(torch.arange(len(x))[None], torch.tensor(positions))[0][:, dims].detach()


@operation("angular_freq")
def angular_freq(i: list[int], d: int, base: float) -> Tensor:
    return wavelength_frequencies(d, base)[i]


@operation("cycles_per_position")
def cycles_per_position(i: list[int], d: int, base: float) -> Found:
    cycles = wavelength_frequencies(d, base) / (2 * math.pi)
    return Found(cycles[i], extras={"lowest_cycles": cycles[-1]})


@operation("freq_power")
def freq_power(i: list[int], d: int, base: float) -> Tensor:
    return 1 / wavelength_frequencies(d, base)[i]


@operation("wavelength")
def wavelength(i: list[int], d: int, base: float) -> Tensor:
    return 2 * math.pi / wavelength_frequencies(d, base)[i]


@operation("rope_freqs")
def rope_freqs(base: float, dim: int) -> Tensor:
    return wavelength_frequencies(dim, base)


@operation("rope_cos_sin")
def rope_cos_sin(base: float, dim: int, position: int) -> Tensor:
    angle = position * wavelength_frequencies(dim, base)
    return torch.stack((angle.cos(), angle.sin()), dim=-1)


@operation("rope_pair")
def rope_pair(x: Any, cos: float, sin: float) -> Tensor:
    return rotate(numbers(x), numbers([[cos, sin]]), "interleaved")


@operation("rope_both")
def rope_both(x: Any, position: int, base: float) -> dict[str, Tensor]:
    config = ModelConfig(8, n_head=1, d_model=len(x), pos="rope", pos_base=float(base))
    table = rotary_table(config, position + 1)[position]
    layouts = {"interleaved": "interleaved", "half_split": "half"}
    return {name: rotate(numbers([x]), table, layout)[0] for name, layout in layouts.items()}


@by_hand("cos_sin")
def cos_sin(angles: Any) -> Tensor:
    return torch.stack((numbers(angles).cos(), numbers(angles).sin()), dim=-1)
