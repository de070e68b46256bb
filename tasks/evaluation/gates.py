"""The stage `gates`: verdicts on a trained model, which has to pass all of them to become champion.

A gate looks at facts and settings and at nothing else: the same model beside the same champion gets the same verdict.
What cannot be measured (no champion to compare with, no page read by OCR) holds nobody back; a champion whose figures
do not compare does, because it is unknown which of the two is better.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.digest import sha256_json
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, Manifest
from storage.schemas import DOCUMENTS_FILE, DROPPED_FILE, VERDICTS
from storage.store import Store
from storage.tables import read_columns, read_rows, write_table
from tasks.core.stage import Work, stage
from tasks.curate.corpus import kept_documents
from tasks.evaluation.compare import Comparison, Difference, SlicePair, compare_evaluations
from tasks.evaluation.gate_settings import GateSettings
from tasks.evaluation.tables import read_metrics
from tasks.training.bundle import WEIGHTS_FILE

VERDICTS_FILE = "gates.parquet"
Outcome = Literal["passed", "failed", "skipped"]


@stage("gates", version=2, keep_with=("checkpoint", "evaluation"))
def gates(
    work: Work,
    settings: GateSettings,
    *,
    checkpoint: ArtifactRef,
    evaluation: ArtifactRef,
    champion: ArtifactRef | None = None,
    leaks: ArtifactRef | None = None,
    champion_that_knew: ArtifactRef | None = None,
) -> str:
    """Judge a model by its evaluation, and by the champion's where there is one to compare with.

    Args:
        champion: its evaluation on the same documents.
        champion_that_knew: its checkpoint instead, where it was trained on documents of the evaluation set.
    """
    knew = champion_that_knew is not None
    verdicts = judge(collect_facts(work.store, checkpoint, evaluation, champion, leaks, knew), settings)
    work.counts["rows"] = write_verdicts(work.out, verdicts)
    work.counts["failed"] = len(failed(verdicts))
    return sha256_json([item.document() for item in verdicts])


@dataclass(frozen=True)
class Verdict:
    """Verdict of one gate on a model.

    Attributes:
        gate: name of the gate.
        verdict: `skipped` where there is nothing to measure, or no limit.
        number: what was measured; None where nothing was, NaN where it could not be and that holds the model back.
        limit: what it was held against; None where there is no limit.
        sentence: both in words.
    """

    gate: str
    verdict: Outcome
    number: float | None
    limit: float | None
    sentence: str

    def words(self) -> str:
        """Verdict, number and limit, as a tag holds them."""
        if self.number is None or math.isnan(self.number) or self.limit is None:
            return self.verdict
        return f"{self.verdict}: {self.number:.6g} (limit {self.limit:.6g})"

    def document(self) -> dict[str, Any]:
        """For machines; JSON knows no endless numbers."""
        values = asdict(self)
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }


def failed(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The gates that were not passed."""
    return [item for item in verdicts if item.verdict == "failed"]


def write_verdicts(folder: Path, verdicts: Sequence[Verdict]) -> int:
    """Write the table; returns the number of its rows."""
    return write_table(folder / VERDICTS_FILE, VERDICTS, map(asdict, verdicts))


def read_verdicts(folder: Path) -> list[Verdict]:
    """The verdicts of a table, in the order of the gates."""
    return [Verdict(**row) for row in read_rows(folder / VERDICTS_FILE)]


LEAKS = "evalset_leaks"  # the stage that looks for evaluation text in training text
_REPEATED = ("duplicate_text", "near_duplicate")


@dataclass(frozen=True)
class CorpusFacts:
    """The corpus that a model was trained on.

    Attributes:
        files: that were looked into; what was passed over by rule (ignored, of no known kind) is none of them.
        rejected: of these, refused or failed.
        documents: files with a document, duplicates among them.
        repeated: of these, the same bytes or nearly the same text as another one.
        ocr_pages: pages of documents in use that were read by OCR.
        ocr_confidence: mean confidence on them, 0 to 1; None where there are none, or where their table is gone.
    """

    files: int
    rejected: int
    documents: int
    repeated: int
    ocr_pages: float = 0.0
    ocr_confidence: float | None = None


