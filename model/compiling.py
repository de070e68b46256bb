"""torch.compile for a network in training, with a way back where it does not work.

Compilation needs a C++ compiler or Triton, takes from seconds to minutes, and fails where torch finds none or meets
something it cannot translate. So it is tried out, forward and backward, before the first step; where that fails the
network is left as it was, and whoever asked gets one sentence that says why.
"""

from __future__ import annotations

import contextlib

import torch

from .data import Batch
from .transformer import Transformer


def compile_network(model: Transformer, batch: Batch, device: torch.device, dtype: torch.dtype | None = None) -> str:
    """Compiles what computes the training loss, if that works here.

    Leaves weights, gradients and random states as they were.

    Args:
        model: the network; it is moved to the device.
        batch: a micro-batch of the size of those to come; other sizes would be compiled anew.
        device: where to compute.
        dtype: of autocast; None computes in the weights' own.

    Returns:
        Empty if the network is compiled now; otherwise why it is not, as a sentence.
    """
    # On a CPU the last layer and its loss are one function already, which a compiler would only take apart.
    name = "read" if device.type == "cpu" else "score"
    was_training = model.training
    autocast = contextlib.nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)
    devices = [device] if device.type == "cuda" else []
    try:
        # imports the compiler, which is where some installations fail already
        model.compiled[name] = torch.compile(getattr(model, name), dynamic=False)
        model.to(device).train()
        ids, labels = (torch.from_numpy(array).to(device) for array in (batch.inputs, batch.labels))
        with torch.random.fork_rng(devices=devices), autocast:
            model.nll(ids, labels, documents=batch.documents).backward()
    except Exception as error:  # noqa: BLE001 - compilers fail in every way there is, and none of them matters to the result
        model.compiled.clear()
        return f"torch.compile does not work here, so the network is trained without it: {_reason(error)}"
    finally:
        model.train(was_training)
        for parameter in model.parameters():
            parameter.grad = None
    return ""


def _reason(error: BaseException) -> str:
    """The line of a compiler's message that says most: the innermost cause's first one."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
