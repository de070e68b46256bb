"""A pool of extraction processes that may hang, crash or swell without harm.

Each thread of the pool owns one worker process (`tasks.ingest.worker`) and waits for its reports with a deadline. A
worker that misses it, dies or grows too large is killed with everything it started; the page or member that it was on
gets a reason, and the rest of the document a fresh worker. Text never passes through a pipe: workers write pages and
members to files (`tasks.ingest.journal`), of which those that were reported count. `concurrent.futures` has none of
this: there a process that dies breaks the whole pool, and one that hangs cannot be killed.
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
OCR_PAGES_PER_PART = 4  # Some 10 s of work: enough to be worth opening a document for, little enough to share evenly.
# Processes that one document may end or hang. Each costs a new process and up to `limits.page_seconds`, so a file that
# was built to end one at every page or member holds a worker for 50 deadlines at most.
MAX_LOSSES = 50
# Then a fresh worker: native libraries leak, and fragment their heaps. Starting one costs as much as hundreds of small
# files, so growth decides, and the number only bounds what growth does not show.
DOCUMENTS_PER_WORKER = 5000
GROWN_BYTES = 256 * 1024**2
STARTS = 3  # of which the last one's failure ends the run
START_SECONDS = 120.0  # Importing takes half a second; a machine that swaps may take a hundred times as long.
_CLOSED = "the extraction pool was closed before this document was done"

# Parts of documents in work come before new documents, and the end after both.
_REST, _NEW, _END = range(3)


class PoolError(RuntimeError):
    """Raised when the pool itself fails: no worker can be started or write, or the pool is closed."""


class StartKilledError(PoolError):
    """Raised when a process is killed while it starts: another one may fare better."""


@dataclass(frozen=True, slots=True)
class ExtractJob:
    """A document to extract.

    Attributes:
        path: The file.
        sha256: The digest that its bytes must have; if they do not, the outcome is "changed".
        suffix: The suffix with the dot, or "".
        out: Where the finished document goes (see `tasks.ingest.journal.read_document`).
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
    """A lost process; `whole_document` if it missed the document's deadline, after which no more is tried."""

    code: ReasonCode
    reason: str
    whole_document: bool = False


