"""Pure work on tables in processes of their own, so that several run on several cores and give their memory back.

The functions take folders and settings and return counts and a digest, all of which JSON knows; tables travel through
the file system. Work is done in place until it adds up to what a process is worth, which takes up to a second to
start and to build its tables: so a small corpus starts none, and a large one fills this process with little.

    python -m tasks.apart      serves calls: messages in, progress messages and results out
"""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from storage.errors import UserError
from tasks.ingest.pool.child import take_requests
from tasks.ingest.pool.messages import MessageReader, write_ascii_message

WORTH_A_PROCESS = 2**23  # bytes of tables, unpacked, over all calls; less is done sooner than a process has started
GROWN_BYTES = 2**28  # then the next call has a fresh process: what one leaves behind is added to what another needs
LARGE_BYTES = 2**26  # such a call has a fresh process, too: it needs memory of its own beside what others left
TABLE_BYTES_PER_FILE = 500  # of the tables over a whole corpus, unpacked, about

Progress = Callable[[int, int], None]


class ApartError(RuntimeError):
    """The process of a call failed; the message holds its traceback."""


class _DiedError(ApartError):
    """The process of a call ended without an answer."""


class Apart:
    """Runs calls, so many at once; the processes are kept for further ones unless they have grown large.

    A call whose process dies is made once more, in a fresh one: the functions are pure and write whole files, so the
    second time leads where the first would have. `progress` then starts anew.

    Args:
        processes: how many.
    """

    def __init__(self, processes: int) -> None:
        self._slots = threading.BoundedSemaphore(processes)
        self._idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()
        self._warming: threading.Thread | None = None
        self._lock = threading.Lock()
        self._in_place = 0  # bytes that were read in this process

    def warm(self, function: Callable[..., Any]) -> None:
        """Start a process and let it get ready by calling a module-level function, while the caller does other work.

        Args:
            function: takes `progress` only, and loads what later calls will need. Its failure is left to them.
        """
        self._warming = threading.Thread(target=self._warm, args=(function,), daemon=True)
        self._warming.start()

    def _warm(self, function: Callable[..., Any]) -> None:
        with self._slots, contextlib.suppress(ApartError, UserError):
            self._call(_Process(), function, lambda done, total: None, {})

    def call(self, function: Callable[..., Any], progress: Progress, size: int, **arguments: Any) -> Any:
        """Call a module-level function with `progress` and the arguments, in a process if they are worth one by now.

        Args:
            size: bytes that it will read.

        Raises:
            ApartError: if it fails there, or its process dies twice.
        """
        if self._warming is not None:
            self._warming.join()  # what it has done by now would have to be done again
            self._warming = None
        if self._may_stay(size):
            return function(progress=progress, **arguments)
        with self._slots:
            try:
                kept = None if size >= LARGE_BYTES else self._living()
                return self._call(kept or _Process(), function, progress, arguments)
            except _DiedError:
                return self._call(_Process(), function, progress, arguments)

    def _may_stay(self, size: int) -> bool:
        """Whether a call is made in place; counts it."""
        with self._lock:
            if self._in_place + size >= WORTH_A_PROCESS or not self._idle.empty():
                return False
            self._in_place += size
            return True

    def _living(self) -> _Process | None:
        """A process without work, if there is one; those that died meanwhile are put away."""
        with contextlib.suppress(queue.Empty):
            while True:
                process = self._idle.get_nowait()
                if process.is_alive():
                    return process
                process.close()
        return None

    def _call(
        self, process: _Process, function: Callable[..., Any], progress: Progress, arguments: dict[str, Any]
    ) -> Any:
        """The result from that process, which is kept only if there is one."""
        try:
            result = process.call(function, progress, arguments)
        except BaseException:
            process.close()
            raise
        if process.resident_bytes() > GROWN_BYTES:
            process.close()
        else:
            self._idle.put(process)
        return result

    def close(self) -> None:
        """End the processes; none of them must be at work."""
        if self._warming is not None:
            self._warming.join()
        with contextlib.suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()


class _Process:
    """One process that serves calls."""

    def __init__(self) -> None:
        root = str(Path(__file__).resolve().parents[1])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tasks.apart"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            bufsize=0,
            start_new_session=True,  # a terminal's Ctrl-C reaches the parent alone
        )
        assert self._process.stdin and self._process.stdout
        self._requests, self._results = self._process.stdin, self._process.stdout
        self._reader = MessageReader(self._results.fileno())

    def resident_bytes(self) -> int:
        """Memory that it takes up; 0 where the system does not say."""
        try:
            pages = Path(f"/proc/{self._process.pid}/statm").read_text(encoding="ascii").split()[1]
        except OSError:
            return 0
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def is_alive(self) -> bool:
        """Whether it can serve a call."""
        return self._process.poll() is None

    def call(self, function: Callable[..., Any], progress: Progress, arguments: dict[str, Any]) -> Any:
        """The function's result.

        Raises:
            ApartError: if it fails, or the process dies.
            UserError: if it raises one.
        """
        request = {"module": function.__module__, "function": function.__qualname__, "arguments": arguments}
        with contextlib.suppress(BrokenPipeError):  # a dead process is noticed where its answer is read
            write_ascii_message(self._requests.fileno(), request)
        while (messages := self._reader.read_available()) is not None:
            for message in messages:
                if "progress" in message:
                    progress(*message["progress"])
                elif "user_error" in message:
                    raise UserError(message["user_error"])
                elif "error" in message:
                    raise ApartError(f"{function.__qualname__} failed:\n{message['error']}")
                else:
                    return message["result"]
        status = self._process.wait()
        raise _DiedError(
            f"the process of {function.__qualname__} ended with status {status} and no result; was its memory short?"
        )

    def close(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.wait()
        self._requests.close()
        self._results.close()


def main() -> None:
    """Serves calls until standard input ends."""
    sys.meta_path.insert(0, _WithoutPandas())
    results = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not get between the messages
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=take_requests, args=(requests,), daemon=True).start()  # ends with the parent

    def progress(done: int, total: int) -> None:
        write_ascii_message(results, {"progress": [done, total]})

    while True:
        request = requests.get()
        try:
            function = getattr(importlib.import_module(request["module"]), request["function"])
            answer = {"result": function(progress=progress, **request["arguments"])}
        except UserError as error:
            answer = {"user_error": str(error)}
        except Exception:  # noqa: BLE001 - the parent raises it
            answer = {"error": traceback.format_exc()}
        write_ascii_message(results, answer)


class _WithoutPandas:
    """Keeps pandas out: Arrow looks for it at the first array, which takes half a second and 50 MB for nothing."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Refuses pandas, and finds nothing else."""
        if fullname == "pandas":
            raise ModuleNotFoundError("tables are made without pandas here", name=fullname)


if __name__ == "__main__":
    main()
