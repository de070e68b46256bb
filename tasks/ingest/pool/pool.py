"""A pool of extraction processes that may hang, crash or swell without harm.

Each thread of the pool owns one worker process (`tasks.ingest.pool.worker`) and waits for its messages with a
deadline. A worker that misses it, dies or grows too large is killed with everything it started; the page or member
that it was on gets a reason, and the rest of the document a fresh worker. `concurrent.futures` has none of
this: there a process that dies breaks the whole pool, and one that hangs cannot be killed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import select
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType

from tasks.core.child import module_command
from tasks.ingest.pool.parts import Document, ExtractJob, Part
from tasks.ingest.pool.process import CLOSED, PoolError, StartKilledError, WorkerProcess
from tasks.readers.records import TEMPORARY_PREFIX, Extraction, Limits

# Then a fresh worker: native libraries leak, and fragment their heaps. Starting one costs as much as hundreds of small
# files, so growth decides, and the number only bounds what growth does not show.
DOCUMENTS_PER_WORKER = 5000
GROWN_BYTES = 256 * 1024**2
STARTS = 3  # of which the last one's failure ends the run
WORKER_COMMAND = module_command("tasks.ingest.pool.worker")

# Parts of documents in work come before new documents, and the end after both.
_REST, _NEW, _END = range(3)


class ExtractionPool:
    """Extract documents in worker processes; for use by several threads at once.

    As a context manager it waits for what was submitted; leaving it by an exception kills what is running.

    Args:
        workers: How many processes; they start when there is work.
        limits: Deadlines and memory of one document.
        command: The worker's command line.
    """

    def __init__(self, workers: int, limits: Limits | None = None, command: Sequence[str] = WORKER_COMMAND) -> None:
        if workers < 1:
            raise ValueError(f"workers is {workers}; at least 1 is needed")
        self._limits = limits or Limits()
        self._command = list(command)
        self._queue: queue.PriorityQueue[tuple[int, int, Part | None]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._closed = False
        self._stop_read, self._stop_write = os.pipe()  # Becomes readable when running documents must end.
        self._folder = tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX)
        self._threads = [
            threading.Thread(target=self._serve, args=(number,), name=f"extract-{number}", daemon=True)
            for number in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> ExtractionPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(wait=kind is None)

    def submit(self, job: ExtractJob) -> Future[Extraction]:
        """Queue a document.

        Args:
            job: The document.

        Returns:
            The outcome to come. A document that hangs, crashes or is damaged has an outcome, not an
            exception.

        Raises:
            PoolError: The pool is closed.
        """
        document = Document(job, Path(self._folder.name))
        with self._lock:
            if self._closed:
                raise PoolError("the extraction pool is closed; submit documents before leaving its with block")
            self._put(_NEW, document.first_part())
        return document.future

    def close(self, wait: bool = False) -> None:
        """End the pool; afterwards no process and no temporary file is left.

        Args:
            wait: Whether to finish what was submitted. Otherwise queued documents are cancelled, running ones
                are killed, and their futures raise `PoolError`.
        """
        with self._lock:
            first = not self._closed
            self._closed = True
            if first:
                for _ in self._threads:
                    self._put(_END, None)
        try:
            if wait:
                for thread in self._threads:
                    thread.join()
        finally:
            # Also when an interrupt ended the wait.
            if first:
                self._stop()

    def _put(self, priority: int, part: Part | None) -> None:
        self._queue.put((priority, next(self._numbers), part))

    def _stop(self) -> None:
        """Wake all threads so that they kill their workers, and clear up."""
        os.close(self._stop_write)
        for thread in self._threads:
            thread.join()
        os.close(self._stop_read)
        with contextlib.suppress(OSError):
            self._folder.cleanup()

    @property
    def _stopping(self) -> bool:
        return bool(select.select([self._stop_read], [], [], 0)[0])

    def _serve(self, number: int) -> None:
        """The life of one thread: parts of documents one after another, each by a worker that is fit for it."""
        worker: WorkerProcess | None = None
        try:
            while True:
                priority, _, part = self._queue.get()
                if part is None:
                    return
                future = part.document.future
                if self._stopping:
                    if not future.cancel():
                        part.document.fail(PoolError(CLOSED))
                elif priority == _REST or future.set_running_or_notify_cancel():
                    worker = self._run(part, worker, number)
                del part, future  # The wait for the next one may be long, and this document large.
        finally:
            if worker:
                worker.kill()

    def _run(self, part: Part, worker: WorkerProcess | None, number: int) -> WorkerProcess | None:
        """Carry out a part and whatever it leaves to others; return the worker for the next one, if it is fit."""
        document = part.document
        left: Part | None = part
        try:
            while left is not None:
                worker = worker or self._start(number)
                left, worker = self._attempt(left, worker)
        except Exception as error:  # noqa: BLE001 - whatever it is, whoever waits for the future must get it
            if worker:
                worker.kill()
            document.fail(error)
            return None
        for shared in document.shared_out(part):
            self._put(_REST, shared)
        document.end_part()
        return worker

    def _start(self, number: int) -> WorkerProcess:
        """A fresh worker; one that is killed before it is ready, as a machine short of memory does, is replaced."""
        for _ in range(STARTS - 1):
            with contextlib.suppress(StartKilledError):
                return WorkerProcess(self._command, Path(self._folder.name), number, self._stop_read)
        return WorkerProcess(self._command, Path(self._folder.name), number, self._stop_read)

    def _attempt(self, part: Part, worker: WorkerProcess) -> tuple[Part | None, WorkerProcess | None]:
        """Have a worker do what it can of a part; return what is left of it, and the worker if it is still fit."""
        document, fresh = part.document, worker.is_fresh
        result = worker.run(part, self._limits)
        document.take(part, result)
        if result.loss is None:
            if worker.served < DOCUMENTS_PER_WORKER and worker.grown_bytes() < GROWN_BYTES and worker.is_alive():
                return None, worker
            worker.kill()
            return None, None
        worker.kill()
        # An earlier document may have left the process damaged: only a fresh worker's word is final, so that an
        # outcome does not depend on a document's neighbours.
        if fresh or result.loss.code == "timeout":
            return document.lose(part, result), None
        return part.rest(result, lost=False), None
