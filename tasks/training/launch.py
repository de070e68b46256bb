"""A training in several processes: torchrun starts them, this process passes on their reports and ends them.

The ranks know neither Prefect nor MLflow. They inherit torchrun's standard input and output: the first rank reports
through them, and the end of standard input ends all ranks of this machine, whatever this process died of. A training in
one process is the same `train_job`, called in place.

Several machines that share the store's folder meet by SHEEPFOLD_NODES and SHEEPFOLD_MASTER, and the others join by this
module's own command: see docs/guides/cluster.md.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import queue
import select
import shutil
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from model.callbacks import Callbacks, TrainingStopped
from storage.atomic import write_file
from storage.errors import UserError
from tasks.core.child import ChildEnded, ChildProcess, module_command, python_path, serve

logger = logging.getLogger("sheepfold")

NODES, MASTER = "SHEEPFOLD_NODES", "SHEEPFOLD_MASTER"
JOB_FILE, LOG_FILE, WEIGHTS_FILE = "job.json", "ranks.log", "model.safetensors"
POLL_SECONDS = 0.2  # between two looks at whether to stop
GRACE_SECONDS = 10.0  # for the ranks to end by themselves
LOG_LINES = 15  # of the processes' output in an error that explains nothing itself
_OURS = ("model", "storage", "tasks", "builtins")  # whose errors are raised here as what they are there
# errors of gloo and NCCL in a rank after another one has ended
_CONSEQUENCES = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "NCCL", "Timed out waiting")


@dataclass(frozen=True)
class Job:
    """Parameters of a training, which its ranks read from a file; those from `dataset` on are only for training."""

    model: dict[str, Any]  # fields of `model.ModelConfig`
    train: dict[str, Any]  # fields of `model.TrainConfig`
    execution: dict[str, Any]  # fields of `model.config.Execution`
    device: str = "cpu"  # kind of the ranks' devices, `cpu` or `cuda`
    threads: int = 1  # of each rank
    deterministic: bool = False  # ask torch for deterministic kernels
    measure: int = 0  # number of steps to time instead of training; 0 trains
    dataset: str = ""  # its folder
    shards: dict[str, str] = field(default_factory=dict)  # folders of its token shards, by key
    validation_sample: int | None = None  # most validation sequences
    checkpoints: str = ""  # folder of checkpoints
    identity: dict[str, str] = field(default_factory=dict)  # as `model.Trainer` takes it
    initial_weights: str = ""  # a safetensors file to start from


@dataclass(frozen=True)
class Nodes:
    """The machines that train together."""

    count: int = 1
    master: str = ""  # address and port of the first one; empty on one machine

    @classmethod
    def from_environment(cls) -> Nodes:
        """Return the machines of SHEEPFOLD_NODES and SHEEPFOLD_MASTER.

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
class Launched:
    """Result of a finished training; history, steps and resumed_from are those of `model.trainer.TrainResult`."""

    weights: Path  # file in the folder that was given to `launch`
    history: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0
    resumed_from: int = 0
    step_seconds: float = 0.0  # if only the time of a step was asked for


class RankError(RuntimeError):
    """A process of a training died, or failed with an error that is none of this project's."""


def launch(
    job: Job,
    processes: int,
    place: Path,
    callbacks: Callbacks | None = None,
    stop: threading.Event | None = None,
    nodes: Nodes | None = None,
) -> Launched:
    """Train in several processes on each machine.

    Args:
        processes: number of processes on each machine; with `cuda`, one GPU for each.
        place: folder for the job, the processes' log and the result, emptied at the beginning. The ranks of other
            machines read it too.
        callbacks: receive the first rank's reports, which waits until `checkpoint` returns.
        stop: when set, the training saves a checkpoint and stops.
        nodes: the machines that take part; those of the environment if it is None.

    Raises:
        UserError: so many processes cannot train that, or one raised it.
        TrainingStopped: it was asked to stop.
        RankError: a process failed; errors of this project are raised as what they are, for example
            `model.NonFiniteLoss`.
    """
    from model.distributed import check_share

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
    callbacks = callbacks or Callbacks()
    done: dict[str, Any] = {}
    with (place / LOG_FILE).open("wb") as log:
        ranks = ChildProcess(torchrun(job_file, node=0), environment(job, nodes), stderr=log)
    try:
        for message in _reports(ranks, stop or threading.Event()):
            ((name, arguments),) = message.items()
            if name == "done":
                (done,) = arguments
            elif name == "warning":
                warnings.warn(arguments[0], stacklevel=3)
            else:
                getattr(callbacks, name)(*arguments)
            if name == "checkpoint":
                ranks.send({"acknowledged": arguments[0]})
    finally:
        status = ranks.kill(GRACE_SECONDS)
    if not done:
        raise _cause(place, status)
    if "stopped" in done:
        raise TrainingStopped(*done["stopped"])
    return Launched(place / WEIGHTS_FILE, **done)


