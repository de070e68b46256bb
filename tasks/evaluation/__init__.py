"""Evaluation: loss, perplexity and bits per byte on frozen documents, each beside its baselines.

All figures are sums over valid tokens divided by their number. Bits per byte decides between models, because it
compares across tokenisers: bytes that a tokeniser lost are charged 8 bits each, and the first id of a document that
no token begins, which a network cannot predict, as much as if every id were equally likely.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from storage.digest import sha256_json
from storage.errors import UserError
from storage.manifest import ArtifactRef
from storage.schemas import METRICS
from storage.tables import read_columns, write_table
from tasks.bundle import Bundle
from tasks.evaluation.tables import METRICS_FILE, read_metrics
from tasks.stage import Work, stage
from tasks.tokens.index import COUNTS_FILE
from tasks.tokens.packing import chunk_pieces
from tasks.tokens.shards import TokeniseSettings, encode_document
from tasks.tokens.tokenizer import PAD

BATCH_SEQUENCES = 16
ZSTD_LEVEL = 19


@dataclass(frozen=True)
class EvaluateSettings:
    """Settings of the stage; there are none yet: batch size and device change no figure worth a key."""


@dataclass(frozen=True)
class EncodedDocuments:
    """Evaluation documents in a model's ids.

    Attributes:
        ids: one flat array, documents one after the other (bos, ids, eos, as far as training had them).
        starts: first id of each document.
        lengths: ids of each document.
        n_bytes: UTF-8 bytes of all texts.
        lost_bytes: those that the tokeniser cannot give back.
        given: documents whose first id is text: nothing predicts it.
    """

    ids: np.ndarray
    starts: list[int]
    lengths: list[int]
    n_bytes: int
    lost_bytes: int
    given: int


def encode_documents(bundle: Bundle, texts: list[str]) -> EncodedDocuments:
    """Encode whole documents as they were encoded for the model's training."""
    framing = TokeniseSettings(bundle.bos, bundle.eos)
    pieces, starts, lengths, lost, offset, given = [], [], [], 0, 0, 0
    for text, ids in zip(texts, bundle.tokenizer.encode(texts), strict=True):
        sequence, lost_here = encode_document(bundle.tokenizer, text, ids, framing)
        pieces.append(sequence)
        starts.append(offset)
        lengths.append(len(sequence))
        offset += len(sequence)
        lost += lost_here
        given += bundle.start_id is None and len(ids) > 0
    n_bytes = sum(len(text.encode()) for text in texts)
    return EncodedDocuments(np.concatenate(pieces), starts, lengths, n_bytes, lost, given)


def spans_of(documents: EncodedDocuments, seq_len: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every document cut into sequences; each id but the first is predicted exactly once.

    Returns:
        shard (0), start and length of each, (n,).
    """
    pieces = chunk_pieces(np.array(documents.lengths), seq_len)
    start = np.array(documents.starts)[pieces.document] + pieces.start
    return np.zeros_like(start), start, pieces.length


def predicted_ids(documents: EncodedDocuments) -> np.ndarray:
    """All ids that are predicted: every id but each document's first."""
    keep = np.ones(len(documents.ids), dtype=bool)
    # one without an id begins where the next one does, or behind the end
    keep[np.array(documents.starts, dtype=np.int64)[np.array(documents.lengths) > 0]] = False
    return np.asarray(documents.ids[keep])


def given_nll(bundle: Bundle, documents: EncodedDocuments) -> float:
    """Nats that are charged for ids which nothing predicts: without them, models that begin bare would win."""
    return documents.given * math.log(bundle.tokenizer.vocab_size)


def zstd_bits_per_byte(texts: list[str]) -> float:
    """Bits per byte of the texts, one after the other, under zstd -19."""
    import zstandard

    data = "\n".join(texts).encode()
    return 8 * len(zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(data)) / len(data)


def baselines(bundle: Bundle, counts: np.ndarray, documents: EncodedDocuments, texts: list[str]) -> dict[str, float]:
    """What must be beaten: every id equally likely, ids by their share of the training text, and a compressor."""
    from model.metrics import bits_per_byte, unigram_nll

    labels = predicted_ids(documents)
    uniform = len(labels) * math.log(bundle.tokenizer.vocab_size)
    unigram = unigram_nll(counts, labels).nll_nats
    sizes = documents.n_bytes, documents.lost_bytes
    given = given_nll(bundle, documents)
    return {
        "val/uniform_loss": uniform / len(labels),
        "val/uniform_bits_per_byte": bits_per_byte(uniform + given, *sizes),
        "val/unigram_loss": unigram / len(labels),
        "val/unigram_bits_per_byte": bits_per_byte(unigram + given, *sizes),
        "val/zstd19_bits_per_byte": zstd_bits_per_byte(texts),
    }


@stage("evaluate", version=2)
def evaluate(work: Work, settings: EvaluateSettings, *, checkpoint: ArtifactRef, evalset: ArtifactRef) -> str:
    """Measure a model on the frozen evaluation documents, beside its baselines."""
    from model.data import SpanSource
    from model.metrics import bits_per_byte
    from model.scoring import evaluate_source

    work.seed(0)
    folder = work.folder(checkpoint)
    bundle = Bundle(folder, work.resources.device)
    texts = read_columns(work.folder(evalset) / "documents.parquet", ["text"])["text"]
    documents = encode_documents(bundle, texts)
    if not len(predicted_ids(documents)):
        raise UserError(
            f"the {len(texts)} evaluation document(s) hold {len(documents.ids)} ids and none to predict: a document "
            "needs two or more; add longer documents, or fit the tokeniser anew on a text like theirs"
        )
    seq_len = bundle.model_config.max_seq_len
    source = SpanSource([documents.ids], *spans_of(documents, seq_len), seq_len=seq_len, pad_id=PAD)
    total = evaluate_source(bundle.model, source, BATCH_SEQUENCES, work.resources.device)
    counts = np.array(read_columns(folder / COUNTS_FILE, ["count"])["count"], dtype=np.int64)
    nll = total.nll_nats + given_nll(bundle, documents)
    metrics = {
        "val/loss": total.loss,
        "val/perplexity": total.perplexity,
        "val/bits_per_byte": bits_per_byte(nll, documents.n_bytes, documents.lost_bytes),
        "val/tokens": float(total.tokens),
        "val/bytes": float(documents.n_bytes),
        "val/lost_bytes": float(documents.lost_bytes),
        "val/documents": float(len(texts)),
        **baselines(bundle, counts, documents, texts),
    }
    metrics["val/below_unigram"] = 1 - metrics["val/bits_per_byte"] / metrics["val/unigram_bits_per_byte"]
    rows = [{"metric": name, "value": float(value)} for name, value in sorted(metrics.items())]
    work.counts["rows"] = write_table(work.out / METRICS_FILE, METRICS, rows)
    return sha256_json(rows)


__all__ = ["EvaluateSettings", "evaluate", "read_metrics"]
