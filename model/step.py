"""One optimiser step: micro-batches in, loss and gradient norm out, weights changed.

The loss is the sum of negative log-likelihoods over all labels of the accumulated step divided by their number, so that
cutting the same sequences into other micro-batches gives the same gradient. With Execution.compile the network is
compiled, and tried out, before the first step.
"""

from __future__ import annotations

import math
import statistics
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .architecture import ModelConfig
from .checkpoint import Checkpoint
from .config import Execution, TrainConfig
from .data import IGNORE, Batch
from .distributed import SINGLE, Ranks, part_of, replicate, shard, whole
from .guards import NonFiniteLoss, explaining_memory, non_finite_loss
from .optim import build_optimizer, clip_gradients, load_optimizer_tensors, optimizer_tensors, set_learning_rate
from .randomness import DROPOUT_STREAM, WEIGHTS_STREAM, RandomState, derive_seed
from .schedule import learning_rate
from .transformer import Transformer

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class StepResult:
    """What one optimiser step did.

    Attributes:
        loss: mean negative log-likelihood over the step's labels, in nats; 0 if it had none.
        grad_norm: global norm before clipping; 0 if fp16's loss scaler skipped the update.
        tokens: number of labels.
        flags: for each flag that was passed, True if a rank has set it.
    """

    loss: float
    grad_norm: float
    tokens: int
    flags: tuple[bool, ...] = ()


