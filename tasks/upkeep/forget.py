"""Forget documents: find them and the models that saw them, write tombstones, and take them out of the store.

    segments            rewritten, because reading files takes the most time of all
    evaluation sets     rewritten, and pinned where the old ones were
    selections          trimmed: they say what a model was trained on
    lists of files      trimmed: by them people name what is to be forgotten next
    models, figures     stay; samples and completions whose prompts quote a document go
    texts from outside  go where they hold a document, with what was measured on them
    all else            goes (texts, measures, token shards, indexes, datasets); the next run makes it again

The manifests of what goes are kept, so that the lineage of models still leads back. Before anything is touched, the
tombstones note what will go; whoever finds that note goes on from it, so a kill costs nothing. The old segments and the
texts made from them go last, because by them it is known what quotes a document; pages in the home and beside MLflow
runs go first, because by what goes it is known which they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from storage.catalog import CORPUS_REF, LISTED, Catalog, read_state
from storage.errors import UserError
from storage.home import Home
from storage.lineage import ancestors, descendants
from storage.manifest import ArtifactRef, Manifest
from storage.store import Store
from storage.tombstones import (
    FORGETTING_LOCK,
    Tombstone,
    Tombstones,
    read_tombstones,
    write_tombstones,
)
from tasks.ingest.segments import present_segments
from tasks.lineage.documents import SEGMENT_STAGES, find_forgotten, find_targets, paths_of, place_digests
from tasks.lineage.training_data import exposed_documents
from tasks.upkeep.forget_quotes import TRAIN, clear_pages, find_quotes, show_samples
from tasks.upkeep.rewriting import (
    TRIMMED,
    holders,
    rewrite_evalset,
    rewrite_segment,
    rows_to_forget,
    trim_samples,
    trim_tables,
)

TEXT_STAGES = ("import", "normalise", "refine", "evalset")  # whose `documents.parquet` holds texts
# lineage is followed up to these and no further: models, what they wrote and their figures; they stay, but for samples
# and completions that quote a forgotten document (`find_quotes`)
KEPT = ("train", "bundle", "suggest", "tokenizer", "evaluate", "gates", "complete", "generate", "prompts")

_Instead = Mapping[tuple[str, str], ArtifactRef | None]  # of what goes, by stage and key


def forget(home: Home, store: Store, thing: str, reason: str, corpus: str, dry_run: bool) -> dict[str, Any]:
    """Forget documents, and return what was done as `sheepfold forget --json` prints it.

    Args:
        thing: An id, a path or a folder (see `find_targets`).
        reason: Kept with the tombstones.
        dry_run: Change nothing, only report.

    Raises:
        UserError: if nothing has that name, or another process works in the store.
    """
    known = read_tombstones(store)
    targets = find_targets(store, corpus, thing)
    before = {item.doc_id for item in find_forgotten(known, thing)} | known.documents.keys() & {
        item.doc_id for item in targets
    }
    # a forgetting that was killed is finished under any name: the one it was called by may be gone by now
    if not targets and not before and known.pending is None:
        raise UserError(
            f"no document of corpus {corpus!r} goes by {thing!r}: give an id or eight digits of one, a path or "
            "folder as `sheepfold sql \"select path, doc_id from files\"` shows it, or the beginning of paths and '*'"
        )
    since = datetime.now(UTC).isoformat(timespec="seconds")
    named = {target.doc_id: Tombstone(target.doc_id, target.sha256, reason, since) for target in targets}
    wanted = with_copies(store, Tombstones({**named, **known.documents}, known.pending))
    new = {doc_id: item for doc_id, item in wanted.documents.items() if doc_id not in known.documents}
    exposed = exposed_documents(store, new) if new else []
    paths = paths_of(store, {doc_id: item.sha256 for doc_id, item in new.items()})
    result: dict[str, Any] = {
        "documents": [{"doc_id": name, "path": min(found)[0] if found else ""} for name, found in paths.items()],
        "known": len(before),
        "seen_by": [exposure for exposure, _ in exposed],
        "near_duplicates": _near_duplicates(store, corpus, wanted.documents) if new else [],
        "dry_run": dry_run,
    }
    if dry_run:
        sweep = plan_sweep(store, wanted)
    else:
        buried = {}
        for name, item in new.items():
            seen_by = tuple(exposure["training"] for exposure, read in exposed if name in read)
            buried[name] = replace(item, seen_by=seen_by, places=place_digests(paths[name]))
        _bury(store, buried)
        sweep = finish_forgetting(home, store) or Sweep()
    return {**result, **sweep.report()}


def _bury(store: Store, new: Mapping[str, Tombstone]) -> None:
    """Write tombstones and mark their forgetting as pending.

    Raises:
        UserError: if another process works in the store, which may have read the documents.
    """
    owners = store.owners()
    if owners:
        raise UserError(f"{'; '.join(owners)}: wait for it to end, or stop it, and forget then")
    with store.lock(FORGETTING_LOCK):
        known = read_tombstones(store)
        write_tombstones(store, Tombstones({**known.documents, **new}, known.pending or []))


def _near_duplicates(store: Store, corpus: str, doc_ids: Collection[str]) -> list[dict[str, Any]]:
    """Return the documents that stay and are near-duplicates of forgotten ones."""
    if "dedup" not in read_state(store, corpus):
        return []
    ids = ", ".join(f"'{doc_id}'" for doc_id in sorted(doc_ids))
    return Catalog(store, corpus).query(
        "select distinct f.doc_id, f.path from clusters c join files f using (doc_id) where f.status = 'ok' and "
        f"c.cluster in (select cluster from clusters where doc_id in ({ids})) and f.doc_id not in ({ids}) order by path"
    )


# taking documents out


@dataclass
class Sweep:
    """Artefacts that are taken out of a store, or would be.

    Attributes:
        segments: Extraction segments that are rewritten.
        evalsets: Evaluation sets that are rewritten.
        trimmed: Selections and lists of files that are trimmed.
        samples: Prompts whose samples are taken out of trainings, by the training's key.
        removed: Artefacts that go.
        shown_by: Keys of the trainings beside whose runs pages or samples may quote a document: they come from a corpus
            that held it, though it may have dropped it, or were measured on what held it.
    """

    segments: list[Manifest] = field(default_factory=list)
    evalsets: list[Manifest] = field(default_factory=list)
    trimmed: list[Manifest] = field(default_factory=list)
    samples: dict[str, set[str]] = field(default_factory=dict)
    removed: list[tuple[str, str]] = field(default_factory=list)
    shown_by: set[str] = field(default_factory=set)

    def report(self) -> dict[str, dict[str, int]]:
        """Return the number of artefacts that are rewritten and removed, by stage."""
        selections = [found for found in self.trimmed if found.stage != "snapshot"]
        return {
            "rewritten": {"extract": len(self.segments), "evalset": len(self.evalsets), "curate": len(selections)},
            "removed": dict(sorted(Counter(stage for stage, _ in self.removed).items())),
        }


def plan_sweep(store: Store, forgotten: Tombstones) -> Sweep:
    """Plan the removal of everything that the store holds of some documents."""
    segments = holders(store, SEGMENT_STAGES, forgotten)
    evalsets = holders(store, ("evalset",), forgotten)
    replaced = [found.ref for segment in segments for depth, found in ancestors(store, segment.ref) if depth]
    sources = [*(manifest.ref for manifest in (*segments, *evalsets)), *replaced]  # what they were joined from, too
    made = descendants(store, sources, beyond=(*KEPT, "evalset"))
    made = [manifest for manifest in made if manifest.stage != "evalset" or manifest in evalsets]
    # those that were trimmed before were made from segments that are no more
    named = {found.ref: found for found in (*made, *holders(store, TRIMMED, forgotten)) if found.stage in TRIMMED}
    texts = [manifest.ref for manifest in (*segments, *evalsets, *made) if manifest.stage in TEXT_STAGES]
    quotes = find_quotes(store, texts, forgotten)
    spoken = descendants(store, [manifest.ref for manifest in (*quotes.prompts, *quotes.outside)])
    going = [*segments, *evalsets, *(found for found in made if found.stage not in (*KEPT, *TRIMMED))]
    going += [*quotes.prompts, *quotes.outside, *spoken]
    shown_by = set(quotes.samples)
    for manifest in (*made, *quotes.outside, *spoken):  # trainings, and what was measured or written with one
        refs = [manifest.ref] if manifest.stage == TRAIN else manifest.input_refs()
        shown_by |= {ref.key for ref in refs if ref.stage == TRAIN}
    for item in forgotten.documents.values():
        shown_by |= {name.rpartition("/")[2] for name in item.seen_by}
    return Sweep(
        segments=present_segments(manifest for manifest in segments if manifest.stage == "extract"),
        evalsets=evalsets,
        trimmed=list(named.values()),
        samples=quotes.samples,
        removed=sorted({(manifest.stage, manifest.key) for manifest in going} | set(forgotten.pending or ())),
        shown_by=shown_by,
    )


def finish_forgetting(home: Home, store: Store) -> Sweep | None:
    """Do what the tombstones say is still to be done; None if it is nothing.

    It may be killed at any moment and called again.
    """
    if read_tombstones(store).pending is None:
        return None
    with store.lock(FORGETTING_LOCK):
        forgotten = read_tombstones(store)
        if forgotten.pending is None:
            return None  # done by the process that we waited for
        forgotten = with_copies(store, forgotten)
        found = plan_sweep(store, forgotten)
        forgotten = replace(forgotten, pending=found.removed)
        write_tombstones(store, forgotten)
        clear_pages(home, found.shown_by)
        _carry_out(store, found, forgotten)
        show_samples(home, store, found.shown_by)
        write_tombstones(store, replace(forgotten, pending=None))
        return found


def with_copies(store: Store, forgotten: Tombstones) -> Tombstones:
    """Return the forgotten documents, and those of the same bytes elsewhere: in an archive, say."""
    reasons = {item.sha256: item for item in forgotten.documents.values()}
    copies = {
        row["doc_id"]: replace(reasons[row["sha256"]], doc_id=row["doc_id"], places=())
        for segment in holders(store, SEGMENT_STAGES, forgotten)
        for row in rows_to_forget(store, segment, forgotten)
        if row["doc_id"] not in forgotten.documents
    }
    return replace(forgotten, documents={**forgotten.documents, **copies})


def refuse_forgotten(store: Store, known: Collection[str]) -> None:
    """Refuse what a run made if a document was forgotten since it listed its files, and mark the forgetting as pending.

    Raises:
        UserError: then.
    """
    forgotten = read_tombstones(store)
    if forgotten.documents.keys() <= set(known):
        return
    with store.lock(FORGETTING_LOCK):
        known_now = read_tombstones(store)  # of a forgetting that was killed they say what is still to go
        write_tombstones(store, replace(known_now, pending=known_now.pending or []))
    raise UserError(
        "documents were forgotten while this ran, and it may have read them: run the same command again, which takes "
        "out of the store what this one put there"
    )


def _carry_out(store: Store, found: Sweep, forgotten: Tombstones) -> None:
    for training in [manifest for manifest in store.manifests(TRAIN) if manifest.key in found.samples]:
        trim_samples(store, training, found.samples[training.key])
    for manifest in found.trimmed:
        trim_tables(store, manifest, forgotten)
    instead: dict[tuple[str, str], ArtifactRef | None] = dict.fromkeys(found.removed)
    for segment in found.segments:
        instead[segment.stage, segment.key] = rewrite_segment(store, segment, forgotten)
    for evalset in found.evalsets:
        instead[evalset.stage, evalset.key] = rewrite_evalset(store, evalset, forgotten.documents.keys())
    _move_refs(store, instead, {listing.key for listing in found.trimmed if listing.stage == "snapshot"})
    for work in store.unfinished():  # journals hold text of files that were read; trainings on what stays go on
        if work.stage != TRAIN or work.inputs is None or not work.inputs.isdisjoint(found.removed):
            store.remove_work(work.stage, work.key)
    for stage, key in sorted(found.removed, key=lambda name: (name[0] in (*SEGMENT_STAGES, *TEXT_STAGES), name)):
        store.remove(stage, key, keep_manifest=True)


def _move_refs(store: Store, instead: _Instead, trimmed: Collection[str]) -> None:
    """Let no name stand at what goes: a corpus keeps what is left of its last run, until the next one.

    Args:
        trimmed: keys of lists of files that are no longer whole.
    """
    for name in store.refs(f"{CORPUS_REF}/"):
        with store.lock(name):
            state = store.read_ref(name) or {}
            left = {stage: list(_moved(refs, instead)) for stage, refs in state.items()}
            if any(ref["key"] in trimmed for ref in left.get("snapshot", ())):
                left[LISTED] = left.pop("snapshot")
            if left != state:
                store.write_ref(name, {stage: refs for stage, refs in left.items() if refs})
    for name in store.refs("evalset/"):
        pinned = store.read_ref(name)
        moved = next(_moved([pinned], instead), None) if pinned else None
        if moved is None:
            store.remove_ref(name)
        elif moved != pinned:
            store.write_ref(name, moved)


def _moved(refs: Iterable[dict[str, Any]], instead: _Instead) -> Iterator[dict[str, Any]]:
    for ref in refs:
        name = (ref["stage"], ref["key"])
        new = instead.get(name)
        if name not in instead:
            yield ref
        elif new is not None:
            yield asdict(new)
