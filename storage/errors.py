"""The one kind of error that is told without a traceback: the person can mend it."""

from __future__ import annotations

import errno
import os

# Faults of a disk that stay until the person does something, and the words by which they are known where they come
# from another process or through a library; two of SQLite's own are among them.
_FULL, _READ_ONLY = "the disk is full", "the disk can only be read"
_LASTING = {
    os.strerror(errno.ENOSPC): _FULL,
    os.strerror(errno.EDQUOT): "the disk is full as far as you may fill it",
    os.strerror(errno.EROFS): _READ_ONLY,
    "database or disk is full": _FULL,
    "attempt to write a readonly database": _READ_ONLY,
}


class UserError(ValueError):
    """A mistake in what was asked for, or a state of the world that the person has to change.

    The message says what was found, what was expected, and what to do.
    """


class Unreachable(UserError, ConnectionError):
    """A server does not answer, or answers that it cannot; trying again later may help."""


def lasting_fault(error: BaseException | None) -> UserError | None:
    """What to tell the person of an error behind which a disk is full or may not be written; None for others."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        for line in (str(error) or type(error).__name__).splitlines():
            told = next((told for words, told in _LASTING.items() if words in line), None)
            if told is not None:
                return UserError(
                    f"{told} ({line.strip()}): mend that and run the same command again; what is finished stays, and "
                    "it goes on from there"
                )
        error = error.__cause__ or error.__context__
    return None
