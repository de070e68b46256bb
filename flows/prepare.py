"""The flow `prepare`: from documents to a frozen evaluation set, a tokeniser and training sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flows.base import Base, check_base, with_base
from flows.context import flow, open_run, subflow
from flows.finish import finish, result_of
from flows.ingest import Ingested, ingest_documents
from flows.options import PrepareOptions
from flows.state import pin, pinned, publish
from storage.errors import UserError
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import OVERLAP_FILE
from tasks.curate.evalset import EvalsetSettings, freeze_evalset
from tasks.curate.evalset_leaks import EvalsetLeaksSettings, evalset_leaks
from tasks.curate.evalset_overlap import EvalsetOverlapSettings, evalset_overlap
from tasks.machine import detect_device
from tasks.run import Run
from tasks.settings import AUTO, Settings
from tasks.stage import Call
from tasks.suggest import context_for, rounded
from tasks.tokens.dataset import DatasetIndexSettings, dataset
from tasks.tokens.fit import FitSettings, check_tokenizer, tokenizer
from tasks.tokens.foreign import BESIDE
from tasks.tokens.groups import group_documents
from tasks.tokens.shards import TokeniseSettings, tokenise
from tasks.tokens.tokenizer import TOKENIZER_FILE
from tasks.training import model_config


@dataclass(frozen=True)
class Prepared:
    """A corpus ready for training."""

    evalset: ArtifactRef
    tokenizer: ArtifactRef
    shards: list[ArtifactRef]
    groups: RefSet
    dataset: ArtifactRef
    seq_len: int

    def remember(self, run: Run) -> None:
        """Record the artefacts for the ref of the corpus."""
        run.remember(
            evalset=self.evalset,
            tokenizer=self.tokenizer,
            tokenise=self.shards,
            groups=self.groups.refs,
            dataset=self.dataset,
        )


class EmptyCorpus(UserError):
    """There is not enough text to train on and to measure on."""


@flow(PrepareOptions)
def prepare(options: PrepareOptions) -> dict[str, Any]:
    """Ingest what is new, then freeze the evaluation set, fit the tokeniser, encode and cut into sequences."""
    settings = options.load()
    with open_run(options, settings.limits) as run:
        ingested, prepared, _ = prepare_source(run, options.source, settings)
        ingested.remember(run)
        prepared.remember(run)
        publish(run)
        return finish(run, result_of(run), sources=ingested.sources)


def prepare_source(run: Run, source: str, settings: Settings) -> tuple[Ingested, Prepared, Base | None]:
    """Ingest and prepare sources; refuses an impossible base or tokeniser before anything runs."""
    base = check_base(run, settings)
    _check_tokenizer(run, with_base(settings, base))
    ingested = ingest_documents(run, source, settings)
    return ingested, prepare_documents(run, settings, ingested, base), base


@subflow("prepare")
def prepare_documents(run: Run, settings: Settings, ingested: Ingested, base: Base | None = None) -> Prepared:
    """Freeze the evaluation set, fit or reuse the tokeniser, encode, cut into sequences.

    Raises:
        EmptyCorpus: if there is nothing to train on, or nothing to measure on.
    """
    settings = with_base(settings, base)
    curated, documents = ingested.curated, ingested.texts
    _check_split(run, curated, ingested.snapshot)
    frozen = _evalset(run, settings, ingested)
    fitted = _tokenizer(run, settings, curated, documents)
    framing = TokeniseSettings(settings.tokenizer.bos, settings.tokenizer.eos)
    engine = settings.tokenizer.engine
    shards = tokenise.map(
        run,
        [
            Call(framing, {"documents": ref, "tokenizer": fitted, "engine": engine}, size)
            for ref, size in zip(ingested.refined, ingested.sizes, strict=True)
        ],
    )
    tokens = run.union(shards, "tokens.parquet", ingested.live, segments=ingested.keys)
    groups = group_documents(
        run,
        settings.mix,
        snapshot=ingested.snapshot,
        curated=curated,
        measures=ingested.measures,
        texts=documents,
        scored=ingested.scored,
    )
    seq_len = _seq_len(run, settings, shards)
    cut = dataset(
        run,
        DatasetIndexSettings.of(seq_len, settings.dataset, settings.mix),
        curated=curated,
        tokens=tokens,
        tokenizer=fitted,
        groups=groups,
    )
    return Prepared(frozen, fitted, shards, groups, cut, seq_len)


def _counts(run: Run, ref: ArtifactRef) -> dict[str, int]:
    return run.read(ref, lambda ref: manifest_of(run.store, ref).counts, {})


def _check_split(run: Run, curated: ArtifactRef, listing: ArtifactRef) -> None:
    counts = _counts(run, curated)
    if counts.get("train", 1) and counts.get("validation", 1):
        return
    found = _counts(run, listing).get("rows", 0)
    if not found:
        raise EmptyCorpus(
            "there are no files in the sources, so there is nothing to train on: name a folder or file with documents, "
            "and see whether patterns or a .gitignore leave everything out"
        )
    raise EmptyCorpus(
        f"of {found} file(s) found, the corpus has {counts['train']} document(s) to train on and "
        f"{counts['validation']} to measure on; at least one of each is needed, and none may stand in another: add "
        'documents; `sheepfold ingest SOURCE` and then `sheepfold sql "select * from quarantine"` list what became of '
        "those that are there"
    )


def _check_tokenizer(run: Run, settings: Settings) -> None:
    """Refuse a tokeniser that could not be had after an hour of ingestion.

    Raises:
        UserError: if its file is not there and the corpus has no such tokeniser, or it holds none.
    """
    known = pinned(run, "tokenizer", tokenizer)
    check_tokenizer(settings.tokenizer, manifest_of(run.store, known).settings if known is not None else None)


def _tokenizer(run: Run, settings: Settings, curated: ArtifactRef, documents: RefSet) -> ArtifactRef:
    """Return the corpus's tokeniser: the pinned one while its settings are asked for, else a new one."""
    known = pinned(run, "tokenizer", tokenizer)
    before = manifest_of(run.store, known).settings if known is not None else None
    asked = FitSettings.of(settings.tokenizer, before)
    if known is not None and before == asdict(asked):
        return run.reuse(tokenizer, known)
    file = None
    if settings.tokenizer.file:
        path = Path(settings.tokenizer.file).expanduser()
        beside = {name: path.with_name(name) for name in BESIDE if path.with_name(name).is_file()}
        file, _ = run.add("tokenizer_file", {**beside, TOKENIZER_FILE: path})
    fitted = tokenizer(run, asked, curated=curated, documents=documents, file=file)
    pin(run, "tokenizer", fitted)
    return fitted


