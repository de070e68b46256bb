"""Continue the prompts of many requests together, in a process of their own.

The interpreter of the server is busy with its connections, and one that shares it with them computes half as much.
Continuations of the same model and sampling settings share a batch (`model.generation.Engine`), which they enter and
leave while it runs. Batches of other settings take turns, a token each.

    python -m tasks.serving.batcher BATCH_SIZE THREADS

Requests and answers are messages of `tasks.core.child`; `tasks.serving.worker` sends and receives them.
"""

from __future__ import annotations

import contextlib
import logging
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from model.config import GenerationConfig
from model.generation import Completion, Engine, Row
from model.randomness import seed_everything
from tasks.core.child import MessageReader, take_output
from tasks.core.machine import detect_device, usable_cores
from tasks.generation.completions import noise_key
from tasks.training.bundle import Bundle, Pieces

IDLE_ENGINES, MOST_ENGINES = 4, 16  # batches that are kept without continuations, and all of them, with their memory
SMALL_NETWORK = 2**22  # parameters of networks for which a second thread costs more than it computes
CANCELLED = "cancelled"
_log = logging.getLogger("sheepfold.serve")


@dataclass(frozen=True)
class Progress:
    """The part of a continuation that a step added.

    Attributes:
        request: number of the request.
        choice: number of the continuation in it.
        text: new text; empty while it may begin a stop string, or ends in an incomplete character.
        ids: new tokens.
        ended: True with the last piece.
        error: why it failed; else None.
    """

    request: int
    choice: int
    text: str
    ids: list[int]
    logprobs: list[float]
    top_logprobs: list[list[tuple[int, float]]]
    ended: bool = False
    finish_reason: str = ""
    error: str | None = None


class Continuation:
    """One continuation of a prompt, with what it has so far.

    Args:
        request, choice: see `Progress`.
        model: folder of the model.
        bundle: the model.
        every: least seconds between two pieces; None for one piece at the end.
        row: the prompt.
        config: sampling settings.
    """

    def __init__(
        self,
        request: int,
        choice: int,
        model: str,
        bundle: Bundle,
        every: float | None,
        row: Row,
        config: GenerationConfig,
    ) -> None:
        self.request, self.choice, self.model, self.bundle = request, choice, model, bundle
        self.every, self.row, self.config = every, row, config
        self.pieces = Pieces(bundle, list(row.prompt), config.stop)
        self.n_told, self.due = 0, 0.0  # tokens, and the earliest time of the next piece

    def progress(self) -> Progress | None:
        """Return what is new and due, or None."""
        item = self.row.completion
        ended = bool(item.finish_reason)
        if not ended and (self.every is None or time.monotonic() < self.due):
            return None
        text = self.pieces.last(item) if ended else self.pieces.next(item)
        if not text and not ended:
            return None
        new = slice(self.n_told, len(item.ids))
        self.n_told, self.due = len(item.ids), time.monotonic() + (self.every or 0.0)
        parts = item.ids[new], item.logprobs[new], item.top_logprobs[new]
        return Progress(self.request, self.choice, text, *parts, ended, item.finish_reason)


