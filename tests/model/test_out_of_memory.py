"""Steps that do not fit into memory: computed in parts to the same result, or an error that says what to change."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from interrupted_runs import Interrupted, stop_at

from model import ModelConfig, SpanSource, TrainConfig, Trainer
from model.data import Batch
from model.execution import Execution
from model.guards import OutOfMemory
from model.step import Stepper

# The child limits its own address space to little more than it has, as a machine that is too small would.
CHILD = """
import json, re, resource, sys
import numpy as np, torch
torch.set_num_threads(1)
from model import ModelConfig, SpanSource, TrainConfig, Trainer, step
from model.execution import Execution

# The limit is one on addresses. Memory that is kept for later would count, though a machine could have it back; so
# would holes in the heap, for which reason the C library takes every tensor from the system (MALLOC_MMAP_THRESHOLD_).
step.keep_freed_memory = lambda: False
rows, length, spare, halve = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) * 2**20, sys.argv[4] == "halve"
shape = ModelConfig(512, max_seq_len=length, n_layer=2, n_head=2, d_model=64)
shard = (np.arange(2**16) * 7 % 509).astype(np.uint16)
n = 2**15 // length
source = SpanSource([shard], np.zeros(n), np.arange(n) * length, np.full(n, length + 1), length, 0)

def trainer(rows, steps, **settings):
    return Trainer(shape, TrainConfig(steps, batch_size=rows), source, **settings)