def _evalset(run: Run, settings: Settings, ingested: Ingested) -> ArtifactRef:
    """Return the corpus's evaluation set: frozen, unless the split was set anew or training would read from it."""
    known = pinned(run, "evalset", freeze_evalset)
    if known is not None and _still_fit(run, settings, ingested, known):
        return run.reuse(freeze_evalset, known)
    frozen = freeze_evalset(
        run,
        EvalsetSettings(),
        snapshot=ingested.snapshot,
        curated=ingested.curated,
        documents=ingested.texts,
        measures=ingested.measures,
    )
    pin(run, "evalset", frozen)
    _overlaps(run, ingested, frozen)  # now, so that the next document that comes costs a look at itself alone
    return frozen


def _overlaps(run: Run, ingested: Ingested, evalset: ArtifactRef) -> RefSet:
    """Return the 13-grams that each segment shares with an evaluation set."""
    segments = zip(ingested.measured, ingested.sizes, strict=True)
    calls = [Call(EvalsetOverlapSettings(), {"measures": ref, "evalset": evalset}, size) for ref, size in segments]
    made = evalset_overlap.map(run, calls)
    return run.union(made, OVERLAP_FILE, ingested.live, segments=ingested.keys)


def _still_fit(run: Run, settings: Settings, ingested: Ingested, known: ArtifactRef) -> bool:
    """Return True if a frozen evaluation set has the split asked for and nothing of it is trained on."""
    found = manifest_of(run.store, known)
    if found.version != freeze_evalset.version:
        return False
    split = manifest_of(run.store, found.input_refs("curated")[0]).settings["curate"]
    if (split["validation_share"], split["salt"]) != (settings.curate.validation_share, settings.curate.salt):
        return False
    curated, overlaps = ingested.curated, _overlaps(run, ingested, known)
    if found.inputs["curated"]["digest"] == curated.digest:
        return True  # frozen from this very selection
    leaks = evalset_leaks(
        run,
        EvalsetLeaksSettings(settings.curate.max_containment),
        curated=curated,
        overlaps=overlaps,
        evalset=known,
    )
    return not _counts(run, leaks).get("leaks")


def _seq_len(run: Run, settings: Settings, shards: Sequence[ArtifactRef]) -> int:
    """Return the length of sequences: the preset's context, or one that suits the length of the documents."""
    if settings.model.preset != AUTO:
        return int(model_config(settings.model, vocab_size=1)["max_seq_len"])
    given = settings.model.overrides.get("max_seq_len")
    return int(given) if given is not None else context_for(document_tokens(run, shards)[1], detect_device())


def document_tokens(run: Run, shards: Sequence[ArtifactRef]) -> tuple[int, int]:
    """Return the tokens there are and those of a document, both rounded to powers of two."""
    found = [_counts(run, ref) for ref in shards]
    tokens, documents = (sum(counts.get(name, 0) for counts in found) for name in ("tokens", "rows"))
    return rounded(tokens), rounded(tokens / max(1, documents))
