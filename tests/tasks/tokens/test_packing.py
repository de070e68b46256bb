"""Packing: how documents become sequences, that no id is lost or invented, and that the account adds up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from model import SpanSource
from tasks.tokens.packing import (
    PACKINGS,
    Account,
    Pieces,
    account,
    chunk_pieces,
    concat_pieces,
    is_isolated,
    packed_pieces,
    pieces_of,
)

PAD = 0
Id = tuple[int, int]  # document, place in it

lengths_of = st.lists(st.integers(0, 40), max_size=12)
seq_lens = st.integers(1, 12)
ways = st.sampled_from(PACKINGS)


@dataclass
class Sequence:
    """A sequence written out, id by id."""

    inputs: list[Id] = field(default_factory=list)
    labels: list[Id | None] = field(default_factory=list)


def written_out(pieces: Pieces, isolated: bool) -> list[Sequence]:
    """Return the ids that the pieces refer to, without the code that made the pieces."""
    found = [Sequence() for _ in range(int(pieces.sequence.max(initial=-1)) + 1)]
    for document, start, length, ahead, number in zip(*vars(pieces).values(), strict=True):
        ids = [(int(document), int(start) + place) for place in range(int(length))]
        sequence = found[number]
        if sequence.labels and not isolated:
            sequence.labels[-1] = ids[0]
        n_inputs = len(ids) - int(ahead)
        sequence.inputs += ids[:n_inputs]
        sequence.labels += [*ids[1:], None][:n_inputs]
    return found


def all_ids(lengths: list[int]) -> list[Id]:
    return [(document, place) for document, length in enumerate(lengths) for place in range(length)]


@st.composite
def cuts(draw: st.DrawFn) -> tuple[list[int], int, str, Pieces]:
    """Documents, a sequence length, a way of cutting, and what comes of it."""
    lengths, seq_len, way = draw(lengths_of), draw(seq_lens), draw(ways)
    stride = draw(st.integers(0, seq_len)) if way == "chunk" else 0
    drop_last = draw(st.booleans()) if way == "concat" else False
    return lengths, seq_len, way, pieces_of(np.array(lengths), seq_len, way, stride, drop_last)


# all ways


@given(cuts())
def test_the_account_is_what_is_read(cut: tuple[list[int], int, str, Pieces]) -> None:
    lengths, seq_len, way, pieces = cut
    sequences = written_out(pieces, is_isolated(way))
    inputs = Counter(item for sequence in sequences for item in sequence.inputs)
    kept = len(inputs)
    assert account(pieces, np.array(lengths), seq_len, is_isolated(way)) == Account(
        sequences=len(sequences),
        kept=kept,
        repeated=inputs.total() - kept,
        padded=sum(seq_len - len(sequence.inputs) for sequence in sequences),
        cut=len(set(all_ids(lengths)) - set(inputs)),
        labels=sum(label is not None for sequence in sequences for label in sequence.labels),
    )


@given(cuts())
def test_a_label_is_the_id_behind_its_input(cut: tuple[list[int], int, str, Pieces]) -> None:
    lengths, _, way, pieces = cut
    stream = all_ids(lengths)
    behind = dict(pairwise(stream))
    for sequence in written_out(pieces, is_isolated(way)):
        for one, label in zip(sequence.inputs, sequence.labels, strict=True):
            assert label is None or label == behind[one]
            assert label is None or not is_isolated(way) or label[0] == one[0]


@given(cuts())
def test_no_piece_leaves_its_document_or_its_sequence(cut: tuple[list[int], int, str, Pieces]) -> None:
    lengths, seq_len, _, pieces = cut
    assert (pieces.length >= 1).all()
    assert (pieces.start >= 0).all()
    assert (pieces.start + pieces.length <= np.array([*lengths, 0])[pieces.document]).all()
    filled = np.bincount(pieces.sequence, weights=pieces.inputs)
    assert (filled <= seq_len).all()
    # only the last piece of a full sequence looks ahead
    last = np.append(np.diff(pieces.sequence) > 0, True)[: len(pieces)]
    looks = pieces.ahead.astype(bool)
    assert last[looks].all()
    assert (filled[pieces.sequence[looks]] == seq_len).all()


@pytest.mark.parametrize("way", PACKINGS)
@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 0]])
def test_no_ids_make_no_sequence(way: str, lengths: list[int]) -> None:
    pieces = pieces_of(np.array(lengths, dtype=np.int64), 8, way)
    assert len(pieces) == 0
    assert account(pieces, np.array(lengths, dtype=np.int64), 8) == Account()


@pytest.mark.parametrize("way", PACKINGS)
def test_a_single_id_is_one_sequence_without_a_label(way: str) -> None:
    pieces = pieces_of(np.array([1]), 8, way)
    assert account(pieces, np.array([1]), 8, is_isolated(way)) == Account(sequences=1, kept=1, padded=7)


@pytest.mark.parametrize("way", PACKINGS)
def test_a_document_of_a_billion_ids_is_counted_and_not_read(way: str) -> None:
    lengths = np.array([3, 10**9, 5])
    pieces = pieces_of(lengths, 2048, way)
    found = account(pieces, lengths, 2048, is_isolated(way))
    assert found.kept == 10**9 + 8
    assert found.cut == 0
    assert found.sequences in (488_282, 488_284)


@pytest.mark.parametrize("way", PACKINGS)
def test_a_million_tiny_documents_lose_nothing(way: str) -> None:
    lengths = np.random.default_rng(0).integers(1, 20, 1_000_000)
    pieces = pieces_of(lengths, 256, way)
    found = account(pieces, lengths, 256, is_isolated(way))
    assert (found.kept, found.cut) == (lengths.sum(), 0)
    assert found.padded < 256 or way == "chunk"


# chunks


@given(st.integers(0, 60), st.integers(1, 12), st.data())
def test_chunks_overlap_by_no_more_than_the_stride_leaves(n_ids: int, seq_len: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, seq_len))
    pieces = chunk_pieces(np.array([n_ids]), seq_len, stride)
    assert pieces.start.tolist() == [number * stride for number in range(len(pieces))]
    ends = pieces.start + pieces.inputs
    assert (ends[:-1] - pieces.start[1:] == seq_len - stride).all()


# one stream


@given(lengths_of, seq_lens)
@example([3, 0, 0, 5], 3)
@example([4, 4], 4)
def test_sequences_one_after_the_other_are_the_stream(lengths: list[int], seq_len: int) -> None:
    sequences = written_out(concat_pieces(np.array(lengths), seq_len), isolated=False)
    assert [item for sequence in sequences for item in sequence.inputs] == all_ids(lengths)
    assert [label for sequence in sequences for label in sequence.labels] == [*all_ids(lengths)[1:], None][
        : sum(lengths)
    ]
    assert all(len(sequence.inputs) == seq_len for sequence in sequences[:-1])


@given(lengths_of, seq_lens)
def test_dropping_the_last_leaves_full_sequences_alone(lengths: list[int], seq_len: int) -> None:
    whole = concat_pieces(np.array(lengths), seq_len)
    dropped = concat_pieces(np.array(lengths), seq_len, drop_last=True)
    expected = [item for item in written_out(whole, isolated=False) if len(item.inputs) == seq_len]
    assert written_out(dropped, isolated=False) == expected
    assert account(dropped, np.array(lengths), seq_len, isolated=False).cut == sum(lengths) % seq_len


# best-fit decreasing


def best_fit_rooms(sizes: list[int], capacity: int) -> list[int]:
    """The rooms that plain best-fit decreasing leaves, one item at a time."""
    rooms: list[int] = []
    for size in sorted(sizes, reverse=True):
        fitting = [room for room in rooms if room >= size]
        if fitting:
            rooms.remove(min(fitting))
        rooms.append(min(fitting, default=capacity) - size)
    return sorted(rooms)


@pytest.mark.full
@given(st.lists(st.integers(1, 30), min_size=1, max_size=60), st.integers(30, 40))
@settings(max_examples=300)
def test_short_documents_are_packed_as_by_plain_best_fit(lengths: list[int], seq_len: int) -> None:
    pieces = packed_pieces(np.array(lengths), seq_len)
    rooms = seq_len - np.bincount(pieces.sequence, weights=pieces.inputs).astype(int)
    assert sorted(rooms.tolist()) == best_fit_rooms(lengths, seq_len)


@given(lengths_of, seq_lens)
def test_documents_that_fit_a_sequence_are_not_cut(lengths: list[int], seq_len: int) -> None:
    pieces = packed_pieces(np.array(lengths), seq_len)
    times = np.bincount(pieces.document, minlength=len(lengths)).tolist()
    for n_ids, n_pieces in zip(lengths, times, strict=True):
        assert n_pieces == math.ceil(n_ids / seq_len) or n_pieces > n_ids / seq_len > 1


@given(lengths_of, seq_lens)
def test_pieces_of_a_sequence_are_in_the_order_of_the_documents(lengths: list[int], seq_len: int) -> None:
    pieces = packed_pieces(np.array(lengths), seq_len)
    ends = pieces.take(np.flatnonzero(pieces.ahead == 0))
    inside = np.diff(ends.sequence) == 0
    assert (np.diff(ends.document)[inside] > 0).all()
    firsts = [min(pieces.document[pieces.sequence == number].tolist()) for number in range(pieces.sequences)]
    assert firsts == sorted(firsts)


def test_the_end_of_a_long_document_fills_what_others_leave_empty() -> None:
    lengths = np.array([64 + 10, 58, 60])
    pieces = packed_pieces(lengths, 64)
    rows = list(zip(*(values.tolist() for values in vars(pieces).values()), strict=True))
    # 6 of its last 10 ids behind the second document, with a look-ahead; 4 before the third
    assert rows == [(0, 0, 65, 1, 0), (1, 0, 58, 0, 1), (0, 64, 7, 1, 1), (0, 70, 4, 0, 2), (2, 0, 60, 0, 2)]
    assert account(pieces, lengths, 64) == Account(sequences=3, kept=192, labels=189)


@pytest.mark.parametrize("seed", range(8))
def test_many_long_documents_are_packed_whole_and_predicted_once(seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(1, 300, 300).tolist()
    pieces = packed_pieces(np.array(lengths), 64)
    assert len(pieces) > sum(math.ceil(n_ids / 64) for n_ids in lengths)  # some ends were cut once more
    sequences = written_out(pieces, isolated=True)
    assert Counter(item for sequence in sequences for item in sequence.inputs) == Counter(all_ids(lengths))
    labels = Counter(label for sequence in sequences for label in sequence.labels if label)
    assert labels == Counter(item for item in all_ids(lengths) if item[1])
    # the reader's rule: only the last piece of a full sequence looks ahead
    spans = ((np.cumsum(lengths) - lengths)[pieces.document] + pieces.start, pieces.length)
    opens = np.flatnonzero(np.diff(pieces.sequence, prepend=-1))
    SpanSource(
        [np.zeros(sum(lengths), np.uint8)],
        np.zeros(len(pieces)),
        *spans,
        seq_len=64,
        pad_id=PAD,
        offsets=np.append(opens, len(pieces)),
        ahead=pieces.ahead,
        isolated=True,
    )


def test_room_too_small_to_be_worth_a_cut_is_padded() -> None:
    lengths = np.array([256 + 6, 253, 253])
    assert account(packed_pieces(lengths, 256), lengths, 256) == Account(4, kept=768, padded=256, labels=765)


@pytest.mark.parametrize("n_documents", [2_000, 20_000])
@pytest.mark.parametrize("seq_len", [256, 512, 1024, 2048])
def test_real_lengths_leave_hardly_a_place_empty(seq_len: int, n_documents: int) -> None:
    generator = np.random.default_rng(7)
    lengths = np.maximum(2, generator.lognormal(math.log(4_000) - 0.5, 1.0, n_documents)).astype(np.int64)
    found = account(packed_pieces(lengths, seq_len), lengths, seq_len)
    assert found.cut == found.repeated == 0
    assert found.kept / (found.sequences * seq_len) >= 0.999


@pytest.mark.parametrize("capacity", [1_000, 70_000])
def test_every_size_at_once_is_packed_in_steps_that_grow_with_the_sizes(capacity: int) -> None:
    """Sizes that meet each other's rooms in every way, and more of them than 16 bits count."""
    lengths = np.tile(np.arange(1, capacity + 1), 3)
    found = account(packed_pieces(lengths, capacity), lengths, capacity)
    assert (found.kept, found.cut) == (lengths.sum(), 0)
    assert found.padded < 4 * capacity


def sizes_in_turn(capacity: int) -> Iterator[int]:
    """Sizes just above halves, thirds, ...: what best fit is worst at."""
    for part in range(2, 12):
        yield from [capacity // part + 1] * 40


def test_hard_sizes_are_packed_as_by_plain_best_fit() -> None:
    lengths = list(sizes_in_turn(2_520))
    pieces = packed_pieces(np.array(lengths), 2_520)
    rooms = 2_520 - np.bincount(pieces.sequence, weights=pieces.inputs).astype(int)
    assert sorted(rooms.tolist()) == best_fit_rooms(lengths, 2_520)
