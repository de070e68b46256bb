"""The stage `evaluate`: loss, perplexity, bits per byte and top-1 accuracy on frozen documents, with baselines.

Metrics are sums over valid tokens divided by their number. Bits per byte decides between models, because it is
comparable across tokenisers: lost bytes are charged 8 bits each, and the first id of a document without bos, which is
not predicted, ln(vocab_size) nats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from storage.digest import sha256_json
from storage.errors import UserError
from storage.manifest import ArtifactRef
from storage.schemas import COUNTS_FILE, DOCUMENTS_FILE
from storage.tables import read_columns
from tasks.core.stage import Work, stage
from tasks.evaluation.tables import BASELINES, DIMENSIONS, TABLES, Evaluated, write_evaluation
from tasks.text.kneser_ney import KneserNey
from tasks.tokens.packing import chunk_pieces
from tasks.tokens.tokenise import TokeniseSettings
from tasks.tokens.tokenizer_kinds import Tokenizer
from tasks.training.bundle import Bundle
from tasks.training.gguf_types import round_weights

if TYPE_CHECKING:
    from model.scoring import TokenScores

TOKENS_AT_ONCE = 4_096  # larger batches are no faster on a CPU
TOKENS_AT_ONCE_GPU = 32_768
COUNTED = ("tokens", "bytes", "lost_bytes", "documents")


@dataclass(frozen=True)
class EvaluateSettings:
    """Settings of the stage, without batch size and device, which change only rounding.

    Attributes:
        stride: ids between the starts of two windows of a long document; 0 means the context.
        weights: GGUF type that the matrices are rounded to before; "" for none.
    """

    stride: int = 0
    weights: str = ""


@stage(
    "evaluate",
    version=5,
    modules=("model.checkpoint",),
    tables=TABLES,
    keep_with=("checkpoint", "evalset"),
)
def evaluate(
    work: Work,
    settings: EvaluateSettings,
    *,
    checkpoint: ArtifactRef,
    evalset: ArtifactRef,
    ngram: ArtifactRef | None = None,
) -> str:
    """Evaluate a model and its baselines on an evaluation set."""
    work.seed(0)
    folder = work.folder(checkpoint)
    bundle = Bundle(folder, work.machine.device)
    if settings.weights:
        round_weights(bundle.model, settings.weights)
    rows = read_columns(work.folder(evalset) / DOCUMENTS_FILE, ["doc_id", *DIMENSIONS, "text"])
    encoded = encode_documents(bundle.tokenizer, TokeniseSettings(bundle.bos, bundle.eos), rows["text"])
    if not (encoded.lengths > 1).any():
        raise UserError(
            f"the {len(rows['text'])} evaluation document(s) have {len(encoded.ids)} ids and none to predict, expected "
            "a document of two ids or more: add longer documents, or fit the tokeniser again on similar text"
        )
    scores = _scores(work, bundle, encoded, settings.stride)
    n_broken = int(np.isnan(scores.nll).sum())
    if n_broken:
        raise UserError(
            f"the model {checkpoint.key[:12]} gives NaN for {n_broken:,} of the evaluation's ids: its weights "
            "are broken; train it again, with a lower train.lr if its loss diverged"
        )
    counts = np.array(read_columns(folder / COUNTS_FILE, ["count"])["count"], dtype=np.int64)
    ngram_model = KneserNey.load(work.folder(ngram)) if ngram is not None else None
    documents = Evaluated(
        doc_id=rows["doc_id"],
        labels={name: rows[name] for name in DIMENSIONS},
        sums=document_sums(bundle, encoded, scores, counts, ngram_model),
    )
    metrics = figures(documents)
    if ngram_model is not None:
        metrics |= {"val/ngram_order": float(len(ngram_model.orders)), "val/ngram_tokens": float(ngram_model.tokens)}
    write_evaluation(work.out, metrics, documents)
    work.counts.update(rows=len(metrics), documents=len(documents), tokens=int(metrics["val/tokens"]))
    nll = documents.sums["nll_nats"].tolist()
    return sha256_json([sorted(metrics.items()), list(zip(documents.doc_id, nll, strict=True))])


def _scores(work: Work, bundle: Bundle, encoded: EncodedDocuments, stride: int) -> TokenScores:
    """Score all ids in windows of the context, one every `stride` ids of each document.

    Each id but a document's first is predicted once, in the first window that contains it. So ids after the first
    window have at least context - stride + 1 ids of context. With a stride of 0 windows do not overlap, and each begins
    without context.
    """
    from model.scoring import score_windows

    seq_len = bundle.model_config.max_seq_len
    stride = stride or seq_len
    if stride > seq_len:
        raise UserError(
            f"evaluate.stride is {stride}, above the model's context of {seq_len}, so ids would be skipped: set "
            f"1 to {seq_len}, or 0 for windows without overlap"
        )
    windows = chunk_pieces(encoded.lengths, seq_len, stride)
    return score_windows(
        bundle.model,
        encoded.ids,
        encoded.starts[windows.document] + windows.start,
        windows.length.astype(np.int64),
        np.where(windows.start > 0, seq_len - stride + 1, 1),
        tokens_at_once=TOKENS_AT_ONCE if work.machine.device == "cpu" else TOKENS_AT_ONCE_GPU,
        device=work.machine.device,
        on_batch=lambda done, total: work.progress.update(done, total, "windows"),
    )


def document_sums(
    bundle: Bundle, encoded: EncodedDocuments, scores: TokenScores, counts: np.ndarray, ngram_model: KneserNey | None
) -> dict[str, np.ndarray]:
    """Return the sums of each document, by their names in `Sums`.

    Args:
        counts: (V,) occurrences of each id in the training text.
        ngram_model: the n-gram baseline, if any.
    """
    from model.metrics import unigram_log_probabilities

    predicted = np.flatnonzero(scores.predicted)
    owner, n = encoded.owner[predicted], len(encoded.lengths)

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(owner, weights=values, minlength=n)

    tokens = np.bincount(owner, minlength=n)
    unigram = unigram_log_probabilities(counts)
    found = {
        "tokens": tokens,
        "bytes": encoded.n_bytes,
        "lost_bytes": encoded.lost_bytes,
        "top1": np.bincount(owner[scores.rivals[predicted] < 1], minlength=n),
        "nll_nats": total(scores.nll[predicted]),
        "charged_nats": charged_nats(bundle.tokenizer, encoded),
        "uniform_nats": tokens * math.log(bundle.tokenizer.vocab_size),
        "unigram_nats": total(-unigram[encoded.ids[predicted]]),
    }
    if ngram_model is not None:
        found["ngram_nats"] = total(ngram_model.nll(encoded.ids, encoded.lengths)[predicted])
    return found


def figures(documents: Evaluated) -> dict[str, float]:
    """Return the metrics of the model and its baselines over all documents."""
    total = documents.total()
    found = {
        **{f"val/{name}": getattr(total, name) for name in ("loss", "perplexity", "bits_per_byte")},
        "val/top1": total.top1_share,
        **{f"val/{name}": float(getattr(total, name)) for name in COUNTED},
    }
    for name in BASELINES:
        loss, bits = total.baseline_loss(name), total.baseline_bits_per_byte(name)
        if loss is None or bits is None:
            continue
        found |= {f"val/{name}_loss": loss, f"val/{name}_bits_per_byte": bits}
        if name != "uniform":
            found[f"val/below_{name}"] = 1 - total.bits_per_byte / bits
    return found


@dataclass(frozen=True)
class EncodedDocuments:
    """Evaluation documents as token ids."""

    ids: np.ndarray  # (N,) ids of all documents, with bos and eos if training had them
    lengths: np.ndarray  # (n,) ids of each document
    n_bytes: np.ndarray  # (n,) UTF-8 bytes of each text
    lost_bytes: np.ndarray  # (n,) bytes that became unk or were dropped
    given: np.ndarray  # (n,) True for documents whose first id is text, and not predicted

    @property
    def starts(self) -> np.ndarray:
        """(n,) position of the first id of each document, or of the next document's if it is empty."""
        return np.asarray(np.cumsum(self.lengths) - self.lengths)

    @cached_property
    def owner(self) -> np.ndarray:
        """(N,) number of the document of each id."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)


def encode_documents(tokenizer: Tokenizer, framing: TokeniseSettings, texts: Sequence[str]) -> EncodedDocuments:
    """Encode documents with bos and eos as in training."""
    before, behind = framing.frame(tokenizer)
    pieces, lost, given = [np.zeros(0, dtype=np.int64)], [], []
    for text, ids in zip(texts, tokenizer.encode(list(texts)), strict=True):
        pieces.append(np.concatenate([before, ids, behind]).astype(np.int64))
        lost.append(tokenizer.lost_bytes(text, ids))
        given.append(not before and len(ids) > 0)
    return EncodedDocuments(
        ids=np.concatenate(pieces),
        lengths=np.array([len(piece) for piece in pieces[1:]], dtype=np.int64),
        n_bytes=np.array([len(text.encode()) for text in texts], dtype=np.int64),
        lost_bytes=np.array(lost, dtype=np.int64),
        given=np.array(given, dtype=bool),
    )


def charged_nats(tokenizer: Tokenizer, documents: EncodedDocuments) -> np.ndarray:
    """Return (n,) nats charged for first ids that are not predicted.

    Without this charge, a model without bos would have the first id of each document for free.
    """
    return np.asarray(documents.given * math.log(tokenizer.vocab_size))
