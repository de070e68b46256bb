"""Callbacks of a training, and its interruption by signals."""

from __future__ import annotations

import contextvars
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

POLL_SECONDS = 1.0  # timeout of a wait, because a signal just before the wait does not end it


class Callbacks:
    """Callbacks of a training; the base class warns of events and ignores the rest.

    Only the first rank calls them. An exception raised by a callback ends the training.
    """

    def step(self, step: int, max_steps: int, metrics: Mapping[str, float]) -> None:
        """Receive the metric row of a step, with "time/step_seconds" and "time/tokens_per_second" added.

        Steps after the last checkpoint of a killed run are computed, and reported, again. Step 0 is the network before
        the training, of which only bits per byte are measured.
        """

    def checkpoint(self, step: int) -> None:
        """Flush records of the steps so far to the disk; called before the checkpoint of this step is written."""

    def event(self, step: int, kind: str, message: str, sequences: Sequence[int] = ()) -> None:
        """Receive a message for the user.

        Args:
            kind: "advice", "execution", "spike", "busy" or "early stop".
            sequences: training sequences that it is about.
        """
        warnings.warn(message, stacklevel=2)

    def sample(self, step: int, model: Any) -> None:
        """Generate samples after an evaluation; called with a single rank only. The network must not be changed."""


class TrainingStopped(Exception):
    """The training stopped on request.

    Attributes:
        step: optimiser steps done.
        saved: True if there is a checkpoint of that step.
    """

    def __init__(self, step: int, saved: bool) -> None:
        self.step = step
        self.saved = saved
        rest = "its checkpoint is saved, and the same command resumes from it" if saved else "nothing was saved"
        super().__init__(f"training stopped on request after step {step}; {rest}")


def stoppable(function: Callable[[], T], stop: threading.Event) -> T:
    """Call a function in a thread, so that an exception from a signal handler does not interrupt it midway.

    An exception raised by a handler in the calling thread (KeyboardInterrupt, SystemExit, or a scheduler's) sets
    `stop` and is raised again when the function has returned; a second one is raised at once.

    Args:
        function: called with this thread's context variables; returns soon after `stop` is set.
        stop: requests the function to return.

    Raises:
        BaseException: the function's error; after an interruption the interruption, caused by the function's error.
    """
    call = _Call(function)
    thread = threading.Thread(target=contextvars.copy_context().run, args=(call.run,), name="training", daemon=True)
    try:
        thread.start()
        call.wait()
    except BaseException as interruption:
        stop.set()
        call.wait()
        raise interruption from call.error
    if call.error is not None:
        raise call.error
    return call.result


class _Call:
    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._ended = False
        self._done = threading.Lock()
        self._done.acquire()
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self._function()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            self.error = error
        finally:
            self._ended = True
            self._done.release()

    def wait(self) -> None:
        # a bare lock, because an exception during the wait of an Event, Future or Thread can leave its locks held
        while not self._ended:
            self._done.acquire(timeout=POLL_SECONDS)
