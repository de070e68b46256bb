"""The one kind of error that is told without a traceback: the person can mend it."""

from __future__ import annotations

import errno

# faults of a disk that stay until the person does something
_LASTING = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk is full as far as you may fill it",
    errno.EROFS: "the disk can only be read",
}


class UserError(ValueError):
    """A mistake in what was asked for, or a state of the world that the person has to change.

    The message says what was found, what was expected, and what to do.
    """


def lasting_fault(error: BaseException | None) -> UserError | None:
    """What to tell the person of an error behind which a disk is full or may not be written; None for others."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        told = _LASTING.get(error.errno or 0) if isinstance(error, OSError) else None
        if told is None and "database or disk is full" in str(error):  # SQLite's words, whoever hands them on
            told = _LASTING[errno.ENOSPC]
        if told is not None:
            return UserError(
                f"{told} ({str(error).splitlines()[0]}): mend that and run the same command again; what is finished "
                "stays, and it goes on from there"
            )
        error = error.__cause__ or error.__context__
    return None
