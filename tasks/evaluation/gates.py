"""The stage `gates`: conditions that a trained model must meet to become champion.

Verdicts depend on facts and settings alone, so they are reproducible. A gate without a measurement (no champion, no OCR
page) is skipped. If the champion's metrics are not comparable, or there is too little text to compare them, the better
model is unknown and the champion stays.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic.dataclasses import dataclass as settings_dataclass

from storage.catalog import json_value
from storage.digest import sha256_json
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, Manifest
from storage.schemas import DOCUMENTS_FILE, DROPPED_FILE, VERDICTS
from storage.store import Store
from storage.tables import read_columns, read_rows, write_table
from tasks.core.option import STRICT, option
from tasks.core.stage import Work, stage
from tasks.curate.corpus import kept_documents
from tasks.evaluation.compare import Comparison, SlicePair, compare_evaluations, compare_source
from tasks.evaluation.tables import MIN_SLICE_BYTES, read_metrics
from tasks.training.bundle import WEIGHTS_FILE

VERDICTS_FILE = "gates.parquet"
LEAKS = "evalset_leaks"  # stage that searches training text for evaluation text
_REPEATED = ("duplicate_text", "near_duplicate")

# Largest half-width of the interval of a difference that is not significant, relative to the champion's bits per byte.
# If it is h, a model that is worse by h has the fewer bits by chance in 2.5 % of the comparisons (normal distribution,
# 1.96 standard errors), and one worse by 0.05, which is no more than a slice may lose, in 16 % for h = 0.1 and in 31 %
# for h = 0.2.
MAX_HALF_WIDTH = 0.1

Outcome = Literal["passed", "failed", "skipped", "not_comparable"]
Found = tuple[float | None, str]  # measurement (None if there is none, NaN if it is impossible) and its sentence


@settings_dataclass(frozen=True, config=STRICT)
class GateSettings:
    """Requirements that a model must meet before promotion to champion.

    The first three concern the corpus it was trained on, and hold for the first model as well. Their defaults are wide:
    they stop what has gone wrong, not what is merely untidy.
    """

    max_rejected_share: float = option(
        0.5, "Largest share of refused and failed files among the files that were read.", ge=0, le=1
    )
    max_duplicate_share: float = option(
        0.9, "Largest share of exact and near-duplicates among the files with a document.", ge=0, le=1
    )
    min_ocr_confidence: float = option(0.5, "Least mean confidence of the pages that were read by OCR.", ge=0, le=1)
    rule: Literal["better", "clearly_better", "not_worse"] = option(
        "better",
        "Required bits per byte on the evaluation set against the champion's: `better` (a tie within the 95 % "
        "interval goes to the lower figure), `clearly_better` (the interval of the difference excludes 0) or "
        "`not_worse` (the champion stays only if it is clearly better).",
    )
    max_slice_loss: float = option(
        0.05,
        "Largest significant loss on a slice of the evaluation set, relative to the champion's bits per byte there.",
        ge=0,
    )
    slice_documents: int = option(8, "Ignore slices of fewer documents.", ge=2)
    max_size_mb: float = option(0.0, "Largest size of the weights in megabytes (10**6 bytes); 0 sets no limit.", ge=0)
    min_tokens_per_second: float = option(0.0, "Least speed of the evaluation on its machine; 0 sets no limit.", ge=0)
    max_quantisation_loss: float = option(
        0.0,
        "Largest share of bits per byte that `quantisation` may add; 0 sets no limit, and nothing is measured.",
        ge=0,
    )
    replay: str = option(
        "",
        "Source, or first folders of paths, of the held-out documents on which a model is compared with its base, "
        "at the end by `max_base_loss` and during the training by a curve, such as general text that is to be "
        "remembered; empty compares nothing.",
    )
    max_base_loss: float = option(
        0.0, "Largest significant loss on `replay`, relative to the base's bits per byte there.", ge=0
    )
    max_answer_loss: float = option(
        0.0,
        "Largest significant loss of a model that answers on the expected answers, relative to its base's bits per "
        "byte there.",
        ge=0,
    )
    min_format_obedience: float = option(
        0.9, "Least share of its answers that end by themselves and keep the form of the chat.", ge=0, le=1
    )
    quantisation: Literal["f16", "bf16", "q8_0", "q4_0"] = option(
        "q8_0", "Type of the matrices in a GGUF file, which `max_quantisation_loss` is about."
    )


@stage("gates", version=6, tables={VERDICTS_FILE: VERDICTS}, keep_with=("checkpoint", "evaluation"))
def gates(
    work: Work,
    settings: GateSettings,
    *,
    checkpoint: ArtifactRef,
    evaluation: ArtifactRef,
    champion: ArtifactRef | None = None,
    leaks: ArtifactRef | None = None,
    champion_that_knew: ArtifactRef | None = None,
    quantised: ArtifactRef | None = None,
    base: ArtifactRef | None = None,
    texts: ArtifactRef | None = None,
    base_answers: ArtifactRef | None = None,
) -> str:
    """Judge a model by its evaluation and the champion's, if there is one.

    Args:
        champion: the champion's evaluation on the same documents.
        champion_that_knew: instead, its checkpoint if it was trained on documents of the evaluation set.
        quantised: the model's evaluation with rounded weights.
        base: the base's evaluation on the same documents.
        texts: the model's evaluation on them, if `evaluation` is one on answers.
        base_answers: the base's evaluation on answers.
    """
    knew = champion_that_knew is not None
    facts = collect_facts(work.store, checkpoint, evaluation, champion, leaks, knew, quantised)
    if base is not None:
        own = compare_source(work.store, texts or evaluation, base, settings.replay)
        facts = replace(facts, has_base=True, base=own)
    if base_answers is not None:
        facts = replace(facts, base_answers=compare_evaluations(work.store, evaluation, base_answers))
    verdicts = judge(facts, settings)
    work.counts["rows"] = write_table(work.out / VERDICTS_FILE, VERDICTS, map(asdict, verdicts))
    work.counts["failed"] = len(failed(verdicts))
    return sha256_json([item.document() for item in verdicts])


@dataclass(frozen=True)
class Verdict:
    """Verdict of one gate on a model.

    Attributes:
        gate: name of the gate.
        verdict: `skipped` without a measurement or a limit; `not_comparable`, which holds the model back as `failed`
            does, if the measurement is impossible.
        number: the measurement; None if there is none, NaN if it is impossible.
        limit: the limit; None if there is none.
        sentence: explanation for people.
    """

    gate: str
    verdict: Outcome
    number: float | None
    limit: float | None
    sentence: str

    def words(self) -> str:
        """Return verdict, number and limit as the value of a tag."""
        if self.number is None or math.isnan(self.number) or self.limit is None:
            return self.verdict
        return f"{self.verdict}: {self.number:.6g} (limit {self.limit:.6g})"

    def document(self) -> dict[str, Any]:
        """Return the verdict as JSON, with None for non-finite numbers."""
        document: dict[str, Any] = json_value(asdict(self))
        return document


def failed(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return the verdicts that hold a model back."""
    return [item for item in verdicts if item.verdict in ("failed", "not_comparable")]


