"""The wiring: which stage feeds which, written once for runs and for plans.

Every function takes a session. An ordinary session computes what is missing; a planning one goes the same way and only
says what it would compute, so a plan cannot disagree with the run that follows it. No Prefect in here: `sheepfold plan`
starts in a blink, and the flows beside this module put the same functions under Prefect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flows.base import find_base, with_base
from flows.corpus import Ingested, Maybe, MaybeSet
from flows.corpus import ingest as ingest
from flows.tracing import trace_model
from storage.catalog import LISTED, corpus_ref, read_state
from storage.errors import UserError
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from storage.schemas import OVERLAP_FILE
from storage.store import StoreError
from tasks.curate.evalset import EvalsetSettings, freeze_evalset
from tasks.curate.evalset_leaks import EvalsetLeaksSettings, evalset_leaks
from tasks.curate.evalset_overlap import EvalsetOverlapSettings, evalset_overlap
from tasks.evaluation import EvaluateSettings, evaluate, read_metrics
from tasks.evaluation.inputs import (
    COLUMN,
    SPLITS,
    SplitSettings,
    TextsSettings,
    copy_split,
    keep_texts,
    read_texts,
    split_inputs,
)
from tasks.evaluation.ngram import NgramSettings, dataset_of, ngram
from tasks.forgetting.sweep import refuse_forgotten
from tasks.generation.prompts import Prompt, sample_prompts
from tasks.generation.shards import cut_prompts
from tasks.generation.stage import JoinSettings, PromptsSettings, complete, generate, joined, keep_prompts
from tasks.ingest.snapshot import snapshot
from tasks.ingest.sources.resolve import Source
from tasks.resources import describe_device, detect_device
from tasks.session import Call, Pending, Session, artifact
from tasks.settings import EvaluationSettings, Settings
from tasks.suggest import (
    SUGGESTED,
    SuggestSettings,
    candidates_of,
    context_for,
    read_suggestion,
    rounded,
    suggest,
)
from tasks.tokens.dataset import DatasetIndexSettings, dataset
from tasks.tokens.fit import FitSettings, check_tokenizer, tokenizer
from tasks.tokens.groups import check_expression, groups_call
from tasks.tokens.index import groups_of, load_index
from tasks.tokens.shards import TokeniseSettings, tokenise
from tasks.tokens.tokenizer import TOKENIZER_FILE, load_tokenizer
from tasks.train_settings import AUTO, ExecutionSettings, TrainSettings
from tasks.training import (
    TrainStageSettings,
    model_config,
    steps_of_epochs,
    steps_of_tokens,
    train,
    train_config,
)


@dataclass(frozen=True)
class Prepared:
    """A corpus ready for training."""

    evalset: Maybe
    tokenizer: Maybe
    shards: list[Maybe]
    groups: MaybeSet
    dataset: Maybe
    seq_len: int


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
    known = manifest_of(session.store, pinned).settings if pinned is not None else None
    asked = FitSettings.of(settings.tokenizer, known)
    if pinned is not None and known == asdict(asked):
        return session.reuse(tokenizer, pinned)
    if session.resources is not None and settings.tokenizer.file:
        session.resources.tokenizer_file = Path(settings.tokenizer.file).expanduser()
    fitted = session.run(tokenizer, asked, curated=curated, documents=documents)
    _pin(session, name, fitted)
    return fitted


def check_asked(session: Session, corpus: str, settings: Settings) -> None:
    """Refuse, before anything runs, a base or a tokeniser that could not be had after an hour of ingestion.

    Raises:
        UserError: if there is no such base, or the settings contradict it; if the tokeniser's file is not there and the
            corpus has no such tokeniser, or holds none.
    """
    settings = with_base(settings, find_base(session, settings))
    pinned = _pinned(session, f"tokenizer/{corpus}", tokenizer.name)
    check_tokenizer(settings.tokenizer, manifest_of(session.store, pinned).settings if pinned is not None else None)


def _evalset(session: Session, corpus: str, settings: Settings, ingested: Ingested) -> Maybe:
    """The corpus's evaluation set: frozen, unless the split was set anew or training would read from it."""
    name = f"evalset/{corpus}"
    pinned = _pinned(session, name, freeze_evalset.name)
    if pinned is not None and _still_fit(session, settings, ingested, pinned):
        return session.reuse(freeze_evalset, pinned)
    frozen = session.run(
        freeze_evalset,
        EvalsetSettings(),
        snapshot=ingested.snapshot,
        curated=ingested.curated,
        documents=ingested.texts,
        measures=ingested.measures,
    )
    _pin(session, name, frozen)
    _overlaps(session, ingested, frozen)  # now, so that the next document that comes costs a look at itself alone
    return frozen


