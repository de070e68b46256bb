"""A copy in a bucket of what unfinished work keeps, so that another machine can go on where this one was lost.

The folder is looked at every minute, beside the work and without its knowing: whoever keeps progress in a folder that
outlives a kill (checkpoints, journals) says by that how to go on from any state of it, so also from a copy that was
taken while it changed.
"""

from __future__ import annotations

import logging
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage.bucket import Bucket, BucketError
from storage.manifest import stays_inside
from storage.walk import walk

logger = logging.getLogger("sheepfold")

MIRROR_SECONDS = 60.0


class Mirror:
    """The copy of one folder.

    Args:
        prefix: of the copy's objects.
        folder: hidden files and folders in it are half written, and are left out.
    """

    def __init__(self, bucket: Bucket, prefix: str, folder: Path) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._folder = folder
        self._sent: dict[str, tuple[int, int]] = {}  # name -> size and time of change
        self._ended = threading.Event()

    def restore(self) -> None:
        """Fetch what is newer in the copy, or only there."""
        for info in list(self._bucket.objects(self._prefix)):
            name = info.name.removeprefix(self._prefix)
            if not stays_inside(name):  # we put no such object there
                continue
            path = self._folder / name
            known = path.stat() if path.is_file() else None
            if known is None or (known.st_size != info.size and known.st_mtime < info.modified):
                path.parent.mkdir(parents=True, exist_ok=True)
                temporary = path.with_name(f".{path.name}")
                if self._bucket.download(info.name, temporary):
                    temporary.replace(path)

    def send(self) -> None:
        """Bring the copy up to date."""
        if self._send_new():
            # what took its place may have come behind our back while we looked: the old copy goes after the new one
            gone = self._send_new()
            self._bucket.delete([self._prefix + name for name in gone])
            for name in gone:
                del self._sent[name]

    def _send_new(self) -> list[str]:
        """Copy what is new or has changed; returns the names of what is gone."""
        present = dict(self._files())
        for name, state in present.items():
            if self._sent.get(name) != state:
                try:
                    self._bucket.upload(self._prefix + name, self._folder / name)
                except FileNotFoundError:
                    continue  # a newer checkpoint has taken its place
                self._sent[name] = state
        return [name for name in self._sent if name not in present]

    def _files(self) -> Iterator[tuple[str, tuple[int, int]]]:
        for path, found in sorted(walk(self._folder)):
            name = path.relative_to(self._folder)
            if stat.S_ISREG(found.st_mode) and not any(part.startswith(".") for part in name.parts):
                yield name.as_posix(), (found.st_size, found.st_mtime_ns)

    def _keep(self, seconds: float) -> None:
        while not self._ended.wait(seconds):
            self._try()

    def _try(self) -> None:
        try:
            self.send()
        except (BucketError, OSError) as error:  # the work goes on; what is lost is the way to go on elsewhere
            logger.warning("the progress of %s is kept on this machine only: %s", self._prefix, error)

    @contextmanager
    def kept(self, seconds: float = MIRROR_SECONDS) -> Iterator[None]:
        """Inside, the copy follows the folder; when work of more than `seconds` is cut off, to its last state."""
        thread = threading.Thread(target=self._keep, args=(seconds,), name=f"mirror {self._prefix}", daemon=True)
        thread.start()
        try:
            yield
        except BaseException:
            self._end(thread)
            if self._sent:
                self._try()
            raise
        self._end(thread)

    def _end(self, thread: threading.Thread) -> None:
        self._ended.set()
        thread.join()
