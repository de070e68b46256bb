"""A pool of extraction processes that tolerates hangs, crashes and excessive memory.

Each thread of the pool owns one worker process (`tasks.ingest.worker`) and waits for its messages with a deadline. A
worker that misses it, dies or grows too large is killed with its process group; the current page or member gets a
reason, and a new worker reads the rest of the document. Workers write pages and members to files
(`tasks.ingest.journal`), and report each over a pipe once it is written. `concurrent.futures` does not fit: there a
process that dies breaks the whole pool, and one that hangs cannot be killed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import select
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tasks.core.child import ChildEnded, ChildProcess, ProtocolError, Stopped, module_command, write_message
from tasks.ingest.journal import finish_document, part_file, read_lines, write_lines
from tasks.readers.records import (
    CONTAINERS,
    TEMPORARY_PREFIX,
    Extraction,
    ExtractOptions,
    Limits,
    PageText,
    ReasonCode,
    judge_pages,
)

WORKER_COMMAND = module_command("tasks.ingest.worker")
OCR_PAGES_PER_PART = 4  # Some 10 s of work: more than opening the document costs, little enough to share evenly.
# Crashes and hangs per document. Each costs a new process and up to `limits.page_seconds`, so a hostile file occupies a
# worker for at most 50 deadlines.
MAX_LOSSES = 50
# A worker is replaced after this growth, because native libraries leak and fragment their heaps, or this many
# documents. Starting one costs as much as hundreds of small files.
DOCUMENTS_PER_WORKER = 5000
GROWN_BYTES = 512 * 1024**2
STARTS = 3  # attempts to start a worker; the failure of the last one ends the run
START_SECONDS = 120.0  # Importing takes half a second; a machine that swaps may take a hundred times as long.
_CLOSED = "the extraction pool was closed before this document was done"

# Priorities: parts of started documents before new documents, the end of the queue after both.
_REST, _NEW, _END = range(3)


class PoolError(RuntimeError):
    """Raised when the pool itself fails: a worker cannot start or write, or the pool is closed."""


class StartKilledError(PoolError):
    """Raised when a process is killed while it starts, which a new attempt may avoid."""


@dataclass(frozen=True, slots=True)
class ExtractJob:
    """A document to extract.

    Attributes:
        path: The file.
        sha256: Digest that its bytes must have; otherwise the outcome is "changed".
        suffix: The suffix with the dot, or "".
        out: File for the finished document (see `tasks.ingest.journal.read_document`).
        options: Options that change the result.
        passwords: Tried on encrypted documents and members.
    """

    path: Path
    sha256: str
    suffix: str
    out: Path
    options: ExtractOptions = field(default_factory=ExtractOptions)
    passwords: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Loss:
    """The loss of a worker process; `whole_document` if it missed the document's deadline, which ends the document."""

    code: ReasonCode
    reason: str
    whole_document: bool = False