def _overlaps(session: Session, ingested: Ingested, evalset: Maybe) -> MaybeSet:
    """What each segment shares with an evaluation set."""
    segments = zip(ingested.measured, ingested.sizes, strict=True)
    calls = [Call(EvalsetOverlapSettings(), {"measures": ref, "evalset": evalset}, size) for ref, size in segments]
    made = session.run_each(evalset_overlap, calls)
    return session.union(made, OVERLAP_FILE, ingested.live, segments=ingested.keys)


def _still_fit(session: Session, settings: Settings, ingested: Ingested, pinned: ArtifactRef) -> bool:
    """Whether a frozen evaluation set is of the split asked for, and is not trained on; a plan assumes the latter."""
    found = manifest_of(session.store, pinned)
    if found.version != freeze_evalset.version:
        return False
    split = manifest_of(session.store, found.input_refs("curated")[0]).settings["curate"]
    if (split["validation_share"], split["salt"]) != (settings.curate.validation_share, settings.curate.salt):
        return False
    curated, overlaps = ingested.curated, _overlaps(session, ingested, pinned)
    if isinstance(curated, ArtifactRef) and found.inputs["curated"]["digest"] == curated.digest:
        return True  # frozen from this very selection
    leaks = session.run(
        evalset_leaks,
        EvalsetLeaksSettings(settings.curate.max_containment),
        curated=curated,
        overlaps=overlaps,
        evalset=pinned,
    )
    return isinstance(leaks, Pending) or not manifest_of(session.store, leaks).counts["leaks"]


def prepare(session: Session, corpus: str, settings: Settings, ingested: Ingested) -> Prepared:
    """Freeze the evaluation set, fit or reuse the tokeniser, encode, cut into sequences.

    Raises:
        EmptyCorpus: if there is nothing to train on, or nothing to measure on.
    """
    curated, documents = ingested.curated, ingested.texts
    settings = with_base(settings, find_base(session, settings))
    _check_split(session, curated, ingested.snapshot)
    frozen = _evalset(session, corpus, settings, ingested)
    fitted = _tokenizer(session, corpus, settings, curated, documents)
    framing = TokeniseSettings(settings.tokenizer.bos, settings.tokenizer.eos)
    if session.resources is not None:
        session.resources.token_engine = settings.tokenizer.engine
    shards = session.run_each(
        tokenise,
        [
            Call(framing, {"documents": ref, "tokenizer": fitted}, size)
            for ref, size in zip(ingested.refined, ingested.sizes, strict=True)
        ],
    )
    tokens = session.union(shards, "tokens.parquet", ingested.live, segments=ingested.keys)
    groups = groups_call(
        session,
        settings.mix,
        snapshot=ingested.snapshot,
        curated=curated,
        measures=ingested.measures,
        texts=documents,
        scored=ingested.scored,
    )
    seq_len = _seq_len(session, settings, shards)
    cut = session.run(
        dataset,
        DatasetIndexSettings.of(seq_len, settings.dataset, settings.mix),
        curated=curated,
        tokens=tokens,
        tokenizer=fitted,
        groups=groups,
    )
    return Prepared(frozen, fitted, shards, groups, cut, seq_len)


class EmptyCorpus(UserError):
    """There is not enough text to train on and to measure on."""


