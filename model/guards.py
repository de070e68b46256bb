"""Checks of a training: non-finite values, out of memory, loss spikes, early stopping, slow precision.

Checks of the history depend on its rows only, so that a resumed run gives the same results as an uninterrupted one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from .architecture import ModelConfig
from .config import Execution, TrainConfig
from .data import Batch

Rows = Sequence[Mapping[str, Any]]

WINDOW, MIN_STEPS = 64, 32  # steps that a step is compared with, at most and at least
_SIGMA = 1.4826  # standard deviation of a normal distribution divided by its median absolute deviation
# Lower bounds of the standard deviation of the logarithms, for windows with little noise: at the default threshold of 8
# a spike is a loss 27 % higher, or a gradient norm 5 times as high.
_NOISE = {"train/loss": ("loss", 0.03), "grad_norm": ("gradient norm", 0.2)}


def spike_of(history: Rows, row: Mapping[str, Any], zscore: float) -> tuple[float, str] | None:
    """Return score and description of a spike of the loss or gradient norm, or None.

    The score is the distance of the logarithm from the median of the last steps, in standard deviations estimated from
    the median absolute difference of successive steps. The estimate is robust to a few spikes and to a trend.

    Args:
        history: rows before the step.
        row: row of the step.
        zscore: threshold of the score.
    """
    found = []
    for name, (words, noise) in _NOISE.items():
        logs = [math.log(one[name]) for one in history[-WINDOW:] if one.get(name, 0) > 0]  # step 0 has no loss
        if row[name] > 0 and len(logs) >= MIN_STEPS:
            middle = median(logs)
            spread = _SIGMA * median(abs(one - other) for one, other in pairwise(logs)) / math.sqrt(2)
            score = (math.log(row[name]) - middle) / max(spread, noise)
            usual = f"the last steps' median {math.exp(middle):.4g} (score {score:.1f})"
            found.append((score, f"the {words} is {row[name]:.4g}, {usual}"))
    return max((spike for spike in found if spike[0] > zscore), default=None)


def best_step(history: Rows) -> int | None:
    """Return the first step with the lowest validation loss; None without an evaluation.

    Losses on earlier validation sequences are not comparable and are ignored.
    """
    losses = _comparable(history)
    return min(losses, key=losses.__getitem__, default=None)


def is_out_of_patience(history: Rows, patience: int) -> bool:
    """Return True if the last `patience` evaluations did not lower the validation loss; False if patience is 0."""
    best, steps = best_step(history), list(_comparable(history))
    return bool(patience) and best is not None and len(steps) - 1 - steps.index(best) >= patience


def _comparable(history: Rows) -> dict[int, float]:
    """Return validation losses by step since the last change of the validation sequences, without NaN (no labels)."""
    begin = max((place for place, row in enumerate(history) if "val/source_changed" in row), default=0)
    losses = {row["step"]: row.get("val/loss", math.nan) for row in history[begin:]}
    return {step: loss for step, loss in losses.items() if not math.isnan(loss)}


class NonFiniteLoss(RuntimeError):
    """Loss or gradient was NaN or infinite; the weights were not updated.

    Attributes:
        step: the optimiser step, from 1.
        indices: numbers of the step's sequences in their source.
        suspects: sequences whose own loss or gradient is not finite; empty if unknown.
    """

    def __init__(
        self, what: str, step: int, indices: Sequence[int], cause: str = "", suspects: Sequence[int] = ()
    ) -> None:
        self.step = step
        self.indices = list(indices)
        self.suspects = list(suspects)
        where = f", in the sequences {_shown(self.indices)}" if self.indices else ""
        cause = cause or "Check these sequences, lower the learning rate, or use precision='fp32'"
        super().__init__(f"{what} at step {step}{where}; the last checkpoint is untouched. {cause}")


def non_finite_loss(
    what: str,
    step: int,
    indices: Sequence[int],
    model: nn.Module,
    batches: Sequence[Batch],
    nll: Callable[[Batch], Tensor],
) -> NonFiniteLoss:
    """Return the error of a step with its cause: non-finite weights, or the sequences that are non-finite alone.

    Args:
        what: what was found, such as "the loss is nan".
        step: number of the step.
        indices: numbers of the step's sequences.
        model: the network.
        batches: the step's micro-batches.
        nll: returns the summed negative log-likelihood of a batch, with its autograd graph.
    """
    weights = dict(model.named_parameters())
    broken = [name for name, weight in weights.items() if not weight.isfinite().all()]
    if broken:
        more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        cause = f"The weights are not finite: {broken[0]}{more}; start from other weights"
        return NonFiniteLoss(what, step, indices, cause)

    def is_finite(row: Batch) -> bool:
        loss = nll(row)
        trained = [weight for weight in weights.values() if weight.requires_grad]
        gradients = torch.autograd.grad(loss, trained, allow_unused=True)
        return all(one is None or bool(one.isfinite().all()) for one in (loss, *gradients))

    model.eval()
    rows = [
        Batch(inputs[row : row + 1], labels[row : row + 1], documents and documents[row : row + 1])
        for inputs, labels, documents in batches
        for row in range(len(inputs))
    ]
    bad = [index for index, row in zip(indices, rows, strict=False) if not is_finite(row)]
    model.train()
    if 0 < len(bad) < len(rows):
        cause = f"Computed alone, only {_shown(bad)} are not finite: check them."
        return NonFiniteLoss(what, step, indices, cause, bad)
    alone = "each" if bad else "none"
    cause = f"Computed alone, {alone} of them is not finite: lower the learning rate, or use precision='fp32'"
    return NonFiniteLoss(what, step, indices, cause)


def _shown(numbers: Sequence[int], most: int = 16) -> str:
    text = ", ".join(map(str, numbers[:most]))
    return f"[{text}]" if len(numbers) <= most else f"[{text}, and {len(numbers) - most} more]"


class OutOfMemory(RuntimeError):
    """A device has too little memory. The message names settings to change."""


_OUT_OF_MEMORY = re.compile(
    "out of memory"  # CUDA, MPS, XPU
    "|can't allocate memory|cannot allocate memory|not enough memory"  # torch's allocator on a CPU, the system
    "|bad_alloc"  # C++ code without a message of its own
    "|could not create a (memory|primitive(?! descriptor))"  # oneDNN; with "descriptor" the operation is unsupported
    "|alloc_failed",  # cuBLAS and cuDNN, which allocate for themselves
    re.IGNORECASE,
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error reports that memory ran out, on any device."""
    matches = isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None
    return matches or isinstance(error, MemoryError | torch.OutOfMemoryError)


