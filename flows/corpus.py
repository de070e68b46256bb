"""The wiring of ingestion: from sources to documents that are clean, measured, deduplicated, split and refined.

Like the rest of the wiring it is written once for runs and for plans; see `flows.pipeline`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flows.corpus_import import Imported, corpora_of, import_files
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import CUTS_FILE, DOCUMENTS_FILE, MEASURES_FILE, SCORES_FILE, VERIFIED_FILE
from storage.tables import read_columns, stream_rows
from storage.tombstones import read_tombstones
from tasks.apart import TABLE_BYTES_PER_FILE, WORTH_A_PROCESS
from tasks.curate.classifier.stages import ClassifierStageSettings, ScoreSettings, classifier, score
from tasks.curate.contamination import EvaluationSetSettings, evaluation_sets
from tasks.curate.curate import CurationSettings, curate
from tasks.curate.duplicates import dedup
from tasks.curate.measure import MeasureSettings, measure
from tasks.curate.normalise import normalise
from tasks.curate.readiness import get_ready
from tasks.curate.refine import Cuts, RefineStageSettings, refine
from tasks.forgetting.sweep import finish_forgetting
from tasks.ingest.journal import Content
from tasks.ingest.pictures.ocr import ocr_ready
from tasks.ingest.segments import (
    Located,
    SegmentSettings,
    cut_segments,
    extract,
    extract_tools,
    passwords_digest,
    segment_index,
    wants_retry,
)
from tasks.ingest.snapshot import CONTAINERS, ListedFile, Listing, list_files, snapshot
from tasks.ingest.sources.hashing import HashMemo
from tasks.ingest.sources.resolve import Source, walk_sources
from tasks.session import Call, Pending, Session
from tasks.settings import Settings

Maybe = ArtifactRef | Pending
MaybeSet = RefSet | Pending


@dataclass(frozen=True)
class Documents:
    """A corpus as text; the lists have one entry for each segment.

    Attributes:
        segments: segments in use, extracted or imported, and `keys` their keys.
        live: the live documents of each; empty where a plan cannot know them.
        sizes: how many documents of each are live, or files where a plan does not know better.
        normalised: the texts of each.
    """

    snapshot: Maybe
    segments: list[Maybe]
    keys: list[str]
    live: list[set[str]]
    sizes: list[int]
    normalised: list[Maybe]


@dataclass(frozen=True)
class Ingested(Documents):
    """A corpus after ingestion.

    Attributes:
        measured, refined: what was made of each segment; `scored` too, where there is a classifier.
        curated: what is kept, dropped and held out.
        measures, texts: what was measured on the documents, and their refined texts, each as one table.
    """

    measured: list[Maybe]
    scored: list[Maybe]
    duplicates: Maybe
    curated: Maybe
    refined: list[Maybe]
    measures: MaybeSet
    texts: MaybeSet


@dataclass(frozen=True)
class Extracted:
    """The extraction segments of a corpus.

    Attributes:
        keys: of the segments.
        contents: for each segment, the sha256 of the files in it that are live.
        places: for each content, the extraction that is used and the segment it lies in.
    """

    segments: list[Maybe]
    keys: list[str]
    contents: list[set[str]]
    places: list[tuple[Content, str]]


def read_documents(session: Session, sources: Sequence[Source], settings: Settings) -> Documents:
    """From the sources to one clean text per document."""
    taken, extracted, imported = _take_snapshot(session, sources, settings)
    segments, contents = extracted.segments + imported.segments, extracted.contents + imported.contents
    live = [_live(session, ref, wanted) for ref, wanted in zip(segments, contents, strict=True)]
    sizes = [len(found) or len(wanted) for found, wanted in zip(live, contents, strict=True)]
    read = zip(extracted.segments, sizes[: len(extracted.segments)], strict=True)
    normalised = session.run_each(normalise, [Call(settings.normalise, {"segment": ref}, n) for ref, n in read])
    # what was imported is normalised already
    return Documents(taken, segments, extracted.keys + imported.keys, live, sizes, normalised + imported.segments)


def _take_snapshot(
    session: Session, sources: Sequence[Source], settings: Settings
) -> tuple[Maybe, Extracted, Imported]:
    """List and extract the files, and note what became of each.

    The listing ends with this function: of 200,000 files it is half of what this process has.
    """
    files, locations = _list(session, sources, settings)
    corpora, others = corpora_of(files)
    extracted = _extract(session, others, settings)
    imported = import_files(session, corpora, locations, settings)
    listing = Listing(files, sorted(extracted.places + imported.places, key=_place_in_order))
    if session.resources is not None:
        session.resources.listing = listing
    segments, contents = extracted.segments + imported.segments, extracted.contents + imported.contents
    union = session.union(segments, "extracts.parquet", contents, identity="file_sha256")
    taken = session.run(snapshot, listing.settings(), segments=union)
    if session.resources is not None:
        session.resources.listing = None
    return taken, replace(extracted, places=[]), replace(imported, places=[])


def _place_in_order(place: tuple[Content, str]) -> tuple[str, str, int, str]:
    """Sorts as the pair does, and several times faster: there may be hundreds of thousands."""
    content, key = place
    return content.sha256, content.suffix, content.attempt, key


def ingest(session: Session, sources: Sequence[Source], settings: Settings) -> Ingested:
    """Everything from the sources to the text that models see."""
    read = read_documents(session, sources, settings)
    texts = zip(read.normalised, read.sizes, strict=True)
    measured = session.run_each(measure, [Call(MeasureSettings(), {"documents": ref}, n) for ref, n in texts])
    scored = _score(session, settings, read)
    documents = _union(session, read, read.normalised, DOCUMENTS_FILE)
    measures = _union(session, read, measured, MEASURES_FILE)
    if session.resources is not None:
        session.resources.verified_pairs = _verified_pairs(session)
    duplicates = session.run(dedup, settings.dedup, snapshot=read.snapshot, documents=documents, measures=measures)
    curated = session.run(
        curate,
        CurationSettings(replace(settings.curate, evaluation_sets=""), settings.policy),
        snapshot=read.snapshot,
        documents=documents,
        measures=measures,
        scores=_union(session, read, scored, SCORES_FILE),
        duplicates=duplicates,
        evaluation=_evaluation_sets(session, settings),
    )
    refined = _refine(session, settings, read, curated, measured)
    return Ingested(
        **vars(read),
        measured=measured,
        scored=scored,
        duplicates=duplicates,
        curated=curated,
        refined=refined,
        measures=measures,
        texts=_union(session, read, refined, DOCUMENTS_FILE),
    )


def _union(session: Session, read: Documents, made: Sequence[Maybe], table: str) -> MaybeSet:
    """What was made of each segment, as one table."""
    return session.union(made, table, read.live[: len(made)], segments=read.keys[: len(made)])


def _list(session: Session, sources: Sequence[Source], settings: Settings) -> tuple[list[ListedFile], dict[str, str]]:
    """Walk the sources and hash what changed; returns the files, and where each content lies."""
    if not session.dry:
        finish_forgetting(session.home, session.store)  # what a kill left of it, before any of that is taken for found
    forgotten = read_tombstones(session.store)
    session.forgotten = frozenset(forgotten.documents)
    # what we write ourselves is no document
    own = [session.home.path, Path(session.home.store)]
    session.home.create()
    walked = walk_sources(
        sources,
        settings.sources,
        settings.extract.max_file_bytes,
        session.home.cache,
        HashMemo(session.home.hash_memo),
        exclude=own,
        fetch=not session.dry,
    )
    if walked.n_ignored:
        session.note(f"{walked.n_ignored} files or folders were left out by patterns or .gitignore")
    if walked.n_pending:
        session.note(
            f"{walked.n_pending} objects are not in the cache: the plan counts them as new, a run fetches them"
        )
    if session.resources is not None:
        session.resources.paths = walked.locations
    return list_files(walked.files, walked.digests, forgotten.contents), walked.locations


def _extract(session: Session, files: Sequence[ListedFile], settings: Settings) -> Extracted:
    """Extract what is new of some listed files."""
    passwords = settings.passwords.read()
    noted = passwords_digest(passwords, session.home)
    chosen, located = _choose_contents(session, settings, files, noted)
    if extract.name in session.refresh:
        located = {}  # with their attempts: an earlier one would not be the one that counts
    sizes = {item.sha256: item.size for item in files if item.sha256 is not None}
    cuts = cut_segments((content for content in chosen.values() if content not in located), sizes)
    calls = [Call(SegmentSettings(settings.extract, contents), {}, len(contents)) for contents in cuts]
    if cuts and session.resources is not None and len(located) * TABLE_BYTES_PER_FILE >= WORTH_A_PROCESS:
        session.resources.apart.warm(
            get_ready, cache=str(session.home.cache)
        )  # beside the extraction: what follows is over the whole corpus
    places = {content: ref.key for content, ref in located.items()}
    for call, contents in zip(calls, cuts, strict=True):
        places |= dict.fromkeys(contents, extract.key(call.settings, {}))
    if session.resources is not None:
        session.resources.sizes = sizes
        session.resources.passwords, session.resources.passwords_noted = passwords, noted
    for ref in sorted(set(located.values())):
        session.compare(extract, manifest_of(session.store, ref), extract_tools)
    made = session.run_each(extract, calls)
    if session.resources is not None:
        session.resources.sizes = {}
    session.count_reused(extract, len(located))
    worse = _worse_retries(session, settings, cuts)
    for content, known in worse.items():
        del places[content]
        places[known.content] = known.segment.key
        located[known.content] = known.segment
    by_segment: dict[ArtifactRef, set[str]] = defaultdict(set)
    for content, ref in located.items():
        by_segment[ref].add(content.sha256)
    wanted = list(by_segment.values())
    wanted += [{content.sha256 for content in contents if content not in worse} for contents in cuts]
    keys = [*(ref.key for ref in by_segment), *(extract.key(call.settings, {}) for call in calls)]
    # in an order that does not depend on which of them were there
    order = sorted((place for place in range(len(keys)) if wanted[place]), key=lambda place: keys[place])
    segments: list[Maybe] = [*by_segment, *made]
    return Extracted(
        [segments[place] for place in order],
        [keys[place] for place in order],
        [wanted[place] for place in order],
        list(places.items()),
    )


def _worse_retries(session: Session, settings: Settings, cuts: Iterable[Sequence[Content]]) -> dict[Content, Located]:
    """Retries that gave less text than an earlier attempt at the same content, and that attempt, which counts."""
    retried = [content for contents in cuts for content in contents if content.attempt]
    if not retried or session.resources is None or extract.name in session.refresh:
        return {}
    index = segment_index(session.store, settings.extract)
    return {content: index[content.identity] for content in retried if index[content.identity].content != content}


def _choose_contents(
    session: Session, settings: Settings, listed: Iterable[ListedFile], passwords: str
) -> tuple[dict[str, Content], dict[Content, ArtifactRef]]:
    """For every content of the listing, which extraction of it is used, and where those lie that are there.

    Args:
        passwords: the `passwords_digest` of those given now.
    """
    suffixes: dict[str, str] = {}
    for item in listed:
        if item.sha256 is not None:
            # one content, one document: where suffixes differ, the first in order decides how it is read
            suffixes[item.sha256] = min(suffixes.get(item.sha256, item.suffix), item.suffix)
    index = segment_index(session.store, settings.extract)
    can_read_images = ocr_ready(settings.extract.ocr_languages)
    chosen: dict[str, Content] = {}
    located: dict[Content, ArtifactRef] = {}
    for sha256, suffix in suffixes.items():
        known: Located | None = index.get((sha256, suffix))
        if known is None:
            chosen[sha256] = Content(sha256, suffix)
        elif wants_retry(known, session.retry_failed, can_read_images, passwords):
            chosen[sha256] = Content(sha256, suffix, known.last_attempt + 1)
        else:
            chosen[sha256] = known.content
            located[known.content] = known.segment
    return chosen, located


def _live(session: Session, segment: Maybe, contents: set[str]) -> set[str]:
    """The documents of a segment that live files hold."""
    if isinstance(segment, Pending):
        return set()
    wanted = ["doc_id", "file_sha256", "status", "kind"]
    rows = zip(*read_columns(session.store.folder(segment) / "extracts.parquet", wanted).values(), strict=True)
    return {
        doc for doc, sha256, status, kind in rows if sha256 in contents and status == "ok" and kind not in CONTAINERS
    }


def _verified_pairs(session: Session) -> list[Path]:
    """Similarities that the last deduplication in this store computed; they hold for texts, in whatever corpus."""
    if dedup.name in session.refresh:
        return []
    known = [
        found
        for found in session.store.manifests(dedup.name)
        if (found.version, found.code) == (dedup.version, dedup.code)
    ]
    newest = max(known, key=lambda found: found.created, default=None)
    return [] if newest is None else [session.store.folder(newest.ref) / VERIFIED_FILE]


def _evaluation_sets(session: Session, settings: Settings) -> Maybe:
    """What must not be trained on, as hashes."""
    paths = [Path(line.strip()).expanduser() for line in settings.curate.evaluation_sets.splitlines() if line.strip()]
    if session.resources is not None:
        session.resources.evaluation_sets = paths
    return session.run(evaluation_sets, EvaluationSetSettings.of(paths))


def _score(session: Session, settings: Settings, read: Documents) -> list[Maybe]:
    """Scores of the user's own classifier, if examples for one are given."""
    examples = settings.classifier
    if not examples.wanted:
        return []
    if session.resources is not None:
        session.resources.classifier_examples = (examples.good_paths, examples.bad_paths)
    trained = session.run(classifier, ClassifierStageSettings.of(examples.good_paths, examples.bad_paths))
    texts = zip(read.normalised, read.sizes, strict=True)
    return session.run_each(
        score, [Call(ScoreSettings(), {"documents": ref, "classifier": trained}, n) for ref, n in texts]
    )