def _check_split(session: Session, curated: Maybe, listing: Maybe) -> None:
    if isinstance(curated, Pending):
        return
    counts = manifest_of(session.store, curated).counts
    if counts["train"] and counts["validation"]:
        return
    found = manifest_of(session.store, listing).counts["rows"] if isinstance(listing, ArtifactRef) else 0
    if not found:
        raise EmptyCorpus(
            "there are no files in the sources, so there is nothing to train on: name a folder or file with documents, "
            "and see whether patterns or a .gitignore leave everything out"
        )
    raise EmptyCorpus(
        f"of {found} file(s) found, the corpus has {counts['train']} document(s) to train on and "
        f"{counts['validation']} to measure on; at least one of each is needed, and none may stand in another: add "
        'documents; `sheepfold ingest SOURCE` and then `sheepfold sql "select * from quarantine"` say what became of '
        "those that are there"
    )


def _seq_len(session: Session, settings: Settings, shards: Sequence[Maybe]) -> int:
    """Sequences are as long as the network's context: the preset's, or one for documents of such a length."""
    if settings.model.preset != AUTO:
        return int(model_config(settings.model, vocab_size=1)["max_seq_len"])
    given = settings.model.overrides.get("max_seq_len")
    return int(given) if given is not None else context_for(_document_tokens(session, shards)[1], detect_device())


def _document_tokens(session: Session, shards: Sequence[Maybe]) -> tuple[int, int]:
    """About how many tokens there are, and how many a document has; powers of two."""
    found = [manifest_of(session.store, ref).counts for ref in shards if isinstance(ref, ArtifactRef)]
    tokens, documents = (sum(counts[name] for counts in found) for name in ("tokens", "rows"))
    return rounded(tokens), rounded(tokens / max(1, documents))


def _vocab_size(session: Session, fitted: ArtifactRef) -> int:
    return int(load_tokenizer(session.store.folder(fitted) / TOKENIZER_FILE).vocab_size)


def suggest_training(session: Session, settings: Settings, prepared: Prepared) -> Maybe:
    """The suggestion of a shape and of the steps that the budget has room for, measured once and kept."""
    if not isinstance(prepared.tokenizer, ArtifactRef) or not isinstance(prepared.dataset, ArtifactRef):
        return prepared.dataset
    _compute_as(session, settings.execution)
    vocab_size = _vocab_size(session, prepared.tokenizer)
    device = describe_device(detect_device())
    shapes, plans = candidates_of(settings.model, settings.train, vocab_size, prepared.seq_len, device)
    tokens, document_tokens = _document_tokens(session, prepared.shards) if len(shapes) > 1 else (0, 0)
    by_steps = settings.train.max_steps * plans[next(iter(plans))]["batch_size"] * prepared.seq_len
    read_tokens = by_steps or settings.train.max_tokens
    minutes = 0.0 if read_tokens else settings.train.minutes
    means = ", ".join(filter(None, (device, settings.execution.words())))
    asked = SuggestSettings(minutes, tokens, document_tokens, read_tokens, shapes, plans, means)
    return session.run(suggest, asked)


def _compute_as(session: Session, execution: ExecutionSettings) -> None:
    """Tell the stages how a training is computed; a plan computes nothing."""
    if session.resources is not None:
        session.resources.processes = execution.processes
        session.resources.execution = execution.fields()


def _resolve_steps(
    session: Session, settings: TrainSettings, probe: dict[str, Any], cut: ArtifactRef, fitting: int
) -> int:
    """Number of steps of a training: as given, or from tokens, or those that fit the minutes.

    Args:
        probe: the training's configuration, but for its steps.
        fitting: steps that fit the minutes.
    """
    if settings.max_steps:
        return settings.max_steps
    counts = manifest_of(session.store, cut).counts
    most = steps_of_epochs(settings.max_epochs, probe, counts["train_reads"])
    if settings.max_tokens:
        folder = session.store.folder(cut)
        labels = load_index(folder, "train").labels
        return steps_of_tokens(settings.max_tokens, probe, labels, groups_of(folder), most)
    return min(most, fitting)


