"""The wiring: which stage feeds which, written once for runs and for plans.

Every function takes a session. An ordinary session computes what is missing; a planning one goes the same way and only
says what it would compute, so a plan cannot disagree with the run that follows it. No Prefect in here: `sheepfold plan`
starts in a blink, and the flows beside this module put the same functions under Prefect.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from storage.catalog import corpus_ref, read_state
from storage.errors import UserError
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, RefSet
from storage.store import StoreError
from tasks.curate.evalset import EvalsetSettings, freeze_evalset, trains_on_evalset
from tasks.curate.normalise import NormaliseSettings, normalise
from tasks.curate.selection import curate
from tasks.evaluation import EvaluateSettings, evaluate, read_metrics
from tasks.generation import Prompt, PromptsSettings, generate, keep_prompts, sample_prompts
from tasks.ingest.hashing import HashMemo, hash_files
from tasks.ingest.ocr import ocr_ready
from tasks.ingest.segments import (
    Member,
    SegmentSettings,
    cut_segments,
    document_id,
    extract,
    segment_index,
    wants_retry,
)
from tasks.ingest.snapshot import Listing, list_files, snapshot
from tasks.ingest.walk import walk
from tasks.resources import describe_device, detect_device
from tasks.session import Call, Pending, Session
from tasks.settings import Settings, TrainSettings
from tasks.tokens.chunk import ChunkSettings, dataset, label_counts
from tasks.tokens.fit import tokenizer
from tasks.tokens.shards import TokeniseSettings, tokenise
from tasks.tokens.tokenizer import TOKENIZER_FILE, load_tokenizer
from tasks.training import (
    BudgetSettings,
    TrainStageSettings,
    budget,
    model_config,
    steps_of_epochs,
    steps_of_tokens,
    train,
    train_config,
)

Maybe = ArtifactRef | Pending
MaybeSet = RefSet | Pending


@dataclass(frozen=True)
class Ingested:
    """A corpus after ingestion.

    Attributes:
        segments: extraction segments in use.
        live: for each segment, the documents of it that are live.
    """

    snapshot: Maybe
    segments: list[Maybe]
    live: list[set[str]]


@dataclass(frozen=True)
class Prepared:
    """A corpus ready for training."""

    normalised: list[Maybe]
    curated: Maybe
    evalset: Maybe
    tokenizer: Maybe
    shards: list[Maybe]
    dataset: Maybe


def _hashed(session: Session, sources: Sequence[Path]) -> tuple[Any, dict[Any, Any], dict[str, Path]]:
    """Walk the sources and hash what changed.

    Returns:
        The walked files, sha256 (or the error) by path, and a path for every content.
    """
    # what we write ourselves is no document
    walked = walk(sources, exclude=[session.home.path, Path(session.home.store)])
    session.home.create()
    memo = HashMemo(session.home.hash_memo)
    hashes = hash_files(walked, memo, workers=2)
    paths = {digest: path for path, digest in hashes.items() if isinstance(digest, str)}
    return walked, hashes, paths


def _choose_members(
    session: Session, settings: Settings, listed: Iterable[Any]
) -> tuple[dict[str, Member], dict[Member, Any]]:
    """For every content of the listing, which extraction of it is used, and where those lie that are there."""
    suffixes: dict[str, str] = {}
    for item in listed:
        if item.sha256 is not None:
            # one content, one document: where suffixes differ, the first in order decides how it is read
            suffixes[item.sha256] = min(suffixes.get(item.sha256, item.suffix), item.suffix)
    index = segment_index(session.store, settings.extract)
    retry = session.retry_failed
    can_read_images = ocr_ready(settings.extract.ocr_languages)
    chosen: dict[str, Member] = {}
    located: dict[Member, Any] = {}
    for sha256, suffix in suffixes.items():
        known = index.get((sha256, suffix))
        if known is None:
            chosen[sha256] = Member(sha256, suffix)
        elif wants_retry(known, retry, can_read_images):
            chosen[sha256] = Member(sha256, suffix, known.member.attempt + 1)
        else:
            chosen[sha256] = known.member
            located[known.member] = known.segment
    return chosen, located


def ingest(session: Session, sources: Sequence[Path], settings: Settings) -> Ingested:
    """Walk, hash, extract what is new, and say for every path what became of it."""
    walked, hashes, paths = _hashed(session, sources)
    files = list_files(walked, hashes)
    chosen, located = _choose_members(session, settings, files)
    if extract.name in session.refresh:
        located = {}  # with their attempts: an earlier one would not be the one that counts
    missing = [member for member in chosen.values() if member not in located]
    sizes = {item.sha256: item.size for item in files if item.sha256 is not None}
    cuts = cut_segments(missing, sizes)
    calls = [Call(SegmentSettings(settings.extract, members), {}, len(members)) for members in cuts]
    places = {member: ref.key for member, ref in located.items()}
    for call, members in zip(calls, cuts, strict=True):
        places |= dict.fromkeys(members, extract.key(call.settings, {}))
    listing = Listing(files, tuple(sorted(places.items())))
    if session.resources is not None:
        session.resources.paths = paths
        session.resources.listing = listing
    made = session.run_each(extract, calls)
    session.count_reused(extract, len(located))
    documents: dict[ArtifactRef, set[str]] = defaultdict(set)
    for member, ref in located.items():
        documents[ref].add(document_id(member.sha256))
    segments: list[Maybe] = [*documents, *made]
    live = [*documents.values(), *({document_id(member.sha256) for member in members} for members in cuts)]
    union = session.union(segments, "extracts.parquet", live)
    taken = session.run(snapshot, listing.settings(), segments=union)
    return Ingested(taken, segments, live)


def _pinned(session: Session, ref_name: str, stage_name: str) -> ArtifactRef | None:
    """The artefact a ref pins, if it is whole and nobody asked to make it again."""
    value = session.store.read_ref(ref_name)
    if value is None or stage_name in session.refresh:
        return None
    found = session.store.find(stage_name, value["key"])
    return found.ref if found is not None else None


def _pin(session: Session, ref_name: str, ref: Maybe) -> None:
    if not session.dry and isinstance(ref, ArtifactRef):
        session.store.write_ref(ref_name, asdict(ref))


def _tokenizer(session: Session, corpus: str, settings: Settings, curated: Maybe, documents: MaybeSet) -> Maybe:
    """The corpus's tokeniser: the pinned one while its settings are asked for, else a new one."""
    name = f"tokenizer/{corpus}"
    pinned = _pinned(session, name, tokenizer.name)
    if pinned is not None and manifest_of(session.store, pinned).settings == asdict(settings.tokenizer):
        return session.reuse(tokenizer, pinned)
    fitted = session.run(tokenizer, settings.tokenizer, curated=curated, documents=documents)
    _pin(session, name, fitted)
    return fitted


