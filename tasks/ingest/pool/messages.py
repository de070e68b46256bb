"""Messages over a pipe: four bytes of length, big-endian, then JSON in UTF-8.

Between the pool and its worker processes. JSON, not pickle: what a process that parses hostile files sends
back must not be able to run code in the parent.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import struct
from collections.abc import Iterator
from typing import Any

MAX_MESSAGE_BYTES = 2 * 1024**3  # A longer one can only be a corrupted length.
_LENGTH = struct.Struct(">I")
_WRITTEN_AT_ONCE = 1 << 20
_READ_BYTES = 1 << 16  # what a pipe holds; asking for more allocates more, each time
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class ProtocolError(Exception):
    """Raised when the bytes in the pipe are no message."""


def write_message(descriptor: int, message: dict[str, Any]) -> None:
    """Write one message completely.

    Args:
        descriptor: A file descriptor in blocking mode.
        message: JSON-able values; lone surrogates in strings become "?".

    Raises:
        BrokenPipeError: Nobody reads the other end any more.
    """
    body = _ENCODER.encode(message).encode("utf-8", "replace")
    if len(body) < _WRITTEN_AT_ONCE:
        write_all(descriptor, _LENGTH.pack(len(body)) + body)  # at once: each write wakes the reader
        return
    write_all(descriptor, _LENGTH.pack(len(body)))
    write_all(descriptor, body)


def write_ascii_message(descriptor: int, message: dict[str, Any]) -> None:
    """Like `write_message`, but keeps lone surrogates: Python holds file names that are not UTF-8 in them."""
    body = json.dumps(message).encode("ascii")
    write_all(descriptor, _LENGTH.pack(len(body)) + body)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes, however many calls it takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def queue_messages(descriptor: int, messages: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Put what arrives into a queue until the other end is closed, or what arrives is no message."""
    reader = MessageReader(descriptor)
    with contextlib.suppress(OSError, ProtocolError):
        while (arrived := reader.read_available()) is not None:
            for message in arrived:
                messages.put(message)


class MessageReader:
    """Put messages together from whatever pieces a pipe delivers.

    Args:
        descriptor: The file descriptor to read.
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
        self._buffer += data
        return list(self._complete())

    def _complete(self) -> Iterator[dict[str, Any]]:
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_MESSAGE_BYTES:
                raise ProtocolError(f"a message of {length} bytes was announced; at most {MAX_MESSAGE_BYTES} expected")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            try:
                # Decoded from the buffer itself: a message may be a document of hundreds of MB.
                with memoryview(self._buffer) as view:
                    body = str(view[_LENGTH.size : end], "utf-8", "surrogatepass")
                del self._buffer[:end]
                message = json.loads(body)
            except ValueError as error:
                raise ProtocolError(f"a message is not JSON: {error}") from None
            if not isinstance(message, dict):
                raise ProtocolError(f"a message is a {type(message).__name__}; an object was expected")
            yield message
