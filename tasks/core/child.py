"""A child process that may be killed at any moment, and its messages: JSON lines.

The parent uses `ChildProcess`, the child `serve`. Messages are JSON, not pickle, because a child that parses untrusted
files must not be able to run code in its parent.
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
_READ_BYTES = 1 << 16  # capacity of a pipe; a larger buffer would be allocated at each read for nothing
_ENCODER = json.JSONEncoder(
    ensure_ascii=False,
    separators=(",", ":"),
    default=lambda value: str(value) if isinstance(value, Path) else vars(value),
)


class ProtocolError(Exception):
    """The bytes in the pipe are not a valid message."""


class ChildEnded(Exception):
    """The child closed its end of the pipe: it exited or was killed."""


class Stopped(Exception):
    """The descriptor `stop` ended a wait."""


def write_message(descriptor: int, message: Mapping[str, Any], errors: str = "surrogatepass") -> None:
    """Write one message completely.

    Args:
        descriptor: File descriptor in blocking mode.
        message: JSON-able values, paths and dataclasses.
        errors: Treatment of lone surrogates, in which Python keeps file names that are not UTF-8; "replace" turns them
            into "?".

    Raises:
        BrokenPipeError: The other end is closed.
    """
    # in one write if possible, because each wakes the reader
    view = memoryview(_ENCODER.encode(message).encode("utf-8", errors) + b"\n")
    while view:
        view = view[os.write(descriptor, view) :]


class MessageReader:
    """Assembles messages from the pieces that a pipe delivers.

    Args:
        descriptor: File descriptor to read.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = bytearray()

    def read_available(self) -> list[dict[str, Any]] | None:
        """Read once and return the complete messages; None at the end of the stream.

        Raises:
            ProtocolError: The bytes are not a valid message.
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
    """Return the command line of a module; `-P` keeps modules of the current folder from being imported."""
    return [sys.executable, "-P", "-m", module]


class ChildProcess:
    """A child process in its own process group, so that it can be killed with its descendants.

    A terminal's Ctrl-C does not reach it; the parent handles that.

    Args:
        command: Command line.
        environment: Variables in addition to those of this process.
        stderr: File for its standard error; None for that of this process.
        stop: File descriptor; when it becomes readable, waiting ends.

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
        """Process id, which is also the id of its group."""
        return self._process.pid

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a request; if the child has ended, `receive` raises."""
        with contextlib.suppress(BrokenPipeError):
            write_message(self._requests.fileno(), message)

    def receive(self, deadline: float | None = None) -> list[dict[str, Any]]:
        """Wait for messages and return them, at least one.

        Args:
            deadline: Time of `time.monotonic` until which to wait.

        Raises:
            TimeoutError: No message arrived before the deadline.
            ChildEnded: The child ended without a message.
            ProtocolError: The child sent an invalid message.
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
        """Return True if the process runs."""
        # WNOWAIT: until the process is reaped, no other process or group can get its id
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def resident_bytes(self) -> int:
        """Return the resident memory in bytes; 0 after its end."""
        import psutil

        try:
            return int(psutil.Process(self.pid).memory_info().rss)
        except psutil.Error:
            return 0

    def kill(self, grace: float = 0.0) -> int:
        """Kill the process group; returns the exit status, or minus the signal that ended the process.

        Args:
            grace: Seconds to wait before that: the child, and processes that it started outside of its group, end when
                standard input is closed.
        """
        if grace:
            self._requests.close()
            deadline = time.monotonic() + grace
            with contextlib.suppress(TimeoutError, ChildEnded, ProtocolError, Stopped):
                while True:
                    self.receive(deadline)
        if self._process.returncode is None:  # after that another process may have the id
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        status = self._process.wait()
        self._requests.close()
        self._answers.close()
        return status


def python_path() -> dict[str, str]:
    """Return PYTHONPATH with this source tree for a child; empty if the packages are installed."""
    root = str(Path(__file__).resolve().parents[2])
    if root in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}


def serve(
    leave: Callable[[], object] = lambda: os._exit(1), errors: str = "surrogatepass"
) -> tuple[Iterator[dict[str, Any]], Callable[[Mapping[str, Any]], None]]:
    """Take over standard input and output in the child.

    Args:
        leave: Ends the process; called when the parent closes its end of the pipe or ends.
        errors: Treatment of lone surrogates in answers; see `write_message`.

    Returns:
        An iterator of requests, which waits for the next, and a function that sends an answer.
    """
    send = take_output(errors)
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

    return requested(), send


def take_output(errors: str = "surrogatepass") -> Callable[[Mapping[str, Any]], None]:
    """Take over standard output in the child, and return a function that sends an answer.

    Args:
        errors: see `write_message`.
    """
    answers = os.dup(1)
    os.dup2(2, 1)  # output of libraries must not mix with the messages
    return lambda message: write_message(answers, message, errors)


def limit_added_memory(n_bytes: int | None) -> None:
    """Limit the address space to the present size of this process and `n_bytes` more; None removes the limit.

    Only Linux enforces it.
    """
    if sys.platform != "linux":
        return
    import psutil

    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    wanted = hard if n_bytes is None else psutil.Process().memory_info().vms + n_bytes
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
