"""The process that generates, as its server sees it."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch

from model.config import GenerationConfig
from tasks.core.child import ChildEnded, ChildProcess, ProtocolError, module_command
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
        self._thread = threading.Thread(target=self._listen, name="worker", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

    @property
    def is_alive(self) -> bool:
        """False once the process has ended."""
        return self._why_ended is None

    @property
    def load(self) -> int:
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
            tell: called in a thread of the worker with each piece.

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

    def serve(self, folder: Path) -> None:
        """Load a model beside others, and free these when their continuations have ended.

        Raises:
            RuntimeError: it cannot be loaded.
        """
        self._call("load", model=str(folder)).result()

    def score(self, folder: Path, ids: Sequence[int], n_top: int) -> Future[Scores]:
        """Return the log-probability of each id but the first, and the likeliest ids in its place."""
        return self._call("score", model=str(folder), ids=ids, n_top=n_top)

    def close(self) -> None:
        """End the process; continuations fail."""
        self._why_ended = "the server stops"
        os.killpg(self._child.pid, signal.SIGKILL)
        self._thread.join()
        self._child.kill()

    def _call(self, do: str, **given: Any) -> Future[Any]:
        number, future = next(self._numbers), Future[Any]()
        with self._lock:
            self._calls[number] = future
        self._send({"do": do, "call": number, **given})
        return future

    def _send(self, message: dict[str, Any]) -> None:
        with self._lock:
            if self._why_ended is None:
                self._child.send(message)
        if self._why_ended is not None:
            self._fail()

    def _listen(self) -> None:
        try:
            while True:
                for message in self._child.receive():
                    self._take(message)
        except (ChildEnded, ProtocolError) as error:
            if self._why_ended is None:
                self._why_ended = ENDED
                _log.error("%s: %s; start the server again", ENDED, error or "killed, perhaps for lack of memory")
        self._fail()

    def _take(self, message: dict[str, Any]) -> None:
        for item in message.get("progress", ()):
            self._tell(Progress(**item))
        if "call" in message:
            with self._lock:
                future = self._calls.pop(message["call"])
            if "error" in message:
                future.set_exception(RuntimeError(message["error"]))
            else:
                future.set_result(message["value"])

    def _tell(self, progress: Progress) -> None:
        with self._lock:
            n_left, tell = self._open[progress.request]
            if progress.ended and n_left == 1:
                del self._open[progress.request]
            elif progress.ended:
                self._open[progress.request] = n_left - 1, tell
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
