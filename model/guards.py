"""What watches over a training: leaps of the loss, the end of progress on validation, memory that runs out.

Goes in: the history's rows, and what a step found. Comes out: verdicts. Nothing here keeps a state of its own: what was
concluded from the rows before is concluded from the same rows again, so that a run which is killed and goes on judges
as one that was left alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from .architecture import ModelConfig
from .config import TrainConfig
from .data import Batch
from .execution import Execution

Rows = Sequence[Mapping[str, Any]]

# what is written into a history's row
SPIKE_SCORE = "spike/score"  # how far a leap goes

WINDOW = 64  # steps that a step is compared with
FEWEST = 32  # of them before anything is judged: a spread of fewer values says little, and the first steps are wild
_SIGMA = 1.4826  # standard deviations of a normal distribution in its median absolute value
# A window can be far calmer than what follows it. These are the smallest standard deviations of the logarithm that
# count as noise; at the default score of 8 they forgive a loss that is a quarter higher and a norm 5 times as high.
LOSS_NOISE, NORM_NOISE = 0.03, 0.2


@dataclass(frozen=True)
class Spike:
    """A step whose loss or gradient leaps out of the last ones' range.

    Attributes:
        signal: "loss" or "gradient norm".
        value: what it is.
        usual: the last steps' median.
        score: robust standard deviations between the two, of their logarithms.
    """

    signal: str
    value: float
    usual: float
    score: float

    def __str__(self) -> str:
        return (
            f"the {self.signal} is {self.value:.4g}, the last steps' median {self.usual:.4g} (score {self.score:.1f})"
        )


class SpikeDetector:
    """Tells leaps from noise by the median of the last steps' logarithms, and the median difference from step to step.

    Neither moves much for a few leaps among the values, so a leap does not hide the next one; a level that stays for
    half a window is the new one. Only rises count, and nothing is judged before there are FEWEST values.

    Args:
        zscore: standard deviations above the median from which on it is a leap.
        window: number of steps that a step is compared with.
    """

    def __init__(self, zscore: float, window: int = WINDOW) -> None:
        self.zscore = zscore
        self.window = window

    def judge(self, history: Rows, loss: float, grad_norm: float) -> Spike | None:
        """The leap of a step, or None; of two, the one that goes further.

        Args:
            history: the rows before this step.
            loss: of the step; 0 if it had no labels.
            grad_norm: global norm before clipping; 0 if there was none.
        """
        rows = history[-self.window :]
        found = [
            _leap("loss", loss, [row["train/loss"] for row in rows], LOSS_NOISE),
            _leap("gradient norm", grad_norm, [row["grad_norm"] for row in rows], NORM_NOISE),
        ]
        leaps = [spike for spike in found if spike is not None and spike.score > self.zscore]
        return max(leaps, key=lambda spike: spike.score, default=None)


def _leap(signal: str, value: float, before: Iterable[float], noise: float) -> Spike | None:
    logarithms = [math.log(one) for one in before if one > 0 and math.isfinite(one)]
    if value <= 0 or len(logarithms) < FEWEST:
        return None
    middle = median(logarithms)
    # from step to step, because a loss that falls quickly spreads far without being uncertain
    spread = _SIGMA * median(abs(one - other) for one, other in pairwise(logarithms)) / math.sqrt(2)
    score = (math.log(value) - middle) / max(spread, noise) if math.isfinite(value) else math.inf
    return Spike(signal, value, math.exp(middle), score)


class EarlyStop:
    """Ends a run whose validation loss has stopped falling.

    Losses from before a change of the validation sequences do not compare, and do not count.

    Args:
        patience: evaluations in a row without a lower loss than before that end the run; 0 never ends it.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience

    def best(self, history: Rows) -> int | None:
        """The step with the lowest validation loss, the first of equal ones; None before any evaluation."""
        losses = _comparable(history)
        return min(losses, key=lambda one: one[1])[0] if losses else None

    def is_over(self, history: Rows) -> bool:
        """Whether the run ends after its last row."""
        steps = [step for step, _ in _comparable(history)]
        best = self.best(history)
        return bool(self.patience) and best is not None and len(steps) - 1 - steps.index(best) >= self.patience

    def verdict(self, history: Rows, max_steps: int) -> str:
        """Why the run ends after its last row, as a sentence."""
        return (
            f"the validation loss has not fallen in {self.patience} evaluations: the run ends at step "
            f"{history[-1]['step']} of {max_steps} with the weights of step {self.best(history)}"
        )


