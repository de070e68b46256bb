"""A training that torchrun computes in several processes: what it reports, how it fails, and what it leaves."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from model import ModelConfig, NonFiniteLoss, TrainConfig, Trainer, Transformer, load_checkpoint
from model.callbacks import Callbacks, TrainingStopped
from model.data import Group
from storage.errors import UserError
from tasks.core.settings import ExecutionSettings
from tasks.tokens.index import open_sequences
from tasks.training.launch import Job, Nodes, RankError, _cause, error_file, launch, settled, time_steps, torchrun

SHAPE = ModelConfig(vocab_size=31, max_seq_len=16, n_layer=1, n_head=2, d_model=16)
PLAN = TrainConfig(max_steps=4, batch_size=4, eval_every=2, lr=3e-3)
SECONDS = 120.0  # within which a process that has to end has ended


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Twenty-four sequences of one shard, four of them for validation."""
    shard, dataset = tmp_path / "shard", tmp_path / "dataset"
    shard.mkdir()
    dataset.mkdir()
    np.save(shard / "tokens.npy", (np.arange(1024) * 7 % 31).astype(np.uint16))
    numbers = np.arange(24)
    columns = {
        "sequence": numbers,
        "split": ["train"] * 20 + ["validation"] * 4,
        "shard": ["a"] * 24,
        "start": numbers * 20,
        "length": (numbers % 15 + 3).astype(np.int32),
        "ahead": (numbers % 15 + 3 > 16).astype(np.int8),
    }
    pq.write_table(pa.table(columns), dataset / "sequences.parquet")
    group = {"name": "all", "first": 0, "count": 20, "reads": 20, "tokens": 1}
    (dataset / "dataset.json").write_text(json.dumps({"packing": "chunk", "groups": [group]}))
    return Job(
        SHAPE.to_dict(),
        PLAN.to_dict(),
        {"sharding": "ddp", "checkpoint_minutes": 0},
        dataset=str(dataset),
        shards={"a": str(shard)},
        checkpoints=str(tmp_path / "checkpoints"),
        identity={"dataset": "a"},
    )


def trained_alone(job: Job) -> list[dict[str, Any]]:
    """The history of the same training in this process."""
    shards = {key: Path(folder) for key, folder in job.shards.items()}
    sources = [open_sequences(Path(job.dataset), shards, split, SHAPE.max_seq_len) for split in ("train", "validation")]
    return Trainer(SHAPE, PLAN, *sources, groups=[Group(0, 20, 20)]).fit().history


class Reports(Callbacks):
    """Steps and checkpoints, as they are reported."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.steps: list[tuple[int, int, Mapping[str, float]]] = []
        self.checkpoints: list[int] = []

    def step(self, step: int, max_steps: int, metrics: Mapping[str, float]) -> None:
        self.steps.append((step, max_steps, metrics))

    def checkpoint(self, step: int) -> None:
        assert not (self._folder / f"step-{step:08}").exists()
        self.checkpoints.append(step)


def calling(on_step: Callable[[int], object]) -> Callbacks:
    """Callbacks that pass on the steps."""
    found = Callbacks()
    vars(found)["step"] = lambda step, max_steps, metrics: on_step(step)
    return found


def processes_of(place: Path) -> list[int]:
    """Return the processes of a job: torchrun and the ranks have its path in their command lines."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and str(place).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


@contextlib.contextmanager
def all_end(pids: list[int]) -> Iterator[None]:
    """Fails unless all these processes have ended some time after the context."""
    watched = [os.pidfd_open(pid) for pid in pids]
    try:
        yield
        for descriptor in watched:
            assert select.select([descriptor], [], [], SECONDS)[0], "a process outlived the training"
    finally:
        for descriptor in watched:
            os.close(descriptor)


@pytest.mark.full
def test_a_launched_training_is_that_of_one_process(job: Job, tmp_path: Path) -> None:
    reports = Reports(Path(job.checkpoints))
    done = launch(job, 2, tmp_path / "ranks", reports)
    assert (done.steps, done.resumed_from, reports.checkpoints) == (4, 0, [1, 2, 3, 4])
    assert [(step, total) for step, total, _ in reports.steps] == [(step, 4) for step in range(1, 5)]
    timings = ("time/step_seconds", "time/tokens_per_second", "memory/resident_mb")  # no part of the history
    told = [{name: value for name, value in row.items() if name not in timings} for _, _, row in reports.steps]
    assert told == done.history
    expected = trained_alone(job)
    assert [sorted(row) for row in done.history] == [sorted(row) for row in expected]
    for row, other in zip(done.history, expected, strict=True):
        assert row == pytest.approx(other, rel=2e-5)
    saved = load_checkpoint(job.checkpoints).weights
    assert all(torch.equal(tensor, saved[name]) for name, tensor in load_file(done.weights).items())
    assert processes_of(tmp_path / "ranks") == []


