"""What passes between a training and its caller: reports, and the request to stop."""

from __future__ import annotations

import contextvars
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

LOOK_SECONDS = 1.0  # between two looks of who waits: a signal just before a wait does not end it


class Callbacks:
    """Reports of a training; the base class warns of events and ignores the rest.

    Only the first of several ranks calls them. An exception that one raises ends the training.
    """

    def step(self, step: int, max_steps: int, metrics: Mapping[str, float]) -> None:
        """Take the history's row of a step, with "time/step_seconds" and "time/tokens_per_second" added.

        Steps after the last checkpoint of a killed run are computed, and reported, again.
        """

    def checkpoint(self, step: int) -> None:
        """Make durable what belongs to the steps so far: the checkpoint of this step is written next."""

    def event(self, step: int, kind: str, message: str) -> None:
        """Take a sentence for people; kind is "advice", "execution", "spike" or "early stop"."""
        warnings.warn(message, stacklevel=2)

    def sample(self, step: int, model: Any) -> None:
        """Let the network write something after an evaluation of a single rank, without a change of its state."""

    def documents(self, sequences: Sequence[int]) -> str:
        """Return the documents of training sequences, in a sentence for messages."""
        return ""


class TrainingStopped(Exception):
    """The training stopped on request.

    Attributes:
        step: optimiser steps done.
        saved: True if there is a checkpoint of that step.
    """

    def __init__(self, step: int, saved: bool) -> None:
        self.step = step
        self.saved = saved
        rest = "its checkpoint is saved, and the same command goes on from there" if saved else "nothing was saved"
        super().__init__(f"training stopped as asked after step {step}; {rest}")


def stoppable(function: Callable[[], T], stop: threading.Event) -> T:
    """Call a function in a thread, so that a signal handler that raises here does not interrupt it midway.

    An exception that a handler raises in the calling thread (KeyboardInterrupt, SystemExit, or a scheduler's) sets
    `stop`, and is raised when the function has ended; a second one is raised at once.

    Args:
        function: called with this thread's context variables; looks at `stop`.

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
    """A function call that another thread waits for."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._ended = False
        self._bell = threading.Lock()
        self._bell.acquire()
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self._function()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            self.error = error
        finally:
            self._ended = True
            self._bell.release()

    def wait(self) -> None:
        """A bare lock: an exception amid the wait of an Event, a Future or a Thread leaves their locks in disorder."""
        while not self._ended:
            self._bell.acquire(timeout=LOOK_SECONDS)
