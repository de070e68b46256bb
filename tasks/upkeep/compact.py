"""Join many small segments into few, so that a corpus that grows every night stays quick to list.

    1. small segments are joined: from then on the index of segments knows the joined one alone
    2. the next run of a corpus makes texts, measures and token shards of the joined segment; no file is read again, and
       since digests do not depend on the cut, nothing behind them is computed again
    3. what was joined goes when no corpus stands at it; its manifest stays, because lineage leads through it

A kill costs nothing: each step finds out for itself what is left to be done, and runs may come in between.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from storage.catalog import corpora, read_state
from storage.digest import canonical_json
from storage.home import Home
from storage.manifest import Manifest, RefSet, describe_inputs
from storage.schemas import PAGES_FILE
from storage.store import Store, StoreError
from storage.tombstones import FORGETTING_LOCK
from tasks.ingest.extract import extract
from tasks.ingest.segments import SEGMENT_BYTES, SEGMENT_FILES, present_segments
from tasks.upkeep.forget import finish_forgetting
from tasks.upkeep.rewriting import write_segment

COMPACTION_LOCK = "compaction"
SEGMENTS = "segments"  # input under which a joined segment names those that it replaces
SMALL = 2  # a segment is small if this many of its size make no more than one
AT_LEAST = 8  # small segments that are worth joining into another small one: fewer would be rewritten over and over
SECONDS_PER_DAY = 24 * 3600.0


def compact_home(
    home: Home, store: Store, at_least: int = AT_LEAST, grace_days: float = 1, dry_run: bool = False
) -> dict[str, Any]:
    """Join small segments, remove those that were joined before, and return both as `sheepfold compact --json` does.

    Args:
        at_least: Small segments that are worth joining where they do not fill one; two or more that fill one always
            are.
        grace_days: Days for which joined segments stay after their last use: a run in progress may read them.
        dry_run: Join nothing, only report.

    Returns:
        `joined`, keys of segments that were joined, by the key of the one that they are now, in a plan by number; and
        `removed`, segments that were joined before and went, as STAGE/KEY.
    """
    if dry_run:
        groups = enumerate(_groups(store, at_least))
        planned = {str(number): [part.key for part in group] for number, group in groups}
        return {"dry_run": True, "joined": planned, "removed": []}
    finish_forgetting(home, store)  # before documents that a killed `forget` left are joined with others
    with store.lock(COMPACTION_LOCK), store.lock(FORGETTING_LOCK):
        joined = {_merge(store, group).key: [part.key for part in group] for group in _groups(store, at_least)}
        removed = list(_remove_joined(store, time.time() - grace_days * SECONDS_PER_DAY))
    return {"dry_run": False, "joined": joined, "removed": removed}


def _groups(store: Store, at_least: int) -> Iterator[list[Manifest]]:
    """Yield segments that become one: small ones, of the same corpora, read by the same tools with the same options."""
    segments = present_segments(item for item in store.manifests(extract.name) if item.version == extract.version)
    users: dict[str, list[str]] = {}
    for name in corpora(store):
        for ref in read_state(store, name).get(extract.name, []):
            users.setdefault(ref.key, []).append(name)
    alike: dict[str, list[Manifest]] = {}
    for found in _without_rivals(segments):
        if found.key in users:
            kind = canonical_json([users[found.key], found.settings["options"], found.tools])
            alike.setdefault(kind, []).append(found)
    for kind in sorted(alike):
        yield from _fill(alike[kind], at_least)


def _without_rivals(segments: Sequence[Manifest]) -> list[Manifest]:
    """Return segments that share no content with another one: of two extractions each run decides which counts."""
    first: dict[str, str] = {}
    rivals: set[str] = set()
    for found in segments:
        for entry in found.settings["contents"]:
            other = first.setdefault(entry["sha256"], found.key)
            if other != found.key:
                rivals |= {other, found.key}
    return [found for found in segments if found.key not in rivals]


def _fill(segments: Iterable[Manifest], at_least: int) -> Iterator[list[Manifest]]:
    """Yield small segments, the oldest first, in groups that make no more than a segment.

    A group that has no room for the next one is joined however few it has, two or more: the result is not small any
    more. The last group may grow, and waits until it has enough.
    """
    group: list[Manifest] = []
    n_files = n_bytes = 0
    for found in sorted(segments, key=lambda item: (item.created, item.key)):
        files = found.counts["units"]
        size = next(entry.size for entry in found.files if entry.name == PAGES_FILE)
        if SMALL * files > SEGMENT_FILES or SMALL * size > SEGMENT_BYTES:
            continue
        if group and (n_files + files > SEGMENT_FILES or n_bytes + size > SEGMENT_BYTES):
            yield group
            group, n_files, n_bytes = [], 0, 0
        group.append(found)
        n_files, n_bytes = n_files + files, n_bytes + size
    if len(group) >= max(2, at_least):
        yield group


def _merge(store: Store, parts: Sequence[Manifest]) -> Manifest:
    """Return one segment with the contents of several, as extraction would make it of them, by copying rows."""
    contents = [entry for part in parts for entry in part.settings["contents"]]
    contents.sort(key=lambda entry: (entry["sha256"], entry["suffix"], entry["attempt"]))
    refs = [part.ref for part in parts]
    described = replace(
        parts[0],
        inputs=describe_inputs({SEGMENTS: RefSet.of(refs)}),
        settings={**parts[0].settings, "contents": contents},
        created=datetime.now(UTC).isoformat(timespec="microseconds"),
        seconds=round(sum(part.seconds for part in parts), 3),  # plans estimate by it what reading files takes
    )
    return write_segment(store, described, [store.folder(ref) for ref in refs])


def _remove_joined(store: Store, before: float) -> Iterator[str]:
    """Remove segments that were joined, stand in no corpus and were not used since `before`; yields their names."""
    in_use = {ref.key for name in corpora(store) for ref in read_state(store, name).get(extract.name, [])}
    joined = [found for found in store.manifests(extract.name) if SEGMENTS in found.inputs]
    for old in {ref.key: ref for found in joined for ref in found.input_refs(SEGMENTS)}.values():
        segment = store.find(old.stage, old.key)
        if segment is None or old.key in in_use or store.last_used(old.stage, old.key, fresh=True) > before:
            continue
        if any(store.find(ref.stage, ref.key) is not None for ref in segment.input_refs()):
            continue  # it was joined itself: it goes after those that it replaced
        try:
            store.remove(old.stage, old.key, keep_manifest=True)
        except StoreError:
            continue  # a process works on it; it goes another time
        yield f"{old.stage}/{old.key}"
