"""Run pure table functions in subprocesses, to use several cores and to return memory to the operating system.

The functions take folders and settings and return counts and a digest; tables are passed as files. Arguments are sent
as JSON and converted by the function's annotations. A subprocess takes up to a second to start, so calls are made in
this process until their data is worth one.

    python -m tasks.core.subprocesses      serves calls: requests in, progress and results out
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, get_args, get_origin, get_type_hints

from storage.errors import UserError
from storage.without_pandas import WithoutPandas
from tasks.core.child import ChildEnded, ChildProcess, module_command, serve

WORTH_A_PROCESS = 2**23  # uncompressed bytes of tables over all calls; less takes less time than starting a process
LARGE_BYTES = 2**26  # after a call of this size its process is ended, to return its memory
TABLE_BYTES_PER_FILE = 500  # rough uncompressed size of the tables over a whole corpus, per file

Progress = Callable[[int, int], None]


class _ProcessEnded(RuntimeError):
    """The process of a call ended without a result."""


class Subprocesses:
    """A pool of subprocesses for calls.

    A call whose process ends is repeated once in a new one: the functions are pure and write whole files. In
    `ProcessPoolExecutor` and loky, one ended process fails all waiting calls.

    Args:
        processes: Calls at once.
    """

    def __init__(self, processes: int) -> None:
        self._slots = threading.BoundedSemaphore(processes)
        self._idle: queue.SimpleQueue[ChildProcess] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._in_place = 0  # bytes read in this process

    def call(self, function: Callable[..., Any], progress: Progress, size: int, **arguments: Any) -> Any:
        """Call a module-level function with `progress` and the arguments, in a subprocess if the data is worth one.

        Args:
            size: Bytes that it reads.
            **arguments: Values with a JSON form: paths, dataclasses, numbers, strings, lists and mappings of these.

        Raises:
            RuntimeError: if it fails in a subprocess, or its process ends twice.
            UserError: if it raises one.
        """
        with self._lock:
            in_place = self._in_place + size < WORTH_A_PROCESS
            self._in_place += size if in_place else 0
        if in_place:
            return function(progress=progress, **arguments)
        with self._slots:
            try:
                return self._call(self._kept() or _start(), size, function, progress, arguments)
            except _ProcessEnded:
                return self._call(_start(), size, function, progress, arguments)

    def _kept(self) -> ChildProcess | None:
        with contextlib.suppress(queue.Empty):
            return self._idle.get_nowait()
        return None

    def _call(self, process: ChildProcess, size: int, *call: Any) -> Any:
        try:
            result = _answer(process, *call)
        except BaseException:
            process.kill()
            raise
        if size >= LARGE_BYTES:
            process.kill()
        else:
            self._idle.put(process)
        return result

    def close(self) -> None:
        """End the processes; no call may be running."""
        while kept := self._kept():
            kept.kill()


def _start() -> ChildProcess:
    return ChildProcess(module_command("tasks.core.subprocesses"))


def _answer(process: ChildProcess, function: Callable[..., Any], progress: Progress, arguments: dict[str, Any]) -> Any:
    name = function.__qualname__
    process.send({"function": f"{function.__module__}:{name}", "arguments": arguments})
    while True:
        try:
            messages = process.receive()
        except ChildEnded:
            status = process.kill()
            raise _ProcessEnded(
                f"the process of {name} ended with status {status} and no result, often for lack of memory: use fewer "
                "workers"
            ) from None
        for message in messages:
            if "progress" in message:
                progress(*message["progress"])
            elif "user_error" in message:
                raise UserError(message["user_error"])
            elif "error" in message:
                raise RuntimeError(f"{name} failed:\n{message['error']}")
            else:
                return message["result"]


def _from_json(value: Any, hint: Any) -> Any:
    # not by pydantic, which refuses file names that are not UTF-8
    if hint is Path:
        return Path(value)
    if is_dataclass(hint):
        return hint(**_by_name(value, get_type_hints(hint)))  # type: ignore[operator]
    if get_origin(hint) in (list, tuple):
        return get_origin(hint)(_from_json(item, get_args(hint)[0]) for item in value)
    if get_origin(hint) is dict:
        return {name: _from_json(item, get_args(hint)[1]) for name, item in value.items()}
    return value


def _by_name(values: dict[str, Any], hints: dict[str, Any]) -> dict[str, Any]:
    return {name: _from_json(value, hints.get(name)) for name, value in values.items()}


def main() -> None:
    """Serve calls until standard input ends."""
    sys.meta_path.insert(0, WithoutPandas())
    requests, send = serve()

    def progress(done: int, total: int) -> None:
        send({"progress": [done, total]})

    for request in requests:
        try:
            function = resolve_name(request["function"])
            arguments = _by_name(request["arguments"], get_type_hints(function))
            answer = {"result": function(progress=progress, **arguments)}
        except UserError as error:
            answer = {"user_error": str(error)}
        except Exception:  # noqa: BLE001 - the parent raises it
            answer = {"error": traceback.format_exc()}
        send(answer)


if __name__ == "__main__":
    main()
