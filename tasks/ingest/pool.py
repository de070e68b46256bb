"""A pool of extraction processes that may hang, crash or swell without harm.

Each thread of the pool owns one worker process (`tasks.ingest.worker`) and waits for its messages with a
deadline. A worker that misses it, dies or grows too large is killed with everything it started, its document
gets an outcome that says why, and the next document gets a fresh worker. `concurrent.futures` has none of
this: there a process that dies breaks the whole pool, and one that hangs cannot be killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any

from tasks.ingest.messages import MessageReader, ProtocolError, write_ascii_message
from tasks.ingest.records import Extraction, ExtractOptions, Limits, PageText, ReasonCode

DOCUMENTS_PER_WORKER = 200  # Then a fresh one: native libraries leak, and fragment their heaps.
START_SECONDS = 120.0  # Importing takes half a second; a machine that swaps may take a hundred times as long.
WORKER_COMMAND = (sys.executable, "-P", "-m", "tasks.ingest.worker")


class PoolError(RuntimeError):
    """Raised when the pool itself fails: no worker can be started, or the pool is closed."""


@dataclasses.dataclass(frozen=True, slots=True)
class ExtractJob:
    """A document to extract.

    Attributes:
        path: The file.
        sha256: The digest that its bytes must have; if they do not, the outcome is "changed".
        suffix: The suffix with the dot, or "".
        options: What changes the result.
    """

    path: Path
    sha256: str
    suffix: str
    options: ExtractOptions = dataclasses.field(default_factory=ExtractOptions)


class ExtractionPool:
    """Extracts documents in worker processes; for use by several threads at once.

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
        self._queue: queue.SimpleQueue[tuple[ExtractJob, Future[Extraction]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._stop_read, self._stop_write = os.pipe()  # Becomes readable when running documents must end.
        self._folder = tempfile.TemporaryDirectory(prefix="sheepfold-extract-")
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
        """Queues a document.

        Args:
            job: The document.

        Returns:
            The outcome to come. A document that hangs, crashes or is damaged has an outcome, not an
            exception.

        Raises:
            PoolError: The pool is closed.
        """
        future: Future[Extraction] = Future()
        with self._lock:
            if self._closed:
                raise PoolError("the extraction pool is closed; submit documents before leaving its with block")
            self._queue.put((job, future))
        return future

    def close(self, wait: bool = False) -> None:
        """Ends the pool; afterwards no process and no temporary file is left.

        Args:
            wait: Whether to finish what was submitted. Otherwise queued documents are cancelled, running ones
                are killed, and their futures raise `PoolError`.
        """
        with self._lock:
            first = not self._closed
            self._closed = True
            if first:
                for _ in self._threads:
                    self._queue.put(None)
        try:
            if wait:
                for thread in self._threads:
                    thread.join()
        finally:
            # Also when an interrupt ended the wait.
            if first:
                self._stop()

    def _stop(self) -> None:
        """Wakes all threads so that they kill their workers, and clears up."""
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
        """The life of one thread: documents one after another, each by a worker that is fit for it."""
        worker: _Worker | None = None
        try:
            while (item := self._queue.get()) is not None:
                job, future = item
                if self._stopping:
                    future.cancel()
                elif future.set_running_or_notify_cancel():
                    worker = self._run_into(future, job, worker, number)
        finally:
            if worker:
                worker.kill()

    def _run_into(
        self, future: Future[Extraction], job: ExtractJob, worker: _Worker | None, number: int
    ) -> _Worker | None:
        """Extracts one document into its future; returns the worker for the next one, if it is fit."""
        try:
            outcome, worker = self._extract(job, worker, number)
        except Exception as error:  # noqa: BLE001 - whatever it is, whoever waits for the future must get it
            future.set_exception(error)
            return None
        future.set_result(outcome)
        return worker

    def _extract(self, job: ExtractJob, worker: _Worker | None, number: int) -> tuple[Extraction, _Worker | None]:
        """One document's outcome, and the worker if it survived."""
        if worker and (worker.served >= DOCUMENTS_PER_WORKER or not worker.is_alive()):
            worker.kill()
            worker = None
        while True:
            fresh = worker is None
            if worker is None:
                worker = _Worker(self._command, Path(self._folder.name), number, self._stop_read)
            try:
                outcome = worker.extract(job, self._limits)
                if outcome.reason_code != "memory":
                    return outcome, worker
                raise _WorkerLost(outcome, "memory", outcome.reason)
            except _WorkerLost as lost:
                worker.kill()
                worker = None
                # An earlier document may have left the process damaged: only a fresh worker's word is final,
                # so that an outcome does not depend on a document's neighbours.
                if fresh or lost.outcome.reason_code == "timeout":
                    return lost.outcome, None
            except BaseException:
                worker.kill()
                raise


class _WorkerLost(Exception):
    """Raised when a worker hangs or dies over a document; carries what then is its outcome."""

    def __init__(self, partial: Extraction, code: ReasonCode, reason: str) -> None:
        super().__init__(reason)
        self.outcome = dataclasses.replace(partial, status="failed", reason_code=code, reason=reason)


class _Worker:
    """One worker process and its folder for temporary files."""

    def __init__(self, command: Sequence[str], parent_folder: Path, number: int, stop: int) -> None:
        self.served = 0
        self._stop = stop
        self._folder = Path(tempfile.mkdtemp(prefix=f"worker-{number}-", dir=parent_folder))
        self._log = self._folder / "stderr.log"
        try:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=_environment(self._folder),
                    # A process group of its own can be killed whole, and a terminal's Ctrl-C does not reach
                    # it.
                    start_new_session=True,
                    bufsize=0,
                )
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise PoolError(f"no extraction process can be started with {command[0]}: {error}") from error
        assert self._process.stdin and self._process.stdout
        self._jobs, self._results = self._process.stdin, self._process.stdout
        self._reader = MessageReader(self._results.fileno())
        self._poll = select.poll()
        self._poll.register(self._results, select.POLLIN)
        self._poll.register(stop, select.POLLIN)
        self._wait_until_ready()

    def is_alive(self) -> bool:
        """Whether the process still runs."""
        # Not reaped here: as long as it is not, its number, and so its group's, belongs to nobody else.
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def extract(self, job: ExtractJob, limits: Limits) -> Extraction:
        """Extracts one document.

        Raises:
            _WorkerLost: The process hangs or died; it must be killed.
            PoolError: The pool is being closed.
        """
        self.served += 1
        partial = Extraction("failed")  # What is known so far.
        with contextlib.suppress(BrokenPipeError):  # A dead process is noticed where its answer is read.
            write_ascii_message(self._jobs.fileno(), _job_message(job, limits))
        document_end = time.monotonic() + limits.document_seconds
        while True:
            page_end = time.monotonic() + limits.page_seconds
            try:
                messages = self._next_messages(min(page_end, document_end))
            except TimeoutError:
                raise self._overdue(partial, limits, page_end > document_end) from None
            except ProtocolError as error:
                page = len(partial.pages) + 1
                reason = f"the extraction process sent something unreadable on page {page}: {error}"
                raise _WorkerLost(partial, "crashed", reason) from None
            if messages is None:
                raise self._died(partial)
            for message in messages:
                if "done" in message:
                    outcome = Extraction.from_dict(message["done"])
                    outcome.pages = partial.pages
                    return outcome
                if "page" in message:
                    partial.pages.append(PageText.from_dict(message["page"]))
                else:
                    partial = dataclasses.replace(partial, **message["detected"])

    def kill(self) -> None:
        """Kills the process with everything it started, and removes its temporary files."""
        # Before it is reaped; see is_alive.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._jobs.close()
        self._results.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait_until_ready(self) -> None:
        """Waits for the first message; a worker that cannot start is no document's fault."""
        try:
            messages = self._next_messages(time.monotonic() + START_SECONDS)
        except (TimeoutError, ProtocolError, PoolError) as error:
            self.kill()
            if isinstance(error, PoolError):
                raise
            raise PoolError(f"an extraction process did not become ready: {error or 'it took too long'}") from None
        if messages is None:
            log = self._log.read_bytes()[-2000:].decode("utf-8", "replace")
            self.kill()
            raise PoolError(f"an extraction process could not start; its last words: {log.strip() or 'none'}")

    def _next_messages(self, deadline: float) -> list[dict[str, Any]] | None:
        """At least one message; None at the end of the stream.

        Raises:
            TimeoutError: None came before the deadline.
            ProtocolError: What came is no message.
            PoolError: The pool is being closed.
        """
        while True:
            remaining = deadline - time.monotonic()
            ready = dict(self._poll.poll(max(0.0, remaining) * 1000))
            if self._stop in ready:
                raise PoolError("the extraction pool was closed before this document was done")
            if not ready:
                raise TimeoutError
            messages = self._reader.read_available()
            if messages != []:
                return messages

    def _overdue(self, partial: Extraction, limits: Limits, whole_document: bool) -> _WorkerLost:
        """The outcome for a document that missed a deadline."""
        page = len(partial.pages) + 1
        if whole_document:
            reason = f"the document took more than {limits.document_seconds:g} s; it was on page {page}"
        else:
            reason = f"page {page} took more than {limits.page_seconds:g} s"
        return _WorkerLost(partial, "timeout", reason)

    def _died(self, partial: Extraction) -> _WorkerLost:
        """The outcome for a document over which the process died."""
        # The rest of its group goes first; the leader's own exit status is settled by now.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        status = self._process.wait()
        page = len(partial.pages) + 1
        if status == -signal.SIGKILL:
            reason = f"the extraction process was killed on page {page}, most likely because memory ran out"
            return _WorkerLost(partial, "memory", reason)
        cause = f"signal {-status}" if status < 0 else f"exit status {status}"
        return _WorkerLost(partial, "crashed", f"the extraction process died ({cause}) on page {page}")


def _job_message(job: ExtractJob, limits: Limits) -> dict[str, Any]:
    """What the worker is told."""
    return {
        "path": str(job.path),
        "sha256": job.sha256,
        "suffix": job.suffix,
        "options": job.options.to_dict(),
        "limits": limits.to_dict(),
    }


def _environment(folder: Path) -> dict[str, str]:
    """The worker's environment: its own folder for temporary files, one thread per OCR process."""
    environment = {**os.environ, "TMPDIR": str(folder), "OMP_THREAD_LIMIT": "1"}
    root = str(Path(__file__).resolve().parents[2])
    if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        # Run from a source tree. The current folder is never searched (-P): a folder of documents may hold a
        # json.py.
        inherited = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = root + (os.pathsep + inherited if inherited else "")
    return environment
