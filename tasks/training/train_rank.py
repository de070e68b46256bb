"""One of several processes that train together; torchrun starts it (see `tasks.training.launch`).

    torchrun -m tasks.training.train_rank JOB

Reads the job, trains, and reports through standard output to the process that launched it. When that one ends, so does
this.
"""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model.stopping import StopRequest, TrainingStopped
from storage.atomic import write_file
from tasks.core.child import serve
from tasks.training.launch import WEIGHTS_FILE, Callbacks, Job, Launched, error_file

if TYPE_CHECKING:
    from model.distributed import Ranks

# what a rank meets where another one has gone: words of gloo's and NCCL's errors
_ECHOES = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "NCCL", "Timed out waiting")


class Channel:
    """Messages of the first rank to the launching process and back; the other ranks have nothing to report.

    Args:
        is_first: this is the first rank.
        on_stop: called, in another thread, when the training is asked to stop.
    """

    def __init__(self, is_first: bool, on_stop: Callable[[], None]) -> None:
        self._on_stop = on_stop
        self._lock = threading.Lock()
        self._acknowledged: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._is_first = is_first
        if is_first:
            requests, self._send = serve()
            threading.Thread(target=self._listen, args=(requests,), daemon=True).start()

    def tell(self, **message: Any) -> None:
        """Report something."""
        if self._is_first:
            with self._lock:
                self._send(message)

    def confirm_checkpoint(self, step: int) -> None:
        """Return when the records of the steps up to this one are durable."""
        self.tell(checkpoint=[step])
        while self._acknowledged.get() != step:
            pass

    def _listen(self, requests: Iterator[dict[str, Any]]) -> None:
        for message in requests:
            if "stop" in message:
                self._on_stop()
            else:
                self._acknowledged.put(message["acknowledged"])


def _end_with_launcher() -> None:
    """End this process when standard input, which the first rank reads, is closed at its other end."""
    poll = select.poll()
    poll.register(0, select.POLLHUP)
    poll.poll()
    os._exit(1)


def main() -> None:
    """Train as the job says; the exit status is 0 only if all of it was done or a stop was asked for."""
    job_file, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    record = json.loads(job_file.read_text(encoding="utf-8"))
    stop = StopRequest()
    # before anything that takes time, so that an end of the launching process is noticed from now on
    channel = Channel(rank == 0, stop.ask)
    if rank > 0:
        os.dup2(2, 1)  # standard output is the first rank's, for its messages
    if rank > 0 and os.environ["GROUP_RANK"] == "0":  # on other machines nobody holds the other end
        threading.Thread(target=_end_with_launcher, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: stop.ask())
    if rank == 0:
        warnings.showwarning = lambda message, *_, **__: channel.tell(warning=[str(message)])
    try:
        _run(Job(**record["job"]), job_file.parent, channel, stop)
    except Exception as error:  # noqa: BLE001 - the launching process raises it
        _write_error(error_file(job_file.parent, rank), rank, error)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # without good-byes to other ranks, which would be waited for
    # all is done and told; where Python puts its libraries away, a thread of torch's sometimes aborts the process
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _run(job: Job, place: Path, channel: Channel, stop: StopRequest) -> None:
    import torch

    from model.distributed import connect

    torch.set_num_threads(job.threads)
    if job.device == "cuda" and (count := torch.cuda.device_count()) < (asked := int(os.environ["LOCAL_WORLD_SIZE"])):
        raise ValueError(
            f"execution.processes is {asked}, but this machine has {count} GPUs; each process needs its own"
        )
    with connect(job.device) as ranks:
        try:
            done = _measure(job, ranks) if job.measure else _train(job, place, channel, ranks, stop)
        except TrainingStopped as stopped:
            done = {"stopped": [stopped.step, stopped.saved]}
        channel.tell(done=done)


def _measure(job: Job, ranks: Ranks) -> dict[str, Any]:
    from model import ModelConfig, TrainConfig
    from model.distributed import rank_device
    from model.execution import Execution
    from model.probe import measure_step_seconds

    network, plan = ModelConfig.from_dict(job.model), TrainConfig.from_dict(job.train)
    execution = Execution.from_dict(job.execution)
    device = rank_device(job.device)
    seconds = measure_step_seconds(network, plan, device, job.measure, execution=execution, ranks=ranks)
    return {"step_seconds": seconds}


def _train(job: Job, place: Path, channel: Channel, ranks: Ranks, stop: StopRequest) -> dict[str, Any]:
    from model.randomness import seed_everything
    from tasks.training.throughput import memory

    seed_everything(job.train["seed"], deterministic=job.deterministic)
    callbacks = Callbacks(
        metrics=lambda step, metrics: channel.tell(metrics=[step, {**metrics, **memory(job.device)}]),
        checkpoint=channel.confirm_checkpoint,
        progress=lambda step, total, metrics: channel.tell(progress=[step, total, metrics]),
        event=lambda step, kind, message: channel.tell(event=[step, kind, message]),
    )
    done = train_job(job, place, callbacks, stop, ranks=ranks)
    return {"history": done.history, "steps": done.steps, "resumed_from": done.resumed_from}


def train_job(job: Job, place: Path, callbacks: Callbacks, stop: StopRequest, **more: Any) -> Launched:
    """Train as a job says, alone or as one of several processes.

    Args:
        job: what to train.
        place: folder for the weights, which the first process writes.
        callbacks: called in the first process.
        stop: a request to stop.
        more: further arguments of `model.Trainer`.
    """
    from model import ModelConfig, TrainConfig, Trainer
    from model.checkpoint import load_weights, save_weights
    from model.distributed import rank_device
    from model.execution import Execution
    from model.order import Group
    from tasks.tokens.index import groups_of, open_sequences

    network, plan = ModelConfig.from_dict(job.model), TrainConfig.from_dict(job.train)
    dataset, shards = Path(job.dataset), {key: Path(folder) for key, folder in job.shards.items()}
    trainer = Trainer(
        network,
        plan,
        open_sequences(dataset, shards, "train", network.max_seq_len),
        open_sequences(dataset, shards, "validation", network.max_seq_len, job.validation_sample),
        groups=[Group(item.first, item.count, item.reads) for item in groups_of(dataset)],
        device=rank_device(job.device),
        checkpoint_dir=job.checkpoints,
        checkpoint_seconds=job.checkpoint_seconds,
        identity=job.identity,
        initial_weights=load_weights(job.initial_weights, network).state_dict() if job.initial_weights else None,
        execution=Execution.from_dict(job.execution),
        stop=stop,
        on_event=callbacks.event,
        on_metrics=callbacks.metrics,
        on_checkpoint=callbacks.checkpoint,
        on_progress=callbacks.progress,
        **more,
    )
    result = trainer.fit()
    if trainer.ranks.is_first:
        save_weights(place / WEIGHTS_FILE, result.model)
    return Launched(place / WEIGHTS_FILE, result.history, result.steps, result.resumed_from)


def _write_error(path: Path, rank: int, error: Exception) -> None:
    kind = type(error)
    known = {name: value for name, value in vars(error).items() if _is_json(value)}
    record = {
        "rank": rank,
        "kind": f"{kind.__module__}.{kind.__qualname__}",
        "message": str(error),
        "attributes": {name: value for name, value in known.items() if not name.startswith("__")},
        "is_echo": isinstance(error, RuntimeError) and any(words in str(error) for words in _ECHOES),
        "time": time.time(),
        "traceback": "".join(traceback.format_exception(error)),
    }
    write_file(path, json.dumps(record).encode())


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


if __name__ == "__main__":
    main()