def _reports(ranks: ChildProcess, stop: threading.Event) -> Iterator[dict[str, Any]]:
    """Yield the messages of the first rank until torchrun and all ranks have ended; pass on a request to stop."""
    passed_on = False
    while True:
        if stop.is_set() and not passed_on:
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
    program = ["-m", "tasks.training.launch", str(job_file)]
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
    """Return the error that came first, if possible one that is no consequence of another rank's end."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(place.glob("error-*.json"))]
    if not records:
        lines = (place / LOG_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
        return RankError(
            f"the processes of the training ended without a result (torchrun's exit status is {status}); was memory "
            f"short, or did something end them? The last lines of {place / LOG_FILE}:\n" + "\n".join(lines[-LOG_LINES:])
        )
    first = min(records, key=lambda record: (record["is_consequence"], record["time"]))
    error = _rebuilt(first)
    error.add_note(f"in rank {first['rank']}:\n{first['traceback']}")
    return error


def _rebuilt(record: dict[str, Any]) -> Exception:
    """Return an error of this project as it was raised in its process, any other as a `RankError`."""
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


# ---- in the ranks


class Channel(Callbacks):
    """Reports of the first rank to the launching process, whose requests it takes.

    Args:
        stop: set when the launching process asks to stop.
        device: whose memory the reports hold.
    """

    def __init__(self, stop: threading.Event, device: str) -> None:
        self._stop = stop
        self._device = device
        self._acknowledged: queue.SimpleQueue[int] = queue.SimpleQueue()
        requests, self._send = serve()
        threading.Thread(target=self._listen, args=(requests,), daemon=True).start()

    def send(self, name: str, *arguments: Any) -> None:
        """Report something: a callback by its name, `warning` or `done`."""
        self._send({name: arguments})

    def step(self, step: int, max_steps: int, metrics: Mapping[str, float]) -> None:
        """Report a step, with this process's memory."""
        from tasks.training.throughput import memory

        self.send("step", step, max_steps, {**metrics, **memory(self._device)})

    def checkpoint(self, step: int) -> None:
        """Return when the reports up to this step are durable."""
        self.send("checkpoint", step)
        while self._acknowledged.get() != step:
            pass

    def event(self, step: int, kind: str, message: str) -> None:
        """Report an event."""
        self.send("event", step, kind, message)

    def _listen(self, requests: Iterator[dict[str, Any]]) -> None:
        for message in requests:
            if "stop" in message:
                self._stop.set()
            else:
                self._acknowledged.put(message["acknowledged"])


def _end_with_launcher() -> None:
    """End this process when standard input, which the first rank reads, is closed at its other end."""
    poll = select.poll()
    poll.register(0, select.POLLHUP)
    poll.poll()
    os._exit(1)