@dataclass(frozen=True)
class Facts:
    """All that gates judge by.

    Attributes:
        leaks: documents that stand in training text and in the evaluation set alike; None where nobody looked.
        bits_per_byte: of the model on the evaluation set.
        comparison: with the champion, the model first; None where there is none to compare with.
        size: bytes of the weights.
        tokens_per_second: that the evaluation read; None where it took no measurable time.
        champion_knew: whether there is one that was trained on documents of the evaluation set.
    """

    corpus: CorpusFacts
    leaks: int | None
    bits_per_byte: float
    comparison: Comparison | None
    size: int
    tokens_per_second: float | None
    champion_knew: bool = False


def collect_facts(
    store: Store,
    checkpoint: ArtifactRef,
    evaluation: ArtifactRef,
    champion: ArtifactRef | None = None,
    leaks: ArtifactRef | None = None,
    champion_knew: bool = False,
) -> Facts:
    """Read what gates judge a model by.

    Args:
        evaluation: of the model.
        champion: the champion's evaluation on the same documents.
        leaks: what was found of the evaluation set in the training text, see `known_leaks`.
        champion_knew: the champion was trained on documents of the evaluation set, and has no evaluation on it.
    """
    trained, measured = manifest_of(store, checkpoint), manifest_of(store, evaluation)
    curated = curated_of(store, checkpoint)
    (evalset,) = measured.input_refs("evalset")
    return Facts(
        corpus=corpus_facts(store, curated),
        leaks=_count_leaks(store, curated, evalset, leaks),
        bits_per_byte=read_metrics(store, evaluation)["val/bits_per_byte"],
        comparison=None if champion is None else compare_evaluations(store, evaluation, champion),
        size=next(entry.size for entry in trained.files if entry.name == WEIGHTS_FILE),
        tokens_per_second=measured.counts["tokens"] / measured.seconds if measured.seconds else None,
        champion_knew=champion_knew,
    )


def curated_of(store: Store, checkpoint: ArtifactRef) -> Manifest:
    """The selection of documents that a model was trained on, without those of a model that it continues."""
    (cut,) = manifest_of(store, checkpoint).input_refs("dataset")
    (curated,) = manifest_of(store, cut).input_refs("curated")
    return manifest_of(store, curated)


def known_leaks(store: Store, checkpoint: ArtifactRef, evalset: ArtifactRef) -> ArtifactRef | None:
    """Return the artefact with the overlap of an evaluation set and a model's training text; None if none was made."""
    curated = curated_of(store, checkpoint).digest
    for found in store.manifests(LEAKS):
        if (found.inputs["curated"]["digest"], found.inputs["evalset"]["digest"]) == (curated, evalset.digest):
            return found.ref
    return None


def _count_leaks(store: Store, curated: Manifest, evalset: ArtifactRef, leaks: ArtifactRef | None) -> int | None:
    if leaks is not None:
        return manifest_of(store, leaks).counts["leaks"]
    frozen_from = manifest_of(store, evalset).inputs.get("curated", {}).get("digest")
    return 0 if frozen_from == curated.digest else None  # one selection keeps its sides apart


def corpus_facts(store: Store, curated: Manifest) -> CorpusFacts:
    """Return counts of the files and documents behind a selection, by outcome."""
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
    """Pages read by OCR in the documents in use, and the mean confidence on them."""
    scanned: dict[str, tuple[float, float]] = {}  # pages and mean confidence of each document with any
    for ref in curated.input_refs("documents"):
        if store.find(ref.stage, ref.key) is None:
            return 0.0, None  # forgotten or cleared up
        columns = ["doc_id", "n_pages", "ocr_share", "ocr_confidence"]
        table = pq.read_table(store.folder(ref) / DOCUMENTS_FILE, columns=columns, use_threads=False)
        by_ocr = table.filter(pc.and_(pc.greater(table["ocr_share"], 0), pc.is_valid(table["ocr_confidence"])))
        for row in by_ocr.to_pylist():
            scanned[row["doc_id"]] = row["n_pages"] * row["ocr_share"], row["ocr_confidence"]
    kept = kept_documents(store, curated.ref) if scanned else {}
    read = [found for doc_id, found in scanned.items() if doc_id in kept]
    pages = sum(n for n, _ in read)
    return pages, sum(n * confidence for n, confidence in read) / pages if pages else None


