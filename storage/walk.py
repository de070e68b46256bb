"""What lies below a folder in which somebody works, so that anything there may vanish while it is looked at."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

GONE = (FileNotFoundError, NotADirectoryError)


def walk(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Everything below a folder with what `lstat` says of it, without what is gone when its turn comes.

    Raises:
        OSError: if a folder cannot be listed for another reason; what is in it is not taken for gone.
    """
    for parent, folders, files in os.walk(folder, onerror=_refuse):
        for name in (*folders, *files):
            path = Path(parent, name)
            try:
                found = path.lstat()
            except GONE:
                continue
            yield path, found


def _refuse(error: OSError) -> None:
    if not isinstance(error, GONE):
        raise error
