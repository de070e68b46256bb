"""Which segments are joined, in which order things happen, and what may go afterwards.

    1. small segments are joined: from then on the index of segments knows the joined one alone
    2. every corpus follows, in one step each
    3. what was joined goes, when nobody has used it for a while; its manifests stay, because lineage leads through them

Every step finds out for itself what is left to be done, so a kill costs nothing, and any run may come between.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from storage.catalog import corpora, read_state
from storage.digest import canonical_json
from storage.home import Home
from storage.manifest import ArtifactRef, Manifest
from storage.schemas import EXTRACTS_FILE, PAGES_FILE
from storage.store import Store, StoreError
from storage.tables import stream_rows
from storage.tombstones import FORGETTING_LOCK
from tasks.ingest.extract import SEGMENT_BYTES, SEGMENT_FILES, extract, present_segments
from tasks.upkeep.compact_following import INGESTED, corpora_with, follow
from tasks.upkeep.compact_merging import SEGMENTS, merge_segments
from tasks.upkeep.forget_sweep import finish_forgetting

COMPACTION_LOCK = "compaction"
SMALL = 2  # a segment is small if this many of its size are none too large
AT_LEAST = 8  # small segments that are worth joining into another small one: fewer would be rewritten over and over
GRACE_SECONDS = 24 * 3600.0
# Texts and token shards stay: datasets and traces of models read them. Garbage collection knows when they may go.
TIDIED = ("normalise", "measure", "score", "evalset_overlap")


@dataclass
class Compacted:
    """What a compaction did, or would do.

    Attributes:
        joined: keys of segments that were joined, by the key of the one that they are now; in a plan by number.
        followed: corpora that stand at joined segments now.
        waiting: corpora that will after their next run.
        removed: artefacts that went, as STAGE/KEY.
    """

    joined: dict[str, list[str]] = field(default_factory=dict)
    followed: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


def compact_home(
    home: Home, store: Store, at_least: int = AT_LEAST, grace_days: float = 1, dry_run: bool = False
) -> dict[str, Any]:
    """Compact the store of a home, and return what was joined as `sheepfold compact --json` prints it.

    Args:
        at_least: number of small segments that are worth joining.
        grace_days: days for which joined segments stay after their last use.
        dry_run: join nothing, only report.
    """
    if not dry_run:
        finish_forgetting(home, store)  # before documents that a killed `forget` left are joined with others
    return {"dry_run": dry_run, **asdict(compact(store, at_least, grace_days * 24 * 3600.0, dry_run))}


def compact(store: Store, at_least: int = AT_LEAST, grace: float = GRACE_SECONDS, dry_run: bool = False) -> Compacted:
    """Join small segments, let corpora follow, and remove what was joined before.

    Args:
        at_least: segments that are worth joining where they do not fill one; two or more that fill one always are.
        grace: seconds for which what was joined stays after somebody used it: a run that goes on may be one.
        dry_run: only say what would be joined.
    """
    done = Compacted()
    if dry_run:
        done.joined = {
            str(number): [part.key for part in group] for number, group in enumerate(_groups(store, at_least))
        }
        return done
    with store.lock(COMPACTION_LOCK), store.lock(FORGETTING_LOCK):
        for group in _groups(store, at_least):
            done.joined[merge_segments(store, group).key] = [part.key for part in group]
        joined = [found for found in store.manifests(extract.name) if SEGMENTS in found.inputs]
        for name in corpora_with(store, joined):
            with store.lock(f"corpus/{name}"):
                (done.followed if follow(store, name, joined) else done.waiting).append(name)
        done.removed = list(_tidy(store, joined, time.time() - grace))
    return done


def _groups(store: Store, at_least: int) -> Iterator[list[Manifest]]:
    """Segments that become one: small ones, of the same corpora, read by the same tools with the same options."""
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
        yield from _fill(store, alike[kind], at_least)


def _without_rivals(segments: Sequence[Manifest]) -> list[Manifest]:
    """Segments that share no content with another one: which of two extractions counts is decided run by run."""
    first: dict[str, str] = {}
    rivals: set[str] = set()
    for found in segments:
        for entry in found.settings["contents"]:
            other = first.setdefault(entry["sha256"], found.key)
            if other != found.key:
                rivals |= {other, found.key}
    return [found for found in segments if found.key not in rivals]


def _fill(store: Store, segments: Iterable[Manifest], at_least: int) -> Iterator[list[Manifest]]:
    """Small segments, the oldest first, in groups that make no more than a segment.

    A group that has no room for the next one is joined however few it has, two or more: what becomes of it is not small
    any more. The last group may grow, and waits until it has enough.
    """
    group: list[Manifest] = []
    n_files = n_bytes = 0
    for found in sorted(segments, key=lambda item: (item.created, item.key)):
        files, size = found.counts["units"], _size(store, found)
        if SMALL * files > SEGMENT_FILES or SMALL * size > SEGMENT_BYTES:
            continue
        if group and (n_files + files > SEGMENT_FILES or n_bytes + size > SEGMENT_BYTES):
            yield group
            group, n_files, n_bytes = [], 0, 0
        group.append(found)
        n_files, n_bytes = n_files + files, n_bytes + size
    if len(group) >= max(2, at_least):
        yield group


def _size(store: Store, segment: Manifest) -> int:
    """Bytes of a segment's files, or of its pages where those are more: an archive unpacks."""
    rows = stream_rows(store.folder(segment.ref) / EXTRACTS_FILE, ["locator", "size"])
    pages = next(entry.size for entry in segment.files if entry.name == PAGES_FILE)
    return max(pages, sum(row["size"] for row in rows if not row["locator"]))


def _tidy(store: Store, joined: Sequence[Manifest], before: float) -> Iterator[str]:
    """Remove what was joined and is not used any more: measures and texts first, and the segment last."""
    in_use = {
        (ref.stage, ref.key) for name in corpora(store) for refs in read_state(store, name).values() for ref in refs
    }
    for old in {ref.key: ref for found in joined for ref in found.input_refs(SEGMENTS)}.values():
        segment = store.find(old.stage, old.key)
        if segment is None:
            continue
        if any(store.find(ref.stage, ref.key) is not None for ref in segment.input_refs()):
            continue  # it was joined itself: it goes after those that it replaced
        going = [*_made_from(store, old), old]
        if any(
            (ref.stage, ref.key) in in_use or store.last_used(ref.stage, ref.key, fresh=True) > before for ref in going
        ):
            continue
        for ref in going:
            try:
                store.remove(ref.stage, ref.key, keep_manifest=True)
            except StoreError:
                break  # somebody works on it; another time
            yield f"{ref.stage}/{ref.key}"


def _made_from(store: Store, segment: ArtifactRef) -> list[ArtifactRef]:
    """What is tidied of a segment, each before what it was made from."""
    found: list[ArtifactRef] = []
    behind = {segment.digest}
    for stage in TIDIED:
        for manifest in store.manifests(stage):
            if not behind.isdisjoint(entry["digest"] for entry in manifest.inputs.values()):
                found.append(manifest.ref)
                if stage in INGESTED:
                    behind.add(manifest.digest)
    return found[::-1]
