"""The order of training: permutations, passes over groups, and that nothing but seed and position decides."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.order import MAX_SEQUENCES, Group, Order, Permutation, order

seeds = st.integers(-(2**70), 2**70)
epochs = st.integers(0, 2**40)


def is_permutation(found: np.ndarray, n: int) -> bool:
    return found.dtype == np.int64 and np.array_equal(np.bincount(found, minlength=n), np.ones(n))


# permutations


@pytest.mark.parametrize("sizes", [range(1, 200), range(4090, 4102), [2**16 - 1, 2**16, 2**16 + 1, 1_000_003]])
def test_every_size_gives_a_permutation(sizes: list[int]) -> None:
    assert all(is_permutation(order(n, 5, 1), n) for n in sizes)


@given(st.integers(1, 5000), seeds, epochs)
@settings(max_examples=60, deadline=None)
def test_order_is_a_permutation(n: int, seed: int, epoch: int) -> None:
    assert is_permutation(order(n, seed, epoch), n)


@given(st.integers(1, MAX_SEQUENCES), seeds, epochs, st.data())
@settings(max_examples=60, deadline=None)
def test_no_two_positions_of_a_huge_order_meet(n: int, seed: int, epoch: int, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, n - 1), unique=True, max_size=50))
    found = Permutation(n, seed, epoch)(np.array(positions, dtype=np.int64)).tolist()
    assert len(set(found)) == len(positions)
    assert all(0 <= one < n for one in found)


def test_order_depends_on_seed_and_epoch_only() -> None:
    np.random.seed(5)
    first = order(50, 1, 0)
    np.random.seed(6)
    assert np.array_equal(first, order(50, 1, 0))
    assert not np.array_equal(first, order(50, 2, 0))
    assert not np.array_equal(first, order(50, 1, 1))
    assert not np.array_equal(first, Permutation(50, 1, 0, stream=1)(np.arange(50)))


def mixed(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def spelled_out(n: int, seed: int, epoch: int, stream: int, place: int) -> int:
    """Where one place goes, in whole numbers without a limit."""
    high = math.isqrt(n - 1) + 1 if n > 1 else 1
    low = -(-n // high)
    steps = 0xD1B54A32D192ED03, 0xABC98388FB8FAC03, 0x8CB92BA72F3D8DD7
    start = mixed((seed + steps[0]) % 2**64) + epoch * steps[0] + stream * steps[1]
    while True:
        digits, sizes = list(divmod(place, low)), (high, low)
        for number in range(8):
            hashed = (digits[1 - number % 2] + mixed((start + number * steps[2]) % 2**64)) * 0xD6E8FEB86659FD93 % 2**64
            hashed = (hashed ^ (hashed >> 32)) * 0xD6E8FEB86659FD93 % 2**64 >> 32
            digits[number % 2] = (digits[number % 2] + hashed * sizes[number % 2] // 2**32) % sizes[number % 2]
        place = digits[0] * low + digits[1]
        if place < n:
            return place


@given(st.integers(1, 2**50), seeds, epochs, st.integers(0, 100), st.data())
@settings(max_examples=60, deadline=None)
def test_order_is_the_network_that_it_is_said_to_be(
    n: int, seed: int, epoch: int, stream: int, data: st.DataObject
) -> None:
    places = data.draw(st.lists(st.integers(0, n - 1), max_size=20))
    found = Permutation(n, seed, epoch, stream)(np.array(places, dtype=np.int64))
    assert found.tolist() == [spelled_out(n, seed, epoch, stream, place) for place in places]


def test_order_stays_what_it_was() -> None:
    assert order(12, 1337, 3).tolist() == [3, 8, 1, 7, 11, 5, 4, 2, 10, 9, 6, 0]


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_positions_may_have_permutations_of_their_own(asked: list[tuple[int, int, int]]) -> None:
    n, epoch, stream = (np.array(column) for column in zip(*asked, strict=True))
    found = Permutation(n, 9, epoch, stream)(n - 1)
    assert found.tolist() == [int(Permutation(one, 9, e, s)(one - 1)) for one, e, s in asked]


def test_blocks_do_not_show() -> None:
    n = 100_003  # three blocks and a rest
    whole, parts = order(n, 4, 0), np.array_split(np.arange(n), 7)
    assert np.array_equal(whole, np.concatenate([Permutation(n, 4, 0)(part) for part in parts]))


@pytest.mark.parametrize("position", [-1, 10, 2**40])
def test_position_outside_is_refused(position: int) -> None:
    with pytest.raises(IndexError, match=f"position {position} lies outside of the 10 sequences"):
        Permutation(10, 0, 0)([3, position])


# how well it mixes


def many_orders(n: int, n_orders: int) -> np.ndarray:
    """The orders of so many epochs, one a row."""
    epoch = np.repeat(np.arange(n_orders), n)
    return Permutation(n, 1, epoch)(np.tile(np.arange(n), n_orders)).reshape(n_orders, n)


def excess(counts: np.ndarray) -> float:
    """How far counts are from equal, in standard deviations of what chance would give (chi-square)."""
    expected, freedom = counts.mean(), counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5)


@pytest.mark.parametrize("n", [10, 16, 30, 100])
def test_every_sequence_comes_at_every_position_equally_often(n: int) -> None:
    found = many_orders(n, 400_000 // n)
    assert excess(np.bincount((np.arange(n) * n + found).ravel(), minlength=n * n)) < 5


@pytest.mark.parametrize("n", [10, 30, 100])
def test_epochs_do_not_resemble_the_ones_before(n: int) -> None:
    found = many_orders(n, 400_000 // n)
    assert excess(np.bincount((found[1:] * n + found[:-1]).ravel(), minlength=n * n)) < 5


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


def test_one_group_without_repeats_is_the_plain_order() -> None:
    found = Order([Group(0, 37, 37)], 11).at(np.arange(3 * 37)).reshape(3, 37)
    assert np.array_equal(found, [order(37, 11, epoch) for epoch in range(3)])


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