def _comparable(history: Rows) -> list[tuple[int, float]]:
    """(step, validation loss) of the evaluations since the validation sequences last changed; NaN is left out."""
    losses: list[tuple[int, float]] = []
    for row in history:
        if "val/source_changed" in row:
            losses = []
        if not math.isnan(row.get("val/loss", math.nan)):
            losses.append((row["step"], row["val/loss"]))
    return losses


class OutOfMemory(RuntimeError):
    """A device has too little memory; says what to change.

    Args:
        doing: what was computed.
        device: what ran out of memory.
        shape: the network's.
        config: how it is trained.
        execution: how that is computed.
        error: what torch said.
    """

    def __init__(
        self,
        doing: str,
        device: torch.device,
        shape: ModelConfig,
        config: TrainConfig,
        execution: Execution,
        error: BaseException,
    ) -> None:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        size, accum = config.batch_size, config.grad_accum
        remedies = []
        if size > 1:
            smaller = -(-size // 2)
            remedies.append(f"batch_size={smaller} with grad_accum={-(-size * accum // smaller)}")
        remedies.append(f"a max_seq_len below {shape.max_seq_len}")
        if config.precision == "fp32" and device.type != "cpu":
            remedies.append("precision='bf16'")
        if not execution.recompute:
            remedies.append("recompute=True")
        tried = f"batch_size={size}, max_seq_len={shape.max_seq_len}, precision={config.precision!r}"
        super().__init__(
            f"{doing} does not fit into the memory of {device} with {tried}; take {', '.join(remedies)} or a smaller "
            f"network ({said})"
        )


_OUT_OF_MEMORY = re.compile(
    "out of memory"  # CUDA, MPS, XPU
    "|can't allocate memory|cannot allocate memory|not enough memory"  # torch's allocator on a CPU, the system
    "|bad_alloc"  # C++ code without a message of its own
    "|could not create a (memory|primitive(?! descriptor))"  # oneDNN; what it does not support is a descriptor's fault
    "|alloc_failed",  # cuBLAS and cuDNN, which allocate for themselves
    re.IGNORECASE,
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on whatever device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None


@contextmanager
def telling_of_memory(
    doing: str, device: torch.device, shape: ModelConfig, config: TrainConfig, execution: Execution
) -> Iterator[None]:
    """Inside, an error that means too little memory becomes an OutOfMemory; arguments as there."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(doing, device, shape, config, execution, error) from error


def _rows(batch: Batch) -> Iterator[Batch]:
    """The rows of a micro-batch, each as one of its own."""
    for row in range(len(batch.inputs)):
        documents = None if batch.documents is None else batch.documents[row : row + 1]
        yield Batch(batch.inputs[row : row + 1], batch.labels[row : row + 1], documents)


def non_finite_weights(model: nn.Module) -> list[str]:
    """Names of the weights that hold a NaN or an infinity."""
    return [name for name, weight in model.named_parameters() if not weight.isfinite().all()]


def non_finite_rows(
    batches: Sequence[Batch], nll: Callable[[Batch], Tensor], weights: Sequence[nn.Parameter]
) -> list[int]:
    """Which rows of the micro-batches, counted through, have a NaN or an infinity in loss or gradient by themselves.

    Leaves no gradients behind.

    Args:
        batches: the micro-batches.
        nll: summed negative log-likelihood of a batch, with its graph.
        weights: what gradients are taken of.
    """
    found = []
    rows = (row for batch in batches for row in _rows(batch))
    for number, row in enumerate(rows):
        for weight in weights:
            weight.grad = None
        loss = nll(row)
        if loss.isfinite():
            loss.backward()
        if not loss.isfinite() or not all(one.grad is None or one.grad.isfinite().all() for one in weights):
            found.append(number)
    for weight in weights:
        weight.grad = None
    return found


def shown(numbers: Sequence[int], most: int = 16) -> str:
    """Numbers as text, the first few of many."""
    text = ", ".join(map(str, numbers[:most]))
    return f"[{text}]" if len(numbers) <= most else f"[{text}, and {len(numbers) - most} more]"
