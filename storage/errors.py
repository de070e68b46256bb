"""Errors that are shown without a traceback, because the user can correct their cause."""

from __future__ import annotations

import errno
import os

# Messages of the operating system, libraries and SQLite about disk faults that last until the user acts.
_LASTING = {
    os.strerror(errno.ENOSPC): "the disk is full",
    os.strerror(errno.EDQUOT): "the disk quota is used up",
    os.strerror(errno.EROFS): "the disk can only be read",
    "database or disk is full": "the disk is full",
    "attempt to write a readonly database": "the disk can only be read",
}


class UserError(ValueError):
    """An invalid request, or a state of the machine that the user has to change.

    The message says what was found, what was expected, and what to do.
    """


class Unreachable(UserError, ConnectionError):
    """A server does not respond, or reports an internal error; a later attempt may succeed."""


def lasting_fault(error: BaseException | None) -> UserError | None:
    """Return the error to show if a full or read-only disk is among the causes of `error`, else None."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        for line in (str(error) or type(error).__name__).splitlines():
            fault = next((fault for message, fault in _LASTING.items() if message in line), None)
            if fault is not None:
                return UserError(
                    f"{fault} ({line.strip()}): correct that and run the same command again; it resumes from the "
                    "finished work"
                )
        error = error.__cause__ or error.__context__
    return None
