"""A training in several processes: torchrun starts them, this process listens to them and ends them.

Goes in: a `Job`, which says in folders and settings all that a rank needs, and callbacks. Comes out: the history and a
file of weights. The ranks (`tasks.training.train_rank`) know neither Prefect nor MLflow; the first of them reports over
a socket, which is also how all of them notice that this process has gone: whatever it dies of, they do not outlive it.

On one machine nothing has to be set but the number of processes. On several that share the store's folder, set on each

    SHEEPFOLD_NODES=2                  how many machines
    SHEEPFOLD_MASTER=10.0.0.1:29500    address and free port of the one that runs `sheepfold`

and while that one trains, join it on the others by

    python -m tasks.training.launch JOB NODE    JOB: the job file that the log names; NODE: 1 on the second machine

Every machine then runs the same number of processes, and they join anew when a stopped training is started again.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from storage.errors import UserError
from tasks.core.child import MessageReader, ProtocolError, write_message

logger = logging.getLogger("sheepfold")

NODES, MASTER = "SHEEPFOLD_NODES", "SHEEPFOLD_MASTER"
JOB_FILE, LOG_FILE, WEIGHTS_FILE, HISTORY_FILE = "job.json", "ranks.log", "model.safetensors", "history.json"
POLL_SECONDS = 0.2  # between two looks at whether to stop
GRACE_SECONDS = 10.0  # for the ranks to say why, after one is lost
LONGEST_ADDRESS = 90  # bytes of a socket's path; systems take about a hundred
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
    history: list[dict[str, Any]]
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
    callbacks = callbacks or Callbacks()
    done: dict[str, Any] | None = None
    with _Group(job, processes, nodes, place) as group:
        for rank, message in group.messages(callbacks.stop_asked):
            if "done" in message:
                done = message["done"]
            else:
                _hand_on(message, rank, callbacks)
    if done is None:
        raise _cause(place, group.status)
    if "stopped" in done:
        raise TrainingStopped(*done["stopped"])
    history = place / HISTORY_FILE
    rows = json.loads(history.read_text(encoding="utf-8")) if history.exists() else []
    return Launched(place / WEIGHTS_FILE, rows, **done)


def _hand_on(message: dict[str, Any], rank: _Connection, callbacks: Callbacks) -> None:
    for name, arguments in message.items():
        if name == "finished":
            continue
        if name == "warning":
            warnings.warn(str(arguments[0]), stacklevel=4)
        else:
            getattr(callbacks, name)(*arguments)
    if "checkpoint" in message:
        rank.tell({"acknowledged": message["checkpoint"][0]})


class _Connection:
    """A rank of this machine."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.reader = MessageReader(connected.fileno())
        self.is_finished = False

    def tell(self, message: dict[str, Any]) -> None:
        """Send a message; one that has gone is noticed where it is read."""
        with contextlib.suppress(OSError):
            write_message(self.socket.fileno(), message)

    def read(self) -> list[dict[str, Any]] | None:
        """What has arrived; None where the rank has gone."""
        try:
            return self.reader.read_available()
        except (OSError, ProtocolError):
            return None


class _Group:
    """torchrun and its processes; leaving the context ends all of them, whatever they do."""

    def __init__(self, job: Job, processes: int, nodes: Nodes, place: Path) -> None:
        self._selector = selectors.DefaultSelector()
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._lost: float | None = None  # when a rank went before it had finished
        self.status: int | None = None
        address, self._folder = str(place.absolute() / "ranks"), ""
        if len(os.fsencode(address)) > LONGEST_ADDRESS:
            self._folder = tempfile.mkdtemp(prefix="sheepfold-")
            address = str(Path(self._folder) / "ranks")
        self._server.bind(address)
        self._server.listen(processes)
        self._selector.register(self._server, selectors.EVENT_READ)
        job_file = place / JOB_FILE
        record = {"job": asdict(job), "processes": processes, "nodes": asdict(nodes), "socket": address}
        job_file.with_suffix(".part").write_text(json.dumps(record, indent=1), encoding="utf-8")
        job_file.with_suffix(".part").rename(job_file)  # whoever waits for it reads all of it
        if nodes.count > 1:
            logger.info("waiting for %d machines: python -m tasks.training.launch %s NODE", nodes.count - 1, job_file)
        with (place / LOG_FILE).open("wb") as log:
            self._process = subprocess.Popen(
                torchrun(job_file, node=0),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(job, nodes),
                start_new_session=True,  # a terminal's Ctrl-C reaches this process alone
            )

    def __enter__(self) -> _Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for rank in self._ranks():
            self._leave(rank)  # a rank that is still there ends at once
        self._server.close()
        self._selector.close()
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self.status = self._process.wait()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def messages(self, stop_asked: Callable[[], bool]) -> Iterator[tuple[_Connection, dict[str, Any]]]:
        """What ranks say, until all have gone, or one is lost and the others do not follow."""
        told_to_stop: set[_Connection] = set()
        while not self._is_over():
            if stop_asked():
                for rank in set(self._ranks()) - told_to_stop:
                    rank.tell({"stop": True})
                    told_to_stop.add(rank)
            for key, _ in self._selector.select(POLL_SECONDS):
                if key.fileobj is self._server:
                    rank = _Connection(self._server.accept()[0])
                    self._selector.register(rank.socket, selectors.EVENT_READ, rank)
                    continue
                arrived = key.data.read()
                if arrived is None:
                    self._leave(key.data)
                    if not key.data.is_finished:
                        self._lost = self._lost or time.monotonic()
                for message in arrived or ():
                    key.data.is_finished |= "finished" in message
                    yield key.data, message

    def _ranks(self) -> list[_Connection]:
        return [key.data for key in self._selector.get_map().values() if key.data is not None]

    def _leave(self, rank: _Connection) -> None:
        self._selector.unregister(rank.socket)
        rank.socket.close()

    def _is_over(self) -> bool:
        if self._process.poll() is not None and not self._ranks():
            return True
        return self._lost is not None and time.monotonic() > self._lost + GRACE_SECONDS


def torchrun(job_file: Path, node: int) -> list[str]:
    """The command that starts the ranks of one machine."""
    record = json.loads(job_file.read_text(encoding="utf-8"))
    count, master = record["nodes"]["count"], record["nodes"]["master"]
    where = ["--standalone"]
    if count > 1:
        address, _, port = master.rpartition(":")
        where = [f"--nnodes={count}", f"--node-rank={node}", f"--master-addr={address}", f"--master-port={port}"]
    program = [sys.executable, "-m", "torch.distributed.run", *where, f"--nproc-per-node={record['processes']}"]
    kept = ["--max-restarts=0", f"--log-dir={job_file.parent / 'torchrun'}"]
    return [*program, *kept, "-m", "tasks.training.train_rank", str(job_file)]


def environment(job: Job, nodes: Nodes) -> dict[str, str]:
    """This process's environment, with what the ranks need."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    found = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": str(job.threads)}
    if nodes.count == 1:
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            found.setdefault(name, loopback)
    return found


def error_file(place: Path, rank: int) -> Path:
    """Where a rank writes what it failed of."""
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
    found = environment(Job(**record["job"]), Nodes(**record["nodes"]))
    os.execve(sys.executable, torchrun(job_file, node), found)


if __name__ == "__main__":
    join(Path(sys.argv[1]).absolute(), int(sys.argv[2]))