def _refine(
    session: Session, settings: Settings, read: Documents, curated: Maybe, measured: Sequence[Maybe]
) -> list[Maybe]:
    """Cut and redact each segment; a plan that does not know the cuts yet takes those of the last selection."""
    kinds = settings.refine.kinds
    chosen = _last_selection(session) if isinstance(curated, Pending) else curated
    if chosen is None:
        waiting = RefineStageSettings(kinds, "")
        return session.run_each(
            refine, [Call(waiting, {"documents": curated, "measures": curated}, size) for size in read.sizes]
        )
    cuts = _read_cuts(session.store.folder(chosen) / CUTS_FILE)
    calls = []
    for documents, measures, live, size in zip(read.normalised, measured, read.live, read.sizes, strict=True):
        own = {doc_id: spans for doc_id, spans in cuts.items() if doc_id in live} if cuts else {}
        call = Call(RefineStageSettings.of(kinds, own), {"documents": documents, "measures": measures}, size)
        if session.resources is not None:
            session.resources.cuts[call.settings.cuts] = own
        calls.append(call)
    return session.run_each(refine, calls)


def _last_selection(session: Session) -> ArtifactRef | None:
    """The newest selection in the store."""
    known = (found for found in session.store.manifests(curate.name) if found.version == curate.version)
    newest = max(known, key=lambda found: found.created, default=None)
    return None if newest is None else newest.ref


def _read_cuts(table: Path) -> Cuts:
    cuts: Cuts = {}
    for row in stream_rows(table, ["doc_id", "start", "length"]):
        cuts.setdefault(row["doc_id"], []).append((row["start"], row["length"]))
    return cuts