@dataclass(slots=True, eq=False)
class _Part:
    """Pages or members of a document that one worker at a time reads in order; a lost worker is replaced.

    Attributes:
        file: JSON Lines of the pages or members; only the first `end` bytes were reported.
        asked: Numbers of the pages to read, which were deferred for OCR; None for the whole document.
        pages: Numbers of the pages that were read or lost.
        deferred: Those of them that other processes are to read by OCR.
        n_members: Number of members of a container that were read or lost.
        member: Locator of the current member, if any.
        began: Number of lines when the latest worker began.
        detected: Type of the document, in case there is no verdict.
        verdict: The worker's own outcome, without pages and members.
    """

    document: _Document
    file: Path
    asked: tuple[int, ...] | None = None
    pages: list[int] = field(default_factory=list)
    deferred: list[int] = field(default_factory=list)
    n_members: int = 0
    member: str | None = None
    end: int = 0
    began: int = 0
    detected: Extraction = field(default_factory=lambda: Extraction("failed"))
    verdict: Extraction | None = None

    @property
    def current_page(self) -> int:
        if self.asked is not None:
            return self.asked[min(len(self.pages), len(self.asked) - 1)]
        return self.pages[-1] + 1 if self.pages else 1

    @property
    def where(self) -> str:
        return f"page {self.current_page}" if self.member is None else f"member {self.member!r}"

    @property
    def is_read(self) -> bool:
        return self.asked is not None and len(self.pages) == len(self.asked)

    @property
    def final_verdict(self) -> Extraction | None:
        """Return the verdict if it covers the whole document; the last worker of a container sees all members."""
        if self.asked is not None or self.verdict is None or (self.began and self.verdict.kind not in CONTAINERS):
            return None
        return self.verdict

    def request(self, limits: Limits) -> dict[str, Any]:
        job = self.document.job
        self.began, self.member = len(self.pages) + self.n_members, None
        return {
            "path": str(job.path),
            "sha256": job.sha256,
            "suffix": job.suffix,
            "out": str(self.file),
            "options": asdict(job.options),
            "passwords": job.passwords,
            "limits": asdict(limits),
            "settled": self.n_members or (self.pages[-1] if self.pages else 0),
            "pages": None if self.asked is None else self.asked[len(self.pages) :],
            "ocr_pages": OCR_PAGES_PER_PART if self.asked is None else None,
        }

    def take(self, message: dict[str, Any]) -> None:
        """Record a message of the worker."""
        self.end = message.get("end", self.end)
        if "page" in message:
            self.pages.append(message["page"])
            if message["deferred"]:
                self.deferred.append(message["page"])
        elif "member" in message:
            self.member = message["member"]
        elif "member_done" in message:
            self.n_members += 1
            self.member = None
        elif "detected" in message:
            self.detected = replace(self.detected, **message["detected"])
        elif "done" in message:
            self.verdict = Extraction(**message["done"])
        elif "broken" in message:
            raise PoolError(
                f"an extraction process cannot write its pages: {message['broken']}. Free disk space and run again."
            )

    def add(self, item: PageText | Extraction) -> None:
        """Write the line of a lost page or member."""
        if isinstance(item, PageText):
            self.pages.append(item.page)
        else:
            self.n_members += 1
        with self.file.open("ab", buffering=0) as out:
            write_message(out.fileno(), vars(item), "replace")
            self.end = out.tell()

    def lines(self) -> Iterator[PageText]:
        return (item for item in read_lines(self.file) if isinstance(item, PageText))


