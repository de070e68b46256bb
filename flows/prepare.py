"""The flow `prepare`: from documents to a frozen evaluation set, a tokeniser and training sequences."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from flows.context import flow, open_run, subflow
from flows.ingest import Ingested, ingest_documents
from flows.options import PrepareOptions
from flows.report import finish
from storage.errors import UserError
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import OVERLAP_FILE, TOKENS_FILE
from tasks.chat.answers import Questions, check_questions, questions_of
from tasks.chat.pairs import pairs
from tasks.chat.tokenise_pairs import TokenisePairsSettings, tokenise_pairs
from tasks.core.run import Run
from tasks.core.settings import Settings
from tasks.core.stage import NoSettings
from tasks.curate.curate import ENOUGH_BYTES, check_split
from tasks.curate.evalset import freeze_evalset, has_split, validation_bytes
from tasks.curate.evalset_leaks import EvalsetLeaksSettings, evalset_leaks
from tasks.curate.evalset_overlap import evalset_overlap
from tasks.registry.base import Base, check_base, with_base
from tasks.tokens.dataset import DatasetIndexSettings, dataset
from tasks.tokens.groups import group_documents
from tasks.tokens.tokenise import TokeniseSettings, tokenise
from tasks.tokens.tokenizer import check_tokenizer, corpus_tokenizer, pinned_settings
from tasks.training.suggest import context_of


@dataclass(frozen=True)
class Prepared:
    """A corpus ready for training."""

    evalset: ArtifactRef
    tokenizer: ArtifactRef
    shards: list[ArtifactRef]
    dataset: ArtifactRef
    seq_len: int
    questions: Questions | None = None  # held-out ones, of a training on conversations


@flow(PrepareOptions)
def prepare(options: PrepareOptions) -> dict[str, Any]:
    """Ingest new documents, freeze the evaluation set, fit the tokeniser, encode, and cut into sequences."""
    settings = options.load()
    with open_run(options, settings.limits) as run:
        ingest_and_prepare(run, options.source, settings)
        return finish(run)


def ingest_and_prepare(run: Run, source: str, settings: Settings) -> tuple[Ingested, Prepared, Base | None]:
    """Check the base and the tokeniser, then ingest and prepare sources."""
    base = check_base(run, settings)
    check_tokenizer(with_base(settings, base).tokenizer, pinned_settings(run))
    ingested = ingest_documents(run, source, settings)
    return ingested, prepare_documents(run, settings, ingested, base), base


@subflow("prepare")
def prepare_documents(run: Run, settings: Settings, ingested: Ingested, base: Base | None = None) -> Prepared:
    """Freeze the evaluation set, fit or reuse the tokeniser, encode, cut into sequences.

    Raises:
        EmptyCorpus: if there are no training documents, or no validation documents.
    """
    settings = with_base(settings, base)
    questions = questions_of(settings.chat, None if base is None else base.folder)
    segments, curated, texts = ingested.segments, ingested.curated, ingested.all_refined
    check_split(run, curated, ingested.snapshot)
    evalset = _evalset(run, settings, ingested)
    tokenizer = corpus_tokenizer(run, settings.tokenizer, curated, texts)
    if questions is None:
        run.remember(pairs=())
        shards = segments.map(
            run,
            tokenise,
            TokeniseSettings(settings.tokenizer.bos, settings.tokenizer.eos),
            documents=ingested.refined,
            tokenizer=tokenizer,
            engine=settings.tokenizer.engine,
        )
    else:
        run.read(evalset, lambda ref: check_questions(run.store, ref, questions), None)
        shards = _tokenise_pairs(run, ingested, tokenizer, questions, settings.tokenizer.bos)
    groups = group_documents(
        run,
        settings.mix,
        snapshot=ingested.snapshot,
        curated=curated,
        measures=ingested.all_measures,
        texts=texts,
    )
    seq_len = context_of(run, settings.model, shards)
    cut = dataset(
        run,
        DatasetIndexSettings.of(seq_len, settings.dataset, settings.mix, chats=questions is not None),
        curated=curated,
        tokens=segments.union(run, shards, TOKENS_FILE),
        tokenizer=tokenizer,
        groups=groups,
    )
    run.remember(evalset=evalset, tokenizer=tokenizer, tokenise=shards, groups=groups.refs, dataset=cut)
    return Prepared(evalset, tokenizer, shards, cut, seq_len, questions)


def _tokenise_pairs(
    run: Run, ingested: Ingested, tokenizer: ArtifactRef, questions: Questions, bos: bool
) -> list[ArtifactRef]:
    """Find the conversations of each segment, and encode them.

    Raises:
        UserError: none goes with the template.
    """
    segments = ingested.segments
    found = segments.map(run, pairs, NoSettings(), segment=segments.refs, documents=ingested.refined)
    run.remember(pairs=found)
    form = TokenisePairsSettings(questions.template, questions.kinds, bos)
    shards = ingested.segments.map(
        run, tokenise_pairs, form, pairs=found, documents=ingested.refined, tokenizer=tokenizer
    )
    made = [manifest_of(run.store, ref) for ref in shards if ref.made]
    refused = sum(manifest.counts["refused"] for manifest in made)
    if refused:
        reason = next(manifest.tools["refused"] for manifest in made if "refused" in manifest.tools)
        if not any(manifest.counts["examples"] for manifest in made):
            raise UserError(f"none of {refused:,} conversations goes with the template of chats, such as {reason}")
        run.note(f"{refused:,} conversations do not go with the template and are left out, such as {reason}")
    return shards


def _evalset(run: Run, settings: Settings, ingested: Ingested) -> ArtifactRef:
    """Return the corpus's evaluation set.

    It is frozen again if the split's settings changed, training text overlaps with it, or it is small and the split now
    gives at least twice its bytes.
    """
    known = freeze_evalset.pinned(run)
    if known is not None and has_split(run.store, known, settings.curate):
        overlaps = _overlaps(run, ingested, known)  # in every run, so that each has only new documents to compute
        if manifest_of(run.store, known).inputs["curated"]["digest"] == ingested.curated.digest:
            return run.reuse(freeze_evalset, known)  # it was frozen from this selection
        leaks = evalset_leaks(
            run,
            EvalsetLeaksSettings(settings.curate.max_containment),
            curated=ingested.curated,
            overlaps=overlaps,
            evalset=known,
        )
        held = manifest_of(run.store, known).counts["bytes"]
        given = run.read(ingested.curated, partial(validation_bytes, run.store), held)
        is_outgrown = held < ENOUGH_BYTES and given >= 2 * held
        if not is_outgrown and not run.read(leaks, lambda ref: manifest_of(run.store, ref).counts["leaks"], 0):
            return run.reuse(freeze_evalset, known)
        if is_outgrown:
            run.note(
                f"the evaluation set has {held:,} bytes and the split gives {given:,}, so it is frozen again; models "
                "are compared on the new one"
            )
    frozen = freeze_evalset(
        run,
        NoSettings(),
        snapshot=ingested.snapshot,
        curated=ingested.curated,
        documents=ingested.all_refined,
        measures=ingested.all_measures,
    )
    _overlaps(run, ingested, frozen)  # now, so that later runs have only new documents to compute
    return frozen


def _overlaps(run: Run, ingested: Ingested, evalset: ArtifactRef) -> RefSet:
    """Return the overlap of each segment with an evaluation set, in 13-grams."""
    made = ingested.segments.map(run, evalset_overlap, NoSettings(), measures=ingested.measured, evalset=evalset)
    return ingested.segments.union(run, made, OVERLAP_FILE)
