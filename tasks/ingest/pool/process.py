"""One extraction process as its parent sees it: started, given parts of documents, listened to with deadlines, killed.

What comes back is a `PartResult`: the pages that arrived, and either the worker's own verdict or the reason why the
process was lost; members of a container go to their document at once. Losing a process is an everyday result here, not
an exception.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.ingest.pool.messages import MessageReader, ProtocolError, write_ascii_message
from tasks.ingest.pool.parts import Part, PartResult, ProcessLoss
from tasks.readers.records import BELL, Extraction, Limits, PageText

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
START_SECONDS = 120.0  # Importing takes half a second; a machine that swaps may take a hundred times as long.
# Waking up for every page takes the processes time that they read in: of a document with many, a few come together.
GATHER_SECONDS = 0.01
GATHERED_AFTER = 4  # pages


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
        self._stop = stop
        self._folder = Path(tempfile.mkdtemp(prefix=f"worker-{number}-", dir=parent_folder))
        self._log = self._folder / "stderr.log"
        ringing, bell = os.pipe()
        os.set_blocking(ringing, False)
        self._bell = open(ringing, "rb", buffering=0)  # noqa: SIM115, PTH123 - closed with the process
        try:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env={**_environment(self._folder), BELL: str(bell)},
                    pass_fds=(bell,),
                    # A process group of its own can be killed whole, and a terminal's Ctrl-C does not reach
                    # it.
                    start_new_session=True,
                    bufsize=0,
                )
        except OSError as error:
            self._bell.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise PoolError(f"no extraction process can be started with {command[0]}: {error}") from error
        finally:
            os.close(bell)
        assert self._process.stdin and self._process.stdout
        self._jobs, self._results = self._process.stdin, self._process.stdout
        self._reader = MessageReader(self._results.fileno())
        self._poll = select.poll()
        self._poll.register(self._results, select.POLLIN)
        self._poll.register(stop, select.POLLIN)
        self._end_of_gathering = select.poll()
        self._end_of_gathering.register(self._bell, select.POLLIN)
        self._end_of_gathering.register(stop, select.POLLIN)
        self._wait_until_ready()
        self._first_bytes = self._resident_bytes()

    @property
    def is_fresh(self) -> bool:
        """Whether it has had no work yet, so that nothing earlier can have damaged it."""
        return self.served == 0

    def is_alive(self) -> bool:
        """Whether the process still runs."""
        # Not reaped here: as long as it is not, its number, and so its group's, belongs to nobody else.
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def grown_bytes(self) -> int:
        """Resident memory that it has gained since it was ready; 0 where nobody can tell."""
        return self._resident_bytes() - self._first_bytes

    def _resident_bytes(self) -> int:
        try:
            statm = Path(f"/proc/{self._process.pid}/statm").read_text("ascii")
        except OSError:
            return 0
        return int(statm.split()[1]) * _PAGE_BYTES

    def run(self, part: Part, limits: Limits) -> PartResult:
        """Hand over a part of a document and collect what comes back.

        A result with a `loss` means that the process hangs or died: it must be killed.

        Raises:
            PoolError: The pool is being closed.
        """
        self.served += 1
        result = PartResult()
        with contextlib.suppress(BrokenPipeError):  # A dead process is noticed where its answer is read.
            write_ascii_message(self._jobs.fileno(), part.message(limits))
        document_end = time.monotonic() + limits.document_seconds
        while result.done is None and result.loss is None:
            page_end = time.monotonic() + limits.page_seconds
            try:
                messages = self._next_messages(min(page_end, document_end))
            except TimeoutError:
                result.loss = _overdue(part.where(result), limits, whole_document=page_end > document_end)
                break
            except ProtocolError as error:
                what = f"the extraction process sent something unreadable on {part.where(result)}: {error}"
                result.loss = ProcessLoss("crashed", what)
                break
            if messages is None:
                result.loss = self._died(part.where(result))
                break
            for message in messages:
                if _take(message, part, result):
                    # Each member of a container is a document, with a document's time.
                    document_end = time.monotonic() + limits.document_seconds
            if len(result.pages) >= GATHERED_AFTER and "page" in messages[-1]:
                self._end_of_gathering.poll(GATHER_SECONDS * 1000)
        self._bell.read(1)
        return result

    def kill(self) -> None:
        """Kill the process with everything it started, and remove its temporary files."""
        # Before it is reaped; see is_alive.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._jobs.close()
        self._results.close()
        self._bell.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait_until_ready(self) -> None:
        """Wait for the first message; a worker that cannot start is no document's fault."""
        try:
            messages = self._next_messages(time.monotonic() + START_SECONDS)
        except (TimeoutError, ProtocolError, PoolError) as error:
            self.kill()
            if isinstance(error, PoolError):
                raise
            raise PoolError(f"an extraction process did not become ready: {error or 'it took too long'}") from None
        if messages is None:
            log = self._log.read_bytes()[-2000:].decode("utf-8", "replace").strip() or "none"
            self.kill()
            status = self._process.returncode
            if status == -signal.SIGKILL:
                reason = f"most likely because memory ran out; its last words: {log}"
                raise StartKilledError(f"an extraction process was killed while it started, {reason}")
            raise PoolError(f"an extraction process could not start (exit status {status}); its last words: {log}")

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

    def _died(self, where: str) -> ProcessLoss:
        # The rest of its group goes first; the leader's own exit status is settled by now.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        status = self._process.wait()
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


def _environment(folder: Path) -> dict[str, str]:
    """The worker's environment: its own folder for temporary files, one thread per OCR process."""
    environment = {
        **os.environ,
        "TMPDIR": str(folder),
        "OMP_THREAD_LIMIT": "1",
        "MALLOC_ARENA_MAX": "2",  # Each arena reserves address space, which the memory limit counts.
    }
    root = str(Path(__file__).resolve().parents[3])
    if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        # Run from a source tree. The current folder is never searched (-P): a folder of documents may hold a
        # json.py.
        inherited = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = root + (os.pathsep + inherited if inherited else "")
    return environment
