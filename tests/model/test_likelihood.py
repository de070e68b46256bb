"""Log-likelihoods of continuations against the definition: one uncached pass for each id, one after the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from model import Transformer
from model.scoring import Continuation, continuation_likelihoods

SHORT = [
    Continuation([1, 2, 3, 4, 5], 2),
    Continuation([7, 30], 1),
    Continuation([9, 8, 7, 6, 5, 4, 3, 2, 1, 0], 9),
    Continuation(list(range(17)), 16),  # as many inputs as the context holds
    Continuation([4, 4, 4], 0),
]
LONG = Continuation([(7 * place) % 31 for place in range(50)], 40)


def by_definition(model: Transformer, ids: list[int], places: range, begin_of: Callable[[int], int]) -> float:
    """Sum of the log-probabilities of the ids at these places, each after what `begin_of` leaves before it."""
    total = 0.0
    for place in places:
        with torch.no_grad():
            logits = model(torch.tensor([ids[begin_of(place) : place]]))[0, -1]
        total += float(logits.double().log_softmax(-1)[ids[place]])
    return total


@pytest.mark.parametrize("switches", [{}, {"pos": "rope"}, {"vocab_multiple": 64}, {"head_bias": True}])
def test_a_continuation_is_the_sum_over_its_ids(build_model: Callable[..., Transformer], switches: dict) -> None:
    model = build_model(**switches)
    for item, found in zip(SHORT, continuation_likelihoods(model, SHORT), strict=True):
        ids = list(item.ids)
        expected = by_definition(model, ids, range(len(ids) - item.n_scored, len(ids)), lambda place: 0)
        assert found.logprob == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_alone_and_in_any_batch_it_is_the_same(build_model: Callable[..., Transformer]) -> None:
    model = build_model()
    items = [*SHORT, LONG]
    alone = [continuation_likelihoods(model, [item])[0] for item in items]
    for batch_tokens in (1, 20, 10_000):
        together = continuation_likelihoods(model, items[::-1], batch_tokens=batch_tokens)[::-1]
        assert [one.greedy for one in together] == [one.greedy for one in alone]
        for one, other in zip(together, alone, strict=True):
            assert one.logprob == pytest.approx(other.logprob, rel=1e-6, abs=1e-6)


def test_what_is_longer_than_the_context_is_scored_once_from_full_windows(
    build_model: Callable[..., Transformer],
) -> None:
    model = build_model()
    ids, context = list(LONG.ids), model.config.max_seq_len
    blocks = [(10, 26), (26, 42), (42, 50)]  # of 16, the last one with all the context that fits
    expected = sum(
        by_definition(model, ids, range(first, end), lambda place, end=end: max(0, end - 1 - context))
        for first, end in blocks
    )
    assert continuation_likelihoods(model, [LONG])[0].logprob == pytest.approx(expected, rel=1e-5)


def test_greedy_is_what_argmax_would_write_and_nothing_else(build_model: Callable[..., Transformer]) -> None:
    model = build_model()
    ids = [3, 1]
    for _ in range(4):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    other = [*ids[:-2], (ids[-2] + 1) % 31, ids[-1]]
    found = continuation_likelihoods(model, [Continuation(ids, 4), Continuation(other, 4)])
    assert [item.greedy for item in found] == [True, False]


def test_the_model_stays_in_its_mode(build_model: Callable[..., Transformer]) -> None:
    model = build_model().train()
    continuation_likelihoods(model, SHORT)
    assert model.training


@pytest.mark.parametrize(
    ("item", "told"),
    [
        (Continuation([1, 2], 2), "continuation 0: 2 of 2 ids are to be scored; expected at least one id before them"),
        (Continuation([1, 31], 1), "holds ids from 1 to 31, expected 0 to 30"),
    ],
)
def test_what_cannot_be_scored_is_refused(
    build_model: Callable[..., Transformer], item: Continuation, told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        continuation_likelihoods(build_model(), [item])
