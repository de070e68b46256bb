"""Distributed training: torchrun starts the ranks, and this process relays their reports and terminates them.

Ranks do not import Prefect or MLflow. They inherit torchrun's standard input and output: rank 0 reports through them,
and all ranks of a machine exit when standard input is closed, so that none outlives this process. Training in one
process calls the same `train_job` directly. For several machines see docs/guides/cluster.md.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from model.callbacks import Callbacks, TrainingStopped
from storage.atomic import write_file
from storage.errors import UserError
from tasks.core.child import ChildEnded, ChildProcess, module_command, python_path, serve
from tasks.core.machine import memory_bytes, usable_cores

if TYPE_CHECKING:
    from tasks.core.settings import ExecutionSettings

logger = logging.getLogger("sheepfold")

NODES, MASTER = "SHEEPFOLD_NODES", "SHEEPFOLD_MASTER"
JOB_FILE, LOG_FILE, WEIGHTS_FILE, ADAPTER_FILE = "job.json", "ranks.log", "model.safetensors", "adapter.safetensors"
POLL_SECONDS = 0.2  # interval of checks for a stop request
GRACE_SECONDS = 10.0  # time for the ranks to exit before they are killed
BYTES_PER_PARAMETER = 16  # weight, gradient and two moments in float32
SHARE_OF_MEMORY = 0.5  # for these, in all processes
SLOW_STEP = 0.2  # seconds; the next larger network is timed for fewer steps
LOG_LINES = 15  # last lines of the log in an error without a recorded cause
_OURS = ("model", "storage", "tasks", "builtins")  # packages whose exceptions keep their types here
# messages of gloo and NCCL after another rank has exited
_CONSEQUENCES = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "NCCL", "Timed out waiting")


@dataclass(frozen=True)
class Job:
    """Parameters of a training, read by the ranks from a file; those from `dataset` on are not used for timing."""

    model: dict[str, Any]  # fields of `model.ModelConfig`
    train: dict[str, Any]  # fields of `model.TrainConfig`
    execution: dict[str, Any]  # fields of `model.config.Execution`
    device: str = "cpu"  # type of the ranks' devices, `cpu` or `cuda`
    threads: int = 1  # per rank
    deterministic: bool = False  # use deterministic kernels
    dataset: str = ""  # folder
    shards: dict[str, str] = field(default_factory=dict)  # folders of its token shards, by key
    validation_sample: int | None = None  # largest number of validation sequences; None for all
    replay: list[bool] = field(default_factory=list)  # by piece of these, see `model.Trainer`; empty for none
    replay_sizes: list[tuple[int, int]] = field(default_factory=list)  # `size` and `rest` of `model.data.Part`
    checkpoints: str = ""  # folder of checkpoints
    identity: dict[str, str] = field(default_factory=dict)  # see `model.Trainer`
    initial_weights: str = ""  # safetensors file; empty for random weights
    new_rows: list[tuple[int, list[int]]] = field(default_factory=list)  # see `model.checkpoint.load_weights`
    began: float | None = None  # time.monotonic() from which a budget in minutes counts; None for now


@dataclass(frozen=True)
class Nodes:
    """The machines of a training."""

    count: int = 1
    master: str = ""  # ADDRESS:PORT of the first machine; empty for a single one

    @classmethod
    def from_environment(cls) -> Nodes:
        """Build it from SHEEPFOLD_NODES and SHEEPFOLD_MASTER.

        Raises:
            UserError: one of the variables is invalid.
        """
        count, master = os.environ.get(NODES, "1"), os.environ.get(MASTER, "")
        if not count.isdecimal() or int(count) < 1:
            raise UserError(f"{NODES} is {count!r}, expected a number of machines of at least 1")
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
    """Result of a training; for history, steps and resumed_from see `model.trainer.TrainResult`."""

    weights: Path  # file in the folder `place` of `launch`; adapters are in ADAPTER_FILE beside it
    history: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0
    resumed_from: int = 0


class RankError(RuntimeError):
    """A rank died, or failed with an exception of another package."""


def settled(
    execution: ExecutionSettings, device: str, plan: Mapping[str, Any], minutes: float, parameters: int = 0
) -> ExecutionSettings:
    """Return the settings with a number of processes: up to one per core where a CPU trains for some minutes, else one.

    The threads of a process wait for each other in each operation, processes once a step. Steps or tokens may be so few
    that processes are not worth starting.

    Args:
        plan: fields of `model.TrainConfig`; the processes divide the sequences of a step evenly.
        minutes: budget in minutes; 0 where steps or tokens are given.
        parameters: size of the network, of which each process has a copy; 0 if unknown.
    """
    if execution.processes:
        return execution
    sequences = plan["batch_size"] * plan["grad_accum"]
    most = usable_cores() if minutes and device == "cpu" and Nodes.from_environment().count == 1 else 1
    if most > 1 and parameters:
        most = min(most, max(1, int(SHARE_OF_MEMORY * memory_bytes(device) / (BYTES_PER_PARAMETER * parameters))))
    return replace(execution, processes=max(n for n in range(1, most + 1) if sequences % n == 0))


def launch(
    job: Job,
    processes: int,
    place: Path,
    callbacks: Callbacks | None = None,
    stop: threading.Event | None = None,
) -> Launched:
    """Train in several processes on each machine of `Nodes.from_environment`.

    Args:
        processes: number of processes per machine, each with a GPU of its own if the device is `cuda`.
        place: folder of job, log and result, shared by all machines; emptied first.
        callbacks: receive the reports of rank 0, which waits until `checkpoint` returns.
        stop: when set, the training saves a checkpoint and stops.

    Raises:
        UserError: the batch cannot be divided among the processes, or a rank raised it.
        TrainingStopped: `stop` was set.
        RankError: a rank failed; exceptions of this project keep their types, such as `model.NonFiniteLoss`.
    """
    callbacks = callbacks or Callbacks()
    done: dict[str, Any] = {}
    ranks = _start([job], processes, place, Nodes.from_environment())
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


def time_steps(jobs: Sequence[Job], processes: int, place: Path) -> Iterator[float]:
    """Yield the seconds of an optimiser step of each job, computed on this machine as in a training.

    Several processes are started once for all jobs, and end with the iterator.

    Args:
        place: as for `launch`.
    """
    from tasks.training.throughput import in_thread_that_ends

    seconds, n_timed = 0.0, 0
    if processes == 1:
        for job in jobs:
            seconds = in_thread_that_ends(partial(time_step, job, seconds))
            yield seconds
        return
    ranks = _start(jobs, processes, place, Nodes(), timing=True)
    try:
        for message in _reports(ranks, threading.Event()):
            for seconds in message.get("timed", ()):
                n_timed += 1
                yield seconds
    finally:
        status = ranks.kill(GRACE_SECONDS)
    if n_timed < len(jobs):
        raise _cause(place, status)


def _start(jobs: Sequence[Job], processes: int, place: Path, nodes: Nodes, timing: bool = False) -> ChildProcess:
    from model.distributed import check_share

    for job in jobs:
        try:
            check_share(job.train["batch_size"], job.train["grad_accum"], processes * nodes.count)
        except ValueError as error:
            raise UserError(f"execution.processes is {processes}: {error}") from error
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    job_file = place / JOB_FILE
    record = {"jobs": list(map(asdict, jobs)), "timing": timing, "processes": processes, "nodes": asdict(nodes)}
    write_file(job_file, json.dumps(record, indent=1).encode())
    if nodes.count > 1:
        logger.info("waiting for %d machines: python -m tasks.training.launch %s NODE", nodes.count - 1, job_file)
    with (place / LOG_FILE).open("wb") as log:
        return ChildProcess(torchrun(job_file, node=0), environment(jobs[0], nodes), stderr=log)


def _reports(ranks: ChildProcess, stop: threading.Event) -> Iterator[dict[str, Any]]:
    """Yield the messages of rank 0 until all ranks have exited; forward a stop request."""
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
    """Return the environment variables to add for the ranks."""
    found = {"PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": str(job.threads)}
    if nodes.count == 1:
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            found[name] = os.environ.get(name, loopback)
    return found


def error_file(place: Path, rank: int) -> Path:
    """Return the file in which a rank records its error."""
    return place / f"error-{rank}.json"


def _cause(place: Path, status: int | None) -> Exception:
    """Return the earliest error, preferably one that is not a consequence of another rank's exit."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(place.glob("error-*.json"))]
    if not records:
        lines = (place / LOG_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
        return RankError(
            f"the processes of the training ended without a result (torchrun's exit status is {status}). Check whether "
            f"memory was exhausted or they were killed; the last lines of {place / LOG_FILE}:\n"
            + "\n".join(lines[-LOG_LINES:])
        )
    first = min(records, key=lambda record: (record["is_consequence"], record["time"]))
    error = _rebuilt(first)
    error.add_note(f"in rank {first['rank']}:\n{first['traceback']}")
    return error


def _rebuilt(record: dict[str, Any]) -> Exception:
    """Restore an exception of this project with its type, any other as a `RankError`."""
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
    """Join a training from another machine by replacing this process with torchrun.

    Args:
        job_file: file of the launching machine in a shared folder; waits until it exists.
        node: rank of this machine, from 1.
    """
    while not job_file.exists():
        time.sleep(POLL_SECONDS)
    record = json.loads(job_file.read_text(encoding="utf-8"))
    added = environment(Job(**record["jobs"][0]), Nodes(**record["nodes"]))
    os.execve(sys.executable, torchrun(job_file, node), {**os.environ, **python_path(), **added})


# in the ranks


class Channel(Callbacks):
    """Callbacks of rank 0, sent to the launching process; also receives its requests.

    Args:
        stop: set when the launching process requests a stop.
        device: device whose memory is reported.
    """

    def __init__(self, stop: threading.Event, device: str) -> None:
        self._stop = stop
        self._device = device
        self._acknowledged: queue.SimpleQueue[int] = queue.SimpleQueue()
        requests, self._send = serve()
        threading.Thread(target=self._listen, args=(requests,), daemon=True).start()

    def send(self, name: str, *arguments: Any) -> None:
        """Send a message: the name of a callback, `warning` or `done`."""
        self._send({name: arguments})

    def step(self, step: int, max_steps: int, metrics: Mapping[str, float]) -> None:
        """Report a step, with the memory of this process."""
        from tasks.training.throughput import memory

        self.send("step", step, max_steps, {**metrics, **memory(self._device)})

    def checkpoint(self, step: int) -> None:
        """Report a checkpoint, and wait until the reports up to this step are durable."""
        self.send("checkpoint", step)
        while self._acknowledged.get() != step:
            pass

    def event(self, step: int, kind: str, message: str, sequences: Sequence[int] = ()) -> None:
        """Report an event."""
        self.send("event", step, kind, message, list(sequences))

    def _listen(self, requests: Iterator[dict[str, Any]]) -> None:
        for message in requests:
            if "stop" in message:
                self._stop.set()
            else:
                self._acknowledged.put(message["acknowledged"])


def _end_with_launcher() -> None:
    """Exit when the writing end of standard input is closed; only rank 0 reads from it."""
    poll = select.poll()
    poll.register(0, select.POLLHUP)
    poll.poll()
    os._exit(1)


def run_rank(job_file: Path) -> None:
    """Run one rank of a job; the exit status is 0 only after success or a requested stop."""
    rank = int(os.environ["RANK"])
    record, stop = json.loads(job_file.read_text(encoding="utf-8")), threading.Event()
    jobs = [Job(**fields) for fields in record["jobs"]]
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    channel = None
    if rank == 0:
        channel = Channel(stop, jobs[0].device)
        warnings.showwarning = lambda message, *_, **__: channel.send("warning", str(message))
    else:
        os.dup2(2, 1)  # standard output carries the messages of rank 0
        if os.environ["GROUP_RANK"] == "0":  # other machines have no launching process
            threading.Thread(target=_end_with_launcher, daemon=True).start()
    try:
        done = _run(jobs, record["timing"], job_file.parent, channel, stop)
        if channel is not None:
            channel.send("done", done)
    except Exception as error:  # noqa: BLE001 - the launching process raises it
        _write_error(error_file(job_file.parent, rank), rank, error)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # a normal exit would wait for the other ranks
    # skip the interpreter's shutdown, in which a torch thread sometimes aborts the process
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _run(
    jobs: Sequence[Job], timing: bool, place: Path, channel: Channel | None, stop: threading.Event
) -> dict[str, Any]:
    import torch

    from model.distributed import connect
    from model.randomness import seed_everything

    job, seconds = jobs[0], 0.0
    torch.set_num_threads(job.threads)
    if job.device == "cuda" and (count := torch.cuda.device_count()) < (asked := int(os.environ["LOCAL_WORLD_SIZE"])):
        raise ValueError(
            f"execution.processes is {asked}, but this machine has {count} GPUs; expected a GPU for each process"
        )
    with connect(job.device) as ranks:
        if timing:
            for one in jobs:
                seconds = ranks.from_first(time_step(one, seconds, ranks=ranks))
                if channel is not None:
                    channel.send("timed", seconds)
            return {}
        seed_everything(job.train["seed"], deterministic=job.deterministic)
        try:
            found = train_job(job, place, channel, stop, ranks=ranks)
        except TrainingStopped as stopped:
            return {"stopped": [stopped.step, stopped.saved]}
        return {"history": found.history, "steps": found.steps, "resumed_from": found.resumed_from}


def time_step(job: Job, before: float, **more: Any) -> float:
    """Return the time of an optimiser step in seconds.

    Args:
        before: that of a smaller network.
        more: see `model.measure_step_seconds`.
    """
    from model import ModelConfig, TrainConfig
    from model.config import Execution
    from model.distributed import rank_device
    from model.step import measure_step_seconds

    network, plan = ModelConfig.from_dict(job.model), TrainConfig.from_dict(job.train)
    execution, steps = Execution.from_dict(job.execution), 5 if before < SLOW_STEP else 2
    return measure_step_seconds(network, plan, rank_device(job.device), steps, execution=execution, **more)


def train_job(job: Job, place: Path, callbacks: Callbacks | None, stop: threading.Event, **more: Any) -> Launched:
    """Run a job, alone or as one of several ranks; rank 0 writes the weights.

    Args:
        place: folder for the weights.
        more: further arguments of `model.Trainer`.
    """
    from safetensors.torch import save_file

    from model import ModelConfig, TrainConfig, Trainer
    from model.checkpoint import load_weights, save_weights
    from model.config import Execution
    from model.data import Part
    from model.distributed import rank_device
    from tasks.tokens.index import groups_of, open_sequences

    network, plan = ModelConfig.from_dict(job.model), TrainConfig.from_dict(job.train)
    dataset, shards = Path(job.dataset), {key: Path(folder) for key, folder in job.shards.items()}
    initial_weights = None
    if job.initial_weights:
        initial_weights = load_weights(job.initial_weights, network, new_rows=job.new_rows).state_dict()
    held_out = partial(open_sequences, dataset, shards, "validation", network.max_seq_len, job.validation_sample)
    trainer = Trainer(
        network,
        plan,
        open_sequences(dataset, shards, "train", network.max_seq_len),
        held_out(),
        replay=Part(held_out(np.array(job.replay)), *job.replay_sizes) if job.replay else None,
        groups=groups_of(dataset),
        device=rank_device(job.device),
        checkpoint_dir=job.checkpoints,
        identity=job.identity,
        initial_weights=initial_weights,
        callbacks=callbacks or Callbacks(),
        execution=Execution.from_dict(job.execution),
        began=job.began,
        stop=stop,
        **more,
    )
    result = trainer.fit()
    if trainer.ranks.is_first:
        save_weights(place / WEIGHTS_FILE, result.model)
        if result.adapter:
            save_file(dict(result.adapter), place / ADAPTER_FILE)
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