def read_verdicts(folder: Path) -> list[Verdict]:
    """Read a table of verdicts, in the order of the gates."""
    return [Verdict(**row) for row in read_rows(folder / VERDICTS_FILE)]


@dataclass(frozen=True)
class CorpusFacts:
    """Counts of the corpus that a model was trained on."""

    files: int  # files read, without skipped ones
    rejected: int  # rejected or failed files among them
    documents: int  # files with a document, including duplicates
    repeated: int  # exact and near-duplicates among them
    ocr_pages: float = 0.0  # OCR pages of kept documents
    ocr_confidence: float | None = None  # their mean confidence, 0 to 1; None if there are none or it is unknown


@dataclass(frozen=True)
class Facts:
    """Inputs of the gates."""

    corpus: CorpusFacts
    leaks: int | None  # evaluation documents in the training text; None if not measured
    bits_per_byte: float  # of the model on the evaluation set
    comparison: Comparison | None  # with the champion; None if there is none
    size: int  # bytes of the weights
    tokens_per_second: float | None  # of the evaluation; None if its time was not measurable
    champion_knew: bool = False  # the champion was trained on documents of the evaluation set
    quantised: Comparison | None = None  # the model with rounded weights, with itself; None if not measured
    has_base: bool = False  # and a comparison with it is asked for
    base: SlicePair | None = None  # the model with its base on the replay set; None if that is empty
    obedience: float | None = None  # share of answers that keep the form; None for a model that does not answer
    base_answers: Comparison | None = None  # the model with its base on answers; None if there is none


