"""The one kind of error that is told without a traceback: the person can mend it."""

from __future__ import annotations


class UserError(ValueError):
    """A mistake in what was asked for, or a state of the world that the person has to change.

    The message says what was found, what was expected, and what to do.
    """