def _evalset(session: Session, corpus: str, settings: Settings, curated: Maybe, documents: MaybeSet) -> Maybe:
    """The corpus's evaluation set: frozen, unless the split was set anew or training would read from it."""
    name = f"evalset/{corpus}"
    pinned = _pinned(session, name, freeze_evalset.name)
    if pinned is not None:
        if isinstance(curated, Pending):
            return session.reuse(freeze_evalset, pinned)
        split = manifest_of(session.store, manifest_of(session.store, pinned).input_refs("curated")[0]).settings
        if split == asdict(settings.curate) and not trains_on_evalset(session.store, curated, pinned):
            return session.reuse(freeze_evalset, pinned)
    frozen = session.run(freeze_evalset, EvalsetSettings(), curated=curated, documents=documents)
    _pin(session, name, frozen)
    return frozen


def prepare(session: Session, corpus: str, settings: Settings, ingested: Ingested) -> Prepared:
    """Normalise, select and split, fit or reuse the tokeniser, encode, cut into sequences."""
    sizes = [len(live) for live in ingested.live]
    normalised = session.run_each(
        normalise,
        [Call(NormaliseSettings(), {"segment": ref}, size) for ref, size in zip(ingested.segments, sizes, strict=True)],
    )
    documents = session.union(normalised, "documents.parquet", ingested.live)
    curated = session.run(curate, settings.curate, snapshot=ingested.snapshot, documents=documents)
    frozen = _evalset(session, corpus, settings, curated, documents)
    fitted = _tokenizer(session, corpus, settings, curated, documents)
    shards = session.run_each(
        tokenise,
        [
            Call(TokeniseSettings(), {"documents": ref, "tokenizer": fitted}, size)
            for ref, size in zip(normalised, sizes, strict=True)
        ],
    )
    tokens = session.union(shards, "tokens.parquet", ingested.live)
    chunks = ChunkSettings(_seq_len(settings), settings.dataset.stride)
    cut = session.run(dataset, chunks, curated=curated, tokens=tokens, tokenizer=fitted)
    return Prepared(normalised, curated, frozen, fitted, shards, cut)


