"""Anchors: whatever is shared for eight words is found, wherever it begins, and a document's anchors are its own."""

from __future__ import annotations

import numpy as np
import pytest
from dedup_samples import prose

from tasks.curate.dedup.words import word_hashes
from tasks.tracing import anchors as module
from tasks.tracing.anchors import FOUND_WORDS, AnchorIndex, Hits, build_anchors

TEXTS = [prose(n_words, seed) for seed, n_words in enumerate([40, 5, 6, 7, 200, 0, 31])]


def index_of(*batches: list[str]) -> AnchorIndex:
    return AnchorIndex(*build_anchors(batches))


def find(index: AnchorIndex, text: str) -> Hits:
    """Where the runs of a text stand, in any document."""
    return index.find(word_hashes(text).values, np.ones(len(TEXTS) + 10, bool))


@pytest.mark.parametrize("begin", range(30))
def test_eight_words_hold_an_anchor_wherever_they_begin(begin: int) -> None:
    words = TEXTS[0].split()
    hits = find(index_of(TEXTS), " ".join(words[begin : begin + FOUND_WORDS]))
    assert (0, begin) in set(zip(hits.document.tolist(), (hits.word - hits.query).tolist(), strict=True))


def test_every_third_run_of_six_words_is_an_anchor_and_shorter_documents_have_none() -> None:
    _, counts = build_anchors([TEXTS])
    assert counts.tolist() == [12, 0, 1, 1, 65, 0, 9]


def test_all_places_of_an_anchor_are_found_with_their_words() -> None:
    text = " ".join([TEXTS[2], "in between", TEXTS[2]])
    hits = find(index_of([TEXTS[2], text, TEXTS[4]]), TEXTS[2])
    # of the second copy, which begins with the eighth word, no anchor begins there
    assert list(zip(hits.document.tolist(), hits.word.tolist(), strict=True)) == [(0, 0), (1, 0)]


def test_how_documents_come_in_batches_makes_no_difference() -> None:
    together, counts = build_anchors([TEXTS])
    apart, same = build_anchors([TEXTS[:3], TEXTS[3:]])
    assert np.array_equal(together, apart)
    assert np.array_equal(counts, same)


def test_nothing_is_found_in_nothing() -> None:
    assert not len(find(index_of([]), TEXTS[0]).query)
    assert not len(find(index_of(TEXTS), "").query)


def test_of_a_run_that_stands_everywhere_a_bounded_number_of_places_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_PLACES", 4)
    index = index_of([TEXTS[2]] * 10)
    assert find(index, TEXTS[2]).document.tolist() == [0, 1, 2, 3]
    counting = np.arange(10) > 7
    assert index.find(word_hashes(TEXTS[2]).values, counting).document.tolist() == [8, 9]
