"""Overlap: shares as sets give them, spans that give the text back."""

from __future__ import annotations

import random

import numpy as np
import pytest
from dedup_samples import edited, peak_memory, plain_runs, prose

from tasks.text.minhash import GRAM_WORDS, gram_hashes
from tasks.text.overlap import judged_share, overlapping_spans, shared_grams
from tasks.text.words import BATCH_CHARS, word_pieces

PAGE = prose(120, seed=1)
MANUAL = f"{prose(3_000, seed=2)} {PAGE} {prose(3_000, seed=3)}"


def share(text: str, others: list[str]) -> float:
    """Share of a text's runs of thirteen words in other texts, by sets."""
    stored = {run for other in others for run in plain_runs(other, 13)}
    runs = plain_runs(text, 13)
    return sum(run in stored for run in runs) / len(runs) if len(runs) >= 13 else 0.0


def test_shares_are_those_of_sets() -> None:
    validation = [PAGE, edited(PAGE, 0.05, seed=1), prose(80, seed=9), "few words here", "", PAGE + PAGE]
    training = [MANUAL, edited(PAGE, 0.02, seed=2), prose(500, seed=8), "few words here", "", PAGE]
    grams = gram_hashes(validation)
    blocks = [gram_hashes(training[:2]), gram_hashes([]), gram_hashes(training[2:])]
    shared, shared_of = shared_grams(grams, blocks)
    others = [judged_share(hits, block.counts) for hits, block in zip(shared_of, blocks, strict=True)]
    assert judged_share(shared, grams.counts).tolist() == [share(text, training) for text in validation]
    assert np.concatenate(others).tolist() == [share(text, validation) for text in training]
    assert [len(block) for block in others] == [2, 0, 4]


def test_short_documents_are_not_judged() -> None:
    short, enough = prose(24, seed=1), prose(25, seed=1)
    grams = gram_hashes([short, enough])
    shared, _ = shared_grams(grams, [gram_hashes([MANUAL, short, enough])])
    assert judged_share(shared, grams.counts).tolist() == [0.0, 1.0]


def test_spans_give_the_text_back() -> None:
    grams = evaluation_set(PAGE)
    ((start, length),) = overlapping_spans(MANUAL, grams)
    assert MANUAL[start : start + length] == PAGE.rstrip(",.\n")


def evaluation_set(*texts: str) -> np.ndarray:
    return np.unique(gram_hashes(list(texts)).values)


def test_spans_that_touch_are_one_and_others_stay_apart() -> None:
    first, second = prose(20, seed=4), prose(20, seed=5)
    text = f"{first} {second} {prose(1, seed=6)} {first}"
    spans = overlapping_spans(text, evaluation_set(first, second))
    assert [text[start : start + length].split()[0] for start, length in spans] == [first.split()[0]] * 2
    assert len(spans) == 2


def test_spans_are_counted_in_characters_beyond_the_basic_plane() -> None:
    text = f"😀 {prose(10, 3)} 😀😀 {PAGE}"
    ((start, length),) = overlapping_spans(text, evaluation_set(PAGE))
    assert text[start : start + length] == PAGE.rstrip(",.\n")


def spans_of_the_whole(text: str, grams: np.ndarray) -> list[tuple[int, int]]:
    """Return the result of `overlapping_spans`, computed by marking each word of the text."""
    starts, ends = (np.concatenate(parts) for parts in list(zip(*word_pieces(text), strict=True))[1:])
    covered = np.zeros(len(starts), bool)
    for hit in np.flatnonzero(np.isin(gram_hashes([text]).values, grams)):
        covered[hit : hit + GRAM_WORDS] = True
    edges = np.flatnonzero(np.diff(np.concatenate([[False], covered, [False]])))
    return [
        (int(starts[first]), int(ends[behind - 1] - starts[first]))
        for first, behind in zip(edges[::2], edges[1::2], strict=True)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_spans_of_a_text_in_pieces_are_those_of_the_whole(seed: int) -> None:
    """Quotations of all lengths lie everywhere, across the places where pieces meet as well, some side by side."""
    draw = random.Random(seed)
    quoted = [prose(draw.randrange(5, 40), seed=1_000 + number) for number in range(40)] + [prose(40_000, seed=seed)]
    quoted[0] = "羊" * 200
    parts = []
    while sum(map(len, parts)) < 4 * BATCH_CHARS:
        parts += [prose(draw.randrange(60), seed=draw.randrange(10**6)), draw.choice(quoted[:-1])]
        parts += [draw.choice(quoted)] if draw.random() < 0.05 else []
    text = draw.choice([" ", "\n", "\n\n"]).join(parts)
    spans = overlapping_spans(text, evaluation_set(*quoted))
    assert spans == spans_of_the_whole(text, evaluation_set(*quoted))
    assert len(spans) > 100


@pytest.mark.parametrize("unit", ["x", "羊", " ", "a "])
def test_spans_of_monotonous_text_in_pieces_are_those_of_the_whole(unit: str) -> None:
    text = unit * (3 * BATCH_CHARS)
    grams = evaluation_set(unit * 40, PAGE)
    assert overlapping_spans(text, grams) == spans_of_the_whole(text, grams)


@pytest.mark.full
def test_spans_of_a_long_text_need_little_memory() -> None:
    text = " ".join(prose(50_000, seed) for seed in range(12))
    assert len(text) > 20 * BATCH_CHARS
    grams = evaluation_set(PAGE, prose(50_000, 3))
    assert peak_memory(lambda: overlapping_spans(text, grams)) < 16 * 2**20
