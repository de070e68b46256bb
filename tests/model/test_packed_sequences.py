"""Sequences of several pieces: streams that run across documents, and documents that are isolated from each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model import ModelConfig, SpanSource, TrainConfig, Trainer, Transformer, evaluate_source
from model.data import IGNORE, Batch, trim

SHARDS = [np.arange(10, 20, dtype=np.uint8), np.arange(1000, 1010, dtype=np.uint16)]
Piece = tuple[int, int, int]  # shard, start, length


def source_of(*sequences: list[Piece], ahead: list[int], isolated: bool = False, seq_len: int = 6) -> SpanSource:
    """These sequences; ahead has one entry for each piece."""
    shard, start, length = np.array([piece for sequence in sequences for piece in sequence]).T
    offsets = np.cumsum([0, *map(len, sequences)])
    return SpanSource(
        SHARDS, shard, start, length, seq_len, 7, offsets=offsets, ahead=np.array(ahead), isolated=isolated
    )


# what a batch holds


@pytest.mark.parametrize("isolated", [False, True])
def test_one_piece_each_is_the_same_with_and_without_offsets(isolated: bool, build_source: Callable) -> None:
    plain = build_source(n=30)
    spans = plain.shard, plain.start, plain.length
    packed = SpanSource(plain.shards, *spans, 16, 0, offsets=np.arange(31), isolated=isolated)
    for found, expected in zip(packed.batch(np.arange(30)), plain.batch(np.arange(30)), strict=True):
        assert np.array_equal(found, expected)


def spelled_out(source: SpanSource, sequence: int) -> tuple[list[int], list[int], list[int]]:
    """Inputs, labels and documents of one sequence, id by id."""
    assert source.offsets is not None
    inputs: list[int] = []
    labels: list[int] = []
    documents = []
    for piece in range(source.offsets[sequence], source.offsets[sequence + 1]):
        first, length = source.start[piece], source.length[piece]
        ids = source.shards[source.shard[piece]][first : first + length].tolist()
        if labels and not source.isolated:
            labels[-1] = ids[0]
        n_inputs = length - source.ahead[piece]
        inputs += ids[:n_inputs]
        labels += ([*ids[1:], IGNORE])[:n_inputs]
        documents.append(int(n_inputs))
    padding = source.seq_len - len(inputs)
    return inputs + [source.pad_id] * padding, labels + [IGNORE] * padding, documents


@st.composite
def packed_sources(draw: st.DrawFn) -> SpanSource:
    seq_len, isolated = draw(st.integers(1, 12)), draw(st.booleans())
    shards = [np.arange(100 * n, 100 * n + 60, dtype=draw(st.sampled_from(["u2", "u4"]))) for n in range(3)]
    columns: list[tuple[int, int, int, int]] = []
    offsets = [0]
    for _ in range(draw(st.integers(1, 8))):
        room = seq_len
        while room and (room == seq_len or draw(st.booleans())):
            length = draw(st.integers(1, room))
            room -= length
            columns.append((draw(st.integers(0, 2)), draw(st.integers(0, 60 - length - 1)), length, 0))
        if not room and draw(st.booleans()):
            shard, start, length, _ = columns[-1]
            columns[-1] = shard, start, length + 1, 1
        elif not room and not isolated and draw(st.booleans()):
            columns.append((draw(st.integers(0, 2)), draw(st.integers(0, 59)), 1, 1))
        offsets.append(len(columns))
    shard, start, length, ahead = np.array(columns).T
    return SpanSource(
        shards, shard, start, length, seq_len, 0, offsets=np.array(offsets), ahead=ahead, isolated=isolated
    )


@given(packed_sources(), st.data())
@settings(max_examples=150, deadline=None)
def test_batches_are_what_they_are_said_to_be(source: SpanSource, data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(0, len(source) - 1), min_size=1, max_size=6))
    inputs, labels, documents = source.batch(np.array(indices))
    expected = [spelled_out(source, index) for index in indices]
    assert inputs.tolist() == [one[0] for one in expected]
    assert labels.tolist() == [one[1] for one in expected]
    if documents is None:
        assert not source.isolated or all(len(one[2]) == 1 for one in expected)
    else:
        assert documents == [one[2] for one in expected]


def test_ids_of_every_type_keep_their_values() -> None:
    shards = [np.array([255], "u1"), np.array([2**32 - 1], "u4"), np.array([2**40], "u8"), np.array([3], "i4")]
    source = SpanSource(shards, np.arange(4), np.zeros(4), np.ones(4), 4, 0, offsets=np.array([0, 4]))
    assert source.batch(np.array([0])).inputs.tolist() == [[255, 2**32 - 1, 2**40, 3]]


@pytest.mark.parametrize("offsets", [[], [0], [0, 1], [1, 2], [0, 2, 2], [0, 2, 1, 2], [0, 3]])
def test_offsets_that_do_not_divide_the_pieces_are_refused(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match=r"offsets do not divide the 2 pieces .* from 0 to 2"):
        SpanSource(SHARDS, np.zeros(2), np.zeros(2), np.ones(2), 4, 0, offsets=np.array(offsets))


@pytest.mark.parametrize(
    ("sequence", "ahead", "isolated", "message"),
    [
        ([(0, 0, 4), (0, 4, 3)], [0, 0], False, "sequence 1 has 7 inputs; expected at most seq_len = 6"),
        ([(0, 0, 7)], [0], False, "sequence 1 has 7 inputs"),
        ([(0, 0, 4), (0, 4, 2)], [1, 0], False, "sequence 1 has a lookahead id before another piece or padding"),
        ([(0, 0, 4), (0, 4, 3)], [1, 0], False, "sequence 1 has a lookahead id"),
        ([(0, 0, 4)], [1], False, "sequence 1 has a lookahead id"),
        ([(0, 0, 6), (1, 0, 1)], [0, 1], True, "isolated piece 2 has a lookahead id and no input"),
        ([(0, 5, 2), (0, 9, 2)], [0, 0], False, r"piece 2 spans \[9, 11\) of shard 0, which has 10 ids"),
    ],
)
def test_pieces_that_fit_nowhere_are_refused(
    sequence: list[Piece], ahead: list[int], isolated: bool, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        source_of([(1, 0, 3)], sequence, ahead=[0, *ahead], isolated=isolated)


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="shard, start, length and ahead have 2, 2, 2, 1 entries"):
        SpanSource(SHARDS, np.zeros(2), np.zeros(2), np.ones(2), 4, 0, ahead=np.zeros(1))


# trimming


def test_trimming_shortens_the_documents_too() -> None:
    source = source_of([(0, 0, 2), (1, 0, 4)], [(0, 3, 3), (1, 0, 1), (1, 4, 1)], ahead=[0] * 5, isolated=True)
    inputs, labels, documents = trim(source.batch(np.array([0, 1])))
    assert inputs.shape == labels.shape == (2, 5)
    assert documents == [[2, 3], [3, 1, 1]]
    assert trim(source.batch(np.array([1]))).documents == [[2]]


@given(packed_sources())
@settings(max_examples=80, deadline=None)
def test_trimmed_documents_fit_the_network(source: SpanSource) -> None:
    inputs, _, documents = trim(source.batch(np.arange(len(source))))
    for lengths in documents or []:
        assert lengths and min(lengths) >= 1 and sum(lengths) <= inputs.shape[1]


# what the network makes of them


NETWORKS: dict[str, dict[str, Any]] = {
    "learned": {},
    "rope": {"pos": "rope", "norm": "rmsnorm", "act": "swiglu", "n_kv_head": 1},
    "window": {"pos": "rope", "window": 4},
}


def documents_and_pack() -> tuple[SpanSource, SpanSource]:
    """Seven documents alone, and the same ones packed into three sequences of 16."""
    generator = np.random.default_rng(3)
    shard = generator.integers(0, 31, 200).astype(np.uint16)
    length = np.array([5, 9, 2, 17, 1, 12, 3])  # the fourth fills a sequence and looks ahead
    start = np.cumsum(length) - length
    alone = SpanSource([shard], np.zeros(7), start, length, 16, 0)
    packed = SpanSource([shard], np.zeros(7), start, length, 16, 0, offsets=np.array([0, 3, 4, 7]), isolated=True)
    return alone, packed


@pytest.fixture
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def nll_of(model: Transformer, batch: Batch) -> torch.Tensor:
    inputs, labels, documents = trim(batch)
    return model.nll(torch.from_numpy(inputs), torch.from_numpy(labels), documents=documents)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.usefixtures("double")
def test_packed_documents_have_the_loss_and_gradient_of_each_alone(
    name: str, build_model: Callable[..., Transformer]
) -> None:
    alone, packed = documents_and_pack()
    model, other = (build_model(**NETWORKS[name]).double() for _ in range(2))
    expected = sum(nll_of(model, alone.batch(np.array([row]))) for row in range(len(alone)))
    found = nll_of(other, packed.batch(np.arange(len(packed))))
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-12)
    expected.backward()
    found.backward()
    for (key, left), right in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(right.grad, left.grad, rtol=1e-9, atol=1e-12, msg=lambda text, key=key: key + text)


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_evaluation_of_packed_documents_is_that_of_each_alone(
    batch_size: int, build_model: Callable[..., Transformer]
) -> None:
    alone, packed = documents_and_pack()
    model = build_model()
    expected, found = evaluate_source(model, alone, 7), evaluate_source(model, packed, batch_size)
    assert found.tokens == expected.tokens == sum([4, 8, 1, 16, 0, 11, 2])
    assert found.nll_nats == pytest.approx(expected.nll_nats, rel=1e-5)


def test_training_on_packed_documents_is_training_on_each(model_config: ModelConfig) -> None:
    alone, packed = documents_and_pack()
    of_each, of_pack = (
        Trainer(model_config, TrainConfig(6, batch_size=len(source), lr=3e-3), source).fit().history
        for source in (alone, packed)  # every step reads all
    )
    assert [row["tokens"] for row in of_pack] == [row["tokens"] for row in of_each]
    for name in ("train/loss", "grad_norm"):
        np.testing.assert_allclose([row[name] for row in of_pack], [row[name] for row in of_each], rtol=1e-4)
