"""One optimiser step, with gradient accumulation over micro-batches.

The loss is the sum of negative log-likelihoods over all labels of the step divided by their number, so that the
gradient does not depend on the division into micro-batches.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .adapters import adapt, merge, trained_state
from .architecture import ModelConfig
from .checkpoint import Checkpoint
from .config import Execution, TrainConfig
from .data import IGNORE, Batch
from .distributed import SINGLE, Ranks, replicate, shard, whole
from .guards import NonFiniteLoss, explaining_memory, non_finite_loss
from .optim import build_optimizer, clip_gradients, load_optimizer_tensors, optimizer_tensors, set_learning_rate
from .randomness import DROPOUT_STREAM, WEIGHTS_STREAM, RandomState, derive_seed
from .schedule import learning_rate
from .transformer import Transformer

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class StepResult:
    """Result of one optimiser step.

    Attributes:
        loss: mean negative log-likelihood over the step's labels, in nats; 0 without labels.
        grad_norm: global norm before clipping; 0 if the fp16 loss scaler skipped the update.
        tokens: number of labels.
        flags: for each flag passed to `run`, True if any rank has set it.
    """

    loss: float
    grad_norm: float
    tokens: int
    flags: tuple[bool, ...] = ()


class Stepper:
    """A network with its optimiser, loss scaler and random stream for dropout.

    Args:
        model: the network, equal on every rank; it is moved to the device, or sharded by "fsdp".
        config: training settings.
        device: device of this rank.
        execution: settings of compilation, recomputation and sharding.
        ranks: the ranks of the training.

    Attributes:
        is_compiled: True if the network is compiled, for micro-batches of max_seq_len columns only.
        is_sharded: True if the parameters are DTensors.
        notes: deviations from the execution settings, a sentence each.
    """

    def __init__(
        self,
        model: Transformer,
        config: TrainConfig,
        device: torch.device,
        execution: Execution = Execution(),
        ranks: Ranks = SINGLE,
    ) -> None:
        self.model = model
        self.config = config
        self.device = device
        self.execution = execution
        self.ranks = ranks
        self.is_sharded = ranks.world_size > 1 and execution.sharding == "fsdp"
        self.notes: list[str] = []
        model.recompute = execution.recompute
        if self.is_sharded:
            shard(model, device, ranks, torch.bfloat16 if config.precision == "bf16" else None, execution.compile)
        model.to(device)
        if execution.compile:  # before DistributedDataParallel adds its hooks
            self._compile()
        self.is_compiled = execution.compile and not self.notes
        self._replica: Any = replicate(model) if ranks.world_size > 1 and not self.is_sharded else None
        self.optimizer = build_optimizer(model, config)
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "fp16")
        self.random = self._random_stream(0)
        self._parameters = list(model.parameters())

    def _compile(self) -> None:
        """Compile the training loss and run it once, or add a note with the error; weights and random states stay.

        Compilation takes seconds to minutes, and fails without a C++ compiler or Triton or with unsupported operations.
        The blocks of a sharded network are compiled already, and are only run.
        """
        model = self.model
        # on a CPU the head and its loss are a fused function, which the compiler would decompose
        name = "read" if self.device.type == "cpu" else "score"
        rows = self.ranks.share(np.zeros((self.config.grad_accum, self.config.batch_size))).shape[1]
        ids = torch.zeros((rows, model.config.max_seq_len), dtype=torch.int64, device=self.device)
        try:
            if not self.is_sharded:  # within try: importing the compiler may fail
                model.compiled[name] = torch.compile(getattr(model, name), dynamic=False)
            model.train()
            with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []), self._casting():
                model.nll(ids, ids).backward()
        except Exception as error:
            cause: BaseException = error
            while cause.__cause__ is not None:  # the innermost cause is the most specific
                cause = cause.__cause__
            reason = traceback.format_exception_only(cause)[0].splitlines()[0]
            if self.is_sharded:
                raise RuntimeError(f"torch.compile does not work here ({reason}); set compile=False") from error
            model.compiled.clear()
            self.notes.append(f"torch.compile does not work here, so the network is trained without it: {reason}")
        finally:
            model.zero_grad(set_to_none=True)

    def run(
        self, batches: Sequence[Batch], lr: float, step: int, indices: Sequence[int], flags: Sequence[bool] = ()
    ) -> StepResult:
        """Take one optimiser step.

        Args:
            batches: this rank's micro-batches.
            lr: learning rate.
            step: number of the step, from 1, for messages.
            indices: numbers of the step's sequences, for messages.
            flags: flags of this rank, which are combined over the ranks.

        Returns:
            Loss, gradient norm, number of labels and flags, over all ranks.

        Raises:
            NonFiniteLoss: the loss or the gradient is NaN or infinite (with fp16 at a loss scale below 1); the weights
                are not changed.
            OutOfMemory: the step does not fit into memory.
        """
        (tokens,) = map(int, self.ranks.sum(sum(int((batch.labels != IGNORE).sum()) for batch in batches)))
        self.model.train()
        with self.explaining_memory(f"step {step}"):
            loss = self._backward(batches, max(1, tokens))  # without labels, loss and gradient are 0
            self.scaler.unscale_(self.optimizer)
            norm = clip_gradients(self._parameters, self.config.clip_norm)
        mean, *shared = self.ranks.sum(float(loss), *map(float, flags))
        if not math.isfinite(mean):
            raise self._stopped(f"the loss is {mean}", step, indices, batches)
        if not math.isfinite(norm) and not self.scaler.is_enabled():
            raise self._stopped(f"the gradient's norm is {norm}", step, indices, batches)
        set_learning_rate(self.optimizer, lr)
        with self.explaining_memory(f"the update of step {step}"):
            self.scaler.step(self.optimizer)  # skips the update if an fp16 gradient overflowed
            self.scaler.update()
        # Each skipped step halves the scale. An overflow at a scale below 1 is not caused by the scaling.
        if not math.isfinite(norm) and self.scaler.get_scale() < 1:
            what = f"at every loss scale down to 1, the gradient's norm is {norm}"
            raise self._stopped(what, step, indices, batches)
        return StepResult(mean, norm if math.isfinite(norm) else 0.0, tokens, tuple(count > 0 for count in shared))

    def _backward(self, batches: Sequence[Batch], divisor: int) -> Tensor:
        """Accumulate the gradients of the step's loss. Returns the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        losses: list[Tensor] = []
        with self.random.running():
            for number, batch in enumerate(batches, start=1):
                # DDP sums gradients at the last micro-batch; FSDP at each, because it has no memory for whole gradients
                alone = self._replica is not None and number < len(batches)
                with self._replica.no_sync() if alone else nullcontext():
                    loss = self._nll(batch) / divisor
                    self.scaler.scale(loss).backward()
                losses.append(loss.detach())
        return torch.stack(losses).sum()

    def _nll(self, batch: Batch) -> Tensor:
        """Return the summed negative log-likelihood of a micro-batch, with its autograd graph."""
        ids, labels = (torch.as_tensor(part).to(self.device, non_blocking=True) for part in batch[:2])
        with self._casting():
            nll: Tensor = (self._replica or self.model.nll)(ids, labels, documents=batch.documents)
        return nll

    def _casting(self) -> AbstractContextManager[Any]:
        dtype = _AUTOCAST.get(self.config.precision)
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype=dtype)

    def _stopped(self, what: str, step: int, indices: Sequence[int], batches: Sequence[Batch]) -> NonFiniteLoss:
        if self.ranks.world_size > 1:  # no search for the sequences, for which the other ranks would wait
            return NonFiniteLoss(what, step, indices)
        self.optimizer.zero_grad(set_to_none=True)
        self.model.compiled.clear()  # single rows would be compiled again
        return non_finite_loss(what, step, indices, self.model, batches, self._nll)

    def explaining_memory(self, doing: str) -> AbstractContextManager[None]:
        """Convert out-of-memory errors to `OutOfMemory`; see `guards.explaining_memory`."""
        return explaining_memory(doing, self.device, self.model.config, self.config, self.execution)

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return weights, optimiser and random states for a checkpoint; every rank calls it."""
        states = self.ranks.gather(self.random.tensors())
        random = {  # the first rank's by name, those of rank r as "r/name"
            f"{rank or ''}/{name}".lstrip("/"): one for rank, state in enumerate(states) for name, one in state.items()
        }
        return {"weights": trained_state(self.model), "optimizer": optimizer_tensors(self.optimizer), "random": random}

    def load(self, saved: Checkpoint) -> None:
        """Load a checkpoint, of any number of ranks."""
        self.load_trained(saved.weights)
        load_optimizer_tensors(self.optimizer, saved.optimizer)
        if saved.scaler:
            self.scaler.load_state_dict(saved.scaler)
        owner = str(self.ranks.rank or "")
        own = {name.rpartition("/")[2]: one for name, one in saved.random.items() if name.rpartition("/")[0] == owner}
        if own:
            self.random.load(own)
        else:
            self.random = self._random_stream(saved.step)  # a new rank gets a new stream

    def load_trained(self, weights: Mapping[str, Tensor]) -> None:
        """Load the weights of a checkpoint."""
        self.model.load_state_dict(weights, strict=self.config.adapter == "none")

    def empty_like_saved(self, name: str, size: torch.Size, dtype: torch.dtype) -> Tensor:
        """Allocate a saved tensor, a DTensor if it is sharded; see `checkpoint.read_checkpoint`."""
        group, _, rest = name.rpartition("/")
        if group == "optimizer":
            numbered = [one for part in self.optimizer.param_groups for one in part["params"]]
            weight: Tensor | None = numbered[int(rest.partition(".")[0])]
        else:
            weight = self.model.state_dict().get(name)
        if weight is None or weight.shape != size:
            return torch.empty(size, dtype=dtype)
        return torch.empty_like(weight, dtype=dtype)

    def plain(self) -> Transformer:
        """Return the plain network in evaluation mode, with adapters merged; a sharded one on the first rank's CPU."""
        model = self.model
        if self.is_sharded:
            weights = {}
            for name, one in model.state_dict().items():
                full = whole(one)
                if self.ranks.is_first:
                    weights[name] = full.cpu()
            if self.ranks.is_first:
                with torch.random.fork_rng(devices=[]):  # initialisation must not advance the generator
                    model = Transformer(model.config)
                model.load_state_dict(weights)
        model.compiled.clear()
        model.recompute = False
        merge(model)
        return model.eval()

    def _random_stream(self, step: int) -> RandomState:
        branch = (self.ranks.rank, step) if self.ranks.rank else ()
        return RandomState(derive_seed(self.config.seed, DROPOUT_STREAM, *branch), self.device)