def _seq_len(settings: Settings) -> int:
    """Sequences are as long as the network's context, whatever its vocabulary turns out to be."""
    return int(model_config(settings.model, vocab_size=1)["max_seq_len"])


def _resolve_steps(
    session: Session, settings: TrainSettings, network: dict[str, Any], cut: ArtifactRef
) -> int | Pending:
    """Number of steps of a training: as given, or from tokens, or from minutes by a probe kept in the store."""
    if settings.max_steps:
        return settings.max_steps
    probe = train_config(settings, network, max_steps=1_000)
    counts = manifest_of(session.store, cut).counts
    most = steps_of_epochs(settings.max_epochs, probe, counts["train_sequences"])
    if settings.max_tokens:
        return min(most, steps_of_tokens(settings.max_tokens, probe, label_counts(session.store.folder(cut))))
    device = describe_device(detect_device())
    ref = session.run(budget, BudgetSettings(settings.minutes, network, probe, device))
    if isinstance(ref, Pending):
        return ref
    resolved = json.loads((session.store.folder(ref) / "budget.json").read_text())
    return min(most, int(resolved["max_steps"]))


def train_model(session: Session, settings: Settings, prepared: Prepared) -> Maybe:
    """Resolve the budget and train."""
    for value in (prepared.dataset, prepared.tokenizer):
        if isinstance(value, Pending):
            waiting = TrainStageSettings({}, {})
            session.expect_seconds(train, _expected_seconds(settings.train))
            return session.run(train, waiting, dataset=prepared.dataset, tokenizer=prepared.tokenizer)
    assert isinstance(prepared.dataset, ArtifactRef)
    assert isinstance(prepared.tokenizer, ArtifactRef)
    vocab = load_tokenizer(session.store.folder(prepared.tokenizer) / TOKENIZER_FILE).vocab_size
    network = model_config(settings.model, vocab)
    steps = _resolve_steps(session, settings.train, network, prepared.dataset)
    session.expect_seconds(train, _expected_seconds(settings.train))
    if isinstance(steps, Pending):
        return session.run(train, TrainStageSettings({}, {}), dataset=steps, tokenizer=prepared.tokenizer)
    plan = train_config(settings.train, network, steps)
    return session.run(train, TrainStageSettings(network, plan), dataset=prepared.dataset, tokenizer=prepared.tokenizer)


def _expected_seconds(settings: TrainSettings) -> float | None:
    """How long a training will take, where the request says so."""
    return None if settings.max_steps or settings.max_tokens else settings.minutes * 60


def evaluate_model(session: Session, checkpoint: Maybe, evalset: Maybe) -> tuple[Maybe, dict[str, float]]:
    """Measure a model; returns the evaluation and its figures (none in a plan that has to wait)."""
    found = session.run(evaluate, EvaluateSettings(), checkpoint=checkpoint, evalset=evalset)
    return found, read_metrics(session.store, found) if isinstance(found, ArtifactRef) else {}