class _Document:
    """A document in parts, on which several threads work.

    A document is usually one part. If many of its pages need OCR, they become parts for all workers to share.
    """

    def __init__(self, job: ExtractJob) -> None:
        self.job = job
        self.future: Future[Extraction] = Future()
        self._lock = threading.Lock()
        self._parts: list[_Part] = []
        self._left = 1
        self._losses: list[_Loss] = []
        self._given_up = False

    def part(self, asked: tuple[int, ...] | None = None) -> _Part:
        """Add a part, with its own file."""
        file = part_file(self.job.out, len(self._parts))
        file.touch()  # a worker may die before it opens the file
        self._parts.append(_Part(self, file, asked))
        return self._parts[-1]

    def lose(self, part: _Part, loss: _Loss) -> bool:
        """Record a lost worker as an error of its page or member; return True if there is more to read.

        Pages that were read are kept. After `MAX_LOSSES` the rest is not read, as the reason of the last loss says.
        """
        with self._lock:
            is_last = len(self._losses) + 1 >= MAX_LOSSES
            if is_last and not loss.whole_document:
                ended = f"{MAX_LOSSES} extraction processes ended or hung on this document"
                loss = replace(loss, reason=f"{loss.reason}; what follows was not read, because {ended}")
            self._losses.append(loss)
            if loss.whole_document:
                self._given_up = True
            elif part.member is not None:
                part.add(Extraction("failed", loss.reason, loss.code, locator=part.member))
                self._given_up = self._given_up or is_last
            elif part.n_members or (part.asked is None and not part.pages):
                self._given_up = True  # it failed before the next member or the first page
            elif part.detected.kind not in ("text", "code"):  # their only page was read
                number = part.current_page
                # its text layer, if the first part deferred it for OCR
                layer = next((page for page in self._parts[0].lines() if page.page == number), None)
                part.add(_unread(layer, number, loss.reason, loss.code))
            return not (self._given_up or is_last or part.is_read)

    def end_part(self, part: _Part) -> list[_Part]:
        """End a part, and the document with the last one; return parts for the pages that it deferred for OCR."""
        with self._lock:
            waiting = part.deferred
            chunks = [waiting[at : at + OCR_PAGES_PER_PART] for at in range(0, len(waiting), OCR_PAGES_PER_PART)]
            self._left += len(chunks) - 1
            if not self._left and not self.future.done():
                outcome = self._finish()
                self._parts = []  # breaks the reference cycle, so that the document is freed
                self.future.set_result(outcome)
            return [self.part(tuple(chunk)) for chunk in chunks]

    def fail(self, error: BaseException) -> None:
        """Set an error of the pool as the future's exception, unless it is done."""
        with self._lock:
            if not self.future.done():
                self.future.set_exception(error)

    def _finish(self) -> Extraction:
        first = self._parts[0]
        if first.final_verdict is not None and len(self._parts) == 1 and not self._losses:
            return finish_document(first.file, self.job.out, first.final_verdict)  # the usual case
        verdicts = [part.verdict for part in self._parts if part.verdict is not None]
        # the verdict of a part gives the document's type, but not its status
        verdicts.sort(key=lambda verdict: (verdict is not first.final_verdict, verdict.status != "ok"))
        outcome = replace(verdicts[0] if verdicts else first.detected)
        if not first.n_members:
            failure = self._failure()
            pages = self._pages(failure)
            judge_pages(outcome, pages, self.job.options.ocr)
            if failure and (outcome.status != "ok" or not outcome.reason_code):
                outcome.status = "ok" if outcome.status == "ok" else "failed"
                outcome.reason_code, outcome.reason = failure.reason_code, failure.reason
            for part in self._parts[1:]:
                part.file.unlink()
            write_lines(first.file, pages)
        if self._losses and (self._given_up or not first.n_members):
            outcome.reason_code, outcome.reason = self._losses[-1].code, self._losses[-1].reason
            if self._given_up or outcome.status != "ok":
                outcome.status = "failed"
        return finish_document(first.file, self.job.out, outcome)

    def _pages(self, failure: Extraction | None) -> list[PageText]:
        """Return the pages in order; a deferred page that was never read has the reason as its error."""
        unread: tuple[str, ReasonCode] = ("not read by OCR", "")
        if failure is not None:
            unread = failure.reason, failure.reason_code
        elif self._losses:
            unread = self._losses[-1].reason, self._losses[-1].code
        pages = {page.page: page for part in self._parts for page in part.lines()}
        return [
            _unread(page, number, *unread) if page.method == "deferred" else page
            for number, page in sorted(pages.items())
        ]

    def _failure(self) -> Extraction | None:
        """Return the first verdict of a part that failed as a whole; damaged pages have their own errors."""
        for part in self._parts:
            verdict = part.verdict
            damaged = verdict and verdict.reason_code == "corrupt" and len(part.pages) + part.n_members > part.began
            if verdict and verdict.status == "failed" and not damaged:
                return verdict
        return None


def _unread(layer: PageText | None, number: int, error: str, code: ReasonCode) -> PageText:
    text, engine = (layer.text, layer.engine) if layer else ("", "")
    return PageText(number, text, "text" if text.strip() else "none", engine, error=error, error_code=code)


