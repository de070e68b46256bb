"""The process that generates, as its server sees it."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import queue
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch

from model.config import GenerationConfig
from tasks.core.child import ChildEnded, ChildProcess, module_command
from tasks.serving.batcher import Progress

Tell = Callable[[Progress], None]
Scores = tuple[list[float], list[list[tuple[int, float]]]]
ENDED = "the process that generates has ended"
_log = logging.getLogger("sheepfold.serve")


class Busy(Exception):
    """Raised if too many continuations wait."""


class Worker:
    """The process; every method may be called in any thread.

    Args:
        batch_size: continuations of one batch.
        most: continuations that run or wait, of all requests.
        deterministic: give equal requests equal answers, to the bit, by the threads that torch has in this process.
    """

    def __init__(self, batch_size: int, most: int, deterministic: bool) -> None:
        self.most = most
        threads = torch.get_num_threads() if deterministic else 0
        self._child = ChildProcess([*module_command("tasks.serving.batcher"), str(batch_size), str(threads)])
        self._lock, self._numbers = threading.Lock(), itertools.count()
        self._open: dict[int, tuple[int, Tell]] = {}  # unfinished continuations of each request, and whom to tell
        self._calls: dict[int, Future[Any]] = {}
        self._why_ended: str | None = None
        # written by a thread of its own, as the child may be busy when the pipe is full
        self._messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=part, daemon=True) for part in (self._write, self._listen)]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

    @property
    def is_alive(self) -> bool:
        """False once the process has ended."""
        return self._why_ended is None

    @property
    def n_open(self) -> int:
        """Number of continuations that run or wait."""
        with self._lock:
            return sum(n_left for n_left, _ in self._open.values())

    def begin(
        self,
        folder: Path,
        prompts: Sequence[list[int]],
        n: int,
        config: GenerationConfig,
        every: float | None,
        tell: Tell,
    ) -> int:
        """Begin n continuations of each prompt, and return the number of the request.

        Args:
            folder: the model.
            config: sampling settings.
            every: least seconds between two pieces of a continuation; None for one piece at the end.
            tell: called in any thread with each piece.

        Raises:
            Busy: there are too many.
        """
        number, n_choices = next(self._numbers), len(prompts) * n
        with self._lock:
            taken = sum(n_left for n_left, _ in self._open.values())
            if taken + n_choices > self.most:
                raise Busy(f"{taken} completions run or wait, and {self.most} may; try again later")
            self._open[number] = n_choices, tell
        given = {"request": number, "model": str(folder), "prompts": prompts, "n": n, "every": every}
        self._send({"do": "begin", **given, "config": config.to_dict()})
        return number

    def cancel(self, request: int) -> None:
        """Generate no more for a request; an ended one is ignored."""
        if request in self._open:
            self._send({"do": "cancel", "request": request})

    def load(self, folder: Path) -> None:
        """Load a model beside others.

        Raises:
            RuntimeError: it cannot be loaded.
        """
        self._call("load", model=str(folder)).result()

    def serve(self, folder: Path) -> None:
        """Keep this model, and free others when their continuations have ended."""
        self._send({"do": "serve", "model": str(folder)})

    def score(self, folder: Path, ids: Sequence[int], n_top: int) -> Future[Scores]:
        """Return the log-probability of each id but the first, and the likeliest ids in its place."""
        return self._call("score", model=str(folder), ids=ids, n_top=n_top)

    def close(self) -> None:
        """End the process; continuations fail."""
        self._why_ended = "the server stops"
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        for thread in self._threads:
            thread.join()
        self._child.kill()

    def _call(self, do: str, **given: Any) -> Future[Any]:
        number, future = next(self._numbers), Future[Any]()
        future.set_running_or_notify_cancel()  # whoever waits may go, and the answer comes all the same
        with self._lock:
            self._calls[number] = future
        self._send({"do": do, "call": number, **given})
        return future

    def _send(self, message: dict[str, Any]) -> None:
        self._messages.put(message)
        if self._why_ended is not None:
            self._fail()

    def _write(self) -> None:
        while self._why_ended is None:
            self._child.send(self._messages.get())

    def _listen(self) -> None:
        try:
            while True:
                for message in self._child.receive():
                    self._take(message)
        except ChildEnded:
            reason = "killed, perhaps for lack of memory"
        except Exception as error:  # noqa: BLE001 — logged, and told to everyone who waits
            reason = f"{type(error).__name__}: {error}"
        if self._why_ended is None:
            self._why_ended = ENDED
            _log.error("%s: %s; start the server again", ENDED, reason)
        self._messages.put({})  # wakes the other thread, which ends
        self._fail()

    def _take(self, message: dict[str, Any]) -> None:
        for item in message.get("progress", ()):
            self._tell(Progress(**item))
        with self._lock:
            future = self._calls.pop(message.get("call", -1), None)
        if future is not None and "error" in message:
            future.set_exception(RuntimeError(message["error"]))
        elif future is not None:
            future.set_result(message["value"])

    def _tell(self, progress: Progress) -> None:
        with self._lock:
            n_left, tell = self._open.get(progress.request, (0, None))
            if progress.ended and n_left <= 1:
                self._open.pop(progress.request, None)
            elif progress.ended and tell is not None:
                self._open[progress.request] = n_left - 1, tell
        if tell is not None:
            tell(progress)

    def _fail(self) -> None:
        """Tell everyone who waits why the process has ended."""
        with self._lock:
            waiting, self._open = self._open, {}
            calls, self._calls = self._calls, {}
        for request, (_, tell) in waiting.items():
            tell(Progress(request, 0, "", [], [], [], True, error=self._why_ended))
        for future in calls.values():
            future.set_exception(RuntimeError(self._why_ended))