def generate_text(session: Session, settings: Settings, checkpoint: Maybe, prompts: list[Prompt] | Pending) -> Maybe:
    """Continue prompts."""
    if isinstance(prompts, Pending):
        return session.run(generate, settings.generate, checkpoint=checkpoint, prompts=prompts)
    if session.resources is not None:
        session.resources.prompts = prompts
    kept = session.run(keep_prompts, PromptsSettings.of(prompts))
    return session.run(generate, settings.generate, checkpoint=checkpoint, prompts=kept)


def sample(session: Session, settings: Settings, checkpoint: Maybe, evalset: Maybe) -> Maybe:
    """Continue the first words of a few evaluation documents."""
    prompts = evalset if isinstance(evalset, Pending) else sample_prompts(session.store, evalset)
    return generate_text(session, settings, checkpoint, prompts)


def remember(session: Session, **refs: Maybe | list[Maybe]) -> None:
    """Note artefacts by stage for the ref that `publish` moves when the run is complete."""
    for stage, value in refs.items():
        listed = value if isinstance(value, list) else [value]
        session.produced[stage] = [ref for ref in listed if isinstance(ref, ArtifactRef)]


def remember_ingested(session: Session, ingested: Ingested) -> None:
    """Note what ingestion made."""
    remember(session, snapshot=ingested.snapshot, extract=ingested.segments)


def remember_prepared(session: Session, prepared: Prepared) -> None:
    """Note what preparation made."""
    remember(
        session,
        normalise=prepared.normalised,
        curate=prepared.curated,
        evalset=prepared.evalset,
        tokenizer=prepared.tokenizer,
        tokenise=prepared.shards,
        dataset=prepared.dataset,
    )


def frozen_evalset(session: Session, corpus: str) -> ArtifactRef:
    """The evaluation set of a corpus.

    Raises:
        StoreError: if the corpus was never prepared.
    """
    pinned = _pinned(session, f"evalset/{corpus}", freeze_evalset.name)
    if pinned is None:
        raise StoreError(f"corpus {corpus!r} has no evaluation set yet: run `sheepfold prepare SOURCE` or `run` first")
    return pinned


def latest_training(session: Session, corpus: str) -> ArtifactRef:
    """The checkpoint of a corpus's last completed training.

    Raises:
        StoreError: if there is none.
    """
    found = read_state(session.store, corpus).get(train.name)
    if not found:
        raise StoreError(f"corpus {corpus!r} has no training yet: run `sheepfold train SOURCE` or `run` first")
    return found[0]


def publish(session: Session, corpus: str) -> None:
    """Let the corpus's ref follow what this run produced; the catalogue's views follow the ref.

    Ingestion makes a corpus: a text or an evaluation under the name of one that never was does not.
    """
    if session.dry:
        return
    name = corpus_ref(corpus)
    with session.store.lock(name):  # what another run publishes between our reading and writing would be lost
        state = session.store.read_ref(name) or {}
        for stage, refs in session.produced.items():
            state[stage] = [asdict(ref) for ref in refs]
        if snapshot.name in state:
            session.store.write_ref(name, state)


def publish_evaluation(session: Session, corpus: str, checkpoint: Maybe, evaluation: Maybe) -> None:
    """Let the corpus's ref follow an evaluation of its latest training; figures of other models are none of its."""
    if read_state(session.store, corpus).get(train.name) == [checkpoint]:
        remember(session, evaluate=evaluation)
        publish(session, corpus)


def plan(session: Session, sources: Sequence[Path], corpus: str, settings: Settings) -> None:
    """Go the whole way without computing anything; the session's report says what would be done."""
    ingested = ingest(session, sources, settings)
    prepared = prepare(session, corpus, settings, ingested)
    checkpoint = train_model(session, settings, prepared)
    evaluate_model(session, checkpoint, prepared.evalset)
    sample(session, settings, checkpoint, prepared.evalset)


def resolve_sources(sources: Iterable[str], base: Path | None = None) -> list[Path]:
    """Absolute paths of sources; one string may hold several on lines of their own."""
    lines = [line.strip() for source in sources for line in source.splitlines() if line.strip()]
    if not lines:
        raise UserError("no source given: name at least one folder or file with documents")
    return [((base or Path.cwd()) / Path(line).expanduser()).resolve() for line in lines]
