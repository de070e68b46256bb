"""One of several processes that train together; torchrun starts it (see `tasks.training.launch`).

    torchrun -m tasks.training.train_rank JOB

Reads the job, trains, and reports through a socket to the process that launched it. When that one goes, so does this.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model.stopping import StopRequest, TrainingStopped
from tasks.core.child import MessageReader, write_message
from tasks.training.launch import HISTORY_FILE, WEIGHTS_FILE, Job, error_file

if TYPE_CHECKING:
    from model.distributed import Ranks

# what a rank meets where another one has gone: words of gloo's and NCCL's errors
_ECHOES = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "NCCL", "Timed out waiting")


class Channel:
    """The way to the launching process and back; on other machines than that one, there is none.

    Args:
        address: of its socket; empty where there is no way.
        on_stop: called, in another thread, when the training is asked to stop.
    """

    def __init__(self, address: str, on_stop: Callable[[], None]) -> None:
        self._on_stop = on_stop
        self._lock = threading.Lock()
        self._acknowledged: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._socket: socket.socket | None = None
        if address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.connect(address)
            threading.Thread(target=self._listen, args=(self._socket,), daemon=True).start()

    def tell(self, **message: Any) -> None:
        """Report something."""
        if self._socket is not None:
            with self._lock:
                write_message(self._socket.fileno(), message)

    def confirm_checkpoint(self, step: int) -> None:
        """Returns when what belongs to the steps up to this one has been made durable."""
        self.tell(checkpoint=[step])
        if self._socket is not None:
            while self._acknowledged.get() != step:
                pass

    def _listen(self, connected: socket.socket) -> None:
        """Hears what is asked; ends this process with the other one, because nobody waits for it any more."""
        reader = MessageReader(connected.fileno())
        with contextlib.suppress(OSError):
            while (messages := reader.read_available()) is not None:
                for message in messages:
                    if "stop" in message:
                        self._on_stop()
                    else:
                        self._acknowledged.put(message["acknowledged"])
        os._exit(1)


def main() -> None:
    """Trains as the job says; the exit status is 0 only if all of it was done or a stop was asked for."""
    job_file, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    record = json.loads(job_file.read_text(encoding="utf-8"))
    stop = StopRequest()
    # connected before anything that takes time, so that an end of the other process is noticed from now on
    channel = Channel(record["socket"] if os.environ["GROUP_RANK"] == "0" else "", stop.ask)
    signal.signal(signal.SIGTERM, lambda *_: stop.ask())
    if rank == 0:
        warnings.showwarning = lambda message, *_, **__: channel.tell(warning=[str(message)])
    try:
        _run(Job(**record["job"]), job_file.parent, channel, stop)
        channel.tell(finished=[])
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
        if ranks.is_first:
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
    from safetensors.torch import load_file

    from model import ModelConfig, TrainConfig, Trainer
    from model.checkpoint import save_weights
    from model.distributed import rank_device
    from model.execution import Execution
    from model.order import Group
    from model.randomness import seed_everything
    from tasks.tokens.index import groups_of, open_sequences
    from tasks.training.throughput import memory

    network, plan = ModelConfig.from_dict(job.model), TrainConfig.from_dict(job.train)
    device = rank_device(job.device)
    seed_everything(plan.seed, deterministic=job.deterministic)
    dataset, shards = Path(job.dataset), {key: Path(folder) for key, folder in job.shards.items()}
    trainer = Trainer(
        network,
        plan,
        open_sequences(dataset, shards, "train", network.max_seq_len),
        open_sequences(dataset, shards, "validation", network.max_seq_len, job.validation_sample),
        groups=[Group(item.first, item.count, item.reads) for item in groups_of(dataset)],
        device=device,
        checkpoint_dir=job.checkpoints,
        checkpoint_seconds=job.checkpoint_seconds,
        identity=job.identity,
        initial_weights=load_file(job.initial_weights) if job.initial_weights else None,
        execution=Execution.from_dict(job.execution),
        ranks=ranks,
        stop=stop,
        on_event=lambda step, kind, message: channel.tell(event=[step, kind, message]),
        on_metrics=lambda step, metrics: channel.tell(metrics=[step, {**metrics, **memory(device.type)}]),
        on_checkpoint=channel.confirm_checkpoint,
        on_progress=lambda step, total, metrics: channel.tell(progress=[step, total, metrics]),
    )
    result = trainer.fit()
    if ranks.is_first:
        save_weights(place / WEIGHTS_FILE, result.model)
        (place / HISTORY_FILE).write_text(json.dumps(result.history), encoding="utf-8")
    return {"steps": result.steps, "resumed_from": result.resumed_from}


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
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record), encoding="utf-8")
    part.rename(path)


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


if __name__ == "__main__":
    main()
