"""One optimiser step: micro-batches in, loss and gradient norm out, weights changed.

The loss is the sum of negative log-likelihoods over all valid labels of the accumulated step divided by their
number, so that cutting the same sequences into other micro-batches gives the same gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .architecture import ModelConfig
from .compiling import compile_network
from .config import TrainConfig
from .data import IGNORE, Batch, trim
from .distributed import SINGLE, Network, Ranks, is_sharded, pack_random, unpack_random, whole
from .execution import Execution
from .guards import OutOfMemory, is_out_of_memory, non_finite_rows, non_finite_weights, shown, split
from .kernels import keep_freed_memory, release_freed_memory
from .optim import build_optimizer, set_learning_rate
from .randomness import DROPOUT_STREAM, WEIGHTS_STREAM, RandomState, derive_seed
from .transformer import Transformer

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class NonFiniteLoss(RuntimeError):
    """Training met a NaN or an infinity and stopped before it reached the weights.

    Attributes:
        step: the optimiser step, from 1.
        indices: numbers of the step's sequences in their source.
        suspects: those of them that are not finite by themselves; empty if that is not known.
    """

    def __init__(
        self, what: str, step: int, indices: Sequence[int], cause: str = "", suspects: Sequence[int] = ()
    ) -> None:
        self.step = step
        self.indices = list(indices)
        self.suspects = list(suspects)
        where = f", in the sequences {shown(self.indices)}" if self.indices else ""
        super().__init__(f"{what} at step {step}{where}; the last checkpoint is untouched. {cause or _UNKNOWN_CAUSE}")

    def of_documents(self, documents: str) -> NonFiniteLoss:
        """The same error, naming the documents as well."""
        found = NonFiniteLoss("", self.step, self.indices, suspects=self.suspects)
        found.args = (f"{self} {documents}",)
        return found


_UNKNOWN_CAUSE = "Look at these sequences, lower the learning rate, or use precision='fp32'"


@dataclass(frozen=True)
class StepResult:
    """What one optimiser step did.

    Attributes:
        loss: mean negative log-likelihood over the step's valid labels, in nats; 0 if it had none.
        grad_norm: global norm before clipping; 0 if fp16's loss scaler skipped the update.
        tokens: number of valid labels.
        applied: False if the update was left out because it was not accepted.
        split: into how many parts each micro-batch was cut to fit into memory.
    """

    loss: float
    grad_norm: float
    tokens: int
    applied: bool = True
    split: int = 1


class Stepper:
    """A network with all that changes when it takes a step: optimiser, loss scaler, dropout's random stream.

    Args:
        model: the network; it is moved to the device, or with Execution.sharding "fsdp" cut into parts.
        config: training settings.
        device: where to compute.
        execution: how to compute.
        ranks: the processes that take the step together.

    Attributes:
        network: the network as the ranks share it.
        split: into how many parts each micro-batch is cut; doubles when memory runs out.
        notes: what is done in another way than asked for, a sentence each.
    """

    def __init__(
        self,
        model: Transformer,
        config: TrainConfig,
        device: torch.device,
        execution: Execution | None = None,
        ranks: Ranks = SINGLE,
    ) -> None:
        self.execution = execution or Execution()
        self.notes: list[str] = []
        self.model = model
        self.config = config
        self.device = device
        self.ranks = ranks
        self.split = 1
        if device.type == "cpu":
            keep_freed_memory()
        model.recompute = self.execution.recompute
        if self.execution.compile:
            self._compile()  # before the ranks listen to gradients, because it tries some
        self.network = Network(model, device, ranks, self.execution.sharding)
        self.optimizer = build_optimizer(model, config)
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "fp16")
        self.random = self._random_stream(0)
        self._parameters = list(model.parameters())

    def run(
        self,
        batches: Sequence[Batch],
        lr: float,
        step: int,
        indices: Sequence[int],
        accept: Callable[[float, float], bool] | None = None,
    ) -> StepResult:
        """Takes one optimiser step.

        Args:
            batches: this rank's micro-batches.
            lr: learning rate.
            step: number of this step, from 1, for messages.
            indices: numbers of the sequences, for messages.
            accept: asked with (loss, gradient norm) before the weights change; where it says no, they stay.

        Raises:
            NonFiniteLoss: the loss is NaN or infinite, or the gradient is (in fp16: although the loss scale has fallen
                below 1); the weights are as before.
            OutOfMemory: the step does not fit into memory, even in parts if that is allowed.
            ValueError: a token id lies outside the vocabulary.
        """
        (tokens,) = map(int, self.ranks.sum(sum(int((batch.labels != IGNORE).sum()) for batch in batches)))
        self.model.train()
        (mean,) = self.ranks.sum(self._gradients(batches, max(1, tokens), step))
        if not math.isfinite(mean):
            raise self._stopped(f"the loss is {mean}", step, indices, batches)
        set_learning_rate(self.optimizer, lr)
        try:
            norm, applied = self._update(mean, step, indices, batches, accept)
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                raise self._too_large(f"the update of step {step}", error) from error
            raise
        return StepResult(mean, norm, tokens, applied, self.split)

    def _gradients(self, batches: Sequence[Batch], divisor: int, step: int) -> float:
        """Adds up the gradients of the step's loss and returns it, in smaller parts if memory runs out."""
        before = self.random.tensors()
        while True:
            self.optimizer.zero_grad(set_to_none=True)
            try:
                return self._backward(batches, divisor)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                # several ranks compute in step, and one of them cannot begin anew alone
                may_split = self.execution.halve_batch and self.ranks.world_size == 1
                if not may_split or self.split >= max(len(batch.inputs) for batch in batches):
                    raise self._too_large(f"step {step}", error) from error
            # Only here, where the error is gone and with it the attempt's tensors, memory is free again. Some of its
            # gradients may be there already, so the whole step is computed anew, with the same random numbers.
            self.split *= 2
            self.random.load(before)
            # what the allocators keep of it is of no use to libraries that allocate for themselves
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            elif self.device.type == "cpu":
                release_freed_memory()

    def _backward(self, batches: Sequence[Batch], divisor: int) -> float:
        losses: list[Tensor] = []
        with self.random.running():
            parts = [part for batch in batches for part in split(batch, self.split)]
            for number, part in enumerate(parts, start=1):
                with self.network.accumulating(more=number < len(parts)):
                    # A step without any label has loss 0 and gradient 0: the divisor only must not be 0.
                    loss = self._nll(part) / divisor
                    self.scaler.scale(loss).backward()
                losses.append(loss.detach())
        return float(torch.stack(losses).sum())

    def _nll(self, batch: Batch) -> Tensor:
        """Summed negative log-likelihood of a micro-batch, with its graph."""
        # compiled code is made for one width
        inputs, labels, documents = batch if self.model.compiled else trim(batch)
        highest = max(int(inputs.max()), int(labels.max()))
        if highest >= self.model.config.vocab_size:
            raise ValueError(
                f"the batch holds token id {highest}, but vocab_size is {self.model.config.vocab_size}; "
                f"the tokens were made with another tokeniser than the model"
            )
        ids = torch.from_numpy(inputs).to(self.device, non_blocking=True)
        targets = torch.from_numpy(labels).to(self.device, non_blocking=True)
        with self._autocast():
            return self.network.nll(ids, targets, documents)

    def _update(
        self,
        loss: float,
        step: int,
        indices: Sequence[int],
        batches: Sequence[Batch],
        accept: Callable[[float, float], bool] | None,
    ) -> tuple[float, bool]:
        """Clips and applies the gradients; returns their norm, and whether they were accepted."""
        self.scaler.unscale_(self.optimizer)
        max_norm = self.config.clip_norm if self.config.clip_norm > 0 else math.inf
        total = whole(torch.nn.utils.get_total_norm([one.grad for one in self._parameters if one.grad is not None]))
        norm = float(total)
        if norm > max_norm:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, max_norm, total)
        finite = math.isfinite(norm)
        if not finite and not self.scaler.is_enabled():
            raise self._stopped(f"the gradient's norm is {norm}", step, indices, batches)
        applied = not finite or accept is None or accept(loss, norm)
        if applied:
            self.scaler.step(self.optimizer)  # leaves the weights alone if an fp16 gradient overflowed
        self.scaler.update()
        if finite:
            return norm, applied
        # Each skipped step halves the scale. Below 1 it makes gradients smaller than they are: what overflows then
        # is not the scaling's doing, and no smaller scale will mend it.
        if self.scaler.get_scale() < 1:
            what = f"at every loss scale down to 1, the gradient's norm is {norm}"
            raise self._stopped(what, step, indices, batches)
        return 0.0, applied

    def _stopped(self, what: str, step: int, indices: Sequence[int], batches: Sequence[Batch]) -> NonFiniteLoss:
        """The error, with what can be found out about its cause."""
        if self.ranks.world_size > 1:  # the others do not wait while one looks at its rows
            return NonFiniteLoss(what, step, indices)
        self.optimizer.zero_grad(set_to_none=True)
        broken = non_finite_weights(self.model)
        if broken:
            more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
            cause = f"The weights themselves are not finite: {broken[0]}{more}; start from others"
            return NonFiniteLoss(what, step, indices, cause)
        self.model.eval()
        self.model.compiled.clear()  # it would be compiled anew for single rows
        rows = non_finite_rows(batches, self._nll, self._parameters)
        self.model.train()
        if not rows or len(rows) == len(indices):
            alone = "None" if not rows else "Each"
            cause = f"{alone} of them alone is so: lower the learning rate, or use precision='fp32'"
            return NonFiniteLoss(what, step, indices, cause)
        suspects = [indices[row] for row in rows if row < len(indices)]
        return NonFiniteLoss(what, step, indices, f"Alone, only {shown(suspects)} are so: look at them.", suspects)

    def _too_large(self, doing: str, error: BaseException) -> OutOfMemory:
        if self.split > 1:
            doing = f"{doing}, even with micro-batches in {self.split} parts,"
        return OutOfMemory(doing, self.device, self.model.config, self.config, self.execution, error)

    def _compile(self) -> None:
        if is_sharded(self.ranks, self.execution.sharding):
            self.notes.append("the network is trained without torch.compile, which does not go with sharding='fsdp'")
            return
        self.model.to(self.device)
        own = self.ranks.share(np.zeros((self.config.grad_accum, self.config.batch_size)))
        shape = (own.shape[1], self.model.config.max_seq_len)
        batch = Batch(np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64))
        note = compile_network(self.model, batch, self.device, _AUTOCAST.get(self.config.precision))
        if note:
            self.notes.append(note)

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = _AUTOCAST.get(self.config.precision)
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype=dtype)

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Weights, optimiser and random states as a checkpoint has them; all ranks call it, the first gets it."""
        return {
            "weights": self.network.weights(),
            "optimizer": self.network.optimizer_tensors(self.optimizer),
            "random": pack_random(self.ranks, self.random.tensors()),
        }

    def load(
        self, weights: dict[str, Tensor], optimizer: dict[str, Tensor], random: dict[str, Tensor], step: int
    ) -> None:
        """Puts back what state() gave, after `step` steps, whatever the number of ranks was; every rank passes it."""
        self.network.load_weights(weights)
        self.network.load_optimizer_tensors(self.optimizer, optimizer)
        own = unpack_random(self.ranks, random)
        if own is None:
            self.random = self._random_stream(step)  # a rank that was not there draws what nobody has drawn
        else:
            self.random.load(own)

    def _random_stream(self, step: int) -> RandomState:
        branch = (self.ranks.rank, step) if self.ranks.rank else ()
        return RandomState(derive_seed(self.config.seed, DROPOUT_STREAM, *branch), self.device)


def new_stepper(
    model_config: ModelConfig, train_config: TrainConfig, device: torch.device, execution: Execution, ranks: Ranks
) -> Stepper:
    """A stepper of a new network, whose weights are drawn from the configuration's seed."""
    # Initial weights are drawn on the CPU, so that every device starts from the same ones.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(train_config.seed, WEIGHTS_STREAM))  # the CPU's alone
        model = Transformer(model_config)
    return Stepper(model, train_config, device, execution, ranks)