def new_stepper(
    model_config: ModelConfig,
    train_config: TrainConfig,
    device: torch.device,
    execution: Execution,
    ranks: Ranks,
    initial_weights: Mapping[str, Tensor] | None = None,
) -> Stepper:
    """Return a stepper of a new network.

    Args:
        initial_weights: its state dict; None draws the weights from the configured seed, on the CPU, so that they do
            not depend on the device.

    Raises:
        OutOfMemory: the network does not fit into memory.
        ValueError: the initial weights do not fit the configuration, or adapters do not fit the network or execution.
    """
    if train_config.adapter != "none" and ranks.world_size > 1 and execution.sharding == "fsdp":
        raise ValueError("adapters are not sharded; set execution.sharding to ddp")
    with explaining_memory("the network", device, model_config, train_config, execution):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive_seed(train_config.seed, WEIGHTS_STREAM))  # of the CPU only
            model = Transformer(model_config)
            if initial_weights is not None:
                _fill(model, initial_weights, is_kept=train_config.adapter != "none")
            if train_config.adapter != "none":
                adapt(model, train_config)
        return Stepper(model, train_config, device, execution, ranks)


def _fill(model: Transformer, weights: Mapping[str, Tensor], is_kept: bool) -> None:
    """Load the initial weights; those that training does not change are shared, not copied."""
    try:
        model.load_state_dict(weights, assign=is_kept)
    except RuntimeError as error:
        raise ValueError(
            f"the initial weights do not fit the configuration: {error}; train with the ModelConfig they were made with"
        ) from error


