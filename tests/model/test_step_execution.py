"""Execution of a step, with recomputed activations or compiled: the results stay the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from model import ModelConfig, TrainConfig, Transformer
from model.config import Execution
from model.data import Batch
from model.step import Stepper

CONFIG = ModelConfig(31, max_seq_len=16, n_layer=2, n_head=2, d_model=16, drop_resid=0.1, drop_ffn=0.1)


def batches(n: int, width: int = 16, seed: int = 0) -> list[Batch]:
    ids = np.random.default_rng(seed).integers(31, size=(n, 2, width + 1))
    return [Batch(one[:, :-1], one[:, 1:]) for one in ids]


def weights_after(execution: Execution, steps: int = 3, config: ModelConfig = CONFIG) -> list[torch.Tensor]:
    torch.manual_seed(0)
    stepper = Stepper(Transformer(config), TrainConfig(9, batch_size=2, grad_accum=2), torch.device("cpu"), execution)
    for step in range(1, steps + 1):
        stepper.run(batches(2, seed=step), 1e-2, step, [])
    return [weight.detach().clone() for weight in stepper.model.parameters()]


@pytest.mark.parametrize(
    "config", [CONFIG, ModelConfig(31, max_seq_len=16, n_layer=2, n_head=2, d_model=16)], ids=["dropout", "plain"]
)
def test_recomputed_activations_give_the_same_bits(config: ModelConfig) -> None:
    for one, other in zip(
        weights_after(Execution(recompute=True), config=config), weights_after(Execution(), config=config), strict=True
    ):
        assert torch.equal(one, other)


def test_recomputing_keeps_less() -> None:
    """Bytes that autograd keeps between forward and backward."""

    def kept(recompute: bool) -> int:
        network = Transformer(ModelConfig(31, max_seq_len=64, n_layer=4, n_head=2, d_model=32)).train()
        network.recompute = recompute
        seen: dict[int, int] = {}

        def note(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes()
            return tensor

        ids = torch.zeros((4, 64), dtype=torch.int64)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            alive = network.nll(ids, ids)
        del alive
        return sum(seen.values())

    assert kept(True) < kept(False) / 2


def test_no_clipping_leaves_gradients_alone_and_clipping_bounds_them() -> None:
    def norm_after(clip: float) -> tuple[float, float]:
        torch.manual_seed(0)
        network = Transformer(CONFIG)
        stepper = Stepper(network, TrainConfig(9, batch_size=2, clip_norm=clip), torch.device("cpu"))
        found = stepper.run(batches(1), 1e-3, 1, []).grad_norm
        left = torch.cat([weight.grad.flatten() for weight in network.parameters() if weight.grad is not None])
        return found, float(left.norm())

    free, kept = norm_after(0.0)
    assert kept == pytest.approx(free, rel=1e-5)
    reported, clipped = norm_after(free / 4)
    assert reported == free
    assert clipped == pytest.approx(free / 4, rel=1e-4)
    assert norm_after(free * 4)[1] == kept


_COMPILED = """
import json, sys, warnings
import numpy as np, torch
from model import ModelConfig, TrainConfig, Transformer
from model.data import Batch
from model.config import Execution
from model.step import Stepper

torch.set_num_threads(1)
losses = {}
for compiled in (False, True):
    torch.manual_seed(0)
    config = ModelConfig(31, max_seq_len=16, n_layer=1, n_head=2, d_model=16, norm_bias=False)
    execution = Execution(compile=compiled)
    random = torch.get_rng_state()
    network = Transformer(config)
    stepper = Stepper(network, TrainConfig(9, batch_size=2, clip_norm=0.0), torch.device("cpu"), execution)
    assert all(weight.grad is None for weight in network.parameters())
    ids = np.random.default_rng(0).integers(31, size=(2, 17))
    losses[compiled] = [stepper.run([Batch(ids[:, :-1], ids[:, 1:])], 1e-2, step, []).loss for step in (1, 2, 3)]
found = {"plain": losses[False], "compiled": losses[True], "notes": stepper.notes, "on": bool(network.compiled)}
print(json.dumps(found))
"""


def run_compiled(**environment: str) -> dict:
    command = [sys.executable, "-c", _COMPILED]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.full
def test_without_a_compiler_training_goes_on_and_says_why(tmp_path: object) -> None:
    found = run_compiled(PATH="/nowhere", CXX="/nowhere/c++", TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    assert found["compiled"] == found["plain"]
    assert not found["on"]
    (note,) = found["notes"]
    assert note.startswith("torch.compile does not work here, so the network is trained without it: ")
    assert "c++" in note.lower()


@pytest.mark.full
@pytest.mark.timeout(1200)  # a first compilation, on a machine with other work
def test_compiled_losses_are_those_of_the_plain_network(tmp_path: object) -> None:
    found = run_compiled(TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    if found["notes"]:
        pytest.skip(found["notes"][0])
    assert found["on"]
    assert found["compiled"] == pytest.approx(found["plain"], rel=1e-5)
