"""Continue the prompts of many requests together, in one thread.

Continuations of the same model and sampling settings share a batch (`model.generation.Engine`), which they enter and
leave while it runs. Batches of other settings take turns, a token each.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from model.config import GenerationConfig
from model.generation import Completion, Engine, Row
from tasks.training.bundle import Bundle, Pieces

T = TypeVar("T")

IDLE_ENGINES, MOST_ENGINES = 4, 16  # batches that are kept without continuations, and all of them, with their memory
_log = logging.getLogger("sheepfold.serve")


class Busy(Exception):
    """Raised if too many continuations wait."""


@dataclass(frozen=True)
class Progress:
    """The part of a continuation that a step added.

    Attributes:
        choice: number of the continuation in its request.
        text: new text; empty while it may begin a stop string, or ends in an incomplete character.
        ids: new tokens.
        ended: True with the last piece.
        error: why it failed; else None.
    """

    choice: int
    text: str
    ids: list[int]
    logprobs: list[float]
    top_logprobs: list[list[tuple[int, float]]]
    ended: bool = False
    finish_reason: str = ""
    error: str | None = None


class Continuation:
    """One continuation of a request.

    Args:
        bundle: the model.
        choice: number of the continuation in its request.
        prompt: its ids.
        config: sampling settings.
        key, sample: numbers that, with the seed, determine its noise.
        tell: called in the batcher's thread with each new piece of text, or at the end only.
        every: least seconds between two pieces; None for one piece at the end.
    """

    def __init__(
        self,
        bundle: Bundle,
        choice: int,
        prompt: list[int],
        config: GenerationConfig,
        key: int,
        sample: int,
        tell: Callable[[Progress], None],
        every: float | None,
    ) -> None:
        self.bundle, self.config, self.choice, self.tell, self.every = bundle, config, choice, tell, every
        self.row = Row(prompt, key, Completion(0, sample), config.max_new_tokens, config.seed, config.stop)
        self.pieces = Pieces(bundle, prompt, config.stop)
        self.n_told, self.due = 0, 0.0  # tokens, and the earliest time of the next piece

    def advance(self) -> None:
        """Tell what is new."""
        item = self.row.completion
        ended = bool(item.finish_reason)
        if not ended and (self.every is None or time.monotonic() < self.due):
            return
        text = self.pieces.last(item) if ended else self.pieces.next(item)
        if text or ended:
            new = slice(self.n_told, len(item.ids))
            self.n_told, self.due = len(item.ids), time.monotonic() + (self.every or 0.0)
            parts = item.ids[new], item.logprobs[new], item.top_logprobs[new]
            self.tell(Progress(self.choice, text, *parts, ended, item.finish_reason))

    def fail(self, reason: str) -> None:
        """Tell that it ended for an error."""
        self.tell(Progress(self.choice, "", [], [], [], True, error=reason))


class Batcher:
    """The thread.

    Args:
        batch_size: continuations of one batch.
        most: continuations that run or wait, of all requests.
    """

    def __init__(self, batch_size: int, most: int) -> None:
        self.batch_size, self.most = batch_size, most
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._engines: dict[tuple[int, GenerationConfig], Engine] = {}
        self._running: dict[int, Continuation] = {}  # by the id of its row
        self._waiting: deque[Continuation] = deque()  # for a batch of their settings
        self._lock = threading.Lock()
        self._n_taken, self._served = 0, 0
        self._thread = threading.Thread(target=self._loop, name="batcher", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """False once the thread has ended."""
        return self._thread.is_alive()

    @property
    def load(self) -> int:
        """Number of continuations that run or wait."""
        return self._n_taken

    def submit(self, continuations: Sequence[Continuation]) -> None:
        """Begin continuations.

        Raises:
            Busy: there are too many.
        """
        with self._lock:
            if self._n_taken + len(continuations) > self.most:
                raise Busy(f"{self._n_taken} completions run or wait, and {self.most} may; try again later")
            self._n_taken += len(continuations)
        self._tasks.put(lambda: self._begin(continuations))

    def cancel(self, continuations: Sequence[Continuation]) -> None:
        """Generate no more of continuations; ended ones are ignored."""
        self._tasks.put(lambda: self._drop(continuations))

    def serve(self, bundle: Bundle) -> None:
        """Keep the batches of this model only, once those of others have ended."""

        def change() -> None:
            self._served = id(bundle.model)
            self._clear()

        self._tasks.put(change)

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Call a function between two steps."""
        future: Future[T] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except Exception as error:  # noqa: BLE001 — raised where the result is asked for
                    future.set_exception(error)

        self._tasks.put(run)
        return future

    def close(self) -> None:
        """End the thread; continuations fail."""
        self._tasks.put(None)
        self._thread.join()

    def _loop(self) -> None:
        while self._take():
            self._turn()
        for continuation in list(self._running.values()):
            self._end(continuation).fail("the server stops")

    def _take(self) -> bool:
        """Do what was asked for since the last step, or wait for it without continuations; False at the end."""
        try:
            while True:
                task = self._tasks.get(block=not self._running)
                if task is None:
                    return False
                task()
        except queue.Empty:
            return True

    def _turn(self) -> None:
        """Do a step of each batch."""
        for key, engine in list(self._engines.items()):
            if engine.active or engine.waiting:
                self._step(key, engine)
        if self._waiting:
            continuations, self._waiting = list(self._waiting), deque()
            self._place(continuations)

    def _begin(self, continuations: Sequence[Continuation]) -> None:
        for continuation in continuations:
            self._running[id(continuation.row)] = continuation
        self._place(continuations)

    def _place(self, continuations: Sequence[Continuation]) -> None:
        """Add continuations to the batches of their settings; those for which there are too many batches wait."""
        self._clear()
        for continuation in continuations:
            bundle, config = continuation.bundle, continuation.config
            # what each row has of its own is no part of a batch, nor is what does nothing at temperature 0
            alike: dict[str, Any] = {"seed": 0, "stop": (), "n_samples": 1, "max_new_tokens": 1}
            if config.temperature == 0:
                alike |= {"top_k": None, "top_p": None, "min_p": None, "typical_p": None}
            shared = replace(config, **alike)
            key = (id(bundle.model), shared)
            engine = self._engines.pop(key, None)
            if engine is None and len(self._engines) >= MOST_ENGINES:
                self._waiting.append(continuation)
                continue
            try:
                if engine is None:
                    engine = Engine(bundle.model, shared, self.batch_size, bundle.tokenizer.decode_continuation)
                engine.add(continuation.row)
            except Exception as error:  # noqa: BLE001 — the client is told
                _log.exception("a completion cannot begin")
                if engine is not None:
                    engine.drop(continuation.row)
                self._end(continuation).fail(str(error))
            if engine is not None:
                self._engines[key] = engine  # the latest comes last

    def _clear(self) -> None:
        """Free the batches without continuations of models that are no longer served, and of others the oldest."""
        idle = [key for key, engine in self._engines.items() if not engine.active and not engine.waiting]
        own = [key for key in idle if key[0] == self._served]
        for key in [*(set(idle) - set(own)), *own[: max(0, len(own) - IDLE_ENGINES)]]:
            del self._engines[key]

    def _step(self, key: tuple[int, GenerationConfig], engine: Engine) -> None:
        rows = [*engine.active.values(), *engine.waiting]
        try:
            engine.step()
            for row in rows:
                continuation = self._running[id(row)]
                if row.completion.finish_reason:
                    self._end(continuation)
                continuation.advance()
        except Exception as error:  # noqa: BLE001 — logits that are no numbers, memory: the clients are told
            _log.exception("a batch failed")
            del self._engines[key]
            for row in rows:
                if id(row) in self._running:
                    self._end(self._running[id(row)]).fail(str(error))
        if not self._running:
            self._clear()

    def _drop(self, continuations: Sequence[Continuation]) -> None:
        for continuation in continuations:
            if id(continuation.row) in self._running:
                for engine in self._engines.values():
                    engine.drop(continuation.row)
                if continuation in self._waiting:
                    self._waiting.remove(continuation)
                self._end(continuation)
        self._clear()

    def _end(self, continuation: Continuation) -> Continuation:
        del self._running[id(continuation.row)]
        with self._lock:
            self._n_taken -= 1
        return continuation
