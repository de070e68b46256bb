"""Identity of a training (another one is refused) and record of its execution (another one is reported)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from .architecture import ModelConfig
from .config import TrainConfig
from .data import SequenceSource
from .execution import Execution
from .order import Order

_NAMED = 4  # differences that a message names


def source_digest(source: SequenceSource, batch_size: int) -> str:
    """Return the sha256 over all inputs, labels and documents, in order."""
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
    """Return the sha256 over names, shapes, types and bits."""
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
    """Return what a run is made of, as text by name; a checkpoint is continued only by a run of the same.

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
    """Return what decides about the last bits, and is no part of the identity."""
    cpu = f"{device.type} {torch.backends.cpu.get_cpu_capability()}"
    return {
        "torch": str(torch.__version__),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu,
        "threads": str(torch.get_num_threads()),
        "kernels": "deterministic" if torch.are_deterministic_algorithms_enabled() else "fastest",
        "compile": str(execution.compile),
        "recompute": str(execution.recompute),
        "processes": f"{n_processes} by {execution.sharding}" if n_processes > 1 else "1",
    }


def differences(saved: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """Return which entries of two records differ, the first few of many; empty if they agree."""
    found = []
    for key in sorted(saved.keys() | wanted.keys()):
        if saved.get(key) != wanted.get(key):
            was = f"was {saved[key]!r}" if key in saved else "was not there"
            now = f"is now {wanted[key]!r}" if key in wanted else "is not there any more"
            found.append(f"{key!r} {was} and {now}")
    more = [f"{len(found) - _NAMED} more differ"] if len(found) > _NAMED else []
    return "; ".join(found[:_NAMED] + more)
