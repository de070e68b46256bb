"""What gates judge by: facts of a model, of its corpus and of its comparison with the champion, read from the store."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, Manifest
from storage.schemas import DOCUMENTS_FILE, DROPPED_FILE
from storage.store import Store
from storage.tables import read_columns
from tasks.curate.corpus import kept_documents
from tasks.evaluation.compare import Comparison, compare_evaluations
from tasks.evaluation.tables import read_metrics
from tasks.training.bundle import WEIGHTS_FILE

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
        leaks=_leaks(store, curated, evalset, leaks),
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
    """What was found of an evaluation set in a model's training text; None where nobody looked."""
    curated = curated_of(store, checkpoint).digest
    for found in store.manifests(LEAKS):
        if (found.inputs["curated"]["digest"], found.inputs["evalset"]["digest"]) == (curated, evalset.digest):
            return found.ref
    return None


def _leaks(store: Store, curated: Manifest, evalset: ArtifactRef, leaks: ArtifactRef | None) -> int | None:
    if leaks is not None:
        return manifest_of(store, leaks).counts["leaks"]
    frozen_from = manifest_of(store, evalset).inputs.get("curated", {}).get("digest")
    return 0 if frozen_from == curated.digest else None  # one selection keeps its sides apart


def corpus_facts(store: Store, curated: Manifest) -> CorpusFacts:
    """What became of the files behind a selection."""
    (listing,) = curated.input_refs("snapshot")
    counts = manifest_of(store, listing).counts
    ok, duplicates, rejected, failed = (
        counts.get(f"status_{status}", 0) for status in ("ok", "duplicate", "rejected", "failed")
    )
    dropped = read_columns(store.folder(curated.ref) / DROPPED_FILE, ["reason_code"])["reason_code"]
    repeated = duplicates + sum(dropped.count(code) for code in _REPEATED)
    pages, confidence = _ocr(store, curated)
    return CorpusFacts(
        ok + duplicates + rejected + failed, rejected + failed, ok + duplicates, repeated, pages, confidence
    )


def _ocr(store: Store, curated: Manifest) -> tuple[float, float | None]:
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
