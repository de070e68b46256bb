"""Types of GGUF's tensors, and what a network loses in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import nn

FLOATS = ("f32", "f16", "bf16")
TYPES = (*FLOATS, "q8_0", "q4_0")


def quantised(values: np.ndarray, kind: str) -> tuple[np.ndarray, Any]:
    """Return float32 values in a type, or in float16 where its blocks do not divide the rows; and GGUF's type."""
    import gguf  # here, because plans import this module

    own = gguf.GGMLQuantizationType[kind.upper()]
    try:
        return gguf.quantize(values, own), own
    except gguf.QuantError:
        own = gguf.GGMLQuantizationType.F16
        return gguf.quantize(values, own), own


def round_weights(model: nn.Module, kind: str) -> None:
    """Round the matrices of a network, but position vectors, to the values that they have in a type."""
    import gguf
    import torch

    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.ndim > 1 and "position" not in name:
                data, own = quantised(weights.float().cpu().numpy(), kind)
                weights.copy_(torch.from_numpy(gguf.dequantize(data, own)))
