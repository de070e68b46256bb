"""torch.compile for a network in training, tried out before the first step.

Compilation needs a C++ compiler or Triton, takes from seconds to minutes, and fails where torch finds none or meets
something it cannot translate. Then the network is left as it was, and a note says why.
"""

from __future__ import annotations

import contextlib

import torch

from .transformer import Transformer


def compile_network(
    model: Transformer, n_rows: int, device: torch.device, dtype: torch.dtype | None, sharded: bool
) -> list[str]:
    """Compile what computes the training loss, forward and backward; weights and random states stay.

    Args:
        model: the network on its device; of a sharded one the blocks are compiled already, and are only tried out.
        n_rows: rows of a micro-batch; other sizes would be compiled anew.
        dtype: of autocast; None computes in the weights' own.

    Returns:
        Nothing, or the reason why the network is not compiled, in a sentence.

    Raises:
        RuntimeError: a sharded network does not compile.
    """
    ids = torch.zeros((n_rows, model.config.max_seq_len), dtype=torch.int64, device=device)
    # on a CPU the last layer and its loss are one function already, which a compiler would take apart
    name = "read" if device.type == "cpu" else "score"
    was_training = model.training
    autocast = contextlib.nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)
    try:
        if not sharded:  # imports the compiler, which is where some installations fail already
            model.compiled[name] = torch.compile(getattr(model, name), dynamic=False)
        model.train()
        with torch.random.fork_rng([device] if device.type == "cuda" else []), autocast:
            model.nll(ids, ids).backward()
    except Exception as error:
        if sharded:
            raise RuntimeError(f"torch.compile does not work here ({_reason(error)}); set compile=False") from error
        model.compiled.clear()
        return [f"torch.compile does not work here, so the network is trained without it: {_reason(error)}"]
    finally:
        model.train(was_training)
        model.zero_grad(set_to_none=True)
    return []


def _reason(error: BaseException) -> str:
    """The line of a compiler's message that says most: the first one of the innermost cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
