"""Trainings that two processes compute together: what each rank runs, and how a test starts them and hears of them."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import guarded_cases
import numpy as np
import torch
from interrupted_runs import calling

from model import ModelConfig, SpanSource, TrainConfig, Trainer, TrainResult
from model.config import Execution
from model.data import Part
from model.distributed import SINGLE, Ranks, connect
from model.run_checkpoints import weights_digest
from model.step import Stepper

DEADLINE = 240.0  # seconds; a rank that waits for another for ever is a failure

# A server that has loaded torch and never used it: processes forked from it start at once and inherit no threads.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["torch.distributed.fsdp", "torch.distributed.tensor", "torch._dynamo", "safetensors.torch"]
)

Outcome = dict[str, Any]


class Interrupted(Exception):
    """Stands for a kill."""


def source_of(n: int = 20, seed: int = 0, seq_len: int = 16, vocab_size: int = 31) -> SpanSource:
    """Spans of different lengths over one shard of noisy periodic text."""
    generator = np.random.default_rng(seed)
    shard = ((np.arange(4096) * 7 + generator.integers(0, 3, 4096)) % vocab_size).astype(np.uint16)
    length = generator.integers(2, seq_len + 2, n)
    start = generator.integers(0, len(shard) - seq_len - 1, n)
    return SpanSource([shard], np.zeros(n), start, length, seq_len, pad_id=0)


def trainer_of(
    model: dict[str, Any],
    train: dict[str, Any],
    ranks: Ranks = SINGLE,
    sharding: str = "ddp",
    folder: Path | str | None = None,
    stop_at: int = 0,
    n_val: int = 5,
    recompute: bool = False,
    compiled: bool = False,
    replay: bool = False,
) -> Trainer:
    """A small training; with `stop_at` all ranks are interrupted after that step."""
    trainer = Trainer(
        ModelConfig(**{"vocab_size": 31, "max_seq_len": 16, "n_layer": 2, "n_head": 2, "d_model": 16, **model}),
        TrainConfig(**{"max_steps": 6, "batch_size": 4, "grad_accum": 2, "eval_every": 3, "lr": 3e-3, **train}),
        source_of(),
        source_of(n_val, seed=1),
        replay=Part(source_of(3, seed=1), (40, 0), (60, 0)) if replay else None,
        execution=Execution(compiled, recompute, sharding, checkpoint_minutes=0),
        ranks=ranks,
        checkpoint_dir=folder,
    )
    if stop_at:
        step = trainer._step

        def interrupted(stepper: Stepper, number: int, *arguments: Any) -> Any:
            if number > stop_at:
                raise Interrupted
            return step(stepper, number, *arguments)

        trainer._step = interrupted  # type: ignore[method-assign]
    return trainer


def told(result: TrainResult) -> Outcome:
    """Return the outcome that a rank reports of its training."""
    kinds = {type(parameter).__name__ for parameter in result.model.parameters()}
    return {"history": result.history, "resumed_from": result.resumed_from, "kinds": sorted(kinds)}


def training(ranks: Ranks, *, stop_at: int = 0, **settings: Any) -> Outcome:
    """Trains; says what it was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = trainer_of(ranks=ranks, stop_at=stop_at, **settings)
        try:
            outcome = told(trainer.fit())
        except Interrupted:
            outcome = {}
    return {**outcome, "warnings": [str(item.message) for item in caught if item.category is UserWarning]}


def training_without_pickle(ranks: Ranks, **settings: Any) -> Outcome:
    """Trains where torch reads no object that another rank has sent."""

    def refuse(*_: object) -> None:
        raise AssertionError("a pickle of another rank was about to be read")

    torch.distributed.distributed_c10d._tensor_to_object = refuse
    return training(ranks, **settings)


def stopped_training(ranks: Ranks, *, step: int, **settings: Any) -> Outcome:
    """Trains until the last rank, and nobody else, is asked to stop before a step ends."""
    trainer = trainer_of(ranks=ranks, **settings)
    take = trainer._step

    def asked(stepper: Stepper, number: int, *arguments: Any) -> Any:
        if number == step - 1 and ranks.rank == ranks.world_size - 1:
            trainer.stop.set()
        return take(stepper, number, *arguments)

    trainer._step = asked  # type: ignore[method-assign]
    return told(trainer.fit())


