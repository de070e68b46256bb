"""Letting a corpus follow: its last run's artefacts as they would be, had the joined segments always been there.

What a run would ask for is foretold by key: texts, measures, scores, refined texts and token shards of each joined
segment, and the snapshot, of which only the places of rows change. All of it is joined and written before the corpus's
ref moves, in one step. Where something cannot be foretold (a run that was never completed, settings that changed since)
the corpus is left to its next run, which computes what is missing.

The dataset stays what it is: its spans point into the token shards of the segments before, which stay for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from storage.catalog import corpora, read_state
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, Input, Manifest, RefSet, describe_inputs
from storage.schemas import CUTS_FILE, FILES, FILES_FILE
from storage.store import Store
from storage.tables import read_columns, stream_rows, write_columns
from tasks.curate.refine import RefineStageSettings
from tasks.ingest.journal import Content
from tasks.ingest.snapshot import Listing
from tasks.upkeep.compact_merging import SEGMENTS, merge_stage, order_of

State = dict[str, list[ArtifactRef]]
# stages of a segment that ingestion runs, in their order
INGESTED = ("normalise", "measure", "score", "refine")
ENCODED = "tokenise"


class Unforeseen(Exception):
    """What the next run will ask for cannot be told from the last one."""


@dataclass(frozen=True)
class _Corpus:
    """A corpus as its last run left it.

    Attributes:
        segments: all of it, imported ones too.
        joined: joined segments of which it has all parts, with the places of those in `segments`.
    """

    name: str
    state: State
    segments: list[ArtifactRef]
    joined: list[tuple[Manifest, list[int]]]


def corpora_with(store: Store, joined: Sequence[Manifest]) -> list[str]:
    """The corpora that still stand at what joined segments replace."""
    replaced = {ref.key for manifest in joined for ref in manifest.input_refs(SEGMENTS)}
    return [
        name
        for name in corpora(store)
        if not replaced.isdisjoint(ref.key for ref in read_state(store, name).get("extract", []))
    ]


def follow(store: Store, name: str, joined: Sequence[Manifest]) -> bool:
    """Let a corpus's ref stand at joined segments; False if it is left to its next run.

    The caller holds the lock of the ref.
    """
    state = read_state(store, name)
    segments = state.get("extract", [])
    places = {ref.key: place for place, ref in enumerate(segments)}
    whole = [
        (manifest, [places[ref.key] for ref in manifest.input_refs(SEGMENTS)])
        for manifest in joined
        if all(ref.key in places for ref in manifest.input_refs(SEGMENTS))
    ]
    if not whole or "snapshot" not in state:
        return False
    try:
        moved = _moved(store, _Corpus(name, state, segments, whole))
    except Unforeseen:
        return False
    store.write_ref(f"corpus/{name}", {stage: [asdict(ref) for ref in refs] for stage, refs in moved.items()})
    return True


def _moved(store: Store, corpus: _Corpus) -> State:
    """The state with joined artefacts in the places of those that they replace."""
    parallel = [stage for stage in INGESTED if len(corpus.state.get(stage, [])) == len(corpus.segments)]
    if not set(INGESTED) - {"score"} <= set(parallel):
        raise Unforeseen("ingestion was not completed")
    if _encodes_what_is_refined(store, corpus):
        parallel.append(ENCODED)
    gone = {place for _, places in corpus.joined for place in places}
    lists: State = {
        stage: [ref for place, ref in enumerate(corpus.state[stage]) if place not in gone]
        for stage in ("extract", *parallel)
    }
    cuts = _cuts_of(store, corpus)
    for segment, places in corpus.joined:
        made = _merge_all(store, corpus, segment, places, parallel, cuts)
        for stage, ref in made.items():
            lists[stage].append(ref)
    order = sorted(range(len(lists["extract"])), key=lambda place: _in_state(lists["extract"][place]))
    lists = {stage: [refs[place] for place in order] for stage, refs in lists.items()}
    return {**corpus.state, **lists, "snapshot": [_snapshot(store, corpus, lists["extract"])]}


def _in_state(segment: ArtifactRef) -> tuple[bool, str]:
    """Extracted segments come before imported ones, each by key."""
    return segment.stage != "extract", segment.key


def _encodes_what_is_refined(store: Store, corpus: _Corpus) -> bool:
    """Whether the token shards are those of these very texts, and not of an earlier ingestion."""
    shards, texts = corpus.state.get(ENCODED, []), corpus.state["refine"]
    return len(shards) == len(texts) and all(
        manifest_of(store, shard).inputs["documents"]["digest"] == text.digest
        for shard, text in zip(shards, texts, strict=True)
    )


def _cuts_of(store: Store, corpus: _Corpus) -> dict[str, list[tuple[int, int]]]:
    cuts: dict[str, list[tuple[int, int]]] = {}
    for ref in corpus.state["curate"]:
        for row in stream_rows(store.folder(ref) / CUTS_FILE, ["doc_id", "start", "length"]):
            cuts.setdefault(row["doc_id"], []).append((row["start"], row["length"]))
    return cuts


def _merge_all(
    store: Store,
    corpus: _Corpus,
    segment: Manifest,
    places: Sequence[int],
    stages: Sequence[str],
    cuts: Mapping[str, list[tuple[int, int]]],
) -> dict[str, ArtifactRef]:
    """The artefacts of a joined segment by stage."""
    order = order_of(store, segment)
    made = {"extract": segment.ref}
    for stage in stages:
        parts = [_present(store, corpus.state[stage][place]) for place in places]
        if len({part.version for part in parts}) > 1:
            raise Unforeseen(f"{stage} was made by several versions")
        settings = parts[0].settings
        if stage == "refine":
            own = {doc_id: spans for doc_id, spans in cuts.items() if doc_id in order}
            settings = asdict(RefineStageSettings.of(tuple(settings["redact"]), own))
            settings["redact"] = list(settings["redact"])
        elif any(part.settings != settings for part in parts):
            raise Unforeseen(f"{stage} was made with several settings")
        made[stage] = merge_stage(store, parts, _inputs(parts, made), settings, order).ref
    _merge_overlaps(store, corpus, places, made, order)
    return made


def _present(store: Store, ref: ArtifactRef) -> Manifest:
    found = store.find(ref.stage, ref.key)
    if found is None:
        raise Unforeseen(f"{ref.stage}/{ref.key} is gone")
    return found


# the stage whose artefact of the same segment an input is
_OF_SEGMENT = {
    ("normalise", "segment"): "extract",
    ("measure", "documents"): "normalise",
    ("score", "documents"): "normalise",
    ("refine", "documents"): "normalise",
    ("refine", "measures"): "measure",
    (ENCODED, "documents"): "refine",
    ("evalset_overlap", "measures"): "measure",
}


def _inputs(parts: Sequence[Manifest], made: Mapping[str, ArtifactRef]) -> dict[str, Input]:
    """What a stage's artefact of the joined segment is made from; what is of no segment must be one for all parts."""
    inputs: dict[str, Input] = {}
    for name in parts[0].inputs:
        of = _OF_SEGMENT.get((parts[0].stage, name))
        if of is not None:
            inputs[name] = made[of]
            continue
        (one, *others) = {part.input_refs(name)[0].digest: part.input_refs(name)[0] for part in parts}.values()
        if others:
            raise Unforeseen(f"{parts[0].stage} was made from several {name}s")
        inputs[name] = one
    return inputs


