"""The flow `ingest`: from sources to normalised, measured, deduplicated, split and refined documents."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flows.context import flow, open_run, reach_server, subflow
from flows.options import WatchOptions
from flows.report import finish
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import DOCUMENTS_FILE, EXTRACTS_FILE, LEGIBILITY_FILE, MEASURES_FILE, SCORES_FILE
from tasks.core.run import Run
from tasks.core.settings import Settings
from tasks.core.stage import Call, NoSettings
from tasks.curate.classifier import score, trained_classifier
from tasks.curate.curate import CurationSettings, curate, cuts_of
from tasks.curate.dedup import dedup, last_dedup
from tasks.curate.evaluation_sets import forbidden_grams
from tasks.curate.legibility import corpus_characters, judged_segments, legibility, note_unjudged
from tasks.curate.measure import measure
from tasks.curate.normalise import normalise
from tasks.curate.refine import RefineStageSettings, refine
from tasks.ingest.extract import extract
from tasks.ingest.segments import (
    Segments,
    extract_files,
    import_files,
    list_files,
    places_in_order,
    segments_of,
    split_by_reader,
)
from tasks.ingest.snapshot import Listing, read_metadata, snapshot
from tasks.lineage.changes import record_announcement, unannounced_share
from tasks.upkeep.forget import finish_forgetting

if TYPE_CHECKING:
    from prefect.events import Event


@dataclass(frozen=True)
class Documents:
    """Normalised documents of a corpus.

    Attributes:
        segments: Segments in use, with their live documents.
        normalised: Artefacts of each segment.
    """

    snapshot: ArtifactRef
    segments: Segments
    normalised: list[ArtifactRef]


@dataclass(frozen=True)
class Ingested(Documents):
    """A corpus after ingestion.

    The input `documents` of a stage is normalised text up to `refine`, and refined text after it.

    Attributes:
        measured, refined: Artefacts of each segment.
        curated: Selection of kept, dropped and validation documents.
        all_measures, all_refined: Measures and refined texts of all segments, each as one table.
    """

    measured: list[ArtifactRef]
    duplicates: ArtifactRef
    curated: ArtifactRef
    refined: list[ArtifactRef]
    all_measures: RefSet
    all_refined: RefSet


@flow(WatchOptions)
def ingest(options: WatchOptions) -> dict[str, Any]:
    """Extract, clean and curate new documents; every path gets a row with its status."""
    settings = options.load()
    with open_run(options, settings.limits) as run:
        ingested = ingest_documents(run, options.source, settings)
        result = finish(run)
        if options.announce_share:
            announce(run, options.source, ingested.snapshot, options.announce_share)
        return result


@subflow("ingest")
def ingest_documents(run: Run, source: str, settings: Settings) -> Ingested:
    """Read sources; measure, deduplicate, select and refine their documents.

    Documents that are not selected are refined too, so that another selection needs no new refinement.

    Args:
        source: Sources, one per line.
    """
    read = read_documents(run, source, settings)
    segments, normalised = read.segments, read.normalised
    measured = segments.map(run, measure, NoSettings(), documents=normalised)
    trained = trained_classifier(run, settings.classifier)
    scored = []
    if trained is not None:
        scored = segments.map(run, score, NoSettings(), documents=normalised, classifier=trained)
    documents = segments.union(run, normalised, DOCUMENTS_FILE)
    all_measures = segments.union(run, measured, MEASURES_FILE)
    judged = []
    known = corpus_characters(run, read.snapshot, documents, all_measures, measured)
    if known is not None:
        judged = segments.map(
            run,
            legibility,
            NoSettings(),
            segment=segments.refs,
            documents=normalised,
            measures=measured,
            characters=known,
        )
        note_unjudged(run, judged)
    duplicates = dedup(
        run,
        settings.dedup,
        snapshot=read.snapshot,
        documents=documents,
        measures=all_measures,
        before=last_dedup(run),
    )
    curated = curate(
        run,
        # without the paths: the content of these files is the input `evaluation`
        CurationSettings(replace(settings.curate, evaluation_sets=""), settings.policy),
        snapshot=read.snapshot,
        documents=documents,
        measures=all_measures,
        scores=segments.union(run, scored, SCORES_FILE),
        legibility=segments.union(run, judged, LEGIBILITY_FILE),
        duplicates=duplicates,
        evaluation=forbidden_grams(run, settings.curate.evaluation_sets),
    )
    cuts = cuts_of(run, curated, segments.live)
    own = [RefineStageSettings.of(settings.refine.kinds, cut) for cut in cuts]
    refined = segments.map(
        run,
        refine,
        own,
        after=(curated,),
        documents=normalised,
        measures=measured,
        legibility=judged_segments(run, judged if settings.refine.mend else []) or RefSet.of([]),
        cuts=cuts,
    )
    all_refined = segments.union(run, refined, DOCUMENTS_FILE)
    run.remember(
        measure=measured,
        score=scored,
        characters=known or [],
        legibility=judged,
        dedup=duplicates,
        curate=curated,
        refine=refined,
    )
    return Ingested(
        **vars(read),
        measured=measured,
        duplicates=duplicates,
        curated=curated,
        refined=refined,
        all_measures=all_measures,
        all_refined=all_refined,
    )


def read_documents(run: Run, source: str, settings: Settings) -> Documents:
    """Read sources; returns one normalised text per document."""
    if not run.plan:
        finish_forgetting(run.home, run.store)  # one that was killed, before its artefacts are found as cached
    files, sources = list_files(run, source, settings)
    to_import, to_extract = split_by_reader(files)
    placed = extract_files(run, to_extract, sources, settings)
    placed += import_files(run, to_import, sources, settings)
    segments = segments_of(run, placed)
    metadata = read_metadata(settings.sources.metadata)
    listing = Listing(files, places_in_order(placed), metadata, settings.sources.date_pattern)
    rows = run.union(segments.refs, EXTRACTS_FILE, segments.contents, identity="file_sha256")
    taken = snapshot(run, listing.settings(), segments=rows, listing=listing)
    sized = list(zip(segments.refs, segments.sizes, strict=True))
    normalised = normalise.map(
        run, [Call(settings.normalise, {"segment": ref}, size) for ref, size in sized if ref.stage == extract.name]
    )
    # in the order of the segments: extracted ones first, then imported ones, which are normalised already
    normalised += [ref for ref in segments.refs if ref.stage != extract.name]
    run.remember(snapshot=taken, extract=segments.refs, normalise=normalised)
    return Documents(taken, segments, normalised)


def announce(run: Run, source: str, now: ArtifactRef, least: float) -> None:
    """Announce a change of a corpus, by an event that starts `retrain/on-new-documents`.

    Args:
        source: Sources of the corpus.
        now: Snapshot of its present documents.
        least: Smallest share that is announced: added and removed documents, divided by those before.
    """
    from prefect import get_run_logger
    from prefect.client.orchestration import get_client

    share = unannounced_share(run.store, run.corpus, now)
    if share < least:
        return
    event = change(run.corpus, source, share, now.key)
    with get_client(sync_client=True) as client:  # waits for the response; without one the next run announces again
        body = [event.model_dump(mode="json")]
        reach_server(lambda: client.request("POST", "/events", json=body)).raise_for_status()
    record_announcement(run.store, run.corpus, now)
    get_run_logger().info("announced that %.1f %% of the documents of %s changed", 100 * share, run.corpus)


def change(corpus: str, source: str, share: float, snapshot: str) -> Event:
    """Return the event of a change; its resource identifies the change, so that it starts one run only."""
    from prefect.events import Event

    return Event(
        event="sheepfold.corpus.changed",
        resource={"prefect.resource.id": f"sheepfold.corpus.{corpus}", "sheepfold.snapshot": snapshot},
        payload={"corpus": corpus, "source": source, "share": share, "snapshot": snapshot},
    )
