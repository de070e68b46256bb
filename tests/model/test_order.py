"""The order of training: permutations, passes over groups, and that nothing but seed and position decides."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.data import Group, Order, order

seeds = st.integers(-(2**70), 2**70)
epochs = st.integers(0, 2**40)
ORDER_OF_TWELVE = [10, 8, 11, 6, 1, 0, 2, 3, 5, 7, 4, 9]


def is_permutation(found: np.ndarray, n: int) -> bool:
    return found.dtype == np.int64 and np.array_equal(np.bincount(found, minlength=n), np.ones(n))


# permutations


@given(st.integers(1, 5000), seeds, epochs)
@settings(max_examples=60, deadline=None)
def test_order_is_a_permutation(n: int, seed: int, epoch: int) -> None:
    assert is_permutation(order(n, seed, epoch), n)


def test_order_depends_on_seed_epoch_and_stream_only() -> None:
    np.random.seed(5)
    first = order(50, 1, 0)
    np.random.seed(6)
    assert np.array_equal(first, order(50, 1, 0))
    for other in (order(50, 2, 0), order(50, 1, 1), order(50, 1, 0, stream=1)):
        assert not np.array_equal(first, other)


def test_order_is_that_of_numpys_philox_under_seed_and_epoch() -> None:
    expected = np.random.Generator(np.random.Philox(key=[1337, 3])).permutation(12)
    assert order(12, 1337, 3).tolist() == expected.tolist() == ORDER_OF_TWELVE


# how well it mixes


def excess(counts: np.ndarray) -> float:
    """Return the deviation of counts from equal ones, in standard deviations of chance (chi-square)."""
    expected, freedom = counts.mean(), counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5)


# groups

groups_of = st.lists(
    st.integers(0, 40).flatmap(lambda count: st.tuples(st.just(count), st.integers(0, 3 * count if count else 0))),
    min_size=1,
    max_size=5,
).filter(lambda sizes: sum(reads for _, reads in sizes))


def side_by_side(sizes: list[tuple[int, int]]) -> list[Group]:
    begins = itertools.accumulate((count for count, _ in sizes), initial=0)
    return [Group(first, count, reads) for first, (count, reads) in zip(begins, sizes, strict=False)]


@given(groups_of, seeds, epochs)
@settings(max_examples=80, deadline=None)
def test_an_epoch_reads_each_group_as_often_as_it_says(sizes: list[tuple[int, int]], seed: int, epoch: int) -> None:
    groups = side_by_side(sizes)
    plan = Order(groups, seed)
    assert plan.epoch_size == sum(reads for _, reads in sizes)
    found = Counter(plan.at(epoch * plan.epoch_size + np.arange(plan.epoch_size)).tolist())
    for group in groups:
        times = [found.pop(number, 0) for number in range(group.first, group.first + group.count)]
        assert sum(times) == group.reads
        assert not times or max(times) - min(times) <= (group.reads % group.count > 0)
    assert not found


@given(groups_of, st.integers(1, 7), st.integers(1, 5), seeds)
@settings(max_examples=30, deadline=None)
def test_any_number_of_ranks_and_workers_reads_the_same(
    sizes: list[tuple[int, int]], n_ranks: int, batch_size: int, seed: int
) -> None:
    groups, steps = side_by_side(sizes), 12
    positions = np.arange(steps * n_ranks * batch_size).reshape(steps, n_ranks, batch_size)
    whole = Order(groups, seed).at(positions)
    for rank in reversed(range(n_ranks)):
        own = Order(groups, seed)
        assert all(np.array_equal(own.at(positions[step, rank]), whole[step, rank]) for step in range(steps))


def test_every_sequence_of_a_partly_read_group_gets_its_turn() -> None:
    read = Order([Group(0, 50, 20), Group(50, 10, 10)], 1).at(np.arange(30 * 3000))
    times = np.bincount(read, minlength=60)
    assert np.array_equal(times[50:], np.full(10, 3000))
    assert excess(times[:50]) < 5


def test_a_far_position_needs_nothing_of_those_before() -> None:
    plan = Order([Group(0, 1000, 2500), Group(1000, 10, 3)], 1)
    far = 10**12 // 2503 * 2503
    found = plan.at(np.arange(far, far + 2503))
    assert np.bincount(found[found < 1000], minlength=1000).max() == 3
    assert plan.at(far + 1234) == found[1234]


@pytest.mark.parametrize("groups", [[], [Group(0, 0, 0)], [Group(0, 5, 0)]])
def test_nothing_to_read_is_refused(groups: list[Group]) -> None:
    with pytest.raises(ValueError, match="no sequences to train on"):
        Order(groups, 0)


@pytest.mark.parametrize("sizes", [(0, 0, 3), (-1, 5, 5), (0, 5, -5)])
def test_a_group_that_cannot_be_read_is_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="expected numbers of at least 0, and sequences where there are reads"):
        Group(*sizes)