def collect_facts(
    store: Store,
    checkpoint: ArtifactRef,
    evaluation: ArtifactRef,
    champion: ArtifactRef | None = None,
    leaks: ArtifactRef | None = None,
    champion_knew: bool = False,
    quantised: ArtifactRef | None = None,
) -> Facts:
    """Read the inputs of the gates from the arguments of the stage `gates`."""
    trained, measured = manifest_of(store, checkpoint), manifest_of(store, evaluation)
    curated = curated_of(store, checkpoint)
    (evalset,) = measured.input_refs("evalset")
    metrics = read_metrics(store, evaluation)
    n_leaks: int | None
    if leaks is not None:
        n_leaks = manifest_of(store, leaks).counts["leaks"]
    else:
        frozen_from = manifest_of(store, evalset).inputs.get("curated", {}).get("digest")
        n_leaks = 0 if frozen_from == curated.digest else None  # the split of one selection has no leaks
    return Facts(
        corpus=corpus_facts(store, curated),
        leaks=n_leaks,
        bits_per_byte=metrics["val/bits_per_byte"],
        comparison=None if champion is None else compare_evaluations(store, evaluation, champion),
        size=next(entry.size for entry in trained.files if entry.name == WEIGHTS_FILE),
        tokens_per_second=measured.counts["tokens"] / measured.seconds if measured.seconds else None,
        champion_knew=champion_knew,
        quantised=None if quantised is None else compare_evaluations(store, quantised, evaluation),
        obedience=metrics.get("val/format_obedience"),
    )


def curated_of(store: Store, checkpoint: ArtifactRef) -> Manifest:
    """Return the selection that a model was trained on, without those of its base."""
    (dataset,) = manifest_of(store, checkpoint).input_refs("dataset")
    (curated,) = manifest_of(store, dataset).input_refs("curated")
    return manifest_of(store, curated)


def known_leaks(store: Store, checkpoint: ArtifactRef, evalset: ArtifactRef) -> ArtifactRef | None:
    """Return the leaks of an evaluation set into a model's training text; None if they were not measured."""
    curated = curated_of(store, checkpoint).digest
    for found in store.manifests(LEAKS):
        if (found.inputs["curated"]["digest"], found.inputs["evalset"]["digest"]) == (curated, evalset.digest):
            return found.ref
    return None


def corpus_facts(store: Store, curated: Manifest) -> CorpusFacts:
    """Return counts of the files and documents of a selection."""
    (listing,) = curated.input_refs("snapshot")
    counts = manifest_of(store, listing).counts
    ok, duplicates, rejected, failed = (
        counts.get(f"status_{status}", 0) for status in ("ok", "duplicate", "rejected", "failed")
    )
    dropped = read_columns(store.folder(curated.ref) / DROPPED_FILE, ["reason_code"])["reason_code"]
    repeated = duplicates + sum(dropped.count(code) for code in _REPEATED)
    pages, confidence = _ocr_confidence(store, curated)
    return CorpusFacts(
        ok + duplicates + rejected + failed, rejected + failed, ok + duplicates, repeated, pages, confidence
    )


def _ocr_confidence(store: Store, curated: Manifest) -> tuple[float, float | None]:
    """Return the number of OCR pages of kept documents, and their mean confidence."""
    scanned: dict[str, tuple[float, float]] = {}  # OCR pages and mean confidence by document
    for ref in curated.input_refs("documents"):
        if store.find(ref.stage, ref.key) is None:
            return 0.0, None  # forgotten or garbage-collected
        columns = ["doc_id", "n_pages", "ocr_share", "ocr_confidence"]
        table = pq.read_table(store.folder(ref) / DOCUMENTS_FILE, columns=columns, use_threads=False)
        by_ocr = table.filter(pc.and_(pc.greater(table["ocr_share"], 0), pc.is_valid(table["ocr_confidence"])))
        for row in by_ocr.to_pylist():
            scanned[row["doc_id"]] = row["n_pages"] * row["ocr_share"], row["ocr_confidence"]
    kept = kept_documents(store, curated.ref) if scanned else set()
    read = [found for doc_id, found in scanned.items() if doc_id in kept]
    pages = sum(n for n, _ in read)
    return pages, sum(n * confidence for n, confidence in read) / pages if pages else None


@dataclass(frozen=True)
class Gate:
    """One gate: a measurement with a sentence, compared with a limit, if there is one."""

    name: str  # stored in tables and tags
    title: str
    measure: Callable[[Facts, GateSettings], Found]
    limit: Callable[[GateSettings], float | None]
    passes: Callable[[float, float], bool]  # False for NaN


def judge(facts: Facts, settings: GateSettings) -> list[Verdict]:
    """Return the verdicts of all gates."""
    verdicts = []
    for gate in GATES:
        (number, sentence), limit = gate.measure(facts, settings), gate.limit(settings)
        outcome: Outcome = "skipped"
        if number is not None and limit is None:
            sentence += "; no limit is set"
        elif number is not None and limit is not None:
            outcome = "passed" if gate.passes(number, limit) else "not_comparable" if math.isnan(number) else "failed"
        verdicts.append(Verdict(gate.name, outcome, number, limit, sentence))
    return verdicts


