"""Two evaluations: the bootstrap against the definition, and what a comparison shows."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from storage.errors import UserError
from storage.manifest import ArtifactRef, Manifest
from storage.store import Store
from tasks.evaluation.compare import champion_figures, compare_evaluations, paired_bootstrap
from tasks.evaluation.tables import Evaluated, write_evaluation

BIT = math.log(2)


def test_the_interval_is_that_of_documents_drawn_with_replacement() -> None:
    """Of two documents a draw holds twice the one, twice the other, or both, one to one to two."""
    found = paired_bootstrap(np.array([3 * BIT, 1 * BIT]), np.zeros(2), np.array([1, 1]), resamples=2000)
    widened = 12.706205 / 1.959964  # 97.5 % quantiles of Student's t with one degree of freedom and of the normal
    assert (found.low, found.value, found.high) == pytest.approx((2 - widened, 2, 2 + widened))


def test_a_seed_gives_one_interval_however_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    a, b, sizes = generator.random(30), generator.random(30), generator.integers(1, 9, 30)
    first = paired_bootstrap(a, b, sizes, seed=3)
    assert paired_bootstrap(a, b, sizes, seed=3) == first
    assert paired_bootstrap(a, b, sizes, seed=4) != first
    monkeypatch.setattr("tasks.evaluation.compare.DRAWN_AT_ONCE", 64)
    assert paired_bootstrap(a, b, sizes, seed=3) == first


def test_a_constant_advantage_is_clear_and_noise_is_not() -> None:
    generator = np.random.default_rng(1)
    base, sizes = generator.random(200) * 100, np.full(200, 50)
    assert paired_bootstrap(base, base + 1, sizes).is_clear
    assert not paired_bootstrap(base, base + generator.normal(0, 5, 200), sizes).is_clear


@pytest.mark.parametrize("n", [10, 30, 200])
@pytest.mark.parametrize("spread", [0.7, 1.5])
def test_two_equal_models_differ_as_often_as_the_interval_says(n: int, spread: float) -> None:
    """Losses of both vary alike by document; lengths are skewed, so that few documents hold most of the text."""
    generator, clear, trials = np.random.default_rng(3), 0, 300
    for _ in range(trials):
        sizes = np.exp(generator.normal(8, spread, n)).round()
        a, b = sizes * generator.normal(2, 0.1, (2, n))
        clear += paired_bootstrap(a, b, sizes, resamples=300).is_clear
    assert 0.02 <= clear / trials <= 0.08


def test_one_document_says_nothing_of_others() -> None:
    found = paired_bootstrap(np.array([BIT]), np.array([0.0]), np.array([2]))
    assert (found.value, found.low, found.high) == (0.5, -math.inf, math.inf)
    assert not found.is_clear


@pytest.mark.parametrize(("n", "sizes"), [(2, [1]), (2, [0, 0]), (0, [])])
def test_what_does_not_belong_together_is_refused(n: int, sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="expected equal 1-D shapes"):
        paired_bootstrap(np.zeros(n), np.zeros(n), np.array(sizes))


# comparisons


def evaluation(
    store: Store, key: str, nll: dict[str, float], on: str = "set", stride: int = 0, size: int = 8_000
) -> ArtifactRef:
    """An evaluation of documents of this size, one of which is code, with this nll in bits."""
    names = sorted(nll)
    n = len(names)
    labels = {name: ["text"] * n for name in ("kind", "language", "source", "method")}
    labels["kind"] = ["code" if name == "c" else "text" for name in names]
    whole = {name: np.full(n, value) for name, value in (("tokens", 4), ("bytes", size), ("top1", 1))}
    zero = {"lost_bytes": np.zeros(n, np.int64)}
    nats = {"nll_nats": np.array([nll[name] * BIT for name in names])}
    nats |= {name: np.zeros(n) for name in ("charged_nats", "uniform_nats", "unigram_nats")}
    documents = Evaluated(names, labels, {**whole, **zero, **nats})
    metrics = {"val/bits_per_byte": documents.total().bits_per_byte, f"val/only_{key}": 1.0}
    inputs = {"evalset": {"digest": on, "refs": []}}
    with store.workspace("evaluate", key) as workspace:
        write_evaluation(workspace.out, metrics, documents)
        made = Manifest("evaluate", 3, key, key, inputs=inputs, settings={"stride": stride}, files=[])
        return store.commit(workspace, made).ref


def test_a_comparison_shows_figures_slices_and_documents(tmp_path: Path) -> None:
    store = Store(tmp_path)
    one = evaluation(store, "one", {"a": 8_000, "b": 16_000, "c": 8_000})
    other = evaluation(store, "two", {"a": 8_000, "b": 12_000, "c": 16_000})
    found = compare_evaluations(store, one, other)
    assert found.metrics["val/bits_per_byte"] == pytest.approx((32 / 24, 36 / 24))
    assert found.metrics["val/only_one"] == (1.0, None)
    assert found.difference.value == pytest.approx(-4 / 24)
    by_kind = {item.value: item for item in found.slices if item.dimension == "kind"}
    assert by_kind["text"].difference.value == pytest.approx(4 / 16)
    assert by_kind["code"].difference.value == pytest.approx(-1)
    assert (by_kind["text"].a.nll_nats, by_kind["text"].b.nll_nats) == pytest.approx((24_000 * BIT, 20_000 * BIT))
    assert [(item.doc_id, item.labels["kind"]) for item in found.documents] == [
        ("c", "code"),
        ("b", "text"),
        ("a", "text"),
    ]
    assert [item.bits for item in found.documents] == pytest.approx([-8_000, 4_000, 0])


def test_slices_of_little_text_are_not_compared(tmp_path: Path) -> None:
    store = Store(tmp_path)
    one, other = (evaluation(store, key, {"a": 9, "b": 8, "c": 7}, size=1_000) for key in ("one", "two"))
    found = compare_evaluations(store, one, other)
    assert {(item.dimension, item.value) for item in found.slices if item.dimension == "kind"} == {("kind", "text")}
    assert found.difference.documents == 3


def test_evaluations_of_different_documents_are_not_compared(tmp_path: Path) -> None:
    store = Store(tmp_path)
    one = evaluation(store, "one", {"a": 8, "b": 16})
    other = evaluation(store, "two", {"a": 8, "b": 16}, on="else")
    with pytest.raises(UserError, match="evaluate both models on one set"):
        compare_evaluations(store, one, other)


def test_evaluations_with_more_and_with_less_context_are_not_compared(tmp_path: Path) -> None:
    store = Store(tmp_path)
    one = evaluation(store, "one", {"a": 8, "b": 16})
    other = evaluation(store, "two", {"a": 8, "b": 16}, stride=8)
    with pytest.raises(UserError, match=r"different settings \(stride 0 and 8\)"):
        compare_evaluations(store, one, other)


def test_the_champions_figures_have_names_of_their_own() -> None:
    assert champion_figures({"val/loss": 2.0, "val/top1": 0.5, "val/uniform_loss": 3.0}) == {
        "val/champion_loss": 2.0,
        "val/champion_top1": 0.5,
    }
