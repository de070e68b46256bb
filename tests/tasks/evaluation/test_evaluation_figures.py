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
from safetensors.torch import load_file, save_file
from tiny_run import Ran, direct_run, home_at

from storage.digest import sha256_json
from storage.errors import UserError
from storage.manifest import Manifest
from storage.schemas import EVALSET
from storage.tables import read_columns, write_table
from tasks.evaluation.evaluate import EvaluateSettings, encode_documents, evaluate
from tasks.evaluation.tables import DIMENSIONS, Evaluated, Evaluation, read_documents, read_evaluation
from tasks.tokens.tokenise import TokeniseSettings
from tasks.tokens.tokenizer_kinds import BOS, EOS, UNK
from tasks.training.bundle import WEIGHTS_FILE, Bundle


@pytest.fixture(scope="module")
def bundle(tiny: Ran) -> Bundle:
    assert tiny.checkpoint is not None
    return Bundle(tiny.folder(tiny.checkpoint))


@pytest.fixture(scope="module")
def texts(tiny: Ran) -> list[str]:
    return read_columns(tiny.folder(tiny.prepared.evalset) / "documents.parquet", ["text"])["text"]


def measured(
    tiny: Ran, tmp_path: Path, texts: list[str], stride: int = 0, gain: float | None = None
) -> tuple[Evaluation, Evaluated]:
    """The evaluation of the tiny model on other texts, perhaps with another gain before its head; and its documents."""
    assert tiny.checkpoint is not None
    home = home_at(tmp_path / "home")
    shutil.copytree(Path(tiny.run.home.store) / "train", Path(home.store) / "train", dirs_exist_ok=True)
    if gain is not None:
        weights = Path(home.store) / "train" / tiny.checkpoint.key / WEIGHTS_FILE
        tensors = load_file(weights)
        save_file({**tensors, "norm.weight": torch.full_like(tensors["norm.weight"], gain)}, weights)
    with direct_run(home) as run:
        with run.store.workspace("evalset", "handmade") as workspace:
            rows = [
                {
                    "doc_id": str(place),
                    "kind": "text" if place % 2 else "code",
                    "language": "en",
                    "source": f"in/{place % 3}",
                    "method": "text",
                    "text": text,
                }
                for place, text in enumerate(texts)
            ]
            write_table(workspace.out / "documents.parquet", EVALSET, rows)
            blank = Manifest("evalset", 1, "handmade", sha256_json(texts), inputs={}, settings={}, files=[])
            evalset = run.store.commit(workspace, blank).ref
        found = evaluate(run, EvaluateSettings(stride), checkpoint=tiny.checkpoint, evalset=evalset)
        return read_evaluation(run.store, found), read_documents(run.store, found)


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


def test_lost_bytes_are_charged_eight_bits_each(tiny: Ran, bundle: Bundle, tmp_path: Path) -> None:
    texts = ["the sheep €€😀", "plain text"]
    metrics = measured(tiny, tmp_path, texts)[0].metrics
    nll, _ = brute_force_nll(bundle, texts)
    n_bytes = sum(len(text.encode()) for text in texts)
    assert metrics["val/lost_bytes"] == 3 + 3 + 4
    assert metrics["val/bits_per_byte"] == pytest.approx((nll / math.log(2) + 80) / n_bytes, rel=1e-5)
    assert sequence(bundle, texts[0]).count(UNK) == 3


def shared(tiny: Ran, found: Evaluation) -> dict[str, float]:
    """The same figures of the tiny run, but for those that come with its training text."""
    assert tiny.metrics is not None
    return {name: tiny.metrics[name] for name in found.metrics}