def _rejected(facts: Facts, settings: GateSettings) -> Found:
    found = facts.corpus
    return _share(found.rejected, found.files, "files", "were refused or failed", settings.max_rejected_share)


def _repeated(facts: Facts, settings: GateSettings) -> Found:
    found = facts.corpus
    return _share(found.repeated, found.documents, "documents", "repeat others", settings.max_duplicate_share)


def _share(part: int, whole: int, of: str, what: str, limit: float) -> Found:
    if not whole:
        return None, f"no {of} are known of the corpus"
    share = part / whole
    return share, f"{part:,} of {whole:,} {of} {what} ({share:.1%}, at most {limit:.1%})"


def _ocr(facts: Facts, settings: GateSettings) -> Found:
    confidence, limit = facts.corpus.ocr_confidence, settings.min_ocr_confidence
    if confidence is None:
        return None, "no page of the documents in use was read by OCR"
    pages = f"{facts.corpus.ocr_pages:,.0f} pages read by OCR"
    return confidence, f"the mean word confidence of {pages} is {confidence:.1%} (at least {limit:.1%})"


def _leaks(facts: Facts, _: GateSettings) -> Found:
    if facts.leaks is None:
        return None, "nobody looked for text of the evaluation set in the training text"
    if not facts.leaks:
        return 0, "no document of the evaluation set stands in the training text"
    return facts.leaks, f"{facts.leaks:,} documents stand on both sides, in training and evaluation set"


def _bits(facts: Facts, settings: GateSettings) -> Found:
    if facts.champion_knew:
        return math.nan, (
            "the champion was trained on documents of this evaluation set, so the two cannot be compared "
            f"({facts.bits_per_byte:.4f} bits per byte); `sheepfold rollback --to VERSION` makes this one champion all "
            "the same"
        )
    if facts.comparison is None:
        return None, f"there is no champion to compare with ({facts.bits_per_byte:.4f} bits per byte)"
    own, other = facts.comparison.metrics["val/bits_per_byte"]
    difference = facts.comparison.difference
    fewer = "fewer" if difference.value < 0 else "not fewer"
    n = f"{difference.documents:,} document{'' if difference.documents == 1 else 's'}"
    reach = f"{difference.interval} on {n}" if difference.is_bounded else f"on {n}, which says nothing of others"
    words = f"{own:.4f} bits per byte are {fewer} than the champion's {other:.4f} ({reach})"
    is_wide = other is not None and difference.high - difference.low > 2 * MAX_HALF_WIDTH * other
    if is_wide and not difference.is_clear:
        return math.nan, (
            f"{words}: too little text to tell the two apart, as the interval has to exclude 0 or to reach at most "
            f"{MAX_HALF_WIDTH:.0%} of the champion's figure to either side; add documents, or make this one champion "
            "by `sheepfold rollback --to VERSION`"
        )
    if settings.rule == "clearly_better" and not difference.high < 0 and difference.value < 0:
        words += ", but not clearly"
    if settings.rule == "clearly_better":
        return difference.high, words
    return difference.low if settings.rule == "not_worse" else difference.value, words


def _slices(facts: Facts, settings: GateSettings) -> Found:
    if facts.champion_knew:
        return None, "the champion was trained on documents of this evaluation set, so no slice was compared"
    if facts.comparison is None:
        return None, "there is no champion to compare with"
    counted = [item for item in facts.comparison.slices if item.a.documents >= settings.slice_documents]
    if not counted:
        return None, f"no slice has {settings.slice_documents} documents and {MIN_SLICE_BYTES:,} bytes or more"
    worst = max(counted, key=clear_loss)
    loss = clear_loss(worst)
    if not loss:
        return 0, f"none of {len(counted)} slices is clearly worse than under the champion"
    words = f"{worst.dimension} {worst.value or '(none)'} is {loss:.1%} worse than under the champion"
    bits = f"{worst.a.bits_per_byte:.4f} to {worst.b.bits_per_byte:.4f} bits per byte"
    return loss, f"{words}, {bits} (at most {settings.max_slice_loss:.1%})"


