"""Steps that do not fit into memory end in an error that says what to change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from model import ModelConfig, SpanSource, TrainConfig, Trainer
from model.config import Execution
from model.data import Batch
from model.guards import OutOfMemory
from model.step import Stepper

# The child limits its own address space to little more than it has, as a machine that is too small would.
CHILD = """
import json, re, resource, sys
import numpy as np, torch
torch.set_num_threads(1)
from model import ModelConfig, SpanSource, TrainConfig, Trainer

# The limit is one on addresses. Holes in the heap would count, for which reason the C library takes every tensor from
# the system (MALLOC_MMAP_THRESHOLD_).
rows, length, spare = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) * 2**20
shape = ModelConfig(512, max_seq_len=length, n_layer=2, n_head=2, d_model=64)
shard = (np.arange(2**16) * 7 % 509).astype(np.uint16)
n = 2**15 // length
source = SpanSource([shard], np.zeros(n), np.arange(n) * length, np.full(n, length + 1), length, 0)

def trainer(rows, steps):
    return Trainer(shape, TrainConfig(steps, batch_size=rows), source)

small = ModelConfig(512, max_seq_len=16, n_layer=2, n_head=2, d_model=64)
ids = SpanSource([shard], np.zeros(4), np.arange(4), np.full(4, 17), 16, 0)
Trainer(small, TrainConfig(1, batch_size=1), ids).fit()  # what is loaded and allocated once is there
size = int(re.search(r"VmSize:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (size + spare, resource.RLIM_INFINITY))
try:
    found = {"history": trainer(rows, 2).fit().history}
except RuntimeError as error:
    found = {"error": type(error).__name__, "message": str(error)}
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(json.dumps(found))
"""


def train_with_little_memory(rows: int, length: int, spare: int) -> dict[str, Any]:
    """Run two steps with `spare` MiB of free memory; returns their outcome."""
    root = Path(__file__).parents[2]
    malloc = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *map(str, (rows, length, spare))],
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
def test_a_batch_that_does_not_fit_says_what_to_change() -> None:
    # tensors of tens of megabytes, so that small allocations, whose failure a library may not survive, still have room
    found = train_with_little_memory(512, 256, 80)
    assert found["error"] == "OutOfMemory"
    assert found["message"].startswith(
        "step 1 does not fit into the memory of cpu with batch_size=512, max_seq_len=256"
    )
    assert "batch_size=256 with grad_accum=2" in found["message"]


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
