"""A training in several processes: torchrun starts them, this process hands on their reports and ends them.

The ranks (`tasks.training.train_rank`) know neither Prefect nor MLflow. They inherit torchrun's standard input and
output: the first rank reports through them, and the end of standard input ends all ranks of this machine, whatever this
process died of.

On one machine nothing has to be set but the number of processes. On several that share the store's folder, set on each

    SHEEPFOLD_NODES=2                  how many machines
    SHEEPFOLD_MASTER=10.0.0.1:29500    address and free port of the one that runs `sheepfold`

and while that one trains, join it on the others by

    python -m tasks.training.launch JOB NODE    JOB: the job file that the log names; NODE: 1 on the second machine

Every machine then runs the same number of processes, and they join anew when a stopped training is started again.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from storage.atomic import write_file
from storage.errors import UserError
from tasks.core.child import ChildEnded, ChildProcess, module_command, python_path

logger = logging.getLogger("sheepfold")

NODES, MASTER = "SHEEPFOLD_NODES", "SHEEPFOLD_MASTER"
JOB_FILE, LOG_FILE, WEIGHTS_FILE = "job.json", "ranks.log", "model.safetensors"
POLL_SECONDS = 0.2  # between two looks at whether to stop
GRACE_SECONDS = 10.0  # for the ranks to end by themselves
LOG_LINES = 15  # of the processes' output in an error that explains nothing itself
_OURS = ("model", "storage", "tasks", "builtins")  # whose errors are raised here as what they are there


@dataclass(frozen=True)
class Job:
    """What the ranks of a training need to know.

    Attributes:
        model: fields of `model.ModelConfig`.
        train: fields of `model.TrainConfig`.
        execution: fields of `model.execution.Execution`.
        device: kind of the ranks' devices, `cpu` or `cuda`.
        threads: of each rank.
        deterministic: ask torch for deterministic kernels.
        measure: only say how long a step takes, of so many; 0 trains. What follows is not needed to measure.
        dataset: folder of the dataset.
        shards: folders of its token shards, by key.
        validation_sample: most validation sequences.
        checkpoints: folder of checkpoints.
        checkpoint_seconds: as `model.Trainer` takes it.
        identity: as `model.Trainer` takes it.
        initial_weights: a safetensors file to start from.
    """

    model: dict[str, Any]
    train: dict[str, Any]
    execution: dict[str, Any]
    device: str = "cpu"
    threads: int = 1
    deterministic: bool = False
    measure: int = 0
    dataset: str = ""
    shards: dict[str, str] = field(default_factory=dict)
    validation_sample: int | None = None
    checkpoints: str = ""
    checkpoint_seconds: float = 15.0
    identity: dict[str, str] = field(default_factory=dict)
    initial_weights: str = ""


@dataclass(frozen=True)
class Nodes:
    """The machines that train together.

    Attributes:
        count: how many.
        master: address and port of the first one; empty on one machine.
    """

    count: int = 1
    master: str = ""

    @classmethod
    def from_environment(cls) -> Nodes:
        """What SHEEPFOLD_NODES and SHEEPFOLD_MASTER say.

        Raises:
            UserError: they do not belong together.
        """
        count, master = os.environ.get(NODES, "1"), os.environ.get(MASTER, "")
        if not count.isdecimal() or int(count) < 1:
            raise UserError(f"{NODES} is {count!r}, expected a number of machines")
        if int(count) == 1:
            return cls()
        if not master.rpartition(":")[0] or not master.rpartition(":")[2].isdecimal():
            raise UserError(
                f"{NODES} is {count} and {MASTER} is {master!r}; expected the address and a free port of this machine, "
                f"for example 10.0.0.1:29500"
            )
        return cls(int(count), master)


@dataclass(frozen=True)
class Callbacks:
    """What the ranks report is handed to; each is called in the thread that launched them.

    Attributes:
        metrics: (step, metrics) after each step.
        checkpoint: (step) before a checkpoint becomes visible; the ranks wait until it returns.
        progress: (step, max_steps, metrics) after each step.
        event: (step, kind, message).
        stop_asked: whether the training is to stop with a checkpoint of where it is.
    """

    metrics: Callable[[int, dict[str, Any]], None] = lambda step, metrics: None
    checkpoint: Callable[[int], None] = lambda step: None
    progress: Callable[[int, int, dict[str, Any]], None] = lambda step, total, metrics: None
    event: Callable[[int, str, str], None] = lambda step, kind, message: None
    stop_asked: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class Launched:
    """What a finished training leaves.

    Attributes:
        weights: file of the trained weights; it lies in the folder that was given to `launch`.
        history: rows as in `model.trainer.TrainResult`.
        steps: optimiser steps done over all starts.
        resumed_from: step of the checkpoint that this start went on from; 0 if it began anew.
        step_seconds: how long a step takes, where only that was asked for.
    """

    weights: Path
    history: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0
    resumed_from: int = 0
    step_seconds: float = 0.0


class RankError(RuntimeError):
    """A process of a training failed in a way that has no name here, or died; the message says what is known."""


def launch(
    job: Job, processes: int, place: Path, callbacks: Callbacks | None = None, nodes: Nodes | None = None
) -> Launched:
    """Train in so many processes on each machine, to the end.

    Args:
        job: what to train.
        processes: on each machine; with `cuda`, one GPU for each.
        place: folder for the job, the processes' log and the result, emptied at the beginning. The ranks of other
            machines read it too.
        callbacks: what to do with reports.
        nodes: the machines that take part; those of the environment if it is None.

    Raises:
        UserError: so many processes cannot train that, or one raised it.
        TrainingStopped: it was asked to stop.
        RankError: a process failed; errors of this project are raised as what they are, for example
            `model.step.NonFiniteLoss`.
    """
    from model.distributed import check_share
    from model.stopping import TrainingStopped

    nodes = nodes or Nodes.from_environment()
    try:
        check_share(job.train["batch_size"], job.train["grad_accum"], processes * nodes.count)
    except ValueError as error:
        raise UserError(f"execution.processes is {processes}: {error}") from error
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    job_file = place / JOB_FILE
    record = {"job": asdict(job), "processes": processes, "nodes": asdict(nodes)}
    write_file(job_file, json.dumps(record, indent=1).encode())
    if nodes.count > 1:
        logger.info("waiting for %d machines: python -m tasks.training.launch %s NODE", nodes.count - 1, job_file)
    callbacks, done = callbacks or Callbacks(), None
    with (place / LOG_FILE).open("wb") as log:
        ranks = ChildProcess(torchrun(job_file, node=0), environment(job, nodes), stderr=log)
    try:
        for message in _reports(ranks, callbacks.stop_asked):
            done = message.pop("done", done)
            for name, arguments in message.items():
                if name == "warning":
                    warnings.warn(str(arguments[0]), stacklevel=3)
                else:
                    getattr(callbacks, name)(*arguments)
            if "checkpoint" in message:
                ranks.send({"acknowledged": message["checkpoint"][0]})
    finally:
        status = ranks.kill(GRACE_SECONDS)
    if done is None:
        raise _cause(place, status)
    if "stopped" in done:
        raise TrainingStopped(*done["stopped"])
    return Launched(place / WEIGHTS_FILE, **done)


def _reports(ranks: ChildProcess, stop_asked: Callable[[], bool]) -> Iterator[dict[str, Any]]:
    """Yield the messages of the first rank until torchrun and all ranks have ended; pass on a request to stop."""
    passed_on = False
    while True:
        if not passed_on and stop_asked():
            ranks.send({"stop": True})
            passed_on = True
        try:
            yield from ranks.receive(time.monotonic() + POLL_SECONDS)
        except TimeoutError:
            continue
        except ChildEnded:
            return


def torchrun(job_file: Path, node: int) -> list[str]:
    """Return the command that starts the ranks of one machine."""
    record = json.loads(job_file.read_text(encoding="utf-8"))
    count, master = record["nodes"]["count"], record["nodes"]["master"]
    where = ["--standalone"]
    if count > 1:
        address, _, port = master.rpartition(":")
        where = [f"--nnodes={count}", f"--node-rank={node}", f"--master-addr={address}", f"--master-port={port}"]
    options = [
        f"--nproc-per-node={record['processes']}",
        "--max-restarts=0",
        f"--log-dir={job_file.parent / 'torchrun'}",
    ]
    program = ["-m", "tasks.training.train_rank", str(job_file)]
    return [*module_command("torch.distributed.run"), *where, *options, *program]


def environment(job: Job, nodes: Nodes) -> dict[str, str]:
    """Return the variables that the ranks need beside those of this process."""
    found = {"PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": str(job.threads)}
    if nodes.count == 1:
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            found[name] = os.environ.get(name, loopback)
    return found


def error_file(place: Path, rank: int) -> Path:
    """Return the file in which a rank records the error that ended it."""
    return place / f"error-{rank}.json"


def _cause(place: Path, status: int | None) -> Exception:
    """The error that came first, and none that is only the echo of another rank's end, if there is a choice."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(place.glob("error-*.json"))]
    if not records:
        lines = (place / LOG_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
        return RankError(
            f"the processes of the training ended without a result (torchrun's exit status is {status}); was memory "
            f"short, or did something end them? The last lines of {place / LOG_FILE}:\n" + "\n".join(lines[-LOG_LINES:])
        )
    first = min(records, key=lambda record: (record["is_echo"], record["time"]))
    error = _rebuilt(first)
    error.add_note(f"in rank {first['rank']}:\n{first['traceback']}")
    return error


def _rebuilt(record: dict[str, Any]) -> Exception:
    """An error as it was raised in its process, where its kind is one of ours."""
    home, _, name = record["kind"].rpartition(".")
    if home.partition(".")[0] in _OURS:
        kind = getattr(importlib.import_module(home), name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            error: Exception = kind.__new__(kind)
            error.args = (record["message"],)
            vars(error).update(record["attributes"])
            return error
    return RankError(f"rank {record['rank']} of the training failed: {name}: {record['message']}")


def join(job_file: Path, node: int) -> None:
    """Take part in a training as another machine; this process becomes torchrun.

    Args:
        job_file: of the launching machine, in a folder that both see; waited for if it is not there yet.
        node: number of this machine, from 1.
    """
    while not job_file.exists():
        time.sleep(POLL_SECONDS)
    record = json.loads(job_file.read_text(encoding="utf-8"))
    added = environment(Job(**record["job"]), Nodes(**record["nodes"]))
    os.execve(sys.executable, torchrun(job_file, node), {**os.environ, **python_path(), **added})


if __name__ == "__main__":
    join(Path(sys.argv[1]).absolute(), int(sys.argv[2]))
