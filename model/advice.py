"""What a person should know before a training starts: settings that this machine does badly, and the kernel in use.

One sentence for each; nothing is refused, and nothing here changes what is computed. What a GPU does badly follows from
its generation.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from .architecture import ModelConfig
from .config import TrainConfig
from .execution import Execution
from .kernels import suits_short_attention

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_WORDS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_AMPERE, _VOLTA = (8, 0), (7, 0)  # compute capability from which on a GPU multiplies bfloat16, float16 natively
_KERNELS = {
    SDPBackend.MATH: "plain matrix products (math)",
    SDPBackend.FLASH_ATTENTION: "flash attention",
    SDPBackend.EFFICIENT_ATTENTION: "memory-efficient attention",
    SDPBackend.CUDNN_ATTENTION: "cuDNN attention",
}


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


def attention_kernel(
    model_config: ModelConfig,
    train_config: TrainConfig,
    device: torch.device | str,
    *,
    execution: Execution = Execution(),
    masked: bool = False,
) -> str:
    """Which kernel attention takes for the training's shapes, in words.

    Args:
        model_config: gives heads, context, window and dropout.
        train_config: gives the precision.
        device: where the training will be computed.
        execution: whether the network is compiled.
        masked: whether batches tell documents apart, which takes an explicit mask; a window takes one by itself.
    """
    device, dtype = torch.device(device), DTYPES[train_config.precision]
    length, size, dropout = model_config.max_seq_len, model_config.head_dim, model_config.drop_attn
    masked = masked or (model_config.window is not None and model_config.window < length)
    query, key = (
        torch.zeros(1, n_head, length, size, dtype=dtype, device=device, requires_grad=True)
        for n_head in (model_config.n_head, model_config.n_kv_head)
    )
    if not masked and not dropout and not execution.compile and suits_short_attention(query, key):
        words = "products in blocks, for short sequences on a CPU"
    else:
        kernel = sdpa_backend(query, key, dropout=dropout, masked=masked)
        words = "unknown" if kernel is None else _KERNELS[kernel]
    mask = ", explicit mask" if masked else ""
    return (
        f"attention kernel: {words} ({_WORDS[train_config.precision]}, {model_config.n_head} heads of {size}, context "
        f"{length}{mask})"
    )


def sdpa_backend(query: Tensor, key: Tensor, *, dropout: float = 0.0, masked: bool = False) -> SDPBackend | None:
    """The kernel that scaled_dot_product_attention dispatches to, as torch itself decides; None if it does not tell.

    Args:
        query: (B, H, T, E).
        key: (B, K, T, E), and the values alike.
        dropout: of the attention weights.
        masked: whether there is an explicit mask instead of is_causal.
    """
    decide = getattr(torch, "_fused_sdp_choice", None)  # what scaled_dot_product_attention asks; no public name
    if decide is None:
        return None
    length = query.shape[2]
    mask = torch.ones(1, 1, length, length, dtype=torch.bool, device=query.device).tril() if masked else None
    try:
        chosen = decide(query, key, key, mask, dropout, not masked, enable_gqa=query.shape[1] != key.shape[1])
    except (RuntimeError, TypeError):  # no fused kernels on this kind of device, or other arguments in this torch
        return None
    return next((kernel for kernel in _KERNELS if kernel.value == int(chosen)), None)
