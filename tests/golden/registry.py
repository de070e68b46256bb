"""What the modules of this package enter their functions in: formulas by operation, claims by the id of an entry."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Entry = dict[str, Any]
Function = Callable[..., Any]
Check = Callable[[Entry], None]


@dataclass
class Found:
    """What an operation comes to.

    Attributes:
        value: the project's value of what the entry's `exact` or `corrected` states.
        printed: the project's value of what `expected` states, where that is something else than `corrected`.
        extras: the project's values of further fields of the entry.
    """

    value: Any
    printed: Any = None
    extras: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Operation:
    """A function that computes an entry, and whether the project's own code does the work."""

    compute: Callable[..., Any]
    own: bool

    def __call__(self, entry: Entry) -> Found:
        given = {"entry": entry} if "entry" in inspect.signature(self.compute).parameters else {}
        found = self.compute(**entry["inputs"], **given)
        return found if isinstance(found, Found) else Found(found)


@dataclass(frozen=True)
class Claim:
    """How an entry is checked, what kind of statement it is, and whether the project's own code is asked."""

    kind: str
    check: Check
    own: bool = True


OPERATIONS: dict[str, Operation] = {}
CLAIMS: dict[str, Claim] = {}


def operation(*names: str) -> Callable[[Function], Function]:
    """Registers a function that goes through the project."""
    return _enters_operation(names, own=True)


def by_hand(*names: str) -> Callable[[Function], Function]:
    """Registers arithmetic for which the project has no function."""
    return _enters_operation(names, own=False)


def fact(*ids: str) -> Callable[[Check], Check]:
    """Registers the check of a setting."""
    return _enters_claim(ids, "configuration fact", own=True)


def behaviour(*ids: str, own: bool = True) -> Callable[[Check], Check]:
    """Registers the check of something that a network does."""
    return _enters_claim(ids, "behaviour", own)


def _enters_operation(names: Sequence[str], own: bool) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        OPERATIONS.update(dict.fromkeys(names, Operation(function, own)))
        return function

    return register


def _enters_claim(ids: Sequence[str], kind: str, own: bool) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        CLAIMS.update({name: Claim(kind, check, own) for name in ids})
        return check

    return register