def run_rank(job_file: Path) -> None:
    """Compute one rank's part of a job; the exit status is 0 only if all of it is done or a stop was asked for."""
    rank = int(os.environ["RANK"])
    job, stop = Job(**json.loads(job_file.read_text(encoding="utf-8"))["job"]), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    channel = None
    if rank == 0:
        channel = Channel(stop, job.device)
        warnings.showwarning = lambda message, *_, **__: channel.send("warning", str(message))
    else:
        os.dup2(2, 1)  # standard output is the first rank's, for its messages
        if os.environ["GROUP_RANK"] == "0":  # on other machines nobody holds the other end
            threading.Thread(target=_end_with_launcher, daemon=True).start()
    try:
        done = _run(job, job_file.parent, channel, stop)
        if channel is not None:
            channel.send("done", done)
    except Exception as error:  # noqa: BLE001 - the launching process raises it
        _write_error(error_file(job_file.parent, rank), rank, error)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # an orderly exit would wait for the other ranks
    # all is done and reported; where Python unloads its libraries, a thread of torch's sometimes aborts the process
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _run(job: Job, place: Path, channel: Channel | None, stop: threading.Event) -> dict[str, Any]:
    import torch

    from model.distributed import connect
    from model.randomness import seed_everything

    torch.set_num_threads(job.threads)
    if job.device == "cuda" and (count := torch.cuda.device_count()) < (asked := int(os.environ["LOCAL_WORLD_SIZE"])):
        raise ValueError(
            f"execution.processes is {asked}, but this machine has {count} GPUs; each process needs its own"
        )
    with connect(job.device) as ranks:
        if job.measure:
            return {"step_seconds": time_step(job, ranks=ranks)}
        seed_everything(job.train["seed"], deterministic=job.deterministic)
        try:
            found = train_job(job, place, channel, stop, ranks=ranks)
        except TrainingStopped as stopped:
            return {"stopped": [stopped.step, stopped.saved]}
        return {"history": found.history, "steps": found.steps, "resumed_from": found.resumed_from}


def time_step(job: Job, **more: Any) -> float:
    """Return the seconds of an optimiser step; for `more` see `model.measure_step_seconds`."""
    from model import ModelConfig, TrainConfig
    from model.config import Execution
    from model.distributed import rank_device
    from model.step import measure_step_seconds

    network, plan = ModelConfig.from_dict(job.model), TrainConfig.from_dict(job.train)
    execution = Execution.from_dict(job.execution)
    return measure_step_seconds(network, plan, rank_device(job.device), job.measure, execution=execution, **more)


def train_job(job: Job, place: Path, callbacks: Callbacks | None, stop: threading.Event, **more: Any) -> Launched:
    """Train as a job says, alone or as one of several ranks; the first one writes the weights.

    Args:
        place: folder for the weights.
        more: further arguments of `model.Trainer`.
    """
    from model import ModelConfig, TrainConfig, Trainer
    from model.checkpoint import load_weights, save_weights
    from model.config import Execution
    from model.distributed import rank_device
    from tasks.tokens.index import groups_of, open_sequences

    network, plan = ModelConfig.from_dict(job.model), TrainConfig.from_dict(job.train)
    dataset, shards = Path(job.dataset), {key: Path(folder) for key, folder in job.shards.items()}
    trainer = Trainer(
        network,
        plan,
        open_sequences(dataset, shards, "train", network.max_seq_len),
        open_sequences(dataset, shards, "validation", network.max_seq_len, job.validation_sample),
        groups=groups_of(dataset),
        device=rank_device(job.device),
        checkpoint_dir=job.checkpoints,
        identity=job.identity,
        initial_weights=load_weights(job.initial_weights, network).state_dict() if job.initial_weights else None,
        callbacks=callbacks or Callbacks(),
        execution=Execution.from_dict(job.execution),
        stop=stop,
        **more,
    )
    result = trainer.fit()
    if trainer.ranks.is_first:
        save_weights(place / WEIGHTS_FILE, result.model)
    return Launched(place / WEIGHTS_FILE, result.history, result.steps, result.resumed_from)


def _write_error(path: Path, rank: int, error: Exception) -> None:
    kind = type(error)
    record = {
        "rank": rank,
        "kind": f"{kind.__module__}.{kind.__qualname__}",
        "message": str(error),
        "attributes": {name: value for name, value in vars(error).items() if not name.startswith("__")},
        "is_consequence": isinstance(error, RuntimeError) and any(words in str(error) for words in _CONSEQUENCES),
        "time": time.time(),
        "traceback": "".join(traceback.format_exception(error)),
    }
    write_file(path, json.dumps(record, default=str).encode())


if __name__ == "__main__":
    if len(sys.argv) == 2:
        run_rank(Path(sys.argv[1]))
    else:
        join(Path(sys.argv[1]).absolute(), int(sys.argv[2]))