class Measured(NamedTuple):
    """A number, and what it says."""

    number: float
    sentence: str


@dataclass(frozen=True)
class Gate:
    """One gate.

    Attributes:
        name: by which its verdict is found, in tags too.
        title: what it is about.
        measure: the number with its sentence; a sentence alone where there is nothing to measure.
        limit: what the number is held against; None where there is no limit.
        passes: whether a number and a limit let a model through; NaN never does.
    """

    name: str
    title: str
    measure: Callable[[Facts, GateSettings], Measured | str]
    limit: Callable[[GateSettings], float | None]
    passes: Callable[[float, float], bool]

    def judge(self, facts: Facts, settings: GateSettings) -> Verdict:
        """The verdict on a model."""
        found, limit = self.measure(facts, settings), self.limit(settings)
        if isinstance(found, str):
            return Verdict(self.name, "skipped", None, limit, found)
        if limit is None:
            return Verdict(self.name, "skipped", found.number, None, f"{found.sentence}; no limit is set")
        outcome: Outcome = "passed" if self.passes(found.number, limit) else "failed"
        return Verdict(self.name, outcome, found.number, limit, found.sentence)


def judge(facts: Facts, settings: GateSettings) -> list[Verdict]:
    """The verdicts of all gates, in their order."""
    return [gate.judge(facts, settings) for gate in GATES]


def _rejected(facts: Facts, settings: GateSettings) -> Measured | str:
    corpus = facts.corpus
    if not corpus.files:
        return "no files are known of the corpus"
    share = corpus.rejected / corpus.files
    return Measured(
        share,
        f"{corpus.rejected:,} of {corpus.files:,} files were refused or failed ({share:.1%}, at most "
        f"{settings.max_rejected_share:.1%})",
    )


def _repeated(facts: Facts, settings: GateSettings) -> Measured | str:
    corpus = facts.corpus
    if not corpus.documents:
        return "no documents are known of the corpus"
    share = corpus.repeated / corpus.documents
    return Measured(
        share,
        f"{corpus.repeated:,} of {corpus.documents:,} documents repeat others ({share:.1%}, at most "
        f"{settings.max_duplicate_share:.1%})",
    )


def _ocr(facts: Facts, settings: GateSettings) -> Measured | str:
    confidence = facts.corpus.ocr_confidence
    if confidence is None:
        return "no page of the documents in use was read by OCR"
    return Measured(
        confidence,
        f"OCR was sure of its words to {confidence:.1%} on {facts.corpus.ocr_pages:,.0f} pages (at least "
        f"{settings.min_ocr_confidence:.1%})",
    )


def _leaks(facts: Facts, _: GateSettings) -> Measured | str:
    if facts.leaks is None:
        return "nobody looked for text of the evaluation set in the training text"
    if not facts.leaks:
        return Measured(0, "no document of the evaluation set stands in the training text")
    return Measured(facts.leaks, f"{facts.leaks:,} documents stand on both sides, in training and evaluation set")


