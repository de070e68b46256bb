"""Several processes that compute one training together: N ranks, each with a device, do what one does.

The configuration's batch is that of all ranks together. Each reads a part of its sequences, the loss is divided by the
labels of all, and gradients add up over the ranks, so that weights, losses and checkpoints are those of one process
but for the last bits: a run may go on with another number of ranks. "ddp" copies the weights to every rank (torch's
DistributedDataParallel), "fsdp" gives each a part of weights, gradients and optimiser state and puts one block at a
time together (fully_shard, known as FSDP2).

`Ranks` is what they say to each other, `Network` the network they share. `SINGLE` is a rank alone: it talks to nobody,
and every function here then does the plain thing. Small facts (numbers of labels, decisions) travel over gloo between
the CPUs, whatever the devices are, so that no device has to wait for them.
"""

from __future__ import annotations

import inspect
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .data import IGNORE, Batch, SequenceSource
from .metrics import NllSum
from .optim import load_optimizer_tensors, optimizer_tensors
from .scoring import evaluate_source
from .transformer import Transformer

TIMEOUT = timedelta(minutes=30)  # what one rank may wait for another: long evaluations and large checkpoints fit


@dataclass(frozen=True)
class Ranks:
    """One of the processes that train together, and how it talks to the others. All of them have to call alike.

    Attributes:
        rank: number of this one, from 0.
        world_size: how many there are.
    """

    rank: int = 0
    world_size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this rank writes checkpoints and reports."""
        return self.rank == 0

    def sum(self, *values: float) -> tuple[float, ...]:
        """Each value added up over the ranks, in float64; the same bits on all of them."""
        if self.world_size == 1:
            return values
        total = torch.tensor(values, dtype=torch.float64)
        torch.distributed.all_reduce(total)
        return tuple(total.tolist())

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag, whether one of the ranks has set it."""
        return tuple(count > 0 for count in self.sum(*map(float, flags)))

    def from_first(self, value: Any) -> Any:
        """The first rank's value, of JSON types, on all of them; what the others pass does not matter."""
        if self.world_size == 1:
            return value
        text = json.dumps(value).encode() if self.is_first else b""
        size = torch.tensor([len(text)])
        torch.distributed.broadcast(size, 0)
        data = torch.frombuffer(bytearray(text or bytes(int(size))), dtype=torch.uint8)
        torch.distributed.broadcast(data, 0)
        return json.loads(bytes(data.tolist()))

    def gather(self, tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        """What each rank passed, by rank: tensors on the CPU, of the same names and shapes everywhere."""
        if self.world_size == 1:
            return [dict(tensors)]
        found: list[dict[str, Tensor]] = [{} for _ in range(self.world_size)]
        for name, tensor in sorted(tensors.items()):
            parts = [torch.empty_like(tensor) for _ in found]
            torch.distributed.all_gather(parts, tensor)
            for entry, part in zip(found, parts, strict=True):
                entry[name] = part
        return found

    def barrier(self) -> None:
        """Returns when all ranks have come here."""
        self.sum(0.0)

    def share(self, sequences: np.ndarray) -> np.ndarray:
        """This rank's part of a step: whole micro-batches as far as they go round, then rows of each.

        Args:
            sequences: (grad_accum, batch_size) numbers of the step's sequences.

        Returns:
            The same number of them for each rank, (micro-batches, rows).

        Raises:
            ValueError: they do not divide.
        """
        n_batches, n_rows = sequences.shape
        check_share(n_rows, n_batches, self.world_size)
        by_batch = math.gcd(n_batches, self.world_size)
        by_row = self.world_size // by_batch
        batch, row = divmod(self.rank, by_row)
        size = n_rows // by_row
        return sequences[batch::by_batch, row * size : (row + 1) * size]


SINGLE = Ranks()


def check_share(batch_size: int, grad_accum: int, world_size: int) -> None:
    """Refuses a step that so many ranks cannot share evenly.

    Raises:
        ValueError: says what to set.
    """
    n_sequences = batch_size * grad_accum
    if n_sequences % world_size:
        raise ValueError(
            f"{world_size} processes cannot share the {n_sequences} sequences of a step evenly (batch_size="
            f"{batch_size} times grad_accum={grad_accum}); set batch_size to a multiple of {world_size}, or take a "
            f"number of processes that divides {n_sequences}"
        )


@contextmanager
def connect(device: str = "cpu") -> Iterator[Ranks]:
    """This process among those that torchrun has started; without torchrun it is alone.

    Args:
        device: kind of the ranks' devices, "cpu" or "cuda".

    Raises:
        RuntimeError: the ranks do not find each other.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        yield SINGLE
        return
    rank_device(device)  # before anything is allocated on another one
    backend = "gloo" if device == "cpu" else f"cpu:gloo,{device}:nccl"
    torch.distributed.init_process_group(backend, timeout=TIMEOUT)
    yield Ranks(int(os.environ["RANK"]), world_size)
    # Not after a failure: the others may be waiting in a call that this rank will never make, and ending in good order
    # would wait for them. A process that ends is noticed.
    torch.distributed.destroy_process_group()


def rank_device(kind: str) -> torch.device:
    """The device of this process: on a machine with several GPUs, the one that torchrun has numbered for it."""
    if kind != "cuda":
        return torch.device(kind)
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def is_sharded(ranks: Ranks, sharding: str) -> bool:
    """Whether each rank holds a part of the weights only."""
    return ranks.world_size > 1 and sharding == "fsdp"


class Network:
    """A network whose gradients add up over the ranks.

    Args:
        model: the network, the same on every rank.
        device: where this rank computes; the network is moved there.
        ranks: who shares it.
        sharding: "ddp" or "fsdp".

    Attributes:
        model: the network. With "fsdp" its parameters are parts of it (DTensors), and it may only be called by all
            ranks together.
        is_sharded: whether that is so.
    """

    def __init__(self, model: Transformer, device: torch.device, ranks: Ranks = SINGLE, sharding: str = "ddp") -> None:
        self.model = model
        self.ranks = ranks
        self.is_sharded = is_sharded(ranks, sharding)
        self._replica: Any = None
        if self.is_sharded:
            _shard(model, device, ranks)  # block by block: a device never holds all of it
            return
        model.to(device)
        if ranks.world_size > 1:
            self._replica = _replicate(model)

    def nll(self, ids: Tensor, labels: Tensor, documents: Any = None) -> Tensor:
        """Summed negative log-likelihood of this rank's labels, with a graph; arguments as for Transformer.nll."""
        nll = self.model.nll if self._replica is None else self._replica
        found: Tensor = nll(ids, labels, documents=documents)
        return found

    def accumulating(self, more: bool) -> AbstractContextManager[Any]:
        """Around forward and backward of a micro-batch: with more to come, gradients stay with their rank.

        Sharded ones never do: whole gradients are what there is no memory for.
        """
        return self._replica.no_sync() if more and self._replica is not None else nullcontext()

    def weights(self) -> dict[str, Tensor]:
        """The whole state of the network; all ranks call it, the first gets it, the others nothing."""
        return self._whole(self.model.state_dict())

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Puts back what weights() gave to the first rank; every rank passes it.

        Raises:
            RuntimeError: it is the state of another network.
        """
        if self.is_sharded:
            targets = self.model.state_dict()
            weights = {name: _like(value, targets.get(name)) for name, value in weights.items()}
        self.model.load_state_dict(weights)

    def optimizer_tensors(self, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        """optim.optimizer_tensors as one process would have them; for the first rank, like weights()."""
        return self._whole(optimizer_tensors(optimizer))

    def load_optimizer_tensors(self, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
        """Puts back what optimizer_tensors() gave to the first rank; every rank passes it."""
        if self.is_sharded:
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            tensors = {name: _like(value, parameters[int(name.partition(".")[0])]) for name, value in tensors.items()}
        load_optimizer_tensors(optimizer, dict(tensors))

    def plain(self) -> Transformer:
        """The trained network as one process would have it, in evaluation mode.

        Sharded, it is put together on the CPU of the first rank; the others keep their parts.
        """
        if not self.is_sharded:
            return self.model.eval()
        weights = self.weights()
        if not self.ranks.is_first:
            return self.model.eval()
        with torch.random.fork_rng(devices=[]):  # the initial weights are overwritten; they must cost no random numbers
            model = Transformer(self.model.config)
        model.load_state_dict(weights)
        return model.eval()

    def evaluate(self, source: SequenceSource, batch_size: int, device: torch.device) -> NllSum:
        """scoring.evaluate_source over all of the source, of which each rank computes a part."""
        if self.ranks.world_size == 1:
            return evaluate_source(self.model, source, batch_size, device)
        own = evaluate_source(self.model, _Part(source, batch_size, self.ranks), batch_size, device)
        nll, tokens = self.ranks.sum(own.nll_nats, own.tokens)
        return NllSum(nll, int(tokens))

    def _whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Sharded tensors put together, one after the other, on the CPU of the first rank."""
        if not self.is_sharded:
            return dict(tensors) if self.ranks.is_first else {}
        found = {}
        for name, tensor in tensors.items():
            full = whole(tensor.detach())
            if self.ranks.is_first:
                found[name] = full.cpu()
        return found


def whole(tensor: Tensor) -> Tensor:
    """A tensor of which each rank may hold a part, or a summand, as a plain one; all ranks call it."""
    full_tensor = getattr(tensor, "full_tensor", None)  # DTensors have it, and take seconds to import
    return tensor if full_tensor is None else full_tensor()


def pack_random(ranks: Ranks, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The random states of all ranks: those of the first as if it were alone, the others' as "<rank>/<name>"."""
    states = ranks.gather(own)
    return {f"{rank or ''}/{name}".lstrip("/"): state for rank, one in enumerate(states) for name, state in one.items()}


def unpack_random(ranks: Ranks, saved: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """This rank's part of what pack_random returned; None where it was saved by fewer ranks."""
    owner = str(ranks.rank or "")
    found = {name.rpartition("/")[2]: state for name, state in saved.items() if name.rpartition("/")[0] == owner}
    return found or None


class _Nll(nn.Module):
    """The loss as a forward pass, which is what DistributedDataParallel watches."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, labels: Tensor, documents: Any = None) -> Tensor:
        return self.model.nll(ids, labels, documents=documents)


def _replicate(model: Transformer) -> Any:
    replicated = nn.parallel.DistributedDataParallel
    # buffers are tables that never change; the argument has a new name in newer releases of torch
    named = inspect.signature(replicated).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in named else "broadcast_buffers"
    fixed_buffers: dict[str, Any] = {name: False}
    replica = replicated(_Nll(model), gradient_as_bucket_view=True, **fixed_buffers)
    replica.register_comm_hook(None, lambda state, bucket: _add_up(bucket.buffer()))
    return replica


def _add_up(gradients: Tensor) -> Any:
    """Gradients are parts of a sum, because the loss is divided by all labels already; the default would average."""
    future = torch.distributed.all_reduce(gradients, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


def _shard(model: Transformer, device: torch.device, ranks: Ranks) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(device.type, (ranks.world_size,))
    for module in (*model.blocks, model):
        sharded: Any = fully_shard(module, mesh=mesh)
        # a sum, as above; said twice because a factor alone asks for an operation that only NCCL has
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)
    register_fsdp_forward_method(model, "nll")


def _like(full: Tensor, target: Any) -> Tensor:
    """This rank's part of a whole tensor, cut as the target is; a tensor of another shape is no such part."""
    if not hasattr(target, "placements") or full.shape != getattr(target, "shape", None):
        return full
    from torch.distributed.tensor import distribute_tensor

    found: Tensor = distribute_tensor(full.to(target.device), target.device_mesh, target.placements, src_data_rank=None)
    return found


class _Part:
    """Every so many-th batch of a source; padded by batches without a label, so that all ranks read equally many.

    A sharded network is put together by all ranks for each batch: one that reads fewer would leave the others waiting.
    """

    def __init__(self, source: SequenceSource, batch_size: int, ranks: Ranks) -> None:
        self._source = source
        self._batch_size = batch_size
        self._ranks = ranks
        self._n = len(source)
        self._batches = -(-self._n // (batch_size * ranks.world_size))

    def __len__(self) -> int:
        return self._batches * self._batch_size

    def batch(self, indices: np.ndarray) -> Batch:
        first = (int(indices[0]) * self._ranks.world_size) + self._ranks.rank * self._batch_size
        if first < self._n:
            return self._source.batch(np.arange(first, min(first + self._batch_size, self._n)))
        inputs, labels, documents = self._source.batch(np.zeros(1, dtype=np.int64))
        return Batch(inputs, np.full_like(labels, IGNORE), documents)