def leaping_training(ranks: Ranks, *, folder: str, sharding: str = "ddp") -> Outcome:
    """Trains on text of which one step's sequences are noise."""
    return _guarded(guarded_cases.PLAIN, guarded_cases.source_with_noise(), None, folder, sharding, ranks)


def patient_training(ranks: Ranks, *, folder: str, sharding: str = "ddp") -> Outcome:
    """Trains until the validation loss has turned."""
    return _guarded(guarded_cases.LEARNED, *guarded_cases.sources_to_learn(), folder, sharding, ranks)


def _guarded(
    config: TrainConfig,
    train: SpanSource,
    val: SpanSource | None,
    folder: str,
    sharding: str,
    ranks: Ranks,
) -> Outcome:
    """Return the outcome of a rank, with the digest of its whole weights and its events."""
    events: list[tuple[int, str]] = []
    trainer = Trainer(
        guarded_cases.NETWORK,
        config,
        train,
        val,
        execution=Execution(sharding=sharding),
        ranks=ranks,
        checkpoint_dir=folder,
        callbacks=calling(event=lambda step, kind, message, sequences: events.append((step, kind))),
    )
    result = trainer.fit()
    whole = sharding == "ddp" or ranks.is_first
    digest = weights_digest(result.model.state_dict()) if whole else ""
    told_of = [event for event in events if event[1] in ("spike", "early stop")]
    return {**told(result), "weights": digest, "best_step": result.best_step, "events": told_of}


def spoilt_training(ranks: Ranks, *, rank: int, call: int, how: str, **settings: Any) -> Outcome:
    """Trains, and on one rank something goes wrong in a micro-batch, counted from 1."""
    original, n_read = Stepper._nll, [0]

    def nll(stepper: Stepper, data: Any) -> torch.Tensor:
        n_read[0] += 1
        found = original(stepper, data)
        if ranks.rank != rank or n_read[0] != call:
            return found
        if how == "die":
            os._exit(7)
        if how == "overflow":  # of the gradient alone
            found.register_hook(lambda gradient: gradient * math.inf)
            return found
        return found * math.nan

    Stepper._nll = nll  # type: ignore[method-assign]
    return told(trainer_of(ranks=ranks, **settings).fit())


def run_ranks(
    case: Callable[..., Outcome], place: Path, /, deadline_seconds: float = DEADLINE, **settings: Any
) -> list[Outcome]:
    """Lets two processes run a case together.

    Args:
        case: a function of this module; takes the ranks and the settings.
        place: a folder for their answers.
        deadline_seconds: that they may take.

    Returns:
        Of each rank what it told; {"error": ...} where it failed, {"exit": ...} where it died.
    """
    world_size = 2
    answers = [place / f"answer-{rank}.json" for rank in range(world_size)]
    for answer in answers:
        answer.unlink(missing_ok=True)
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = [
        _CONTEXT.Process(target=_rank, args=(case.__name__, rank, world_size, store.port, answer, settings))
        for rank, answer in enumerate(answers)
    ]
    for process in processes:
        process.start()
    deadline = time.monotonic() + deadline_seconds
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    hanging = [process for process in processes if process.is_alive()]
    for process in hanging:
        process.kill()
        process.join()
    assert not hanging, f"{len(hanging)} ranks still wait after {deadline_seconds} seconds"
    return [
        json.loads(answer.read_text()) if answer.exists() else {"exit": process.exitcode}
        for answer, process in zip(answers, processes, strict=True)
    ]


def _rank(name: str, rank: int, world_size: int, port: int, answer: Path, settings: dict[str, Any]) -> None:
    # as torchrun sets it; its store is the parent's
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    torch.set_num_threads(1)
    try:
        with connect() as ranks:
            outcome = globals()[name](ranks, **settings)
    except Exception as error:  # noqa: BLE001 - the test looks at it
        outcome = {"error": f"{type(error).__name__}: {error}"}
    answer.write_text(json.dumps(outcome))
    os._exit("error" in outcome)