def train_model(session: Session, settings: Settings, prepared: Prepared) -> Maybe:
    """Choose what the settings leave open, and train, from a base if there is one."""
    base = find_base(session, settings)
    settings = with_base(settings, base)
    session.expect_seconds(train, _expected_seconds(settings.train))
    for value in (prepared.dataset, prepared.tokenizer):
        if isinstance(value, Pending):
            waiting = TrainStageSettings({}, {})
            return session.run(train, waiting, dataset=prepared.dataset, tokenizer=prepared.tokenizer)
    assert isinstance(prepared.dataset, ArtifactRef)
    assert isinstance(prepared.tokenizer, ArtifactRef)
    suggested, fitting = {}, 0
    by_time = not (settings.train.max_steps or settings.train.max_tokens)
    if by_time or settings.model.preset == AUTO:
        suggestion = suggest_training(session, settings, prepared)
        if isinstance(suggestion, Pending):
            return session.run(train, TrainStageSettings({}, {}), dataset=suggestion, tokenizer=prepared.tokenizer)
        found = read_suggestion(session.store.folder(suggestion))
        network, fitting = found["model"], found["max_steps"]
        suggested = {name: found["train"][name] for name in SUGGESTED}
        remember(session, suggest=suggestion)
    else:
        network = model_config(settings.model, _vocab_size(session, prepared.tokenizer))
    if base is not None:
        network["vocab_size"] = base.shape["vocab_size"]  # its rows may be more than the tokeniser has ids
    _compute_as(session, settings.execution)
    probe = train_config(settings.train, network, 1_000, **suggested)
    steps = _resolve_steps(session, settings.train, probe, prepared.dataset, fitting)
    plan = train_config(settings.train, network, steps, **suggested)
    inputs = {"dataset": prepared.dataset, "tokenizer": prepared.tokenizer}
    if base is not None:
        inputs["base"] = base.checkpoint
    return session.run(train, TrainStageSettings(network, plan), **inputs)


def _expected_seconds(settings: TrainSettings) -> float | None:
    """How long a training will take, where the request says so."""
    return None if settings.max_steps or settings.max_tokens else settings.minutes * 60


def evaluate_model(
    session: Session,
    checkpoint: Maybe,
    evalset: Maybe,
    settings: EvaluationSettings | None = None,
    dataset: Maybe | None = None,
) -> tuple[Maybe, dict[str, float]]:
    """Measure a model; returns the evaluation and its figures (none in a plan that has to wait).

    Args:
        dataset: what the model will be trained on, where a plan knows it; else it is asked for.
    """
    settings = settings or EvaluationSettings()
    inputs: dict[str, Maybe] = {"checkpoint": checkpoint, "evalset": evalset}
    if isinstance(checkpoint, ArtifactRef):
        dataset = dataset_of(session.store, checkpoint)
    if settings.ngram_order and dataset is not None:
        asked = NgramSettings(settings.ngram_order, settings.ngram_tokens)
        inputs["ngram"] = session.run(ngram, asked, dataset=dataset)
    found = session.run(evaluate, EvaluateSettings(settings.stride), **inputs)
    return found, read_metrics(session.store, found) if isinstance(found, ArtifactRef) else {}


