"""The flow `ingest`: from sources to documents that are clean, measured, deduplicated, split and refined."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from flows.context import flow, open_run, subflow
from flows.finish import finish, result_of
from flows.options import WatchOptions
from flows.state import publish
from storage.digest import rows_digest
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import CUTS_FILE, DOCUMENTS_FILE, MEASURES_FILE, SCORES_FILE
from storage.tables import read_columns, stream_rows
from storage.tombstones import read_tombstones
from tasks.corpora.importing import SUFFIX, ImportSettings, cut_imports, import_index, import_segment
from tasks.corpora.parts import LINES, Part, parts_of
from tasks.curate.classifier.examples import example_files
from tasks.curate.classifier.stages import ClassifierStageSettings, ScoreSettings, classifier, score
from tasks.curate.contamination import EvaluationSetSettings, evaluation_sets
from tasks.curate.curate import CurationSettings, curate
from tasks.curate.dedup import evaluation_files
from tasks.curate.duplicates import dedup
from tasks.curate.measure import MeasureSettings, measure
from tasks.curate.normalise import normalise
from tasks.curate.refine import Cuts, RefineStageSettings, refine
from tasks.executor import show_found
from tasks.forgetting.sweep import finish_forgetting
from tasks.ingest.journal import Content
from tasks.ingest.pictures.ocr import ocr_ready
from tasks.ingest.segments import (
    Located,
    SegmentSettings,
    Sources,
    cut_segments,
    extract,
    extract_tools,
    passwords_digest,
    segment_index,
    wants_retry,
)
from tasks.ingest.snapshot import CONTAINERS, ListedFile, Listing, list_files, snapshot
from tasks.ingest.sources.documents import is_corpus
from tasks.ingest.sources.hashing import HashMemo
from tasks.ingest.sources.resolve import resolve_sources, walk_sources
from tasks.run import Run
from tasks.settings import Settings
from tasks.stage import Call, Stage


@dataclass(frozen=True)
class Documents:
    """A corpus as text; the lists have one entry for each segment.

    Attributes:
        segments: Segments in use, extracted or imported, and `keys` their keys.
        live: Live documents of each; empty where a plan cannot know them.
        sizes: Number of live documents of each, or of files where a plan knows no better.
        normalised: Texts of each.
        sources: Where the files lie.
    """

    snapshot: ArtifactRef
    segments: list[ArtifactRef]
    keys: list[str]
    live: list[set[str]]
    sizes: list[int]
    normalised: list[ArtifactRef]
    sources: Sources


@dataclass(frozen=True)
class Ingested(Documents):
    """A corpus after ingestion.

    Attributes:
        measured, scored, refined: Artefacts of each segment; `scored` only where there is a classifier.
        curated: Selection: kept, dropped and held-out documents.
        measures, texts: Measures and refined texts of all segments, each as one table.
    """

    measured: list[ArtifactRef]
    scored: list[ArtifactRef]
    duplicates: ArtifactRef
    curated: ArtifactRef
    refined: list[ArtifactRef]
    measures: RefSet
    texts: RefSet

    def remember(self, run: Run) -> None:
        """Record the artefacts for the ref of the corpus."""
        run.remember(
            snapshot=self.snapshot,
            extract=self.segments,
            normalise=self.normalised,
            measure=self.measured,
            score=self.scored,
            dedup=self.duplicates,
            curate=self.curated,
            refine=self.refined,
        )


@dataclass(frozen=True)
class _Segments:
    """Extracted or imported segments.

    Attributes:
        contents: For each segment, the sha256 of the live files in it.
        places: Each content with the key of its segment.
    """

    segments: list[ArtifactRef]
    keys: list[str]
    contents: list[set[str]]
    places: list[tuple[Content, str]]


@flow(WatchOptions)
def ingest(options: WatchOptions) -> dict[str, Any]:
    """Extract, clean and curate new documents; every path gets a row with its status."""
    settings = options.load()
    with open_run(options, settings.limits) as run:
        ingested = ingest_documents(run, options.source, settings)
        ingested.remember(run)
        publish(run)
        if options.announce_share:
            from flows.watch import announce

            announce(run, options.source, options.announce_share)
        return finish(run, result_of(run), sources=ingested.sources)


@subflow("ingest")
def ingest_documents(run: Run, source: str, settings: Settings) -> Ingested:
    """Read sources and return the documents that models see.

    Args:
        source: Sources, one per line.
    """
    return curate_documents(run, read_documents(run, source, settings), settings)


def read_documents(run: Run, source: str, settings: Settings) -> Documents:
    """Read sources to one clean text per document."""
    files, locations = _list(run, source, settings)
    corpora, others = corpora_of(files)
    passwords = settings.passwords.read()
    sources = Sources(
        locations,
        {file.sha256: file.size for file in files if file.sha256 is not None},
        passwords,
        passwords_digest(passwords, run.home),
    )
    extracted = _extract(run, others, sources, settings)
    imported = import_files(run, corpora, sources, settings)
    places = sorted(extracted.places + imported.places, key=_place_in_order)
    segments, contents = extracted.segments + imported.segments, extracted.contents + imported.contents
    listing = Listing(files, places)
    union = run.union(segments, "extracts.parquet", contents, identity="file_sha256")
    taken = snapshot(run, listing.settings(), segments=union, listing=listing)
    nothing: set[str] = set()
    live = [run.read(ref, partial(_live, run, wanted), nothing) for ref, wanted in zip(segments, contents, strict=True)]
    sizes = [len(found) or len(wanted) for found, wanted in zip(live, contents, strict=True)]
    read = zip(extracted.segments, sizes[: len(extracted.segments)], strict=True)
    normalised = normalise.map(run, [Call(settings.normalise, {"segment": ref}, n) for ref, n in read])
    # imported segments hold normalised texts
    keys = extracted.keys + imported.keys
    return Documents(taken, segments, keys, live, sizes, normalised + imported.segments, sources)


def curate_documents(run: Run, read: Documents, settings: Settings) -> Ingested:
    """Measure, deduplicate, select and refine documents."""
    texts = list(zip(read.normalised, read.sizes, strict=True))
    measured = measure.map(run, [Call(MeasureSettings(), {"documents": ref}, n) for ref, n in texts])
    scored = _score(run, settings, texts)
    documents = _union(run, read, read.normalised, DOCUMENTS_FILE)
    measures = _union(run, read, measured, MEASURES_FILE)
    before = _last_dedup(run)
    duplicates = dedup(
        run, settings.dedup, snapshot=read.snapshot, documents=documents, measures=measures, before=before
    )
    curated = curate(
        run,
        CurationSettings(replace(settings.curate, evaluation_sets=""), settings.policy),
        snapshot=read.snapshot,
        documents=documents,
        measures=measures,
        scores=_union(run, read, scored, SCORES_FILE),
        duplicates=duplicates,
        evaluation=_evaluation_sets(run, settings),
    )
    refined = _refine(run, settings, read, curated, measured)
    return Ingested(
        **vars(read),
        measured=measured,
        scored=scored,
        duplicates=duplicates,
        curated=curated,
        refined=refined,
        measures=measures,
        texts=_union(run, read, refined, DOCUMENTS_FILE),
    )


def _union(run: Run, read: Documents, made: Sequence[ArtifactRef], table: str) -> RefSet:
    return run.union(made, table, read.live[: len(made)], segments=read.keys[: len(made)])


def _place_in_order(place: tuple[Content, str]) -> tuple[str, str, int, str]:
    """Sort as the pair does, and several times faster: there may be hundreds of thousands."""
    content, key = place
    return content.sha256, content.suffix, content.attempt, key


def _list(run: Run, source: str, settings: Settings) -> tuple[list[ListedFile], dict[str, str]]:
    """Walk the sources and hash what changed; returns the files, and where each content lies."""
    if not run.plan:
        finish_forgetting(run.home, run.store)  # what a kill left of it, before any of that is taken for found
    forgotten = read_tombstones(run.store)
    run.forgotten = frozenset(forgotten.documents)
    own = [run.home.path, Path(run.home.store)]  # never documents
    run.home.create()
    walked = walk_sources(
        resolve_sources([source]),
        settings.sources,
        settings.extract.max_file_bytes,
        run.home.cache,
        HashMemo(run.home.hash_memo),
        exclude=own,
        fetch=not run.plan,
    )
    if walked.n_ignored:
        run.note(f"{walked.n_ignored} files or folders were left out by patterns or .gitignore")
    if walked.n_pending:
        run.note(f"{walked.n_pending} objects are not in the cache: the plan counts them as new, a run fetches them")
    return list_files(walked.files, walked.digests, forgotten.contents), walked.locations


def _extract(run: Run, files: Sequence[ListedFile], sources: Sources, settings: Settings) -> _Segments:
    """Extract what is new of some listed files."""
    chosen, located = _choose_contents(run, settings, files, sources.passwords_noted)
    if extract.name in run.refresh:
        located = {}  # with their attempts: an earlier one would not be the one that counts
    cuts = cut_segments((content for content in chosen.values() if content not in located), sources.sizes)
    calls = [
        Call(SegmentSettings(settings.extract, contents), {"files": sources.of(contents)}, len(contents))
        for contents in cuts
    ]
    keys_made = [extract.key(call.settings, {}) for call in calls]
    places = {content: ref.key for content, ref in located.items()}
    for key, contents in zip(keys_made, cuts, strict=True):
        places |= dict.fromkeys(contents, key)
    used = sorted(set(located.values()))
    for ref in used if run.plan else ():
        run.compare_tools(extract, manifest_of(run.store, ref), extract_tools)
    made = extract.map(run, calls)
    show_found(run, extract, used)
    for content, known in _worse_retries(run, settings, cuts).items():
        del places[content]
        places[known.content] = known.segment.key
        located[known.content] = known.segment
    segments = dict(zip(keys_made, made, strict=True)) | {ref.key: ref for ref in located.values()}
    return _report(run, extract, _in_order(segments, list(places.items())), len(located))


def _in_order(segments: Mapping[str, ArtifactRef], places: list[tuple[Content, str]]) -> _Segments:
    """Return the segments that hold live contents, in an order that does not depend on which of them were there."""
    held: dict[str, set[str]] = defaultdict(set)
    for content, key in places:
        held[key].add(content.sha256)
    keys = sorted(held)
    return _Segments([segments[key] for key in keys], keys, [held[key] for key in keys], places)


def _report(run: Run, stage: Stage, found: _Segments, reused: int) -> _Segments:
    """Report units that an index located, and the key of all segments together."""
    whole = all(ref.made for ref in found.segments)
    key = rows_digest((ref.key, ref.digest) for ref in found.segments) if whole else ""
    run.count(stage, reused=reused, rows=reused, key=key)
    return found


def _worse_retries(run: Run, settings: Settings, cuts: Iterable[Sequence[Content]]) -> dict[Content, Located]:
    """Return retries that gave less text than an earlier attempt, with that attempt, which counts."""
    retried = [content for contents in cuts for content in contents if content.attempt]
    if not retried or run.plan or extract.name in run.refresh:
        return {}
    index = segment_index(run.store, settings.extract)
    return {content: index[content.identity] for content in retried if index[content.identity].content != content}


def _choose_contents(
    run: Run, settings: Settings, listed: Iterable[ListedFile], passwords: str
) -> tuple[dict[str, Content], dict[Content, ArtifactRef]]:
    """Return the extraction of every listed content that is used, and where those lie that are there.

    Args:
        passwords: The `passwords_digest` of those given now.
    """
    suffixes: dict[str, str] = {}
    for item in listed:
        if item.sha256 is not None:
            # one content, one document: where suffixes differ, the first in order decides how it is read
            suffixes[item.sha256] = min(suffixes.get(item.sha256, item.suffix), item.suffix)
    index = segment_index(run.store, settings.extract)
    can_read_images = ocr_ready(settings.extract.ocr_languages)
    chosen: dict[str, Content] = {}
    located: dict[Content, ArtifactRef] = {}
    for sha256, suffix in suffixes.items():
        known: Located | None = index.get((sha256, suffix))
        if known is None:
            chosen[sha256] = Content(sha256, suffix)
        elif wants_retry(known, run.retry_failed, can_read_images, passwords):
            chosen[sha256] = Content(sha256, suffix, known.last_attempt + 1)
        else:
            chosen[sha256] = known.content
            located[known.content] = known.segment
    return chosen, located


def corpora_of(files: Iterable[ListedFile]) -> tuple[list[ListedFile], list[ListedFile]]:
    """Return the files of a listing that are corpora (`documents:SOURCE`), and the others.

    Where the bytes of a corpus lie among the others too, they are read as a corpus there as well: one content has one
    reading.
    """
    listed = list(files)
    wanted = {file.sha256 for file in listed if is_corpus(file.source) and file.sha256 is not None}
    corpora = [file for file in listed if is_corpus(file.source) or file.sha256 in wanted]
    return corpora, [file for file in listed if not (is_corpus(file.source) or file.sha256 in wanted)]


def import_files(run: Run, files: Sequence[ListedFile], sources: Sources, settings: Settings) -> _Segments:
    """Import what is new of some corpora: their rows are documents, without extraction."""
    if not files:
        return _Segments([], [], [], [])
    chosen = ImportSettings(settings.documents, settings.normalise.repair_mojibake, ())
    contents = dict.fromkeys(file.sha256 for file in files if file.sha256 is not None)
    paths = sources.paths
    parts = [Part(sha256, LINES) for sha256 in contents if sha256 not in paths]  # a plan fetches nothing
    parts += [
        part for sha256 in contents if sha256 in paths for part in parts_of(paths[sha256], sha256, run.home.cache)
    ]
    located = {} if import_segment.name in run.refresh else import_index(run.store, chosen)
    located = {part: located[part] for part in parts if part in located}
    calls = []
    for cut in cut_imports((part for part in parts if part not in located), dict(sources.sizes)):
        locations = [paths.get(part.sha256, "") for part in cut]
        calls.append(Call(replace(chosen, parts=cut), {"locations": locations}, len(cut)))
    made = import_segment.map(run, calls)
    show_found(run, import_segment, sorted(set(located.values())))
    segments = {ref.key: ref for ref in located.values()}
    places = [(_content(part), ref.key) for part, ref in located.items()]
    for call, ref in zip(calls, made, strict=True):
        key = import_segment.key(call.settings, {})
        segments[key] = ref
        places += [(_content(part), key) for part in call.settings.parts]
    return _report(run, import_segment, _in_order(segments, places), len(located))


def _content(part: Part) -> Content:
    return Content(part.sha256, SUFFIX)


def _live(run: Run, contents: set[str], segment: ArtifactRef) -> set[str]:
    """Return the documents of a segment that live files hold."""
    wanted = ["doc_id", "file_sha256", "status", "kind"]
    rows = zip(*read_columns(run.store.folder(segment) / "extracts.parquet", wanted).values(), strict=True)
    return {
        doc for doc, sha256, status, kind in rows if sha256 in contents and status == "ok" and kind not in CONTAINERS
    }


def _last_dedup(run: Run) -> ArtifactRef | None:
    """Return the last deduplication of this store; its similarities hold for texts, in whatever corpus."""
    if dedup.name in run.refresh:
        return None
    known = [
        found for found in run.store.manifests(dedup.name) if (found.version, found.code) == (dedup.version, dedup.code)
    ]
    newest = max(known, key=lambda found: found.created, default=None)
    return None if newest is None else newest.ref


def _evaluation_sets(run: Run, settings: Settings) -> ArtifactRef:
    """Return the 13-grams that must not be trained on."""
    paths = [Path(line.strip()).expanduser() for line in settings.curate.evaluation_sets.splitlines() if line.strip()]
    if not paths:
        return evaluation_sets(run, EvaluationSetSettings(()))
    EvaluationSetSettings.of(paths)  # names a path that is not there
    ref, files = run.add("evaluation_set_files", _numbered(evaluation_files(paths)))
    return evaluation_sets(run, EvaluationSetSettings.of(files), files=ref)


def _numbered(files: Iterable[Path]) -> dict[str, Path]:
    """Name files by number and name, so that equal names do not clash and suffixes stay."""
    return {f"{number:04}/{file.name}": file for number, file in enumerate(files)}


def _score(run: Run, settings: Settings, texts: Sequence[tuple[ArtifactRef, int]]) -> list[ArtifactRef]:
    """Score documents by the user's own classifier, if examples for one are given."""
    examples = settings.classifier
    if not examples.wanted:
        return []
    ClassifierStageSettings.of(examples.good_paths, examples.bad_paths)  # names a path that is not there
    good, good_files = run.add("classifier_examples", _numbered(example_files("good", examples.good_paths)))
    bad, bad_files = run.add("classifier_examples", _numbered(example_files("bad", examples.bad_paths)))
    asked = ClassifierStageSettings.of(good_files, bad_files)
    trained = classifier(run, asked, good_files=good, bad_files=bad)
    return score.map(run, [Call(ScoreSettings(), {"documents": ref, "classifier": trained}, n) for ref, n in texts])


