"""Opening what was seen as a file a moment ago, and may be something else by now."""

from __future__ import annotations

import errno
import os
import stat
from io import FileIO
from pathlib import Path


def open_regular(path: Path) -> FileIO:
    """Open a file for reading, and nothing but a file.

    Args:
        path: Its path. What was a file a moment ago may be a FIFO now: opening does not block on it.

    Returns:
        The open file, unbuffered.

    Raises:
        OSError: It cannot be opened, or it is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            # The path apart from the words: what is kept of a document must not depend on where its file lies.
            raise OSError(errno.EINVAL, "it is no regular file any more", str(path))
        return FileIO(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise
