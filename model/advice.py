"""What a person should know before a training starts: settings that this machine does badly.

One sentence for each; nothing is refused, and nothing here changes what is computed. What a GPU does badly follows from
its generation.
"""

from __future__ import annotations

import torch

from .config import TrainConfig

_AMPERE, _VOLTA = (8, 0), (7, 0)  # compute capability from which on a GPU multiplies bfloat16, float16 natively


def advice(train_config: TrainConfig, device: torch.device | str) -> list[str]:
    """Sentences about what this machine does badly; none where all is well.

    Args:
        train_config: gives the precision.
        device: where the training will be computed.
    """
    device = torch.device(device)
    found = [device_advice(device)]
    if device.type == "cuda":
        capability, name = torch.cuda.get_device_capability(device), torch.cuda.get_device_name(device)
        found.append(cuda_advice(train_config.precision, capability, name))
    return [sentence for sentence in found if sentence is not None]


def device_advice(device: torch.device) -> str | None:
    """A sentence if a faster device is at hand."""
    if device.type == "cpu" and torch.cuda.is_available():
        return (
            f"The training computes on the CPU although there is a GPU ({torch.cuda.get_device_name()}): use "
            f"device='cuda' unless that is meant."
        )
    return None


def best_precision(device: torch.device) -> str:
    """The precision that trains fastest on a device at the quality of float32: "bf16", "fp16" or "fp32".

    Args:
        device: where the training will be computed.
    """
    return cuda_precision(torch.cuda.get_device_capability(device)) if device.type == "cuda" else "fp32"


def cuda_precision(capability: tuple[int, int]) -> str:
    """ "bf16" for a GPU that has it, else "fp16"; "fp32" for one that multiplies neither natively.

    Args:
        capability: compute capability of the GPU.
    """
    if capability >= _AMPERE:
        return "bf16"
    return "fp16" if capability >= _VOLTA else "fp32"


def cuda_advice(precision: str, capability: tuple[int, int], name: str) -> str | None:
    """The sentence for a GPU.

    Args:
        precision: "fp32", "bf16" or "fp16".
        capability: its compute capability.
        name: of the GPU.
    """
    if precision == "bf16" and capability < _AMPERE:
        instead = cuda_precision(capability)
        return f"The {name} has no bfloat16 units and emulates it slowly: use precision={instead!r}."
    if precision == "fp16" and capability < _VOLTA:
        return f"The {name} has no fast float16 units: precision='fp32' trains faster on it."
    if precision == "fp16" and capability >= _AMPERE:
        return f"The {name} is as fast in bfloat16, which needs no loss scaling: precision='bf16' is safer than 'fp16'."
    if precision == "fp32" and capability >= _VOLTA:
        better = cuda_precision(capability)
        return f"Float32 leaves most of the {name}'s speed unused: precision={better!r} trains several times faster."
    return None