def _base(facts: Facts, settings: GateSettings) -> Found:
    if not settings.replay:
        return None, "no limit is set"
    if not facts.has_base:
        return None, "the model has no base to compare with"
    found = facts.base
    if found is None or found.a.documents < settings.slice_documents or found.a.bytes < MIN_SLICE_BYTES:
        return math.nan, (
            f"the evaluation set has {found.a.documents if found else 0} documents, {found.a.bytes if found else 0:,} "
            f"bytes, of gates.replay={settings.replay}; expected {settings.slice_documents} and {MIN_SLICE_BYTES:,} "
            "bytes of a first folder of the paths, or a source"
        )
    loss = clear_loss(found)
    bits = f"{found.b.bits_per_byte:.4f} to {found.a.bits_per_byte:.4f} bits per byte on {settings.replay}"
    told = f"{loss:.1%} worse than the base" if loss else "not clearly worse than the base"
    return loss, f"{bits}: {told} ({found.difference.interval}; at most {settings.max_base_loss:.1%})"


def _answers(facts: Facts, settings: GateSettings) -> Found:
    found = facts.base_answers
    if found is None:
        return None, "the model does not answer, or has no base to compare with"
    own, other = found.metrics["val/bits_per_byte"]
    assert own is not None and other is not None
    loss = found.difference.value / other if found.difference.low > 0 else 0.0
    told = f"{loss:.1%} worse than the base" if loss else "not clearly worse than the base"
    interval = found.difference.interval if found.difference.is_bounded else "on one document"
    bits = f"{other:.4f} to {own:.4f} bits per byte on the expected answers"
    return loss, f"{bits}: {told} ({interval}; at most {settings.max_answer_loss:.1%})"


def _obedience(facts: Facts, settings: GateSettings) -> Found:
    if facts.obedience is None:
        return None, "the model does not answer"
    told = "of its answers end by themselves and keep the form of the chat"
    return facts.obedience, f"{facts.obedience:.1%} {told} (at least {settings.min_format_obedience:.0%})"


def clear_loss(item: SlicePair) -> float:
    """Return the loss on a slice as a share of the other model's bits per byte; 0 if it is not significant."""
    return item.difference.value / item.b.bits_per_byte if item.difference.low > 0 else 0.0


def _size(facts: Facts, _: GateSettings) -> Found:
    return facts.size / 1e6, f"the weights take {facts.size / 1e6:,.1f} MB"


def _speed(facts: Facts, settings: GateSettings) -> Found:
    if not settings.min_tokens_per_second:
        return None, "no limit is set"  # varies, and equal inputs must give equal tables
    if facts.tokens_per_second is None:
        return None, "the evaluation took no measurable time"
    return facts.tokens_per_second, f"the evaluation read {facts.tokens_per_second:,.0f} tokens a second"


def _quantised(facts: Facts, settings: GateSettings) -> Found:
    if facts.quantised is None:
        return None, "no limit is set"
    rounded, own = facts.quantised.metrics["val/bits_per_byte"]
    assert own is not None and rounded is not None
    difference = facts.quantised.difference
    loss = difference.value / own
    interval = difference.interval if difference.is_bounded else "on one document"
    words = f"in {settings.quantisation} the model has {rounded:.4f} bits per byte instead of {own:.4f}"
    return loss, f"{words}, {loss:+.2%} ({interval}; at most {settings.max_quantisation_loss:.2%})"


GATES = (
    Gate("rejected_share", "Share of unreadable files", _rejected, lambda s: s.max_rejected_share, operator.le),
    Gate("duplicate_share", "Share of duplicate documents", _repeated, lambda s: s.max_duplicate_share, operator.le),
    Gate("ocr_confidence", "Mean OCR confidence", _ocr, lambda s: s.min_ocr_confidence, operator.ge),
    Gate("leaked_documents", "Evaluation documents in training text", _leaks, lambda _: 0.0, operator.le),
    Gate("bits_per_byte", "Bits per byte, difference to champion", _bits, lambda _: 0.0, operator.lt),
    Gate("worst_slice", "Largest relative loss on a slice", _slices, lambda s: s.max_slice_loss, operator.le),
    Gate(
        "base_loss",
        "Relative loss on the replay set",
        _base,
        lambda s: s.max_base_loss if s.replay else None,
        operator.le,
    ),
    Gate("answer_loss", "Relative loss on answers to the base", _answers, lambda s: s.max_answer_loss, operator.le),
    Gate(
        "format_obedience",
        "Share of answers that keep the form",
        _obedience,
        lambda s: s.min_format_obedience,
        operator.ge,
    ),
    Gate("size_mb", "Size of the weights, MB", _size, lambda s: s.max_size_mb or None, operator.le),
    Gate(
        "quantisation_loss",
        "Relative loss by quantisation",
        _quantised,
        lambda s: s.max_quantisation_loss or None,
        operator.le,
    ),
    Gate("tokens_per_second", "Speed, tokens/s", _speed, lambda s: s.min_tokens_per_second or None, operator.ge),
)