class _Worker:
    """One worker process and its folder for temporary files.

    Args:
        command: Its command line.
        parent_folder: Folder in which its folder is created.
        number: Number of the thread that owns it.
        stop: Descriptor that becomes readable when the pool is closed.
    """

    def __init__(self, command: Sequence[str], parent_folder: Path, number: int, stop: int) -> None:
        self.served = 0
        self._folder = Path(tempfile.mkdtemp(prefix=f"worker-{number}-", dir=parent_folder))
        self._log = self._folder / "stderr.log"
        environment = {
            "TMPDIR": str(self._folder),
            "OMP_THREAD_LIMIT": "1",  # several multi-threaded Tesseracts slow each other down
            "OPENBLAS_NUM_THREADS": "1",
            "MALLOC_ARENA_MAX": "2",  # each arena reserves address space, which the memory limit counts
        }
        try:
            with self._log.open("wb") as log:
                self._child = ChildProcess(command, environment, log, stop)
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise PoolError(f"an extraction process cannot be started with {command[0]}: {error}") from error
        self._wait_until_ready()
        self._first_bytes = self._child.resident_bytes()

    def _wait_until_ready(self) -> None:
        """Wait for the first message; a failed start is an error of the pool, not of a document."""
        try:
            self._child.receive(time.monotonic() + START_SECONDS)
            return
        except Stopped:
            problem = PoolError(_CLOSED)
        except (TimeoutError, ProtocolError) as error:
            problem = PoolError(f"an extraction process did not become ready: {error or 'it took too long'}")
        except ChildEnded:
            status = self._child.kill()
            log = self._log.read_bytes()[-2000:].decode("utf-8", "replace").strip() or "none"
            reason = f"could not start (exit status {status}); the end of its log: {log}"
            problem = PoolError(f"an extraction process {reason}")
            if status == -signal.SIGKILL:
                reason = f"was killed while it started, most likely because memory ran out; the end of its log: {log}"
                problem = StartKilledError(f"an extraction process {reason}")
        self.kill()
        raise problem

    def is_fit(self) -> bool:
        """Return True if the worker can take another document."""
        grown = self._child.resident_bytes() - self._first_bytes
        return self.served < DOCUMENTS_PER_WORKER and grown < GROWN_BYTES and self._child.is_alive()

    def run(self, part: _Part, limits: Limits) -> _Loss | None:
        """Extract the rest of a part and wait until it is done.

        Returns:
            None, or the loss if the process hangs or died; it must be killed then.

        Raises:
            PoolError: The pool is being closed, or the worker cannot write.
        """
        self.served += 1
        self._child.send(part.request(limits))
        document_end = time.monotonic() + limits.document_seconds
        while part.verdict is None:
            page_end = time.monotonic() + limits.page_seconds
            try:
                messages = self._child.receive(min(page_end, document_end))
            except Stopped:
                raise PoolError(_CLOSED) from None
            except TimeoutError:
                return _overdue(part.where, limits, whole_document=page_end > document_end)
            except ProtocolError as error:
                return _Loss("crashed", f"the extraction process sent something unreadable on {part.where}: {error}")
            except ChildEnded:
                return _death(self._child.kill(), part.where)
            for message in messages:
                part.take(message)
                if "member" in message:  # a member of a container is a document with its own deadline
                    document_end = time.monotonic() + limits.document_seconds
        if part.verdict.reason_code == "memory":
            loss, part.verdict = _Loss("memory", part.verdict.reason), None
            return loss
        return None

    def kill(self) -> None:
        """Kill the process group and remove the temporary files."""
        self._child.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


def _overdue(where: str, limits: Limits, whole_document: bool) -> _Loss:
    if whole_document:
        most = f"{limits.document_seconds:g} s (limits.document_seconds)"
        reason = f"the document took more than {most}; it was on {where}"
        return _Loss("timeout", reason, whole_document=True)
    return _Loss("timeout", f"{where} took more than {limits.page_seconds:g} s (limits.page_seconds)")