small = ModelConfig(512, max_seq_len=16, n_layer=2, n_head=2, d_model=64)
ids = SpanSource([shard], np.zeros(4), np.arange(4), np.full(4, 17), 16, 0)
Trainer(small, TrainConfig(1, batch_size=1), ids).fit()  # what is loaded and allocated once is there
size = int(re.search(r"VmSize:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (size + spare, resource.RLIM_INFINITY))
events = []
try:
    execution = Execution(halve_batch=halve)
    result = trainer(rows, 2, execution=execution, on_event=lambda *event: events.append(event)).fit()
    found = {"history": result.history}
except RuntimeError as error:
    found = {"error": type(error).__name__, "message": str(error)}
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(json.dumps({**found, "events": [event for event in events if event[1] == "memory"]}))
"""


def train_with_little_memory(rows: int, length: int, spare: int, halve: bool) -> dict[str, Any]:
    """What two steps come to with so many MiB to spare."""
    root = Path(__file__).parents[2]
    malloc = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *map(str, (rows, length, spare)), "halve" if halve else "whole"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", **malloc},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


linux = pytest.mark.skipif(sys.platform != "linux", reason="the limit of a process's memory is Linux's")


@linux
def test_a_batch_that_does_not_fit_is_computed_in_parts_with_the_same_result() -> None:
    roomy, tight = (train_with_little_memory(128, 256, spare, halve=True) for spare in (8192, 250))
    assert roomy["events"] == []
    assert "error" not in tight, tight
    parts = [row["memory/split"] for row in tight["history"] if "memory/split" in row]
    assert parts and parts[-1] > 1
    assert len(tight["events"]) == len(parts)
    assert f"is computed in {int(parts[-1])} parts, with the same effective batch" in tight["events"][-1][2]
    for name in ("train/loss", "grad_norm", "tokens"):
        whole, halves = ([row[name] for row in run["history"]] for run in (roomy, tight))
        np.testing.assert_allclose(halves, whole, rtol=1e-4)


@linux
def test_without_halving_a_batch_that_does_not_fit_says_what_to_change() -> None:
    found = train_with_little_memory(32, 256, 80, halve=False)
    assert found["error"] == "OutOfMemory"
    assert found["message"].startswith("step 1 does not fit into the memory of cpu with batch_size=32, max_seq_len=256")
    assert "batch_size=16 with grad_accum=2" in found["message"]
    assert "halve_batch=True" in found["message"]


@linux
def test_what_does_not_fit_in_single_rows_either_says_so() -> None:
    found = train_with_little_memory(4, 2048, 12, halve=True)
    assert found["error"] == "OutOfMemory"
    assert "even with micro-batches in 4 parts" in found["message"]


def limit_rows(monkeypatch: pytest.MonkeyPatch, most: int, late: bool = False) -> None:
    """Lets memory run out for larger batches, before they are computed or when some gradients are there already."""
    original = Stepper._nll

    def nll(stepper: Stepper, batch: Batch) -> torch.Tensor:
        if len(batch.inputs) <= most:
            return original(stepper, batch)
        error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if late:
            loss = original(stepper, batch)
            loss.backward()
        raise error

    monkeypatch.setattr(Stepper, "_nll", nll)


@pytest.mark.parametrize("late", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_halves_have_the_gradients_of_the_whole(
    late: bool,
    precision: str,
    model_config: ModelConfig,
    build_source: Callable[..., SpanSource],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = TrainConfig(4, batch_size=6, grad_accum=2, precision=precision, eval_every=2)
    whole = Trainer(model_config, config, build_source(), build_source(n=5, seed=1)).fit()
    limit_rows(monkeypatch, 2, late)
    halves = Trainer(
        model_config, config, build_source(), build_source(n=5, seed=1), on_event=lambda *event: None
    ).fit()
    assert [row.get("memory/split") for row in halves.history] == [4.0, None, None, None]
    for name in ("train/loss", "grad_norm", "tokens"):
        left, right = ([row[name] for row in result.history] for result in (whole, halves))
        np.testing.assert_allclose(left, right, rtol=1e-5 if precision == "fp32" else 2e-2)
    assert halves.history[-1]["val/loss"] == pytest.approx(whole.history[-1]["val/loss"], rel=1e-3)


def test_a_run_in_parts_goes_on_in_parts_to_the_same_bits(
    model_config: ModelConfig, build_source: Callable[..., SpanSource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = dataclasses.replace(model_config, drop_resid=0.1)
    config, quiet = TrainConfig(10, batch_size=4), {"on_event": lambda *event: None}
    with monkeypatch.context() as patch:
        limit_rows(patch, 2)
        undisturbed = Trainer(shape, config, build_source(), **quiet).fit()
        with pytest.raises(Interrupted):
            Trainer(
                shape,
                config,
                build_source(),
                checkpoint_dir=tmp_path,
                checkpoint_seconds=0,
                on_progress=stop_at(5),
                **quiet,
            ).fit()
    # there is more memory now, but another number of parts would change the bits
    resumed = Trainer(shape, config, build_source(), checkpoint_dir=tmp_path, **quiet).fit()
    assert resumed.history == undisturbed.history
    assert [row["step"] for row in resumed.history if "memory/split" in row] == [1]
    others = undisturbed.model.state_dict()
    assert all(torch.equal(value, others[name]) for name, value in resumed.model.state_dict().items())


def test_an_update_or_an_evaluation_that_does_not_fit_says_so(
    model_config: ModelConfig, build_source: Callable[..., SpanSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **named: object) -> None:
        raise MemoryError

    config = TrainConfig(2, batch_size=4)
    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", fail)
        with pytest.raises(OutOfMemory, match="the update of step 1 does not fit into the memory of cpu"):
            Trainer(model_config, config, build_source()).fit()
    monkeypatch.setattr("model.distributed.evaluate_source", fail)
    with pytest.raises(OutOfMemory, match="the evaluation after step 2 does not fit"):
        Trainer(model_config, config, build_source(), build_source()).fit()


def test_another_error_is_no_lack_of_memory(
    model_config: ModelConfig, build_source: Callable[..., SpanSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(stepper: Stepper, batch: Batch) -> torch.Tensor:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(Stepper, "_nll", fail)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        Trainer(model_config, TrainConfig(2), build_source(), execution=Execution()).fit()