def _bits(facts: Facts, settings: GateSettings) -> Measured | str:
    if facts.champion_knew:
        return Measured(
            math.nan,
            "the champion was trained on documents of this evaluation set, so the two cannot be compared "
            f"({facts.bits_per_byte:.4f} bits per byte); `sheepfold rollback --to VERSION` makes this one champion all "
            "the same",
        )
    if facts.comparison is None:
        return f"there is no champion to compare with ({facts.bits_per_byte:.4f} bits per byte)"
    found = facts.comparison
    own, other = found.metrics["val/bits_per_byte"]
    fewer = "fewer" if found.difference.value < 0 else "not fewer"
    words = f"{own:.4f} bits per byte are {fewer} than the champion's {other:.4f} ({_reach(found.difference)})"
    if settings.rule == "clearly_better" and not found.difference.high < 0 and found.difference.value < 0:
        words += ", but not clearly"
    return Measured(_deciding(found.difference, settings.rule), words)


def _deciding(difference: Difference, rule: str) -> float:
    """The number that has to be below 0; of one document, whose interval is endless, the difference itself."""
    if rule == "clearly_better":
        return difference.high
    if rule == "not_worse" and math.isfinite(difference.low):
        return difference.low
    return difference.value


def _reach(difference: Difference) -> str:
    n = f"{difference.documents:,} document{'' if difference.documents == 1 else 's'}"
    if not math.isfinite(difference.high - difference.low):
        return f"on {n}, which says nothing of others"
    return f"95 % interval of the difference {difference.low:+.4f} to {difference.high:+.4f} on {n}"


def _slices(facts: Facts, settings: GateSettings) -> Measured | str:
    if facts.champion_knew:
        return "the champion was trained on documents of this evaluation set, so no slice was compared"
    if facts.comparison is None:
        return "there is no champion to compare with"
    counted = _counted(facts.comparison, settings.slice_documents)
    if not counted:
        return f"no slice has {settings.slice_documents} documents or more"
    worst = max(counted, key=clear_loss)
    loss = clear_loss(worst)
    if not loss:
        return Measured(0, f"none of {len(counted)} slices is clearly worse than under the champion")
    return Measured(
        loss,
        f"{worst.dimension} {worst.value or '(none)'} is {loss:.1%} worse than under the champion, "
        f"{worst.a.bits_per_byte:.4f} to {worst.b.bits_per_byte:.4f} bits per byte (at most "
        f"{settings.max_slice_loss:.1%})",
    )


def _counted(comparison: Comparison, documents: int) -> Sequence[SlicePair]:
    return [item for item in comparison.slices if item.a.documents >= documents]


def clear_loss(item: SlicePair) -> float:
    """By how much a slice is worse, as a share of the champion's bits per byte; 0 where that is not clear."""
    return item.difference.value / item.b.bits_per_byte if item.difference.low > 0 else 0.0


def _size(facts: Facts, _: GateSettings) -> Measured:
    return Measured(facts.size / 1e6, f"the weights take {facts.size / 1e6:,.1f} MB")


def _speed(facts: Facts, settings: GateSettings) -> Measured | str:
    if not settings.min_tokens_per_second:
        return "no limit is set"  # and no number: it is never the same twice, and equal inputs shall give equal bits
    if facts.tokens_per_second is None:
        return "the evaluation took no measurable time"
    return Measured(facts.tokens_per_second, f"the evaluation read {facts.tokens_per_second:,.0f} tokens a second")


GATES = (
    Gate("rejected_share", "Files that could not be read", _rejected, lambda s: s.max_rejected_share, operator.le),
    Gate("duplicate_share", "Documents that repeat others", _repeated, lambda s: s.max_duplicate_share, operator.le),
    Gate("ocr_confidence", "Confidence of OCR", _ocr, lambda s: s.min_ocr_confidence, operator.ge),
    Gate("leaked_documents", "Evaluation text in training text", _leaks, lambda _: 0.0, operator.le),
    Gate("bits_per_byte", "Bits per byte beside the champion", _bits, lambda _: 0.0, operator.lt),
    Gate("worst_slice", "The slice that lost most", _slices, lambda s: s.max_slice_loss, operator.le),
    Gate("size_mb", "Size of the weights", _size, lambda s: s.max_size_mb or None, operator.le),
    Gate("tokens_per_second", "Speed", _speed, lambda s: s.min_tokens_per_second or None, operator.ge),
)