@pytest.mark.full
def test_steps_are_timed_in_the_processes_together_which_end_with_the_last_that_is_asked_for(
    job: Job, tmp_path: Path
) -> None:
    place = tmp_path / "ranks"
    wider = replace(job, model={**job.model, "d_model": 2 * job.model["d_model"]})
    times = time_steps([job, wider, wider], 2, place)
    assert next(times) > 0 and next(times) > 0
    assert processes_of(place)
    times.close()
    assert processes_of(place) == []
    assert [seconds > 0 for seconds in time_steps([job], 2, place)] == [True]


@pytest.mark.full
def test_the_error_of_a_rank_is_raised_as_what_it_is(job: Job, tmp_path: Path) -> None:
    weights = Transformer(SHAPE).state_dict()
    weights["norm.weight"] = weights["norm.weight"] * math.nan
    save_file(weights, tmp_path / "bad.safetensors")
    with pytest.raises(NonFiniteLoss, match="the loss is nan at step 1, in the sequences") as caught:
        launch(replace(job, initial_weights=str(tmp_path / "bad.safetensors")), 2, tmp_path / "ranks")
    assert (caught.value.step, len(caught.value.indices)) == (1, 4)
    assert "in rank" in caught.value.__notes__[0]
    assert processes_of(tmp_path / "ranks") == []


@pytest.mark.faults
def test_a_training_that_is_asked_to_stop_goes_on_later(job: Job, tmp_path: Path) -> None:
    many = replace(job, train={**job.train, "max_steps": 10**6}, execution={"checkpoint_minutes": 60})
    ends: list[tuple[list[int], int]] = []
    for number in range(2):
        steps: list[int] = []
        stop = threading.Event()

        def on_step(step: int, steps: list[int] = steps, stop: threading.Event = stop) -> None:
            steps.append(step)
            if len(steps) == 2:
                stop.set()

        with pytest.raises(TrainingStopped) as caught:
            launch(many, 2, tmp_path / f"ranks-{number}", calling(on_step), stop)
        assert caught.value.saved
        assert load_checkpoint(many.checkpoints).step == caught.value.step == steps[-1]
        ends.append((steps, caught.value.step))
    assert ends[1][0][0] == ends[0][1] + 1


LAUNCHES = """
import json, sys
from pathlib import Path
from model import Callbacks
from tasks.training.launch import Job, launch

job, place = json.loads(sys.argv[1]), Path(sys.argv[2])

class Waiting(Callbacks):
    def step(self, step, max_steps, metrics):
        if step == 2:
            print("two steps", flush=True)
            sys.stdin.read()  # for ever

launch(Job(**job), 2, place, Waiting())
"""


@pytest.mark.faults
def test_no_process_outlives_the_one_that_launched_it(job: Job, tmp_path: Path) -> None:
    place = tmp_path / "ranks"
    many = replace(job, train={**job.train, "max_steps": 10**6}, execution={"checkpoint_minutes": 60})
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHES, json.dumps(asdict(many)), str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    with launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == b"two steps\n"
        found = processes_of(place)
        assert len(found) >= 3  # torchrun, two ranks, and the launcher itself
        with all_end(found):
            launcher.send_signal(signal.SIGKILL)


@pytest.mark.faults
def test_a_rank_that_is_killed_ends_the_others(job: Job, tmp_path: Path) -> None:
    place = tmp_path / "ranks"
    ranks: list[int] = []

    def kill(step: int) -> None:
        if not ranks:
            ranks.extend(pid for pid in processes_of(place) if b"rank" in _environment(pid))
            os.kill(max(ranks), signal.SIGKILL)

    many = replace(job, train={**job.train, "max_steps": 10**6}, execution={"checkpoint_minutes": 60})
    with pytest.raises(RuntimeError) as caught:
        launch(many, 2, place, calling(kill))
    assert isinstance(caught.value, RankError) or "peer" in str(caught.value)
    assert len(ranks) == 2
    assert processes_of(place) == []


def _environment(pid: int) -> bytes:
    return b"rank" if b"LOCAL_RANK=" in Path(f"/proc/{pid}/environ").read_bytes() else b""