def _merge_overlaps(
    store: Store, corpus: _Corpus, places: Sequence[int], made: Mapping[str, ArtifactRef], order: Mapping[str, int]
) -> None:
    """What the segments share with evaluation sets, as far as it is known of all of them."""
    measured = [corpus.state["measure"][place].digest for place in places]
    by_evalset: dict[str, dict[str, Manifest]] = {}
    for found in store.manifests("evalset_overlap"):
        if found.inputs["measures"]["digest"] in measured:
            by_evalset.setdefault(found.inputs["evalset"]["digest"], {})[found.inputs["measures"]["digest"]] = found
    for known in by_evalset.values():
        parts = [known[digest] for digest in measured if digest in known]
        if len(parts) == len(measured) and len({part.version for part in parts}) == 1:
            merge_stage(store, parts, _inputs(parts, made), parts[0].settings, order)


def _snapshot(store: Store, corpus: _Corpus, segments: Sequence[ArtifactRef]) -> ArtifactRef:
    """The snapshot in which rows lie in other segments; its digest stays, as where rows lie is not in it."""
    (ref,) = corpus.state["snapshot"]
    old = _present(store, ref)
    listed = read_columns(store.folder(ref) / FILES_FILE, ["sha256", "container"])
    live = {sha256 for sha256, container in zip(*listed.values(), strict=True) if sha256 and container is None}
    if _contents(store, corpus.segments, live) != old.settings["contents"]:
        raise Unforeseen("the listing is not of these segments")  # some content lies in several, say
    known = old.inputs["segments"]
    described = replace(
        old,
        settings={**old.settings, "contents": _contents(store, segments, live)},
        inputs=describe_inputs({"segments": RefSet(tuple(segments), known["digest"])}),
    )
    key = described.content_key
    if (found := store.find(old.stage, key)) is not None:
        return found.ref
    now = {corpus.segments[place].key: segment.key for segment, places in corpus.joined for place in places}
    with store.workspace(old.stage, key) as workspace:
        columns: dict[str, list[Any]] = read_columns(store.folder(ref) / FILES_FILE, FILES.names)
        columns["segment"] = [now.get(name, name) for name in columns["segment"]]
        write_columns(workspace.out / FILES_FILE, FILES, columns)
        return store.commit(workspace, replace(described, key=key, files=[])).ref


def _contents(store: Store, segments: Sequence[ArtifactRef], live: set[str]) -> str:
    """What a snapshot's settings say of where live contents lie."""
    places = [place for ref in segments for place in _places(manifest_of(store, ref), live)]
    places.sort(key=lambda place: (place[0].sha256, place[0].suffix, place[0].attempt, place[1]))
    return Listing([], places).settings().contents


def _places(segment: Manifest, live: set[str]) -> Iterator[tuple[Content, str]]:
    if segment.stage == "extract":
        for entry in segment.settings["contents"]:
            if entry["sha256"] in live:
                yield Content(**entry), segment.key
        return
    from tasks.ingest.importing import SUFFIX

    for part in segment.settings["parts"]:
        if part["sha256"] in live:
            yield Content(part["sha256"], SUFFIX), segment.key