class Batcher:
    """The batches.

    Args:
        batch_size: continuations of one batch.
        threads: to compute with; 0 for as many as are fastest, and answers may differ by rounding.
        send: sends a message to the server, in any thread.
    """

    def __init__(self, batch_size: int, threads: int, send: Callable[[Mapping[str, Any]], None]) -> None:
        self.batch_size, self.threads, self.send = batch_size, threads, send
        self.device = detect_device()
        self._models: dict[str, Bundle] = {}  # by folder
        self._engines: dict[tuple[str, GenerationConfig], Engine] = {}
        self._running: dict[int, Continuation] = {}  # by the id of the row
        self._waiting: deque[Continuation] = deque()  # for a batch of their settings
        self._served = self._coming = ""  # the model that is served, and the next one
        self._told: list[Progress] = []

    def run(self, descriptor: int) -> None:
        """Do what messages ask for, until the server closes its end of the pipe."""
        reader = MessageReader(descriptor)
        while True:
            if not self._running or select.select([descriptor], [], [], 0)[0]:
                messages = reader.read_available()
                if messages is None:
                    return
                for message in messages:
                    self._take(**message)
            self._turn()
            if self._told:
                self.send({"progress": self._told})
                self._told = []

    def _take(self, do: str, **given: Any) -> None:
        """Do what a message asks for."""
        actions: dict[str, Callable[..., None]] = {
            "begin": self._begin,
            "cancel": self._cancel,
            "load": self._load,
            "serve": self._serve,
            "score": self._score,
        }
        actions[do](**given)

    def _answer(self, call: int, function: Callable[[], Any]) -> None:
        """Send the result of a function, or why it failed."""
        try:
            answer = {"call": call, "value": function()}
        except Exception as error:  # noqa: BLE001 — raised where the call was made
            answer = {"call": call, "error": str(error) or type(error).__name__}
        self.send(answer)

    def _load(self, call: int, model: str) -> None:
        """Load a model, in a thread, so that others go on meanwhile."""
        self._coming = model

        def load() -> None:
            if model not in self._models:
                self._models[model] = Bundle(Path(model), self.device).loaded()

        threading.Thread(target=self._answer, args=(call, load), daemon=True).start()

    def _serve(self, model: str) -> None:
        """Keep the batches of this model only, once those of others have ended."""
        self._served = self._coming = model
        n_parameters = sum(weight.numel() for weight in self._bundle(model).model.parameters())
        torch.set_num_threads(self.threads or (1 if n_parameters < SMALL_NETWORK else usable_cores()))
        self._clear()

    def _bundle(self, model: str) -> Bundle:
        if model not in self._models:  # a request came after it was freed
            self._models[model] = Bundle(Path(model), self.device).loaded()
        return self._models[model]

    def _score(self, call: int, model: str, ids: list[int], n_top: int) -> None:
        """Send the log-probability of each id but the first, and the likeliest ids in its place."""
        self._answer(call, lambda: self._scores(model, ids, n_top))
        self._clear()

    def _scores(self, model: str, ids: list[int], n_top: int) -> list[Any]:
        bundle = self._bundle(model)
        with torch.inference_mode():
            logits = bundle.model(torch.tensor([ids], device=self.device))[0, :-1, : bundle.model_config.vocab_size]
            logprobs = logits.float().log_softmax(dim=-1).cpu()
        own = logprobs.gather(1, torch.tensor(ids[1:], dtype=torch.int64)[:, None])[:, 0].tolist()
        top = logprobs.topk(min(n_top, logprobs.shape[1]), dim=-1)
        tops = [list(zip(*row, strict=True)) for row in zip(top.indices.tolist(), top.values.tolist(), strict=True)]
        return [own, tops]

    def _begin(
        self,
        request: int,
        model: str,
        prompts: Sequence[list[int]],
        n: int,
        every: float | None,
        config: Mapping[str, Any],
    ) -> None:
        """Begin n continuations of each prompt; its place in the request determines their noise."""
        choices = range(len(prompts) * n)
        try:
            bundle, settings = self._bundle(model), GenerationConfig.from_dict(config)
        except Exception as error:  # noqa: BLE001 — the client is told
            _log.exception("a completion cannot begin")
            self._told += [_failed(request, choice, str(error)) for choice in choices]
            return
        continuations = []
        for choice in choices:
            place, sample = divmod(choice, n)
            key, limit = noise_key(str(place)), settings.max_new_tokens
            row = Row(prompts[place], key, Completion(0, sample), limit, settings.seed, settings.stop)
            continuations.append(Continuation(request, choice, model, bundle, every, row, settings))
        self._running |= {id(one.row): one for one in continuations}
        self._place(continuations)

    def _turn(self) -> None:
        """Do a step of each batch."""
        for key, engine in list(self._engines.items()):
            if engine.active or engine.waiting:
                self._step(key, engine)
        if self._waiting:
            running, self._waiting = list(self._waiting), deque()
            self._place(running)

    def _place(self, many: Sequence[Continuation]) -> None:
        """Add continuations to the batches of their settings; those for which there are too many batches wait."""
        self._clear()
        for running in many:
            config = running.config
            # what each row has of its own is no part of a batch, nor is what does nothing at temperature 0
            alike: dict[str, Any] = {"seed": 0, "stop": (), "n_samples": 1, "max_new_tokens": 1}
            if config.temperature == 0:
                alike |= {"top_k": None, "top_p": None, "min_p": None, "typical_p": None}
            shared = replace(config, **alike)
            key = (running.model, shared)
            engine = self._engines.pop(key, None)
            if engine is None and len(self._engines) >= MOST_ENGINES:
                self._waiting.append(running)
                continue
            bundle = running.bundle
            try:
                if engine is None:
                    engine = Engine(bundle.model, shared, self.batch_size, bundle.tokenizer.decode_continuation)
                engine.add(running.row)
            except Exception as error:  # noqa: BLE001 — the client is told
                _log.exception("a completion cannot begin")
                if engine is not None:
                    engine.drop(running.row)
                self._fail(running, str(error))
            if engine is not None:
                self._engines[key] = engine  # the latest comes last

    def _clear(self) -> None:
        """Free idle batches of models that are no longer served, of others the oldest, and the models themselves."""
        idle = [key for key, engine in self._engines.items() if not engine.active and not engine.waiting]
        own = [key for key in idle if key[0] == self._served]
        for key in [*(set(idle) - set(own)), *own[: max(0, len(own) - IDLE_ENGINES)]]:
            del self._engines[key]
        used = {self._served, self._coming, *(running.model for running in self._running.values())}
        for model in [model for model in list(self._models) if model not in used]:
            del self._models[model]

    def _step(self, key: tuple[str, GenerationConfig], engine: Engine) -> None:
        rows = [*engine.active.values(), *engine.waiting]
        try:
            engine.step()
            for row in rows:
                if (progress := self._running[id(row)].progress()) is not None:
                    self._told.append(progress)
                if row.completion.finish_reason:
                    del self._running[id(row)]
        except Exception as error:  # noqa: BLE001 — logits that are no numbers, memory: the clients are told
            _log.exception("a batch failed")
            del self._engines[key]
            for row in rows:
                if id(row) in self._running:
                    self._fail(self._running[id(row)], str(error))
        if not self._running:
            self._clear()

    def _cancel(self, request: int) -> None:
        """Generate no more for a request."""
        for running in [one for one in self._running.values() if one.request == request]:
            for engine in self._engines.values():
                engine.drop(running.row)
            if running in self._waiting:
                self._waiting.remove(running)
            self._fail(running, CANCELLED)
        self._clear()

    def _fail(self, running: Continuation, reason: str) -> None:
        del self._running[id(running.row)]
        self._told.append(_failed(running.request, running.choice, reason))


def _failed(request: int, choice: int, reason: str) -> Progress:
    return Progress(request, choice, "", [], [], [], True, error=reason)


def main() -> None:
    """Generate for the process that has started this one."""
    logging.basicConfig(level=logging.WARNING)
    send, lock = take_output(), threading.Lock()

    def send_alone(message: Mapping[str, Any]) -> None:
        with lock:
            send(message)

    batch_size, threads = map(int, sys.argv[1:])
    seed_everything(0, deterministic=threads > 0)
    with contextlib.suppress(BrokenPipeError):  # the server has ended
        Batcher(batch_size, threads, send_alone).run(0)


if __name__ == "__main__":
    main()