@pytest.mark.full
def test_a_second_machine_joins(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("SHEEPFOLD_NODES", "2")
    monkeypatch.setenv("SHEEPFOLD_MASTER", f"127.0.0.1:{port}")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    place = tmp_path / "ranks"
    joining = [sys.executable, "-m", "tasks.training.launch", str(place / "job.json"), "1"]
    root = Path(__file__).parents[3]
    with subprocess.Popen(joining, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}) as other:
        done = launch(job, 1, place)
        assert other.wait(SECONDS) == 0
    for row, expected in zip(done.history, trained_alone(job), strict=True):
        assert row == pytest.approx(expected, rel=2e-5)


def test_a_step_that_the_processes_cannot_share_is_refused(job: Job, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"execution\.processes is 3: 3 processes cannot share the 4 sequences"):
        launch(job, 3, tmp_path / "ranks")


@pytest.mark.parametrize(
    ("given", "device", "sequences", "minutes", "expected"),
    [
        (0, "cpu", 8, 3.0, 4),
        (0, "cpu", 6, 3.0, 3),  # that divide the sequences
        (0, "cpu", 8, 0.0, 1),
        (0, "cuda", 8, 3.0, 1),
        (2, "cpu", 8, 0.0, 2),
    ],
)
def test_a_training_by_the_clock_takes_a_process_for_each_core(
    given: int, device: str, sequences: int, minutes: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.training.launch.usable_cores", lambda: 5)
    plan = {"batch_size": sequences // 2, "grad_accum": 2}
    assert settled(ExecutionSettings(processes=given), device, plan, minutes).processes == expected


def test_the_copies_of_a_network_take_no_more_than_half_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.training.launch.usable_cores", lambda: 8)
    monkeypatch.setattr("tasks.training.launch.memory_bytes", lambda device: 16_000_000_000)
    plan = {"batch_size": 8, "grad_accum": 1}
    found = [settled(ExecutionSettings(), "cpu", plan, 3.0, size).processes for size in (10**6, 124 * 10**6, 10**9)]
    assert found == [8, 4, 1]


def test_the_first_error_is_told_and_not_its_consequences(tmp_path: Path) -> None:
    errors = [
        {"kind": "builtins.RuntimeError", "message": "Connection closed by peer", "is_consequence": True, "time": 1.0},
        {"kind": "builtins.ValueError", "message": "later", "is_consequence": False, "time": 3.0},
        {"kind": "builtins.ValueError", "message": "the batch holds token id 99", "is_consequence": False, "time": 2.0},
    ]
    for rank, error in enumerate(errors):
        error_file(tmp_path, rank).write_text(
            json.dumps({**error, "rank": rank, "attributes": {}, "traceback": "Traceback"})
        )
    error = _cause(tmp_path, 1)
    assert (type(error), str(error)) == (ValueError, "the batch holds token id 99")
    assert error.__notes__ == ["in rank 2:\nTraceback"]


def test_an_error_of_a_foreign_kind_names_it(tmp_path: Path) -> None:
    record = {
        "kind": "torch.cuda.Odd",
        "message": "no",
        "is_consequence": False,
        "time": 1.0,
        "rank": 1,
        "attributes": {},
    }
    error_file(tmp_path, 1).write_text(json.dumps({**record, "traceback": ""}))
    error = _cause(tmp_path, 1)
    assert (type(error), str(error)) == (RankError, "rank 1 of the training failed: Odd: no")


@pytest.mark.parametrize(
    ("nodes", "master", "message"),
    [
        ("two", "", "SHEEPFOLD_NODES is 'two', expected a number of machines"),
        ("2", "", "SHEEPFOLD_MASTER is ''; expected the address and a free port"),
        ("2", "10.0.0.1", "SHEEPFOLD_MASTER is '10.0.0.1'; expected"),
    ],
)
def test_machines_without_an_address_are_refused(
    nodes: str, master: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHEEPFOLD_NODES", nodes)
    monkeypatch.setenv("SHEEPFOLD_MASTER", master)
    with pytest.raises(UserError, match=message):
        Nodes.from_environment()


def test_several_machines_meet_at_the_first(tmp_path: Path) -> None:
    job_file = tmp_path / "job.json"
    job_file.write_text(json.dumps({"processes": 4, "nodes": asdict(Nodes(2, "10.0.0.1:29500"))}))
    command = torchrun(job_file, node=1)
    for argument in ("--nnodes=2", "--node-rank=1", "--master-addr=10.0.0.1", "--master-port=29500"):
        assert argument in command
    assert "--nproc-per-node=4" in command
    assert "--standalone" not in command
