"""The n-gram baseline against the formula written out with dictionaries, one probability after the other."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from tiny_run import Ran

from storage.lineage import manifest_of
from storage.tables import read_rows
from tasks.evaluation.ngram import dataset_of, training_documents
from tasks.text.kneser_ney import KneserNey
from tasks.tokens.tokenizer_kinds import BOS, EOS

V = 9
Gram = tuple[int, ...]


@dataclass
class Direct:
    """Interpolated modified Kneser-Ney smoothing as it is defined, over tuples of tokens."""

    documents: list[list[int]]
    order: int
    counts: dict[int, Counter[Gram]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for n in range(1, self.order + 1):
            counts: Counter[Gram] = Counter()
            before: dict[Gram, set[int]] = defaultdict(set)
            for document in self.documents:
                for end in range(max(n, 2), len(document) + 1):
                    gram = tuple(document[end - n : end])
                    if n == self.order or end == n:
                        counts[gram] += 1
                    else:
                        before[gram].add(document[end - n - 1])
            for gram, tokens in before.items():
                counts[gram] += len(tokens)
            self.counts[n] = counts

    def discount(self, n: int, count: int) -> float:
        n1, n2, n3, n4 = (sum(value == times for value in self.counts[n].values()) for times in (1, 2, 3, 4))
        if min(n1, n2, n3, n4) == 0:
            return (0.0, 0.5, 1.0, 1.5)[min(count, 3)]
        y = n1 / (n1 + 2 * n2)
        found = (0.0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
        if any(not 0 < value <= place for place, value in enumerate(found[1:], 1)):
            return (0.0, 0.5, 1.0, 1.5)[min(count, 3)]
        return found[min(count, 3)]

    def probability(self, context: Gram, token: int) -> float:
        n = len(context) + 1
        below = self.probability(context[1:], token) if context else 1 / V
        same = {gram: count for gram, count in self.counts[n].items() if gram[:-1] == context}
        total = sum(same.values())
        if not total:
            return below
        own = same.get((*context, token), 0)
        left = sum(self.discount(n, count) for count in same.values()) / total
        return (own - self.discount(n, own)) / total + left * below

    def nll(self, document: list[int]) -> list[float]:
        return [0.0] * min(1, len(document)) + [
            -math.log(self.probability(tuple(document[max(0, place - self.order + 1) : place]), document[place]))
            for place in range(1, len(document))
        ]


def text(seed: int, sizes: list[int]) -> list[list[int]]:
    """Documents of skewed tokens, of which the last one of the vocabulary never occurs."""
    generator = np.random.default_rng(seed)
    return [np.minimum(generator.geometric(0.4, size) - 1, V - 2).tolist() for size in sizes]


def flat(documents: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    joined = np.array([token for document in documents for token in document], dtype=np.uint16)
    return joined, np.array([len(document) for document in documents])


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_the_model_is_that_of_the_formula(order: int) -> None:
    trained, asked = text(1, [1, 2, 0, 9, 150, 40]), text(2, [30, 1, 0, 3])
    model, direct = KneserNey.fit(*flat(trained), V, order), Direct(trained, order)
    expected = [value for document in asked for value in direct.nll(document)]
    assert model.nll(*flat(asked)).tolist() == pytest.approx(expected, rel=1e-9)
    assert model.tokens == 0 + 1 + 8 + 149 + 39


def test_so_much_text_has_discounts_of_its_own() -> None:
    """Else the comparison with the formula would say nothing of them."""
    model = KneserNey.fit(*flat(text(1, [1, 2, 0, 9, 150, 40])), V, 3)
    assert any(item.discounts.tolist() != [0.0, 0.5, 1.0, 1.5] for item in model.orders)


@pytest.mark.parametrize("context", [[0], [8], [1, 0], [0, 0, 0, 1], [8, 8, 0, 0, 1], [7, 6, 5, 4, 3]])
def test_the_probabilities_behind_any_context_sum_to_one(context: list[int]) -> None:
    model = KneserNey.fit(*flat(text(3, [60, 5, 1, 90])), V, 5)
    asked = [[*context, token] for token in range(V)]
    ends = np.cumsum([len(document) for document in asked]) - 1
    assert np.exp(-model.nll(*flat(asked))[ends]).sum() == pytest.approx(1, rel=1e-12)


def test_a_saved_model_is_the_same(tmp_path: Path) -> None:
    model = KneserNey.fit(*flat(text(4, [200, 7])), V, 5)
    model.save(tmp_path)
    asked = flat(text(5, [50, 50]))
    again = KneserNey.load(tmp_path)
    assert again.nll(*asked).tolist() == model.nll(*asked).tolist()
    assert again.tokens == model.tokens


# of a dataset


def training_of(tiny: Ran, max_tokens: int) -> list[list[int]]:
    assert tiny.checkpoint is not None
    store = tiny.run.store
    dataset = dataset_of(store, tiny.checkpoint)
    assert dataset is not None
    shards = {ref.key: store.folder(ref) for ref in manifest_of(store, dataset).input_refs("tokens")}
    ids, lengths = training_documents(store.folder(dataset), shards, max_tokens)
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


def test_it_is_fitted_on_whole_training_documents_in_the_order_of_their_ids(tiny: Ran) -> None:
    sequences = read_rows(tiny.folder(tiny.prepared.dataset) / "sequences.parquet", ["doc_id", "split"])
    expected = sorted({row["doc_id"] for row in sequences if row["split"] == "train"})
    found = training_of(tiny, 10**9)
    assert len(found) == len(expected)
    assert all(document[0] == BOS and document[-1] == EOS and BOS not in document[1:] for document in found)


def test_no_more_training_tokens_are_read_than_allowed(tiny: Ran) -> None:
    whole = training_of(tiny, 10**9)
    some = training_of(tiny, len(whole[0]) + 5)
    assert some == [whole[0], whole[1][:5]]


def test_its_figures_stand_beside_those_of_the_model(tiny: Ran) -> None:
    assert tiny.metrics is not None
    whole = training_of(tiny, 10**9)
    assert tiny.metrics["val/ngram_order"] == 5
    assert tiny.metrics["val/ngram_tokens"] == sum(len(document) - 1 for document in whole)
    assert tiny.metrics["val/ngram_loss"] < tiny.metrics["val/unigram_loss"]
    assert tiny.metrics["val/below_ngram"] == pytest.approx(
        1 - tiny.metrics["val/bits_per_byte"] / tiny.metrics["val/ngram_bits_per_byte"]
    )
