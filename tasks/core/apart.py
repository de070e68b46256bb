"""Run pure table functions in subprocesses, to use several cores and to return memory to the operating system.

The functions take folders and settings and return counts and a digest as JSON; tables travel through the file system.
Calls are made in this process until they add up to what a subprocess is worth, which takes up to a second to start.

    python -m tasks.core.apart      serves calls: requests in, progress and results out
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
from storage.without_pandas import WithoutPandas
from tasks.core.child import ChildEnded, ChildProcess, module_command, serve

WORTH_A_PROCESS = 2**23  # bytes of tables, unpacked, over all calls; less is done sooner than a process has started
LARGE_BYTES = 2**26  # a call that reads so much ends its process, whose memory has grown
TABLE_BYTES_PER_FILE = 500  # of the tables over a whole corpus, unpacked, about

Progress = Callable[[int, int], None]


class ApartError(RuntimeError):
    """The process of a call failed; the message holds its traceback."""


class _DiedError(ApartError):
    """The process of a call ended without an answer."""


class Apart:
    """Subprocesses for calls, kept for further ones.

    A call whose process dies is made once more, in a fresh one: the functions are pure and write whole files.

    Args:
        processes: Calls at once.
    """

    def __init__(self, processes: int) -> None:
        self._slots = threading.BoundedSemaphore(processes)
        self._idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._in_place = 0  # bytes that were read in this process

    def call(self, function: Callable[..., Any], progress: Progress, size: int, **arguments: Any) -> Any:
        """Call a module-level function with `progress` and the arguments, in a subprocess if they are worth one by now.

        Args:
            size: Bytes that it will read.

        Raises:
            ApartError: if it fails there, or its process dies twice.
            UserError: if it raises one.
        """
        with self._lock:
            in_place = self._in_place + size < WORTH_A_PROCESS
            self._in_place += size if in_place else 0
        if in_place:
            return function(progress=progress, **arguments)
        with self._slots:
            try:
                return self._call(self._kept() or _Process(), size, function, progress, arguments)
            except _DiedError:
                return self._call(_Process(), size, function, progress, arguments)

    def _kept(self) -> _Process | None:
        with contextlib.suppress(queue.Empty):
            return self._idle.get_nowait()
        return None

    def _call(self, process: _Process, size: int, *call: Any) -> Any:
        try:
            result = process.call(*call)
        except BaseException:
            process.close()
            raise
        if size >= LARGE_BYTES:
            process.close()
        else:
            self._idle.put(process)
        return result

    def close(self) -> None:
        """End the processes; none of them must be at work."""
        while kept := self._kept():
            kept.close()


class _Process:
    """One process that serves calls."""

    def __init__(self) -> None:
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tasks.core.apart"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            bufsize=0,
            start_new_session=True,  # a terminal's Ctrl-C reaches the parent alone
        )
        assert self._process.stdin and self._process.stdout
        self._requests, self._results = self._process.stdin, self._process.stdout
        self._reader = MessageReader(self._results.fileno())

    def call(self, function: Callable[..., Any], progress: Progress, arguments: dict[str, Any]) -> Any:
        """Return the function's result."""
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
    """Serve calls until standard input ends."""
    sys.meta_path.insert(0, WithoutPandas())
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


if __name__ == "__main__":
    main()
