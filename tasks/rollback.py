"""Taking a champion back: the one before it, or a version that is named, becomes champion again, and it is said why.

The version that is taken back keeps the reason as a tag, and no promotion makes it champion by itself again, however
good its figures are. Run again, nothing moves: what is taken back is the champion that stands there, and once.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage.errors import UserError
from storage.registered import note_names
from storage.registry import CHALLENGER, CHAMPION, PREVIOUS, ModelVersion, Registry
from storage.store import Store
from tasks.promotion import WITHDRAWN_TAG
from tasks.registration import LOCK, is_lost, note

NO_REASON = "no reason was given"


class RollbackError(UserError):
    """There is no version to go back to."""


@dataclass(frozen=True)
class Rollback:
    """What was done.

    Attributes:
        champion: the version that is champion now.
        withdrawn: the version that was taken back, now or before; empty where none was.
        moved: whether any name moved.
        reason: why it was taken back.
    """

    champion: str
    withdrawn: str
    moved: bool
    reason: str


def roll_back(store: Store, registry: Registry, reason: str = "", to: str = "") -> Rollback:
    """Make the previous champion, or a named version, champion again.

    It may be killed at any moment and called again.

    Args:
        reason: why, for the tag of the version that is taken back.
        to: number of the version that is to be champion; empty for the one that was champion before.

    Raises:
        RollbackError: if there is no such version.
    """
    with store.lock(LOCK):
        if is_lost(store, registry):
            raise RollbackError("a version was promoted elsewhere a moment ago: look at it, and run the same again")
        champion = registry.by_alias(CHAMPION)
        if champion is None:
            raise RollbackError("there is no champion to take back: `sheepfold run SOURCE` makes the first one")
        target = _target(registry, champion, to)
        if target is None:
            return _done_before(registry, champion)
        if target.version != champion.version:
            registry.tag(champion.version, {WITHDRAWN_TAG: reason or NO_REASON})  # first: no promotion brings it back
            registry.untag(target.version, WITHDRAWN_TAG)
            registry.move_alias(CHALLENGER, champion.version)
            registry.move_alias(CHAMPION, target.version)
        previous = registry.by_alias(PREVIOUS)
        if previous is not None and previous.version == target.version:
            registry.drop_alias(PREVIOUS)
        challenger = registry.by_alias(CHALLENGER)
        if challenger is not None and challenger.version == target.version:
            registry.drop_alias(CHALLENGER)
        for number in (champion.version, target.version):
            note(store, registry, number)
        note_names(store, registry.names())
        if target.version == champion.version:
            return _done_before(registry, champion)
        return Rollback(target.version, champion.version, True, reason or NO_REASON)


def _target(registry: Registry, champion: ModelVersion, to: str) -> ModelVersion | None:
    """The version to go back to; None if a champion was taken back already and there is nothing before this one."""
    if to:
        found = registry.by_number(to)
        if found is None:
            known = ", ".join(item.version for item in registry.versions())
            raise RollbackError(f"there is no version {to} to go back to; there are {known}")
        return found
    previous = registry.by_alias(PREVIOUS)
    if previous is not None or _last_withdrawn(registry, champion) is not None:
        return previous
    raise RollbackError(
        f"version {champion.version} is the first champion, so there is none to go back to: name a version by --to"
    )


def _last_withdrawn(registry: Registry, champion: ModelVersion) -> ModelVersion | None:
    """The version that was taken back last: the challenger, unless a newer loser is that; then the newest of them."""
    taken = [item for item in registry.versions() if WITHDRAWN_TAG in item.tags and item.version != champion.version]
    return max(taken, key=lambda item: (CHALLENGER in item.aliases, int(item.version)), default=None)


def _done_before(registry: Registry, champion: ModelVersion) -> Rollback:
    last = _last_withdrawn(registry, champion)
    if last is None:
        return Rollback(champion.version, "", False, "")
    return Rollback(champion.version, last.version, False, last.tags[WITHDRAWN_TAG])
