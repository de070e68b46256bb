"""Trainings that are asked to stop: after their step, with a checkpoint, whoever asks and however."""

from __future__ import annotations

import contextvars
import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from interrupted_runs import RARELY, calling

from model import Callbacks, ModelConfig, SpanSource, TrainConfig, Trainer, load_checkpoint
from model.callbacks import TrainingStopped, stoppable


class Interruption(BaseException):
    """Exception that a scheduler raises in the main thread on SIGTERM."""


@pytest.fixture
def raising_handler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """SIGTERM raises in the main thread."""

    def interrupt(number: int, frame: object) -> NoReturn:
        raise Interruption

    before = signal.signal(signal.SIGTERM, interrupt)
    yield
    signal.signal(signal.SIGTERM, before)


def act_at(step: int, act: Callable[[], None]) -> Callbacks:
    def on_step(now: int, max_steps: int, metrics: Mapping[str, float]) -> None:
        if now == step:
            act()

    return calling(step=on_step)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_run_that_was_asked_to_stop_goes_on_from_that_very_step_to_the_same_bits(
    model_config: ModelConfig, train_config: TrainConfig, build_source: Callable[..., SpanSource], tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"checkpoint_dir": tmp_path, "execution": RARELY}
    stop = threading.Event()
    trainer = Trainer(model_config, train_config, build_source(), **settings, stop=stop, callbacks=act_at(3, stop.set))
    with pytest.raises(TrainingStopped, match="after step 4; its checkpoint is saved") as stopped:
        trainer.fit()
    assert (stopped.value.step, stopped.value.saved) == (4, True)
    resumed = Trainer(model_config, train_config, build_source(), **settings, stop=threading.Event()).fit()
    assert resumed.resumed_from == 4
    undisturbed = Trainer(model_config, train_config, build_source()).fit()
    assert resumed.history == undisturbed.history
    weights = undisturbed.model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in resumed.model.state_dict().items())


def test_a_run_without_a_folder_says_that_nothing_was_saved(
    model_config: ModelConfig, train_config: TrainConfig, build_source: Callable[..., SpanSource]
) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(TrainingStopped, match="after step 1; nothing was saved"):
        Trainer(model_config, train_config, build_source(), stop=stop).fit()


def test_a_run_that_is_at_its_end_anyway_ends(
    model_config: ModelConfig, train_config: TrainConfig, build_source: Callable[..., SpanSource], tmp_path: Path
) -> None:
    stop = threading.Event()
    trainer = Trainer(model_config, train_config, build_source(), stop=stop, callbacks=act_at(9, stop.set))
    assert trainer.fit().steps == 10


def test_a_signal_that_raises_in_the_main_thread_stops_the_training_after_its_step(
    model_config: ModelConfig,
    train_config: TrainConfig,
    build_source: Callable[..., SpanSource],
    tmp_path: Path,
    raising_handler: None,
) -> None:
    stop = threading.Event()

    def terminate_and_be_heard() -> None:
        terminate()
        stop.wait()

    trainer = Trainer(
        model_config,
        train_config,
        build_source(),
        checkpoint_dir=tmp_path,
        stop=stop,
        callbacks=act_at(3, terminate_and_be_heard),
    )
    with pytest.raises(Interruption) as interruption:
        stoppable(trainer.fit, stop)
    assert isinstance(interruption.value.__cause__, TrainingStopped)
    assert load_checkpoint(tmp_path).step == interruption.value.__cause__.step == 4


@pytest.mark.full
def test_a_second_signal_does_not_wait_at_whatever_moment_it_comes(
    raising_handler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.callbacks.POLL_SECONDS", 0.05)  # a signal just before the wait is seen at the next look
    for _ in range(300):
        stop, release = threading.Event(), threading.Event()

        def be_deaf(stop: threading.Event = stop, release: threading.Event = release) -> None:
            terminate()
            stop.wait()
            terminate()
            release.wait()

        with pytest.raises(Interruption):
            stoppable(be_deaf, stop)
        release.set()


def test_a_stoppable_function_has_the_context_and_the_threads_of_its_caller() -> None:
    place = contextvars.ContextVar("place", default="")
    place.set("here")
    assert stoppable(lambda: (place.get(), torch.get_num_threads()), threading.Event()) == (
        "here",
        torch.get_num_threads(),
    )


def test_an_error_of_a_stoppable_function_is_raised() -> None:
    def fail() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        stoppable(fail, threading.Event())