def _death(status: int, where: str) -> _Loss:
    if status == -signal.SIGKILL:
        return _Loss("memory", f"the extraction process was killed on {where}, most likely because memory ran out")
    cause = f"signal {-status}" if status < 0 else f"exit status {status}"
    if status == -signal.SIGABRT:
        cause += ", as libraries end that get no more memory; see limits.memory_bytes"
    return _Loss("crashed", f"the extraction process died ({cause}) on {where}")


class ExtractionPool:
    """Thread-safe pool of worker processes that extract documents.

    Args:
        workers: Number of processes; they start on demand.
        limits: Deadlines and memory limit of one document.
        command: The worker's command line.
    """

    def __init__(self, workers: int, limits: Limits | None = None, command: Sequence[str] = WORKER_COMMAND) -> None:
        if workers < 1:
            raise ValueError(f"workers is {workers}; at least 1 is needed")
        self._limits = limits or Limits()
        self._command = list(command)
        self._queue: queue.PriorityQueue[tuple[int, int, _Part | None]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._closed = False
        self._stop_read, self._stop_write = os.pipe()  # becomes readable when the pool is closed
        self._folder = tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX)
        self._threads = [
            threading.Thread(target=self._serve, args=(number,), name=f"extract-{number}", daemon=True)
            for number in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: ExtractJob) -> Future[Extraction]:
        """Queue a document.

        Returns:
            The future outcome, without pages and members, which are in the journal by then. A document that hangs,
            crashes or is damaged has an outcome, not an exception.

        Raises:
            PoolError: The pool is closed.
        """
        document = _Document(job)
        with self._lock:
            if self._closed:
                raise PoolError("the extraction pool is closed and takes no documents")
            self._queue.put((_NEW, next(self._numbers), document.part()))
        return document.future

    def close(self) -> None:
        """Cancel queued documents, kill running ones, whose futures raise `PoolError`, and remove temporary files."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for _ in self._threads:
                self._queue.put((_END, next(self._numbers), None))
        os.close(self._stop_write)  # wakes all threads, which kill their workers
        for thread in self._threads:
            thread.join()
        os.close(self._stop_read)
        with contextlib.suppress(OSError):
            self._folder.cleanup()

    def _serve(self, number: int) -> None:
        """Run parts of documents in one thread until the end of the queue."""
        worker: _Worker | None = None
        try:
            while True:
                priority, _, part = self._queue.get()
                if part is None:
                    return
                future = part.document.future
                if select.select([self._stop_read], [], [], 0)[0]:
                    if not future.cancel():
                        part.document.fail(PoolError(_CLOSED))
                elif priority == _REST or future.set_running_or_notify_cancel():
                    worker = self._run(part, worker, number)
                del part, future  # frees the document during the wait for the next one
        finally:
            if worker:
                worker.kill()

    def _run(self, part: _Part, worker: _Worker | None, number: int) -> _Worker | None:
        """Run a part and queue the pages that it deferred; return the worker for the next part, if it is fit."""
        document = part.document
        try:
            while True:
                worker = worker or self._start(number)
                fresh = not worker.served
                loss = worker.run(part, self._limits)
                if loss is None:
                    break
                worker.kill()
                worker = None
                os.truncate(part.file, part.end)
                # an earlier document may have damaged the process: only the loss of a fresh worker counts, so that an
                # outcome does not depend on other documents
                final = fresh or loss.code == "timeout"
                if part.is_read or (final and not document.lose(part, loss)):
                    break
            for rest in document.end_part(part):
                self._queue.put((_REST, next(self._numbers), rest))
        except Exception as error:  # noqa: BLE001 - the future must be resolved by any error
            if worker:
                worker.kill()
            document.fail(error)
            return None
        if worker and not worker.is_fit():
            worker.kill()
            return None
        return worker

    def _start(self, number: int) -> _Worker:
        """Start a worker; one that is killed before it is ready, as for lack of memory, is replaced."""
        for _ in range(STARTS - 1):
            with contextlib.suppress(StartKilledError):
                return _Worker(self._command, Path(self._folder.name), number, self._stop_read)
        return _Worker(self._command, Path(self._folder.name), number, self._stop_read)