def measure_step_seconds(
    model_config: ModelConfig,
    train_config: TrainConfig,
    device: torch.device | str = "cpu",
    steps: int = 8,
    *,
    execution: Execution = Execution(),
    ranks: Ranks = SINGLE,
) -> float:
    """Return the seconds of an optimiser step on random tokens: the lower quartile, after two warm-up steps.

    Whatever else runs on the machine for a while makes steps slower, never faster.

    Args:
        model_config: configuration of the network.
        train_config: gives micro-batch, accumulation and precision.
        device: device of this rank.
        steps: number of measured steps.
        execution: settings of compilation, recomputation and sharding.
        ranks: the ranks of the training; every rank calls.
    """
    stepper = new_stepper(model_config, train_config, torch.device(device), execution, ranks)
    generator = np.random.default_rng(0)
    shape = ranks.share(np.empty((train_config.grad_accum, train_config.batch_size))).shape
    seconds = []
    for step in range(1, steps + 3):
        ids = generator.integers(model_config.vocab_size, size=(*shape, model_config.max_seq_len + 1))
        started = time.perf_counter()
        stepper.run([Batch(one[:, :-1], one[:, 1:]) for one in ids], learning_rate(0, train_config), step, [])
        seconds.append(time.perf_counter() - started)
    return sorted(seconds[2:])[steps // 4]
