"""Small pictures of pages, made in a child process that may be killed: the files are as hostile as they ever were.

A request and its answer are one message each. What cannot be drawn has a reason instead of a picture.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from tasks.core.child import ChildEnded, ChildProcess, ProtocolError, module_command

PAGE_SECONDS = 5.0
START_SECONDS = 60.0  # importing takes half a second; a machine that swaps may take a hundred times as long
MAX_PICTURE_BYTES = 100_000  # as text; twelve such pages leave the report well below 2 MB
_PREFIX = "data:image/jpeg;base64,"
_BASE64 = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=")


@dataclass(frozen=True)
class Thumbnail:
    """A picture of a page, or why there is none.

    Attributes:
        uri: a data URI; empty where there is no picture.
        width, height: in pixels.
        reason: why there is none.
    """

    uri: str = ""
    width: int = 0
    height: int = 0
    reason: str = ""


class Thumbnails:
    """Draws pages of files.

    Args:
        locations: where the bytes of a file lie now, by their sha256.
        passwords: tried on encrypted PDFs.
        page_seconds: how long one page may take.
    """

    def __init__(
        self, locations: Mapping[str, str], passwords: Sequence[str] = (), page_seconds: float = PAGE_SECONDS
    ) -> None:
        self._locations = locations
        self._passwords = list(passwords)
        self._page_seconds = page_seconds
        self._child: ChildProcess | None = None

    def draw(self, sha256: str | None, media_type: str | None, page: int, container: str | None = None) -> Thumbnail:
        """One page of a file.

        Args:
            sha256: of the file's bytes, which must not have changed since.
            page: from 1; a frame of an image is a page.
            container: the archive that the file lies in; None for a file of its own.
        """
        if container is not None:
            return Thumbnail(reason="it lies in an archive")
        location = self._locations.get(sha256 or "")
        if sha256 is None or location is None:
            return Thumbnail(reason="its file was not found")
        if media_type != "application/pdf" and not (media_type or "").startswith("image/"):
            return Thumbnail(reason=f"{media_type or 'a file of unknown type'} has no picture")
        request = {
            "path": location, "sha256": sha256, "pdf": media_type == "application/pdf", "page": page,
            "passwords": self._passwords,
        }  # fmt: skip
        return self._ask(request)

    def close(self) -> None:
        """End the child process."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def __enter__(self) -> Thumbnails:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, request: dict[str, Any]) -> Thumbnail:
        try:
            if self._child is None:
                self._child = _start()
            self._child.send(request)
            return _checked(self._child.receive(time.monotonic() + self._page_seconds)[0])
        except TimeoutError:
            reason = f"drawing it took more than {self._page_seconds:g} s"
        except ChildEnded:
            reason = "the process that draws pages died of it"
        except (OSError, ProtocolError) as error:
            reason = str(error)
        self.close()  # the next page has a child of its own
        return Thumbnail(reason=reason)


def _start() -> ChildProcess:
    child = ChildProcess(module_command("tasks.report.drawing"), stderr=subprocess.DEVNULL)
    try:
        child.receive(time.monotonic() + START_SECONDS)
    except (TimeoutError, ChildEnded, ProtocolError):
        child.kill()
        raise OSError("the process that draws pages did not start") from None
    return child


def _checked(answer: Mapping[str, Any]) -> Thumbnail:
    """An answer as a thumbnail; what comes from a process that parses hostile files is not taken on trust."""
    picture, width, height = answer.get("jpeg"), answer.get("width"), answer.get("height")
    if not isinstance(picture, str):
        return Thumbnail(reason=str(answer.get("reason", "it cannot be drawn")))
    if len(picture) > MAX_PICTURE_BYTES or not isinstance(width, int) or not isinstance(height, int):
        return Thumbnail(reason="its picture is too large")
    if not _BASE64.issuperset(picture):
        return Thumbnail(reason="its picture is damaged")
    return Thumbnail(_PREFIX + picture, width, height)