@dataclass(slots=True, eq=False)
class _Part:
    """Pages or members of a document that are read one after the other, by a fresh process where one is lost.

    Attributes:
        file: Where they go, a line each; what follows the first `end` bytes was not reported.
        asked: Only these pages, which were put off for OCR; None for all of the document.
        pages: Numbers of the pages that were read or lost.
        deferred: Those of them that other processes are to read by OCR.
        n_members: Number of members of a container that were read or lost.
        member: Locator of the member in work, if any.
        began: Number of lines when the latest process began.
        detected: Type of the document, in case there is no verdict.
        verdict: The process's own outcome, without pages and members.
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
    def page_in_work(self) -> int:
        if self.asked is not None:
            return self.asked[min(len(self.pages), len(self.asked) - 1)]
        return self.pages[-1] + 1 if self.pages else 1

    @property
    def where(self) -> str:
        return f"page {self.page_in_work}" if self.member is None else f"member {self.member!r}"

    @property
    def is_read(self) -> bool:
        return self.asked is not None and len(self.pages) == len(self.asked)

    @property
    def final_verdict(self) -> Extraction | None:
        """The verdict, if it is one on the whole document: a container's process goes through all members."""
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
        """Note what the process reports."""
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
            raise PoolError(f"an extraction process cannot write what it read: {message['broken']}")

    def add(self, item: PageText | Extraction) -> None:
        """Write the line of a page or member that was lost."""
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
    """Joins the parts of a document, which several threads work on, into one finished document.

    A document is usually one part. It is divided where many of its pages need OCR, so that all processes share them.
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
        """Return another part, with a file of its own."""
        file = part_file(self.job.out, len(self._parts))
        file.touch()  # a process may be dead before it opens its file
        self._parts.append(_Part(self, file, asked))
        return self._parts[-1]

    def lose(self, part: _Part, loss: _Loss) -> bool:
        """Record a lost process against its page or member; return whether something is left to try.

        Pages that were read stay. After `MAX_LOSSES` no more is tried, and the last lost page or the container says so.
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
                self._given_up = True  # The way to the next member or to the first page is the trouble.
            elif part.detected.kind not in ("text", "code"):  # of which the one page was read, and no other is lost
                number = part.page_in_work
                # as the first part put it off for OCR, if that it was
                layer = next((page for page in self._parts[0].lines() if page.page == number), None)
                part.add(_unread(layer, number, loss.reason, loss.code))
            return not (self._given_up or is_last or part.is_read)

    def end_part(self, part: _Part) -> list[_Part]:
        """End a part; the last one finishes the document. Returns parts for the pages that it put off for OCR."""
        with self._lock:
            waiting = part.deferred
            chunks = [waiting[at : at + OCR_PAGES_PER_PART] for at in range(0, len(waiting), OCR_PAGES_PER_PART)]
            self._left += len(chunks) - 1
            if not self._left and not self.future.done():
                outcome = self._finish()
                self._parts = []  # they lead back here, and a document is to be gone with its last reference
                self.future.set_result(outcome)
            return [self.part(tuple(chunk)) for chunk in chunks]

    def fail(self, error: BaseException) -> None:
        """Pass an error of the pool to the future; only the first one counts."""
        with self._lock:
            if not self.future.done():
                self.future.set_exception(error)

    def _finish(self) -> Extraction:
        first = self._parts[0]
        if first.final_verdict is not None and len(self._parts) == 1 and not self._losses:
            return finish_document(first.file, self.job.out, first.final_verdict)  # as nearly all documents end
        verdicts = [part.verdict for part in self._parts if part.verdict is not None]
        # That of a part holds for the document's type, but not for its status.
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
        """The pages in order; one that was put off and never read has the reason."""
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
        """The first verdict that is a failure of its part; damaged pages carry their own errors."""
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
        parent_folder: Where its folder is made.
        number: Of the pool's thread that owns it.
        stop: A descriptor that becomes readable when everything must end.
    """

    def __init__(self, command: Sequence[str], parent_folder: Path, number: int, stop: int) -> None:
        self.served = 0
        self._folder = Path(tempfile.mkdtemp(prefix=f"worker-{number}-", dir=parent_folder))
        self._log = self._folder / "stderr.log"
        environment = {
            "TMPDIR": str(self._folder),
            "OMP_THREAD_LIMIT": "1",  # Several Tesseracts with threads of their own slow each other down.
            "MALLOC_ARENA_MAX": "2",  # Each arena reserves address space, which the memory limit counts.
        }
        try:
            with self._log.open("wb") as log:
                self._child = ChildProcess(command, environment, log, stop)
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise PoolError(f"no extraction process can be started with {command[0]}: {error}") from error
        self._wait_until_ready()
        self._first_bytes = self._child.resident_bytes()

    def _wait_until_ready(self) -> None:
        """Wait for the first message; a worker that cannot start is no document's fault."""
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
            reason = f"could not start (exit status {status}); its last words: {log}"
            problem = PoolError(f"an extraction process {reason}")
            if status == -signal.SIGKILL:
                reason = f"was killed while it started, most likely because memory ran out; its last words: {log}"
                problem = StartKilledError(f"an extraction process {reason}")
        self.kill()
        raise problem

    def is_fit(self) -> bool:
        """Return True if it may serve another document."""
        grown = self._child.resident_bytes() - self._first_bytes
        return self.served < DOCUMENTS_PER_WORKER and grown < GROWN_BYTES and self._child.is_alive()

    def run(self, part: _Part, limits: Limits) -> _Loss | None:
        """Hand over what is left of a part and wait until it is done.

        Returns:
            None, or why the process, which hangs or died, is lost: it must be killed.

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
                if "member" in message:  # each member of a container is a document, with a document's time
                    document_end = time.monotonic() + limits.document_seconds
        if part.verdict.reason_code == "memory":
            loss, part.verdict = _Loss("memory", part.verdict.reason), None
            return loss
        return None

    def kill(self) -> None:
        """Kill the process with everything it started, and remove its temporary files."""
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
    """Extract documents in worker processes; for use by several threads at once.

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
        self._queue: queue.PriorityQueue[tuple[int, int, _Part | None]] = queue.PriorityQueue()
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

    def submit(self, job: ExtractJob) -> Future[Extraction]:
        """Queue a document.

        Returns:
            The outcome to come, without pages and members: those are in the journal by then. A document that hangs,
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
        """End the pool: cancel what is queued, kill what is running, whose futures raise `PoolError`.

        Afterwards no process and no temporary file is left.
        """
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
        """The life of one thread: parts of documents one after another, each by a worker that is fit for it."""
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
                del part, future  # The wait for the next one may be long, and this document large.
        finally:
            if worker:
                worker.kill()

    def _run(self, part: _Part, worker: _Worker | None, number: int) -> _Worker | None:
        """Carry out a part and leave pages to others; return the worker for the next part, if it is fit."""
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
                # An earlier document may have left the process damaged: only a fresh worker's word is final, so that
                # an outcome does not depend on a document's neighbours.
                final = fresh or loss.code == "timeout"
                if part.is_read or (final and not document.lose(part, loss)):
                    break
            for rest in document.end_part(part):
                self._queue.put((_REST, next(self._numbers), rest))
        except Exception as error:  # noqa: BLE001 - whatever it is, whoever waits for the future must get it
            if worker:
                worker.kill()
            document.fail(error)
            return None
        if worker and not worker.is_fit():
            worker.kill()
            return None
        return worker

    def _start(self, number: int) -> _Worker:
        """A fresh worker; one that is killed before it is ready, as a machine short of memory does, is replaced."""
        for _ in range(STARTS - 1):
            with contextlib.suppress(StartKilledError):
                return _Worker(self._command, Path(self._folder.name), number, self._stop_read)
        return _Worker(self._command, Path(self._folder.name), number, self._stop_read)
