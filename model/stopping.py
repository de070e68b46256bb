"""How a running training is asked to stop: it finishes its step, saves a checkpoint, and says where it stopped.

Signals reach the main thread of a process at any line of it. Where that thread trained, the half of a step would be
lost or, worse, saved. So a training that may be interrupted runs in a thread of its own while the main thread waits,
whoever has set up what a signal does there (`stoppable`); in a process that only trains, the signal itself is the
request (`StopRequest.on_signal`).
"""

from __future__ import annotations

import contextvars
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

LOOK_SECONDS = 1.0  # between two looks of who waits

STOPPED_EXIT = 128 + signal.SIGTERM  # exit status of a process that stopped as asked: what a shell calls terminated


class TrainingStopped(Exception):
    """The training stopped because it was asked to.

    Attributes:
        step: optimiser steps done.
        saved: whether a checkpoint of that step lies on the disk.
    """

    def __init__(self, step: int, saved: bool) -> None:
        self.step = step
        self.saved = saved
        rest = "its checkpoint is saved, and the same command goes on from there" if saved else "nothing was saved"
        super().__init__(f"training stopped as asked after step {step}; {rest}")


class StopRequest:
    """A request to stop, made by anyone, that the training looks at after each step."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    def ask(self) -> None:
        """Asks the training to stop after its present step."""
        self._asked.set()

    @property
    def asked(self) -> bool:
        """Whether somebody asked."""
        return self._asked.is_set()

    @contextmanager
    def on_signal(self, number: int = signal.SIGTERM) -> Iterator[None]:
        """Inside, the signal asks; it interrupts nothing. For the main thread of a process that only trains."""
        before = signal.signal(number, lambda *_: self.ask())
        try:
            yield
        finally:
            signal.signal(number, before)


def stoppable(function: Callable[[], T], stop: StopRequest) -> T:
    """Calls a function that looks at a request to stop, in a thread, while this one waits for it.

    An exception that a signal handler raises here meanwhile (KeyboardInterrupt, SystemExit, or what a scheduler raises)
    asks the function to stop and is raised when it has; a second one is raised at once, and leaves the function to end
    with the process.

    Args:
        function: called with this thread's context variables; ends with TrainingStopped when it was asked to stop.
        stop: what it looks at.

    Returns:
        What the function returns.

    Raises:
        BaseException: what the function raises. With an interruption, that one, caused by what the function raised.
    """
    call = _Call(function)
    thread = threading.Thread(target=contextvars.copy_context().run, args=(call.run,), name="training", daemon=True)
    try:
        thread.start()
        call.wait()
    except BaseException as interruption:
        stop.ask()
        call.wait()
        raise interruption from call.error
    if call.error is not None:
        raise call.error
    return call.result


class _Call:
    """A function call whose outcome another thread takes."""

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
        except BaseException as error:  # noqa: BLE001 - raised where the outcome is waited for
            self.error = error
        finally:
            self._ended = True
            self._bell.release()

    def wait(self) -> None:
        """Wait until it has ended; signal handlers may raise here at any moment.

        Not an Event: an exception within its wait leaves its lock in disorder. And not without a look now and then: a
        signal that comes just before the thread falls asleep does not wake it.
        """
        while not self._ended:
            self._bell.acquire(timeout=LOOK_SECONDS)
