"""Adapters: small trained matrices beside frozen linear layers.

With LoRA (Hu et al. 2022) a layer of weight W computes W x + (alpha / rank) B A x. DoRA (Liu et al. 2024) also trains
the norm m of each row: it computes m / |V| V x, where V = W + (alpha / rank) B A and |V|, the norms of its rows, count
as constants in the gradient. B begins as 0, so that training starts with the function of the base.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import ADAPTER_TARGETS, TrainConfig
from .kernels import Linear, linear
from .transformer import Block, Transformer


class AdaptedLinear(Linear):
    """A frozen layer with an adapter.

    Args:
        layer: the layer, whose weights are shared; with precision "bf16" they are kept in it.
        config: gives adapter, adapter_rank, adapter_alpha and adapter_dropout.

    Attributes:
        lora_a: (rank, in_features).
        lora_b: (out_features, rank).
        magnitude: (out_features,) norms of the rows with "dora"; else None.
    """

    def __init__(self, layer: Linear, config: TrainConfig) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        if config.precision == "bf16":
            self.weight = nn.Parameter(layer.weight.detach().to(torch.bfloat16), requires_grad=False)
        self.scale = config.adapter_alpha / config.adapter_rank
        self.dropout = nn.Dropout(config.adapter_dropout)
        self.lora_a = nn.Parameter(torch.empty(config.adapter_rank, layer.in_features))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))  # as nn.Linear's weights
        self.lora_b = nn.Parameter(torch.zeros(layer.out_features, config.adapter_rank))
        norms = self.weight.detach().float().norm(dim=1)
        self.magnitude = nn.Parameter(norms) if config.adapter == "dora" else None

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight if torch.is_autocast_enabled(x.device.type) else self.weight.to(x.dtype)
        bias = self.bias if self.magnitude is None else None
        frozen = linear(x, weight, bias, training=self.training).flatten(0, -2)
        narrow = F.linear(self.dropout(x), self.lora_a).flatten(0, -2)
        found = torch.addmm(frozen, narrow, self.lora_b.T, alpha=self.scale).view(*x.shape[:-1], -1)
        if self.magnitude is not None:
            with torch.no_grad():
                norms = self._sum().norm(dim=1)
            found = found * (self.magnitude / norms).to(found.dtype)
            found = found if self.bias is None else found + self.bias.to(found.dtype)
        return found

    def _sum(self) -> Tensor:
        return self.weight.float() + self.lora_b @ self.lora_a * self.scale

    def merged(self) -> Linear:
        """Return a plain layer of float32 that computes the same."""
        layer = Linear(self.in_features, self.out_features, bias=self.bias is not None, device="meta")
        with torch.no_grad():
            weight = self._sum()
            if self.magnitude is not None:
                weight *= (self.magnitude / weight.norm(dim=1))[:, None]
        layer.weight, layer.bias = nn.Parameter(weight), self.bias
        return layer


def adapt(model: Transformer, config: TrainConfig) -> None:
    """Freeze the network, and add adapters to the layers of adapter_targets.

    The first matrices are drawn from torch's global generator.

    Raises:
        ValueError: the network does not have one of the layers.
    """
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for target in config.adapter_targets:
        if not any(name == target for _, name, _ in _layers(model)):
            known = sorted({name for _, name, _ in _layers(model)}, key=ADAPTER_TARGETS.index)
            raise ValueError(f"adapter_targets names {target!r}; the network's layers are {', '.join(known)}")
    for owner, name, layer in _layers(model):
        if name in config.adapter_targets or not config.adapter_targets:
            setattr(owner, name, AdaptedLinear(layer, config))


def merge(model: Transformer) -> None:
    """Make the network a plain one of float32, with the weights of its adapters added."""
    for owner, name, layer in _layers(model):
        if isinstance(layer, AdaptedLinear):
            setattr(owner, name, layer.merged())
    for parameter in model.parameters():
        parameter.requires_grad_(True)


def trained_state(model: Transformer) -> dict[str, Tensor]:
    """Return the trained part of the network's state dict: all of it, or that of the adapters."""
    state: dict[str, Any] = model.state_dict()
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    return {name: tensor for name, tensor in state.items() if name not in frozen}


def _layers(model: Transformer) -> Iterator[tuple[nn.Module, str, Linear]]:
    """Yield owner, name and module of all linear layers in the blocks."""
    for block in model.blocks:
        assert isinstance(block, Block)
        for owner in (block.attention, block.mlp):
            for name, layer in owner.named_children():
                if isinstance(layer, Linear):
                    yield owner, name, layer
