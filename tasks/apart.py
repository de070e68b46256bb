"""Pure work on tables in a process of its own, so that several run on several cores and give their memory back.

The functions take folders and settings and return counts and a digest, all of which JSON knows; tables travel through
the file system. Little work is done in place, because a process takes half a second to start.

    python -m tasks.apart      serves one call: a message in, progress messages and the result out
"""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasks.ingest.messages import MessageReader, ProtocolError, write_ascii_message

WORTH_A_PROCESS = 4 * 2**20  # bytes of tables to read; less is done sooner than a process has started

Progress = Callable[[int, int], None]


class ApartError(RuntimeError):
    """The process of a call failed; the message holds its traceback."""


class Apart:
    """Runs calls, so many at once.

    Args:
        processes: how many.
    """

    def __init__(self, processes: int) -> None:
        self._slots = threading.BoundedSemaphore(processes)

    def call(self, function: Callable[..., Any], progress: Progress, size: int, **arguments: Any) -> Any:
        """Call a module-level function with `progress` and the arguments, in a process if it is worth one.

        Args:
            size: bytes that it will read.

        Raises:
            ApartError: if it fails there.
        """
        if size < WORTH_A_PROCESS:
            return function(progress=progress, **arguments)
        with self._slots:
            return _call(function, progress, arguments)


def _call(function: Callable[..., Any], progress: Progress, arguments: dict[str, Any]) -> Any:
    command = [sys.executable, "-P", "-m", "tasks.apart"]
    root = str(Path(__file__).resolve().parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, bufsize=0, start_new_session=True
    ) as process:
        assert process.stdin and process.stdout
        try:
            with contextlib.suppress(BrokenPipeError):  # a dead process is noticed where its answer is read
                request = {"module": function.__module__, "function": function.__qualname__, "arguments": arguments}
                write_ascii_message(process.stdin.fileno(), request)
            return _answer(MessageReader(process.stdout.fileno()), progress, process, function.__qualname__)
        finally:
            process.kill()


def _answer(reader: MessageReader, progress: Progress, process: subprocess.Popen[bytes], name: str) -> Any:
    while (messages := reader.read_available()) is not None:
        for message in messages:
            if "progress" in message:
                progress(*message["progress"])
            elif "error" in message:
                raise ApartError(f"{name} failed:\n{message['error']}")
            else:
                return message["result"]
    raise ApartError(f"the process of {name} ended with status {process.wait()} and no result; was its memory short?")


def main() -> None:
    """Serves one call."""
    results = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not get between the messages
    reader = MessageReader(0)
    request = _request(reader)
    threading.Thread(target=_die_with_parent, args=(reader,), daemon=True).start()
    try:
        function = getattr(importlib.import_module(request["module"]), request["function"])
        result = function(
            progress=lambda done, total: write_ascii_message(results, {"progress": [done, total]}),
            **request["arguments"],
        )
    except Exception:  # noqa: BLE001 - the parent raises it
        write_ascii_message(results, {"error": traceback.format_exc()})
        return
    write_ascii_message(results, {"result": result})


def _request(reader: MessageReader) -> dict[str, Any]:
    while (messages := reader.read_available()) is not None:
        if messages:
            return messages[0]
    sys.exit("no call came")


def _die_with_parent(reader: MessageReader) -> None:
    """Ends this process when its parent is gone: what it makes would lie where the next run works."""
    with contextlib.suppress(OSError, ProtocolError):
        while reader.read_available() is not None:
            pass
    os._exit(1)


if __name__ == "__main__":
    main()
