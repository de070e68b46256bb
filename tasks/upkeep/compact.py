"""Merge many small segments into few, so that a corpus with frequent small runs stays fast to list.

    1. small segments are merged, and from then on the index of segments has only the merged one
    2. the next run of a corpus computes texts, measures and token shards of the merged segment; no file is read again,
       and since digests do not depend on the cut, no later stage runs again
    3. the old segments are removed when no corpus refers to them; their manifests are kept for the lineage

Each step finds its own remaining work, so it can be killed at any time, and runs may come in between.
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
from tasks.upkeep.garbage import SECONDS_PER_DAY
from tasks.upkeep.rewriting import write_segment

COMPACTION_LOCK = "compaction"
SEGMENTS = "segments"  # input of a merged segment with those that it replaces
SMALL = 2  # a segment is small if this many of its size fit in one
AT_LEAST = 8  # small segments merged into one that is still small: fewer would be rewritten over and over


def compact_home(
    home: Home, store: Store, at_least: int = AT_LEAST, grace_days: float = 1, dry_run: bool = False
) -> dict[str, Any]:
    """Merge small segments, remove those merged before, and return both as `sheepfold compact --json` prints them.

    Args:
        at_least: Minimum number of small segments to merge if they do not fill one; two that fill one always are.
        grace_days: Days after their last use before merged segments are removed, as a run in progress may read them.
        dry_run: Only report.

    Returns:
        `joined`, the keys of merged segments, by the key of the new one, in a dry run by number; and `removed`, the
        removed segments, as STAGE/KEY.
    """
    if dry_run:
        groups = enumerate(_groups(store, at_least))
        planned = {str(number): [part.key for part in group] for number, group in groups}
        return {"dry_run": True, "joined": planned, "removed": []}
    finish_forgetting(home, store)  # before documents of an interrupted `forget` are merged with others
    with store.lock(COMPACTION_LOCK), store.lock(FORGETTING_LOCK):
        joined = {_merge(store, group).key: [part.key for part in group] for group in _groups(store, at_least)}
        removed = list(_remove_joined(store, time.time() - grace_days * SECONDS_PER_DAY))
    return {"dry_run": False, "joined": joined, "removed": removed}


def _groups(store: Store, at_least: int) -> Iterator[list[Manifest]]:
    """Yield groups of segments to merge: small ones of the same corpora, tools and options."""
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
    """Return segments that share no content with another one, as each run chooses between two extractions."""
    first: dict[str, str] = {}
    rivals: set[str] = set()
    for found in segments:
        for entry in found.settings["contents"]:
            other = first.setdefault(entry["sha256"], found.key)
            if other != found.key:
                rivals |= {other, found.key}
    return [found for found in segments if found.key not in rivals]


def _fill(segments: Iterable[Manifest], at_least: int) -> Iterator[list[Manifest]]:
    """Yield small segments, the oldest first, in groups that fit in one segment.

    A group without room for the next segment is yielded whatever its number. The last group, which may still grow, is
    yielded only with `at_least` segments.
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
    """Return one segment with the contents of several, equal to their joint extraction, by copying rows."""
    contents = [entry for part in parts for entry in part.settings["contents"]]
    contents.sort(key=lambda entry: (entry["sha256"], entry["suffix"], entry["attempt"]))
    refs = [part.ref for part in parts]
    described = replace(
        parts[0],
        inputs=describe_inputs({SEGMENTS: RefSet.of(refs)}),
        settings={**parts[0].settings, "contents": contents},
        created=datetime.now(UTC).isoformat(timespec="microseconds"),
        seconds=round(sum(part.seconds for part in parts), 3),  # plans estimate times from it
    )
    return write_segment(store, described, [store.folder(ref) for ref in refs])


def _remove_joined(store: Store, before: float) -> Iterator[str]:
    """Remove merged segments that no corpus refers to and that were not used since `before`; yield their names."""
    in_use = {ref.key for name in corpora(store) for ref in read_state(store, name).get(extract.name, [])}
    joined = [found for found in store.manifests(extract.name) if SEGMENTS in found.inputs]
    for old in {ref.key: ref for found in joined for ref in found.input_refs(SEGMENTS)}.values():
        segment = store.find(old.stage, old.key)
        if segment is None or old.key in in_use or store.last_used(old.stage, old.key, fresh=True) > before:
            continue
        if any(store.find(ref.stage, ref.key) is not None for ref in segment.input_refs()):
            continue  # it is a merged segment itself: those that it replaced are removed first
        try:
            store.remove(old.stage, old.key, keep_manifest=True)
        except StoreError:
            continue  # in use by a process; removed by a later call
        yield f"{old.stage}/{old.key}"