def _refine(
    run: Run, settings: Settings, read: Documents, curated: ArtifactRef, measured: Sequence[ArtifactRef]
) -> list[ArtifactRef]:
    """Cut and redact each segment; a plan that does not know the cuts yet takes those of the last selection."""
    kinds = settings.refine.kinds
    chosen = curated if curated.made else _last_selection(run)
    cuts = {} if chosen is None else _read_cuts(run.store.folder(chosen) / CUTS_FILE)
    calls = []
    for documents, measures, live, size in zip(read.normalised, measured, read.live, read.sizes, strict=True):
        own = {doc_id: spans for doc_id, spans in cuts.items() if doc_id in live} if cuts else {}
        inputs = {"documents": documents, "measures": measures, "cuts": own}
        calls.append(Call(RefineStageSettings.of(kinds, own), inputs, size, (curated,)))
    return refine.map(run, calls)


def _last_selection(run: Run) -> ArtifactRef | None:
    known = (found for found in run.store.manifests(curate.name) if found.version == curate.version)
    newest = max(known, key=lambda found: found.created, default=None)
    return None if newest is None else newest.ref


def _read_cuts(table: Path) -> Cuts:
    cuts: Cuts = {}
    for row in stream_rows(table, ["doc_id", "start", "length"]):
        cuts.setdefault(row["doc_id"], []).append((row["start"], row["length"]))
    return cuts