def generate_text(session: Session, settings: Settings, checkpoint: Maybe, prompts: list[Prompt] | Pending) -> Maybe:
    """Continue prompts, shard by shard."""
    asked = settings.generate
    if isinstance(prompts, Pending):
        return session.run(generate, JoinSettings(), parts=prompts)
    shards = cut_prompts(prompts, asked)
    names = [PromptsSettings.of(shard) for shard in shards]
    if session.resources is not None:
        session.resources.prompts = {name.digest: shard for name, shard in zip(names, shards, strict=True)}
        session.resources.batch_size = asked.batch_size
    kept = session.run_each(
        keep_prompts, [Call(name, {}, len(shard)) for name, shard in zip(names, shards, strict=True)]
    )
    calls = [
        Call(asked.without_cut(), {"checkpoint": checkpoint, "prompts": ref}, len(shard))
        for ref, shard in zip(kept, shards, strict=True)
    ]
    parts: list[ArtifactRef] = []
    for part in session.run_each(complete, calls):
        if isinstance(part, Pending):
            return session.run(generate, JoinSettings(), parts=part)
        parts.append(part)
    return session.run(generate, JoinSettings(), parts=joined(parts))


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
    remember(
        session,
        snapshot=ingested.snapshot,
        extract=ingested.segments,
        normalise=ingested.normalised,
        measure=ingested.measured,
        score=ingested.scored,
        dedup=ingested.duplicates,
        curate=ingested.curated,
        refine=ingested.refined,
    )


def remember_prepared(session: Session, prepared: Prepared) -> None:
    """Note what preparation made."""
    remember(
        session,
        evalset=prepared.evalset,
        tokenizer=prepared.tokenizer,
        tokenise=prepared.shards,
        groups=[] if isinstance(prepared.groups, Pending) else list(prepared.groups.refs),
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
    if manifest_of(session.store, pinned).version != freeze_evalset.version:
        raise StoreError(
            f"the evaluation set of corpus {corpus!r} is of an earlier version of this program: run `sheepfold prepare "
            "SOURCE` or `run` to freeze it anew"
        )
    return pinned


def evaluation_texts(session: Session, corpus: str, on: str, column: str = "") -> ArtifactRef:
    """What a model is to be measured on, as an artefact with the layout of an evaluation set.

    Args:
        on: `train` or `validation` for that side of the corpus as it is now; else a text file, a folder of text files,
            JSON Lines or Parquet; empty for the corpus's frozen evaluation set.
        column: of JSON Lines and Parquet, the field that holds the text; empty means `text`.

    Raises:
        StoreError: the corpus was never prepared.
        UserError: it cannot be read, or there is no text in it.
    """
    if not on:
        return frozen_evalset(session, corpus)
    if on in SPLITS:
        inputs = split_inputs(read_state(session.store, corpus))
        return artifact(session.run(copy_split, SplitSettings(on), **inputs))
    texts = read_texts(Path(on).expanduser(), column or COLUMN)
    if session.resources is not None:
        session.resources.texts = texts
    return artifact(session.run(keep_texts, TextsSettings.of(texts)))


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

    Raises:
        UserError: if a document was forgotten while this ran, which may have read it.
    """
    if session.dry:
        return
    if session.forgotten is not None:
        refuse_forgotten(session.store, session.forgotten)
    name = corpus_ref(corpus)
    with session.store.lock(name):  # what another run publishes between our reading and writing would be lost
        state = session.store.read_ref(name) or {}
        for stage, refs in session.produced.items():
            state[stage] = [asdict(ref) for ref in refs]
        if session.produced.get(snapshot.name):
            state.pop(LISTED, None)
        if snapshot.name in state:
            session.store.write_ref(name, state)


def publish_evaluation(session: Session, corpus: str, checkpoint: Maybe, evaluation: Maybe) -> None:
    """Let the corpus's ref follow an evaluation of its latest training; figures of other models are none of its."""
    if read_state(session.store, corpus).get(train.name) == [checkpoint]:
        remember(session, evaluate=evaluation)
        publish(session, corpus)


def plan(session: Session, sources: Sequence[Source], corpus: str, settings: Settings) -> None:
    """Go the whole way without computing anything; the session's report says what would be done."""
    if settings.mix.by.strip():
        check_expression(settings.mix.by)
    check_asked(session, corpus, settings)
    ingested = ingest(session, sources, settings)
    prepared = prepare(session, corpus, settings, ingested)
    checkpoint = train_model(session, settings, prepared)
    evaluate_model(session, checkpoint, prepared.evalset, settings.evaluate, prepared.dataset)
    completions = sample(session, settings, checkpoint, prepared.evalset)
    trace_model(session, settings.evaluate, checkpoint, prepared.evalset, completions)
