"""Sequences that are one span each: labels, padding, and what does not fit."""

from __future__ import annotations

import numpy as np
import pytest

from model import SpanSource
from model.data import trim

SHARDS = [np.arange(10, 20, dtype=np.uint16), np.arange(50, 60, dtype=np.uint32)]


def source_of(*spans: tuple[int, int, int], seq_len: int = 4) -> SpanSource:
    shard, start, length = (np.array(column) for column in zip(*spans, strict=True))
    return SpanSource(SHARDS, shard, start, length, seq_len, pad_id=7)


@pytest.mark.parametrize(
    ("span", "inputs", "labels"),
    [
        ((0, 2, 5), [12, 13, 14, 15], [13, 14, 15, 16]),  # one id to look ahead
        ((0, 6, 4), [16, 17, 18, 19], [17, 18, 19, -100]),  # the document ends with the span
        ((1, 0, 2), [50, 51, 7, 7], [51, -100, -100, -100]),
        ((1, 9, 1), [59, 7, 7, 7], [-100, -100, -100, -100]),
    ],
)
def test_labels_are_the_next_ids(span: tuple[int, int, int], inputs: list[int], labels: list[int]) -> None:
    found_inputs, found_labels, documents = source_of(span).batch(np.array([0]))
    assert found_inputs.tolist() == [inputs]
    assert found_labels.tolist() == [labels]
    assert found_inputs.dtype == found_labels.dtype == np.int64
    assert documents is None


def test_batch_follows_the_indices() -> None:
    source = source_of((0, 0, 5), (1, 0, 5), (0, 5, 5))
    assert source.batch(np.array([2, 0, 2]))[0][:, 0].tolist() == [15, 10, 15]


@pytest.mark.parametrize(
    ("span", "message"),
    [
        ((0, 0, 6), r"has 6 ids; expected 1 to seq_len \+ 1 = 5"),
        ((0, 0, 0), "has 0 ids"),
        ((2, 0, 3), "there are 2 shards"),
        ((0, 8, 3), r"spans \[8, 11\) of shard 0, which has 10 ids"),
    ],
)
def test_span_that_fits_nowhere_is_refused(span: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        source_of((0, 0, 5), span)


def test_trim_drops_columns_without_labels() -> None:
    inputs, labels, _ = trim(source_of((1, 0, 2), (1, 0, 3)).batch(np.arange(2)))
    assert inputs.tolist() == [[50, 51], [50, 51]]
    assert labels.tolist() == [[51, -100], [51, 52]]