@contextmanager
def explaining_memory(
    doing: str, device: torch.device, shape: ModelConfig, config: TrainConfig, execution: Execution
) -> Iterator[None]:
    """Convert out-of-memory errors to OutOfMemory with the settings to change; `doing` is its subject."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        size, accum = config.batch_size, config.grad_accum
        smaller = -(-size // 2)
        remedies = {
            f"batch_size={smaller} with grad_accum={-(-size * accum // smaller)}": size > 1,
            f"a max_seq_len below {shape.max_seq_len}": True,
            "precision='bf16'": config.precision == "fp32" and device.type != "cpu",
            "recompute=True": not execution.recompute,
        }
        words = ", ".join(remedy for remedy, helps in remedies.items() if helps)
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise OutOfMemory(
            f"{doing} does not fit into the memory of {device} with batch_size={size}, "
            f"max_seq_len={shape.max_seq_len}, precision={config.precision!r}; use {words} or a smaller network "
            f"({reason})"
        ) from error


_AMPERE, _VOLTA = (8, 0), (7, 0)  # lowest compute capability with native bfloat16, float16


def advice(precision: str, device: torch.device) -> list[str]:
    """Return a sentence for each setting that is slow on this machine."""
    sentence = None
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        sentence = cuda_advice(precision, torch.cuda.get_device_capability(device), name)
    elif device.type == "cpu" and torch.cuda.is_available():
        sentence = (
            f"The training runs on the CPU although there is a GPU ({torch.cuda.get_device_name()}): use "
            f"device='cuda' unless this is intended."
        )
    return [sentence] if sentence else []


def best_precision(device: torch.device) -> str:
    """Return the precision that trains fastest on a device at the quality of float32: "bf16", "fp16" or "fp32"."""
    return cuda_precision(torch.cuda.get_device_capability(device)) if device.type == "cuda" else "fp32"


def cuda_precision(capability: tuple[int, int]) -> str:
    """Return the fastest precision of a GPU by compute capability: "bf16", else "fp16", else "fp32"."""
    if capability >= _AMPERE:
        return "bf16"
    return "fp16" if capability >= _VOLTA else "fp32"


def cuda_advice(precision: str, capability: tuple[int, int], name: str) -> str | None:
    """Return the advice about a precision on a GPU of a compute capability; None if it is the best one."""
    better = cuda_precision(capability)
    if precision == better:
        return None
    if precision == "bf16":
        return f"The {name} has no bfloat16 units and emulates it slowly: use precision={better!r}."
    if precision == "fp32":
        return f"Float32 leaves most of the {name}'s speed unused: precision={better!r} trains several times faster."
    if better == "bf16":
        return f"The {name} is as fast in bfloat16, which needs no loss scaling: precision='bf16' is safer than 'fp16'."
    return f"The {name} has no fast float16 units: precision='fp32' trains faster on it."
