"""A child process that may be killed at any moment, and the messages between it and its parent: JSON, one line each.

The parent uses `ChildProcess`, the child `serve`. Messages are JSON, not pickle: what a process that parses hostile
files sends back must not be able to run code in its parent.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import resource
import select
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

MAX_MESSAGE_BYTES = 2 * 1024**3
_READ_BYTES = 1 << 16  # what a pipe holds; asking for more allocates more, each time
_ENCODER = json.JSONEncoder(
    ensure_ascii=False,
    separators=(",", ":"),
    default=lambda value: str(value) if isinstance(value, Path) else vars(value),
)


class ProtocolError(Exception):
    """The bytes in the pipe are no message."""


class ChildEnded(Exception):
    """The child closed its end of the pipe: it exited or was killed."""


class Stopped(Exception):
    """The parent is to wait no longer."""


def write_message(descriptor: int, message: Mapping[str, Any], errors: str = "surrogatepass") -> None:
    """Write one message completely.

    Args:
        descriptor: File descriptor in blocking mode.
        message: JSON-able values, paths and dataclasses.
        errors: Treatment of lone surrogates. Python holds file names that are not UTF-8 in them, so they are kept;
            "replace" turns them into "?".

    Raises:
        BrokenPipeError: Nobody reads the other end any more.
    """
    # at once, as each write wakes the reader
    view = memoryview(_ENCODER.encode(message).encode("utf-8", errors) + b"\n")
    while view:
        view = view[os.write(descriptor, view) :]


class MessageReader:
    """Put messages together from whatever pieces a pipe delivers.

    Args:
        descriptor: File descriptor to read.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = bytearray()

    def read_available(self) -> list[dict[str, Any]] | None:
        """Read once and return the messages that are complete; None at the end of the stream.

        Raises:
            ProtocolError: The bytes are no message.
        """
        data = os.read(self._descriptor, _READ_BYTES)
        if not data:
            return None
        if b"\n" in data:
            lines = (self._buffer + data).split(b"\n")
            self._buffer = lines.pop()
            return [_parse(line) for line in lines]
        self._buffer += data
        if len(self._buffer) > MAX_MESSAGE_BYTES:
            raise ProtocolError(f"a message is longer than {MAX_MESSAGE_BYTES} bytes")
        return []


def _parse(line: bytearray) -> dict[str, Any]:
    try:
        message = json.loads(str(line, "utf-8", "surrogatepass"))
    except ValueError as error:
        raise ProtocolError(f"a message is not JSON: {error}") from None
    if not isinstance(message, dict):
        raise ProtocolError(f"a message is a {type(message).__name__}; an object was expected")
    return message


def module_command(module: str) -> list[str]:
    """Return the command line that runs a module; the current folder, which may hold a `json.py`, is not searched."""
    return [sys.executable, "-P", "-m", module]


class ChildProcess:
    """A child process in a process group of its own, which is killed with all that it started.

    A terminal's Ctrl-C does not reach it: the parent handles that.

    Args:
        command: Command line.
        environment: Variables beside those of this process.
        stderr: File for its standard error; None for that of this process.
        stop: File descriptor that becomes readable when nothing is to be waited for any more.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        stderr: IO[bytes] | int | None = None,
        stop: int | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, **python_path(), **(environment or {})},
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stdin and self._process.stdout
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self._reader = MessageReader(self._answers.fileno())
        self._stop = stop
        self._poll = select.poll()
        for descriptor in (self._answers.fileno(), stop):
            if descriptor is not None:
                self._poll.register(descriptor, select.POLLIN)

    @property
    def pid(self) -> int:
        """Process id, which is that of its group, too."""
        return self._process.pid

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a request; that the child is dead is noticed by `receive`."""
        with contextlib.suppress(BrokenPipeError):
            write_message(self._requests.fileno(), message)

    def receive(self, deadline: float | None = None) -> list[dict[str, Any]]:
        """Return the messages that came, at least one.

        Args:
            deadline: Time of `time.monotonic` until which to wait.

        Raises:
            TimeoutError: None came before the deadline.
            ChildEnded: None came, and none will.
            ProtocolError: The child sent something else.
            Stopped: The descriptor `stop` became readable.
        """
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            ready = dict(self._poll.poll(left))
            if self._stop in ready:
                raise Stopped
            if not ready:
                raise TimeoutError
            messages = self._reader.read_available()
            if messages is None:
                raise ChildEnded
            if messages:
                return messages

    def is_alive(self) -> bool:
        """Return whether the process still runs."""
        # not reaped here: until then its number, and so its group's, belongs to nobody else
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def resident_bytes(self) -> int:
        """Return the memory that it has; 0 if it is gone."""
        import psutil

        try:
            return int(psutil.Process(self.pid).memory_info().rss)
        except psutil.Error:
            return 0

    def kill(self, grace: float = 0.0) -> int:
        """Kill the process group; returns the exit status, or minus the signal that ended the process.

        Args:
            grace: Seconds that the child and processes outside of its group have to end by themselves, as they do when
                their standard input is closed.
        """
        if grace:
            self._requests.close()
            deadline = time.monotonic() + grace
            with contextlib.suppress(TimeoutError, ChildEnded, ProtocolError, Stopped):
                while True:
                    self.receive(deadline)
        if self._process.returncode is None:  # else the number may be another's by now
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        status = self._process.wait()
        self._requests.close()
        self._answers.close()
        return status


def python_path() -> dict[str, str]:
    """Return the variable by which a child finds this source tree, if the packages are not installed."""
    root = str(Path(__file__).resolve().parents[2])
    if root in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}


def serve(
    leave: Callable[[], object] = lambda: os._exit(1), errors: str = "surrogatepass"
) -> tuple[Iterator[dict[str, Any]], Callable[[Mapping[str, Any]], None]]:
    """Take over standard input and output in the child.

    Args:
        leave: Ends the process; called when the parent closes its end of the pipe or dies, by whatever signal.
        errors: Treatment of lone surrogates in answers; see `write_message`.

    Returns:
        The requests as they come, and a function that sends an answer.
    """
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not get between the messages
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def take() -> None:
        reader = MessageReader(0)
        with contextlib.suppress(OSError, ProtocolError):
            while (messages := reader.read_available()) is not None:
                for message in messages:
                    requests.put(message)
        leave()

    threading.Thread(target=take, daemon=True).start()

    def requested() -> Iterator[dict[str, Any]]:
        while True:
            yield requests.get()

    return requested(), lambda message: write_message(answers, message, errors)


def limit_added_memory(n_bytes: int | None) -> None:
    """Limit the address space to what this process has by now and `n_bytes` more; None lifts the limit.

    Only Linux enforces it.
    """
    if sys.platform != "linux":
        return
    import psutil

    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    wanted = hard if n_bytes is None else psutil.Process().memory_info().vms + n_bytes
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
