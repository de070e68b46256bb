"""Evaluation against figures computed by hand: one document after the other, one probability after the other."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import zstandard
from tiny_run import Ran, direct_session, home_at

from storage.digest import sha256_json
from storage.errors import UserError
from storage.manifest import Manifest
from storage.schemas import EVALSET
from storage.tables import read_columns, write_table
from tasks.bundle import Bundle
from tasks.evaluation import (
    EncodedDocuments,
    EvaluateSettings,
    encode_documents,
    evaluate,
    predicted_ids,
    read_metrics,
    spans_of,
)
from tasks.session import artifact
from tasks.tokens.tokenizer import BOS, EOS, UNK


@pytest.fixture(scope="module")
def bundle(tiny: Ran) -> Bundle:
    assert tiny.checkpoint is not None
    return Bundle(tiny.folder(tiny.checkpoint))


@pytest.fixture(scope="module")
def texts(tiny: Ran) -> list[str]:
    return read_columns(tiny.folder(tiny.prepared.evalset) / "documents.parquet", ["text"])["text"]


def measured(tiny: Ran, tmp_path: Path, texts: list[str]) -> dict[str, float]:
    """The figures of the tiny model on other texts."""
    assert tiny.checkpoint is not None
    home = home_at(tmp_path / "home")
    shutil.copytree(Path(tiny.session.home.store) / "train", Path(home.store) / "train")
    with direct_session(home) as session:
        with session.store.workspace("evalset", "handmade") as workspace:
            rows = [{"doc_id": str(place), "kind": "text", "text": text} for place, text in enumerate(texts)]
            write_table(workspace.out / "documents.parquet", EVALSET, rows)
            blank = Manifest("evalset", 1, "handmade", sha256_json(texts), inputs={}, settings={}, files=[])
            evalset = session.store.commit(workspace, blank).ref
        found = session.run(evaluate, EvaluateSettings(), checkpoint=tiny.checkpoint, evalset=evalset)
        return read_metrics(session.store, artifact(found))


def sequence(bundle: Bundle, text: str) -> list[int]:
    return [BOS, *bundle.tokenizer.encode([text])[0].tolist(), EOS]


def brute_force_nll(bundle: Bundle, texts: list[str]) -> tuple[float, int]:
    """Every id but the first of each document, from windows of the context that follow each other."""
    total, count, width = 0.0, 0, bundle.model_config.max_seq_len
    for text in texts:
        ids = sequence(bundle, text)
        for start in range(0, len(ids), width):
            window = ids[start : start + width]
            with torch.no_grad():
                log_probabilities = bundle.model(torch.tensor([window])).double().log_softmax(-1)[0]
            for place in range(len(window)):
                if start + place + 1 < len(ids):
                    total -= float(log_probabilities[place, ids[start + place + 1]])
                    count += 1
    return total, count


def test_the_loss_is_the_mean_over_all_predicted_ids(tiny: Ran, bundle: Bundle, texts: list[str]) -> None:
    assert tiny.metrics is not None
    nll, count = brute_force_nll(bundle, texts)
    assert tiny.metrics["val/tokens"] == count
    assert tiny.metrics["val/loss"] == pytest.approx(nll / count, rel=1e-5)
    assert tiny.metrics["val/perplexity"] == pytest.approx(math.exp(nll / count), rel=1e-5)


def test_bits_per_byte_spread_all_bits_over_all_bytes(tiny: Ran, bundle: Bundle, texts: list[str]) -> None:
    assert tiny.metrics is not None
    nll, _ = brute_force_nll(bundle, texts)
    n_bytes = sum(len(text.encode()) for text in texts)
    lost = tiny.metrics["val/lost_bytes"]
    assert tiny.metrics["val/bytes"] == n_bytes
    assert tiny.metrics["val/bits_per_byte"] == pytest.approx((nll / math.log(2) + 8 * lost) / n_bytes, rel=1e-5)


def test_lost_bytes_are_charged_eight_bits_each(tiny: Ran, bundle: Bundle, tmp_path: Path) -> None:
    texts = ["the sheep €€😀", "plain text"]
    metrics = measured(tiny, tmp_path, texts)
    nll, _ = brute_force_nll(bundle, texts)
    n_bytes = sum(len(text.encode()) for text in texts)
    assert metrics["val/lost_bytes"] == 3 + 3 + 4
    assert metrics["val/bits_per_byte"] == pytest.approx((nll / math.log(2) + 80) / n_bytes, rel=1e-5)
    assert sequence(bundle, texts[0]).count(UNK) == 3


def test_the_batch_size_changes_no_figure(
    tiny: Ran, tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tiny.metrics is not None
    monkeypatch.setattr("tasks.evaluation.BATCH_SEQUENCES", 1)
    assert measured(tiny, tmp_path, texts) == pytest.approx(tiny.metrics, rel=1e-6)


def test_the_order_of_documents_changes_no_figure(tiny: Ran, tmp_path: Path, texts: list[str]) -> None:
    assert tiny.metrics is not None
    metrics = measured(tiny, tmp_path, texts[::-1])
    del metrics["val/zstd19_bits_per_byte"]
    assert metrics == pytest.approx({name: tiny.metrics[name] for name in metrics}, rel=1e-6)


def test_the_uniform_baseline_is_the_logarithm_of_the_vocabulary(tiny: Ran, bundle: Bundle) -> None:
    assert tiny.metrics is not None
    loss = math.log(bundle.tokenizer.vocab_size)
    assert tiny.metrics["val/uniform_loss"] == pytest.approx(loss)
    bits = loss / math.log(2) * tiny.metrics["val/tokens"] + 8 * tiny.metrics["val/lost_bytes"]
    assert tiny.metrics["val/uniform_bits_per_byte"] == pytest.approx(bits / tiny.metrics["val/bytes"])


def test_the_unigram_baseline_is_the_smoothed_share_of_each_id(tiny: Ran, bundle: Bundle, texts: list[str]) -> None:
    assert tiny.metrics is not None
    assert tiny.checkpoint is not None
    counts = read_columns(tiny.folder(tiny.checkpoint) / "token_counts.parquet", ["count"])["count"]
    total = sum(counts) + len(counts)
    labels = Counter(token for text in texts for token in sequence(bundle, text)[1:])
    nll = -sum(times * math.log((counts[token] + 1) / total) for token, times in labels.items())
    assert tiny.metrics["val/unigram_loss"] == pytest.approx(nll / sum(labels.values()))
    bits = nll / math.log(2) + 8 * tiny.metrics["val/lost_bytes"]
    assert tiny.metrics["val/unigram_bits_per_byte"] == pytest.approx(bits / tiny.metrics["val/bytes"])
    assert tiny.metrics["val/below_unigram"] == pytest.approx(
        1 - tiny.metrics["val/bits_per_byte"] / tiny.metrics["val/unigram_bits_per_byte"]
    )


def test_the_compressor_reads_all_texts_as_one(tiny: Ran, texts: list[str]) -> None:
    assert tiny.metrics is not None
    data = "\n".join(texts).encode()
    size = len(zstandard.ZstdCompressor(level=19).compress(data))
    assert tiny.metrics["val/zstd19_bits_per_byte"] == pytest.approx(8 * size / len(data))


def test_every_id_but_a_documents_first_is_predicted(bundle: Bundle, texts: list[str]) -> None:
    documents = encode_documents(bundle, texts)
    expected = [token for text in texts for token in sequence(bundle, text)[1:]]
    assert predicted_ids(documents).tolist() == expected


def test_documents_without_an_id_predict_nothing(bundle: Bundle, texts: list[str]) -> None:
    some = encode_documents(bundle, texts[:2])
    size = len(some.ids)
    holes = replace(
        some, starts=[0, *some.starts, size], lengths=[0, *some.lengths, 0]
    )  # a document without ids in front, and one at the end
    assert predicted_ids(holes).tolist() == predicted_ids(some).tolist()


def test_documents_that_hold_nothing_to_predict_are_told(
    tiny: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = EncodedDocuments(np.zeros(0, dtype=np.int64), [0, 0], [0, 0], n_bytes=2, lost_bytes=2, given=0)
    monkeypatch.setattr("tasks.evaluation.encode_documents", lambda *_: empty)
    with pytest.raises(UserError, match=r"2 evaluation document\(s\) hold 0 ids and none to predict"):
        measured(tiny, tmp_path, ["a", "b"])


def test_no_evaluation_sequence_reaches_into_the_next_document(bundle: Bundle, texts: list[str]) -> None:
    documents = encode_documents(bundle, texts)
    _, start, length = spans_of(documents, 32)
    ends = np.array(documents.starts) + np.array(documents.lengths)
    owner = np.searchsorted(ends, start, side="right")
    assert (start + length <= ends[owner]).all()
