"""What a training run is made of, and what it is computed with: what its checkpoints say, and are compared by.

Another identity is another run, and refused; another way of computing changes the last bits at most, and is told.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from .architecture import ModelConfig
from .checkpoint import Checkpoint, differences
from .config import TrainConfig
from .data import SequenceSource
from .execution import Execution
from .order import Order


def source_digest(source: SequenceSource, batch_size: int) -> str:
    """sha256 over all inputs, labels and documents, in order."""
    digest = hashlib.sha256()
    for first in range(0, len(source), batch_size):
        batch = source.batch(np.arange(first, min(first + batch_size, len(source))))
        for ids in (batch.inputs, batch.labels):
            digest.update(f"{ids.shape}\n".encode())
            digest.update(np.ascontiguousarray(ids).tobytes())
        if batch.documents is not None:
            digest.update(f"{batch.documents}\n".encode())
    return digest.hexdigest()


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """sha256 over names, shapes, types and bits."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def full_identity(
    identity: Mapping[str, str],
    model_config: ModelConfig,
    train_config: TrainConfig,
    train_source: SequenceSource,
    order: Order,
) -> dict[str, str]:
    """What a run is made of, as entries that can be told: a checkpoint continues only under the same.

    Args:
        identity: what the caller adds (dataset, tokeniser, ...).
    """
    own = {f"model.{name}": repr(value) for name, value in model_config.to_dict().items()}
    own |= {f"train.{name}": repr(value) for name, value in train_config.to_dict().items()}
    own["train_sequences"] = str(len(train_source))
    own["train_sequences_read"] = ", ".join(
        f"{group.reads} of {group.count} from {group.first}" for group in order.groups
    )
    return {**own, **identity}


def execution_record(execution: Execution, device: torch.device, n_processes: int) -> dict[str, str]:
    """What decides about the last bits, and is no part of what the run is."""
    on_gpu = device.type == "cuda"
    return {
        "torch": str(torch.__version__),
        "device": torch.cuda.get_device_name(device) if on_gpu else f"{device.type} {_cpu_kernels()}",
        "threads": str(torch.get_num_threads()),
        "kernels": "deterministic" if torch.are_deterministic_algorithms_enabled() else "fastest",
        "compile": str(execution.compile),
        "recompute": str(execution.recompute),
        "processes": f"{n_processes} by {execution.sharding}" if n_processes > 1 else "1",
    }


def _cpu_kernels() -> str:
    return str(torch.backends.cpu.get_cpu_capability())


def warn_if_bits_may_differ(saved: Checkpoint, found: dict[str, str]) -> None:
    """Say so where a checkpoint was computed in another way than what goes on from it."""
    difference = differences(saved.execution, found)
    if difference:
        warnings.warn(
            f"the run goes on from step {saved.step}, but computes in another way: {difference}; its result may differ "
            f"in the last bits from that of a run which was not stopped",
            stacklevel=3,
        )
