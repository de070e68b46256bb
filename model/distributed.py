"""Data-parallel training in several processes (ranks), each with its own device.

The configured batch is split over the ranks. The loss is divided by the number of labels on all ranks and gradients are
summed, so that weights, losses and checkpoints equal those of a single process up to the last bits, and a run may
resume with another number of ranks. "ddp" copies the weights to every rank (DistributedDataParallel); "fsdp" shards
weights, gradients and optimiser state and gathers one block at a time (fully_shard, FSDP2).

Scalars (label counts, losses, flags) are exchanged by gloo between the CPUs, on every kind of device.
"""

from __future__ import annotations

import inspect
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .data import IGNORE, Batch, SequenceSource
from .metrics import NllSum
from .scoring import evaluate_source
from .transformer import Transformer

TIMEOUT = timedelta(minutes=30)  # of collectives; longer than large checkpoints and evaluations on one rank


@dataclass(frozen=True)
class Ranks:
    """Communication between the ranks; every rank calls the same methods in the same order.

    Attributes:
        rank: number of this process, from 0.
        world_size: number of ranks.
    """

    rank: int = 0
    world_size: int = 1

    @property
    def is_first(self) -> bool:
        """True on the rank that writes checkpoints and reports."""
        return self.rank == 0

    def sum(self, *values: float) -> tuple[float, ...]:
        """Return each value summed over the ranks in float64, with the same bits on every rank."""
        if self.world_size == 1:
            return values
        total = torch.tensor(values, dtype=torch.float64)
        torch.distributed.all_reduce(total)
        return tuple(total.tolist())

    def from_first(self, value: Any) -> Any:
        """Return the first rank's value, of JSON types, on every rank, without torch's pickled objects."""
        if self.world_size == 1:
            return value
        text = json.dumps(value).encode() if self.is_first else b""
        size = torch.tensor([len(text)])
        torch.distributed.broadcast(size, 0)
        data = torch.frombuffer(bytearray(text or bytes(int(size))), dtype=torch.uint8)
        torch.distributed.broadcast(data, 0)
        return json.loads(bytes(data.tolist()))

    def gather(self, tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        """Return the tensors of every rank, by rank; they are on the CPU, with equal names and shapes on every rank."""
        if self.world_size == 1:
            return [dict(tensors)]
        found: list[dict[str, Tensor]] = [{} for _ in range(self.world_size)]
        for name, tensor in sorted(tensors.items()):
            parts = [torch.empty_like(tensor) for _ in found]
            torch.distributed.all_gather(parts, tensor)
            for entry, part in zip(found, parts, strict=True):
                entry[name] = part
        return found

    def share(self, sequences: np.ndarray) -> np.ndarray:
        """Return this rank's sequences of a step, split by micro-batches first and by rows of a micro-batch second.

        Args:
            sequences: (grad_accum, batch_size) numbers of the step's sequences.

        Returns:
            (micro-batches, rows), the same shape on every rank.

        Raises:
            ValueError: the sequences cannot be split evenly.
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
    """Raise ValueError if the sequences of a step cannot be split evenly over the ranks."""
    n_sequences = batch_size * grad_accum
    if n_sequences % world_size:
        raise ValueError(
            f"{world_size} processes cannot share the {n_sequences} sequences of a step evenly (batch_size="
            f"{batch_size} times grad_accum={grad_accum}); set batch_size to a multiple of {world_size}, or use a "
            f"number of processes that divides {n_sequences}"
        )


@contextmanager
def connect(device: str = "cpu") -> Iterator[Ranks]:
    """Initialise the process group of torchrun; without torchrun the process is the only rank.

    Args:
        device: kind of the ranks' devices, "cpu" or "cuda".

    Raises:
        RuntimeError: the ranks cannot connect.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        yield SINGLE
        return
    rank_device(device)  # before anything is allocated on another one
    backend = "gloo" if device == "cpu" else f"cpu:gloo,{device}:nccl"
    torch.distributed.init_process_group(backend, timeout=TIMEOUT)
    yield Ranks(int(os.environ["RANK"]), world_size)
    # Not after an error: destroying the group would wait for ranks in a collective that this one does not join. They
    # fail when this process ends.
    torch.distributed.destroy_process_group()


def rank_device(kind: str) -> torch.device:
    """Return the device of this process; with GPUs the one with number LOCAL_RANK."""
    if kind != "cuda":
        return torch.device(kind)
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def shard(
    model: Transformer, device: torch.device, ranks: Ranks, dtype: torch.dtype | None, compiled: bool = False
) -> None:
    """Shard a network over the ranks by fully_shard, block by block.

    Args:
        model: the network.
        device: device of this rank.
        ranks: the ranks.
        dtype: of the blocks' gathered weights and inputs; bfloat16 halves the communication, None keeps float32.
            Embedding, head, the shards of the weights and the summed gradients stay float32.
        compiled: compile each block by torch.compile.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    for block in model.blocks if compiled else ():
        block.forward = torch.compile(block.forward, dynamic=False)  # without the hooks of fully_shard
    mesh = init_device_mesh(device.type, (ranks.world_size,))
    half = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, output_dtype=torch.float32)
    for module in (*model.blocks, model):
        policy = MixedPrecisionPolicy() if dtype is None or module is model else half
        sharded: Any = fully_shard(module, mesh=mesh, mp_policy=policy)
        # sum; without the second setting the factor uses an operation of NCCL only
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)
    register_fsdp_forward_method(model, "nll")


def gather_once(model: Any) -> None:
    """Gather and free each block of a sharded network, which allocates its buffers; every rank calls it.

    An evaluation before the first step would allocate them as tensors of inference mode, which training cannot fill.
    """
    for module in (*model.blocks, model):
        module.unshard()
        module.reshard()


def replicate(model: Transformer) -> Any:
    """Return a DistributedDataParallel whose call is `model.nll` and whose gradients are summed over the ranks."""
    replicated = nn.parallel.DistributedDataParallel
    # buffers are constant tables; newer releases of torch renamed the argument
    named = inspect.signature(replicated).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in named else "broadcast_buffers"
    fixed_buffers: dict[str, Any] = {name: False}
    replica = replicated(_Nll(model), gradient_as_bucket_view=True, **fixed_buffers)
    replica.register_comm_hook(None, lambda state, bucket: _sum_over_ranks(bucket.buffer()))
    return replica


class _Nll(nn.Module):
    """Module whose forward pass is the loss, for DistributedDataParallel."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, labels: Tensor, documents: Any = None) -> Tensor:
        return self.model.nll(ids, labels, documents=documents)


def _sum_over_ranks(gradients: Tensor) -> Any:
    # the default hook averages, but the loss is already divided by the labels of all ranks
    future = torch.distributed.all_reduce(gradients, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


def whole(tensor: Tensor) -> Tensor:
    """Return a DTensor (sharded or a partial sum) as a plain tensor, others unchanged; every rank calls it."""
    full_tensor = getattr(tensor, "full_tensor", None)  # no isinstance: importing DTensor takes seconds
    return tensor if full_tensor is None else full_tensor()


def part_of(full: Tensor, target: Any) -> Tensor:
    """Return this rank's part of a full tensor, sharded like the target; unchanged if their shapes differ."""
    if not hasattr(target, "placements") or full.shape != target.shape:
        return full
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(full.to(target.device), target.device_mesh, target.placements, src_data_rank=None)


def evaluate(model: Transformer, source: SequenceSource, batch_size: int, device: torch.device, ranks: Ranks) -> NllSum:
    """Return `scoring.evaluate_source` of the source, computed by all ranks together."""
    if ranks.world_size == 1:
        return evaluate_source(model, source, batch_size, device)
    own = evaluate_source(model, _Part(source, batch_size, ranks), batch_size, device)
    nll, tokens = ranks.sum(own.nll_nats, own.tokens)
    return NllSum(nll, int(tokens))


@dataclass(frozen=True)
class _Part:
    """Every world_size-th batch of a source, padded with batches without labels to equal numbers on all ranks.

    A sharded network is gathered by all ranks for each batch, so that a rank with fewer batches would block the others.
    """

    source: SequenceSource
    batch_size: int
    ranks: Ranks

    def __len__(self) -> int:
        return -(-len(self.source) // (self.batch_size * self.ranks.world_size)) * self.batch_size

    def batch(self, indices: np.ndarray) -> Batch:
        first = int(indices[0]) * self.ranks.world_size + self.ranks.rank * self.batch_size
        if first < len(self.source):
            return self.source.batch(np.arange(first, min(first + self.batch_size, len(self.source))))
        inputs, labels, documents = self.source.batch(np.zeros(1, dtype=np.int64))
        return Batch(inputs, np.full_like(labels, IGNORE), documents)