def test_the_batch_size_changes_no_figure(
    tiny: Ran, tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.evaluation.evaluate.TOKENS_AT_ONCE", 1)
    found, _ = measured(tiny, tmp_path, texts)
    assert found.metrics == pytest.approx(shared(tiny, found), rel=1e-6)


def test_the_order_of_documents_changes_no_figure(tiny: Ran, tmp_path: Path, texts: list[str]) -> None:
    found, _ = measured(tiny, tmp_path, texts[::-1])
    assert found.metrics == pytest.approx(shared(tiny, found), rel=1e-6)


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


def test_accuracy_follows_from_all_probabilities(tiny: Ran, bundle: Bundle, tmp_path: Path, texts: list[str]) -> None:
    top1 = total = 0
    for text in texts:
        ids = sequence(bundle, text)
        for start in range(0, len(ids), 32):
            with torch.no_grad():
                shares = bundle.model(torch.tensor([ids[start : start + 32]])).double().softmax(-1)[0]
            for place, label in enumerate(ids[start + 1 : start + 33]):
                rank = int((shares[place] > shares[place, label]).sum())
                top1, total = top1 + (rank < 1), total + 1
    found, _ = measured(tiny, tmp_path, texts)
    assert found.metrics["val/top1"] == top1 / total


def test_the_slices_of_every_dimension_add_up_to_the_whole(tiny: Ran, tmp_path: Path, texts: list[str]) -> None:
    found, documents = measured(tiny, tmp_path, [*texts, "a", "€"])
    whole = documents.total()
    assert (whole.tokens, whole.bytes) == (found.metrics["val/tokens"], found.metrics["val/bytes"])
    for dimension in DIMENSIONS:
        parts = [item.sums for item in found.slices if item.dimension == dimension]
        for name in ("documents", "tokens", "bytes", "lost_bytes", "top1"):
            assert sum(getattr(part, name) for part in parts) == getattr(whole, name), (dimension, name)
        for name in ("nll_nats", "uniform_nats", "unigram_nats"):
            total = sum(getattr(part, name) for part in parts)
            assert total == pytest.approx(getattr(whole, name), rel=1e-12), (dimension, name)
    assert {item.value for item in found.slices if item.dimension == "source"} == {"in/0", "in/1", "in/2"}


def test_overlapping_windows_predict_each_id_once_and_with_context(
    tiny: Ran, bundle: Bundle, tmp_path: Path, texts: list[str]
) -> None:
    stride, width = 8, 32
    total = 0.0
    for text in texts:
        ids = sequence(bundle, text)
        for place in range(1, len(ids)):
            # the first window that reaches this id
            start = max(0, -(-(place - width) // stride)) * stride
            with torch.no_grad():
                logits = bundle.model(torch.tensor([ids[start:place]]))[0, -1]
            total -= float(logits.double().log_softmax(-1)[ids[place]])
    found, documents = measured(tiny, tmp_path, texts, stride)
    assert documents.total().nll_nats == pytest.approx(total, rel=1e-5)
    assert found.metrics["val/tokens"] == sum(len(sequence(bundle, text)) - 1 for text in texts)


def test_a_model_that_gives_no_numbers_is_told(tiny: Ran, tmp_path: Path, texts: list[str]) -> None:
    with pytest.raises(UserError, match=r"gives NaN for [\d,]+ of the evaluation's ids: its weights are broken"):
        measured(tiny, tmp_path, texts, gain=math.nan)


def test_a_stride_beyond_the_context_is_refused(tiny: Ran, tmp_path: Path, texts: list[str]) -> None:
    with pytest.raises(UserError, match=r"evaluate\.stride is 33, above the model's context of 32"):
        measured(tiny, tmp_path, texts, stride=33)


def test_documents_that_hold_nothing_to_predict_are_told(
    tiny: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bundle: Bundle
) -> None:
    some = encode_documents(bundle.tokenizer, TokeniseSettings(), ["a", "b"])
    empty = replace(some, ids=some.ids[:0], lengths=np.zeros(2, np.int64))
    monkeypatch.setattr("tasks.evaluation.evaluate.encode_documents", lambda *_: empty)
    with pytest.raises(UserError, match=r"2 evaluation document\(s\) have 0 ids and none to predict"):
        measured(tiny, tmp_path, ["a", "b"])