class Stepper:
    """A network with all that changes when it takes a step: optimiser, loss scaler, dropout's random stream.

    Args:
        model: the network, the same on every rank; it is moved to the device, or with Execution.sharding "fsdp" split.
        config: training settings.
        device: where to compute.
        execution: how to compute.
        ranks: the processes that take the step together.

    Attributes:
        is_compiled: True if it is compiled, which is for micro-batches of max_seq_len columns.
        is_sharded: True if the parameters are DTensors, of which each rank holds a part.
        notes: what is done in another way than asked for, a sentence each.
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
        if execution.compile:  # before a replica watches for gradients
            self._compile()
        self.is_compiled = execution.compile and not self.notes
        self._replica: Any = replicate(model) if ranks.world_size > 1 and not self.is_sharded else None
        self.optimizer = build_optimizer(model, config)
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "fp16")
        self.random = self._random_stream(0)
        self._parameters = list(model.parameters())

    def _compile(self) -> None:
        """Compile what computes the training loss and try it, or note why not; weights and random states stay.

        Compilation needs a C++ compiler or Triton, takes from seconds to minutes, and fails where torch finds none or
        meets something it cannot translate. A sharded network has its blocks compiled already; they are only tried.
        """
        model = self.model
        # on a CPU the last layer and its loss are one function already, which a compiler would take apart
        name = "read" if self.device.type == "cpu" else "score"
        rows = self.ranks.share(np.zeros((self.config.grad_accum, self.config.batch_size))).shape[1]
        ids = torch.zeros((rows, model.config.max_seq_len), dtype=torch.int64, device=self.device)
        try:
            if not self.is_sharded:  # imports the compiler, which is where some installations fail already
                model.compiled[name] = torch.compile(getattr(model, name), dynamic=False)
            model.train()
            with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []), self._casting():
                model.nll(ids, ids).backward()
        except Exception as error:
            cause: BaseException = error
            while cause.__cause__ is not None:  # the first line of the innermost cause says most
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
            step: number of this step, from 1, for messages.
            indices: numbers of the step's sequences, for messages.
            flags: of this rank, to be shared with the others on the way.

        Raises:
            NonFiniteLoss: the loss is NaN or infinite, or the gradient is (in fp16: although the loss scale has fallen
                below 1); the weights are as before.
            OutOfMemory: the step does not fit into memory.
        """
        (tokens,) = map(int, self.ranks.sum(sum(int((batch.labels != IGNORE).sum()) for batch in batches)))
        self.model.train()
        with self.explaining_memory(f"step {step}"):
            loss = self._backward(batches, max(1, tokens))  # without any label, loss and gradient are 0
            self.scaler.unscale_(self.optimizer)
            norm = clip_gradients(self._parameters, self.config.clip_norm)
        mean, *shared = self.ranks.sum(float(loss), *map(float, flags))
        if not math.isfinite(mean):
            raise self._stopped(f"the loss is {mean}", step, indices, batches)
        if not math.isfinite(norm) and not self.scaler.is_enabled():
            raise self._stopped(f"the gradient's norm is {norm}", step, indices, batches)
        set_learning_rate(self.optimizer, lr)
        with self.explaining_memory(f"the update of step {step}"):
            self.scaler.step(self.optimizer)  # leaves the weights alone if an fp16 gradient overflowed
            self.scaler.update()
        # Each skipped step halves the scale. Below 1 it makes gradients smaller than they are: what overflows then is
        # not the scaling's doing.
        if not math.isfinite(norm) and self.scaler.get_scale() < 1:
            what = f"at every loss scale down to 1, the gradient's norm is {norm}"
            raise self._stopped(what, step, indices, batches)
        return StepResult(mean, norm if math.isfinite(norm) else 0.0, tokens, tuple(count > 0 for count in shared))

    def _backward(self, batches: Sequence[Batch], divisor: int) -> Tensor:
        """Add up the gradients of the step's loss and return it."""
        self.optimizer.zero_grad(set_to_none=True)
        losses: list[Tensor] = []
        with self.random.running():
            for number, batch in enumerate(batches, start=1):
                # with more to come, a replica's gradients stay with their rank; sharded ones have no memory for that
                alone = self._replica is not None and number < len(batches)
                with self._replica.no_sync() if alone else nullcontext():
                    loss = self._nll(batch) / divisor
                    self.scaler.scale(loss).backward()
                losses.append(loss.detach())
        return torch.stack(losses).sum()

    def _nll(self, batch: Batch) -> Tensor:
        """Summed negative log-likelihood of a micro-batch, with its graph."""
        ids, labels = (torch.as_tensor(part).to(self.device, non_blocking=True) for part in batch[:2])
        with self._casting():
            nll: Tensor = (self._replica or self.model.nll)(ids, labels, documents=batch.documents)
        return nll

    def _casting(self) -> AbstractContextManager[Any]:
        dtype = _AUTOCAST.get(self.config.precision)
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype=dtype)

    def _stopped(self, what: str, step: int, indices: Sequence[int], batches: Sequence[Batch]) -> NonFiniteLoss:
        if self.ranks.world_size > 1:  # the others do not wait while one looks at its rows
            return NonFiniteLoss(what, step, indices)
        self.optimizer.zero_grad(set_to_none=True)
        self.model.compiled.clear()  # it would be compiled anew for single rows
        return non_finite_loss(what, step, indices, self.model, batches, self._nll)

    def explaining_memory(self, doing: str) -> AbstractContextManager[None]:
        """Inside, too little memory becomes an `OutOfMemory` about what is being done."""
        return explaining_memory(doing, self.device, self.model.config, self.config, self.execution)

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return weights, optimiser and random states, as a checkpoint has them; all ranks call it."""
        states = self.ranks.gather(self.random.tensors())
        random = {  # the first rank's by name, those of rank r as "r/name"
            f"{rank or ''}/{name}".lstrip("/"): one for rank, state in enumerate(states) for name, one in state.items()
        }
        return {"weights": self.model.state_dict(), "optimizer": optimizer_tensors(self.optimizer), "random": random}

    def load(self, saved: Checkpoint) -> None:
        """Put back what `tensors` returned, whatever the number of ranks was."""
        self.model.load_state_dict(saved.weights)
        load_optimizer_tensors(self.optimizer, saved.optimizer)
        if saved.scaler:
            self.scaler.load_state_dict(saved.scaler)
        owner = str(self.ranks.rank or "")
        own = {name.rpartition("/")[2]: one for name, one in saved.random.items() if name.rpartition("/")[0] == owner}
        if own:
            self.random.load(own)
        else:
            self.random = self._random_stream(saved.step)  # a rank that was not there draws what nobody has drawn

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Load the whole state of a network to start from, of which a sharded one takes its part.

        Raises:
            ValueError: it is the state of another network.
        """
        if self.is_sharded:
            weights = {name: part_of(one, self.model.state_dict().get(name)) for name, one in weights.items()}
        try:
            self.model.load_state_dict(weights)
        except RuntimeError as error:
            raise ValueError(
                f"the initial weights do not fit the configuration: {error}; train with the ModelConfig they were made "
                f"with"
            ) from error

    def empty_like_saved(self, name: str, size: torch.Size, dtype: torch.dtype) -> Tensor:
        """Return memory for a saved tensor, for this rank's part of one that is sharded."""
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
        """Return the network as one process has it, in evaluation mode; a sharded one whole on the first rank's CPU."""
        model = self.model
        if self.is_sharded:
            weights = {}
            for name, one in model.state_dict().items():
                full = whole(one)
                if self.ranks.is_first:
                    weights[name] = full.cpu()
            if self.ranks.is_first:
                with torch.random.fork_rng(devices=[]):  # initial weights that are overwritten draw nothing
                    model = Transformer(model.config)
                model.load_state_dict(weights)
        model.compiled.clear()
        model.recompute = False
        return model.eval()

    def _random_stream(self, step: int) -> RandomState:
        branch = (self.ranks.rank, step) if self.ranks.rank else ()
        return RandomState(derive_seed(self.config.seed, DROPOUT_STREAM, *branch), self.device)


def new_stepper(
    model_config: ModelConfig, train_config: TrainConfig, device: torch.device, execution: Execution, ranks: Ranks
) -> Stepper:
    """Return a stepper of a new network, whose weights are drawn from the configuration's seed.

    They are drawn on the CPU, so that every device starts from the same ones.

    Raises:
        OutOfMemory: it does not fit into memory.
    """
    with explaining_memory("the network", device, model_config, train_config, execution):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive_seed(train_config.seed, WEIGHTS_STREAM))  # the CPU's alone
            model = Transformer(model_config)
        return Stepper(model, train_config, device, execution, ranks)


def measure_step_seconds(
    model_config: ModelConfig,
    train_config: TrainConfig,
    device: torch.device | str = "cpu",
    steps: int = 8,
    *,
    execution: Execution = Execution(),
    ranks: Ranks = SINGLE,
) -> float:
    """Return the seconds of an optimiser step: the median over random tokens, after two steps to warm up.

    Args:
        train_config: gives micro-batch, accumulation and precision.
        steps: number of steps that are measured.
        ranks: the processes that take the steps together; all of them call.
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
    return statistics.median(seconds[2:])
