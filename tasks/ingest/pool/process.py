"""One extraction process as its parent sees it: started, given parts of documents, listened to with deadlines, killed.

What comes back is a `PartResult`: the pages that arrived, and either the worker's own verdict or the reason why the
process was lost; members of a container go to their document at once. Losing a process is an everyday result here, not
an exception.
"""

from __future__ import annotations

import dataclasses
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.core.child import ChildEnded, ChildProcess, ProtocolError, Stopped
from tasks.ingest.pool.parts import Part, PartResult, ProcessLoss
from tasks.readers.records import Extraction, Limits, PageText

CLOSED = "the extraction pool was closed before this document was done"
START_SECONDS = 120.0  # Importing takes half a second; a machine that swaps may take a hundred times as long.


class PoolError(RuntimeError):
    """Raised when the pool itself fails: no worker can be started, or the pool is closed."""


class StartKilledError(PoolError):
    """Raised when a process is killed while it starts: another one may fare better."""


class WorkerProcess:
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
            "OMP_THREAD_LIMIT": "1",
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

    @property
    def is_fresh(self) -> bool:
        """Whether it has had no work yet, so that nothing earlier can have damaged it."""
        return self.served == 0

    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return self._child.is_alive()

    def grown_bytes(self) -> int:
        """Resident memory that it has gained since it was ready."""
        return self._child.resident_bytes() - self._first_bytes

    def run(self, part: Part, limits: Limits) -> PartResult:
        """Hand over a part of a document and collect what comes back.

        A result with a `loss` means that the process hangs or died: it must be killed.

        Raises:
            PoolError: The pool is being closed.
        """
        self.served += 1
        result = PartResult()
        self._child.send(part.message(limits))
        document_end = time.monotonic() + limits.document_seconds
        while result.done is None and result.loss is None:
            page_end = time.monotonic() + limits.page_seconds
            try:
                messages = self._child.receive(min(page_end, document_end))
            except Stopped:
                raise PoolError(CLOSED) from None
            except TimeoutError:
                result.loss = _overdue(part.where(result), limits, whole_document=page_end > document_end)
                break
            except ProtocolError as error:
                what = f"the extraction process sent something unreadable on {part.where(result)}: {error}"
                result.loss = ProcessLoss("crashed", what)
                break
            except ChildEnded:
                result.loss = self._died(part.where(result))
                break
            for message in messages:
                if _take(message, part, result):
                    # Each member of a container is a document, with a document's time.
                    document_end = time.monotonic() + limits.document_seconds
        return result

    def kill(self) -> None:
        """Kill the process with everything it started, and remove its temporary files."""
        self._child.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait_until_ready(self) -> None:
        """Wait for the first message; a worker that cannot start is no document's fault."""
        try:
            self._child.receive(time.monotonic() + START_SECONDS)
            return
        except Stopped:
            problem = PoolError(CLOSED)
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

    def _died(self, where: str) -> ProcessLoss:
        status = self._child.kill()
        if status == -signal.SIGKILL:
            reason = f"the extraction process was killed on {where}, most likely because memory ran out"
            return ProcessLoss("memory", reason)
        cause = f"signal {-status}" if status < 0 else f"exit status {status}"
        if status == -signal.SIGABRT:
            cause += ", as libraries end that get no more memory; see limits.memory_bytes"
        return ProcessLoss("crashed", f"the extraction process died ({cause}) on {where}")


def _take(message: dict[str, Any], part: Part, result: PartResult) -> bool:
    """Add one message to the document or to the result; return whether a member of a container begins."""
    if "page" in message:
        result.pages.append(PageText.from_dict(message["page"]))
    elif "member" in message:
        result.member = message["member"]
        return True
    elif "member_done" in message:
        part.document.take_member(Extraction.from_dict(message["member_done"]))
        result.n_members += 1
        result.member = None
    elif "detected" in message:
        result.detected = dataclasses.replace(result.detected, **message["detected"])
    elif "done" in message:
        done = Extraction.from_dict(message["done"])
        if done.reason_code == "memory":
            result.loss = ProcessLoss("memory", done.reason)
        else:
            result.done = done
    return False


def _overdue(where: str, limits: Limits, whole_document: bool) -> ProcessLoss:
    if whole_document:
        most = f"{limits.document_seconds:g} s (limits.document_seconds)"
        reason = f"the document took more than {most}; it was on {where}"
        return ProcessLoss("timeout", reason, whole_document=True)
    return ProcessLoss("timeout", f"{where} took more than {limits.page_seconds:g} s (limits.page_seconds)")
