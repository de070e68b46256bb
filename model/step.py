"""One optimiser step: micro-batches in, loss and gradient norm out, weights changed.

The loss is the sum of negative log-likelihoods over all valid labels of the accumulated step divided by their
number, so that cutting the same sequences into other micro-batches gives the same gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
from .distributed import SINGLE, Network, Ranks, is_sharded, pack_random, unpack_random
from .execution import Execution
from .guards import non_finite_rows, non_finite_weights, shown, telling_of_memory
from .kernels import keep_freed_memory
from .optim import build_optimizer, clip_gradients, set_learning_rate
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
    """

    loss: float
    grad_norm: float
    tokens: int


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

    def run(self, batches: Sequence[Batch], lr: float, step: int, indices: Sequence[int]) -> StepResult:
        """Takes one optimiser step.

        Args:
            batches: this rank's micro-batches.
            lr: learning rate.
            step: number of this step, from 1, for messages.
            indices: numbers of the sequences, for messages.

        Raises:
            NonFiniteLoss: the loss is NaN or infinite, or the gradient is (in fp16: although the loss scale has fallen
                below 1); the weights are as before.
            OutOfMemory: the step does not fit into memory.
            ValueError: a token id lies outside the vocabulary.
        """
        (tokens,) = map(int, self.ranks.sum(sum(int((batch.labels != IGNORE).sum()) for batch in batches)))
        self.model.train()
        with self._telling_of_memory(f"step {step}"):
            loss = self._backward(batches, max(1, tokens))
        (mean,) = self.ranks.sum(loss)
        if not math.isfinite(mean):
            raise self._stopped(f"the loss is {mean}", step, indices, batches)
        set_learning_rate(self.optimizer, lr)
        with self._telling_of_memory(f"the update of step {step}"):
            norm = self._update(step, indices, batches)
        return StepResult(mean, norm, tokens)

    def _backward(self, batches: Sequence[Batch], divisor: int) -> float:
        """Adds up the gradients of the step's loss and returns it."""
        self.optimizer.zero_grad(set_to_none=True)
        losses: list[Tensor] = []
        with self.random.running():
            for number, batch in enumerate(batches, start=1):
                with self.network.accumulating(more=number < len(batches)):
                    # A step without any label has loss 0 and gradient 0: the divisor only must not be 0.
                    loss = self._nll(batch) / divisor
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

    def _update(self, step: int, indices: Sequence[int], batches: Sequence[Batch]) -> float:
        """Clips and applies the gradients; returns their norm."""
        self.scaler.unscale_(self.optimizer)
        norm = clip_gradients(self._parameters, self.config.clip_norm)
        finite = math.isfinite(norm)
        if not finite and not self.scaler.is_enabled():
            raise self._stopped(f"the gradient's norm is {norm}", step, indices, batches)
        self.scaler.step(self.optimizer)  # leaves the weights alone if an fp16 gradient overflowed
        self.scaler.update()
        if finite:
            return norm
        # Each skipped step halves the scale. Below 1 it makes gradients smaller than they are: what overflows then
        # is not the scaling's doing, and no smaller scale will mend it.
        if self.scaler.get_scale() < 1:
            what = f"at every loss scale down to 1, the gradient's norm is {norm}"
            raise self._stopped(what, step, indices, batches)
        return 0.0

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

    def _telling_of_memory(self, doing: str) -> AbstractContextManager[None]:
        return telling_of_memory(doing, self.device, self.model.config, self.config, self.execution)

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
