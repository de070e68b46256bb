"""Near-duplicates: every pair that brute force finds, with its exact similarity, and quickly where many are alike."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from dedup_samples import all_pairs, plain_words, planted, prose

from tasks.text.minhash import U32, read_minima, signatures
from tasks.text.near import NearPairs, Pairs, clusters, near_pairs
from tasks.text.words import I64, U64

SHARES = (0.002, 0.01, 0.02, 0.03, 0.05, 0.1, 0.3)


class Reader:
    """Gives texts, and remembers which were asked for."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts
        self.asked: list[list[int]] = []

    def __call__(self, documents: Sequence[int]) -> list[str]:
        self.asked.append(list(documents))
        return [self.texts[document] for document in documents]


def find(texts: list[str], threshold: float = 0.8, **options: object) -> NearPairs:
    return near_pairs(len(texts), signatures(texts).minhashes_of, Reader(texts), threshold, **options)  # type: ignore[arg-type]


class Tied:
    """Signatures in several folders, of documents with ties of their own."""

    def __init__(self, texts: list[str], tie: I64, folder: Path, at_once: int = 100) -> None:
        self.tie = tie.astype(np.uint64)
        self.part, self.place = np.divmod(np.arange(len(texts)), at_once)
        self.folders = [folder / f"{part}" for part in range(int(self.part.max()) + 1)]
        for part, own in enumerate(self.folders):
            own.mkdir(parents=True)
            signatures(texts[part * at_once : (part + 1) * at_once]).save(own)

    def __call__(self, numbers: I64) -> tuple[U32, I64, U64]:
        return *read_minima(self.folders, self.part[numbers], self.place[numbers]), self.tie[numbers]


def as_dict(pairs: Pairs) -> dict[tuple[int, int], float]:
    return dict(zip(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True), pairs.similarity, strict=True))


def pairs_of(*pairs: tuple[int, int]) -> Pairs:
    first, second = np.array(pairs, np.int64).reshape(-1, 2).T
    return Pairs.sorted(first, second, np.ones(len(pairs)))


@pytest.fixture(scope="module")
def corpus() -> list[str]:
    return planted(60, SHARES)


@pytest.mark.parametrize(
    "threshold", [0.5, 0.8, *(pytest.param(threshold, marks=pytest.mark.full) for threshold in (0.7, 0.9, 1.0))]
)
def test_what_brute_force_finds_is_found(corpus: list[str], threshold: float) -> None:
    expected = all_pairs(corpus, threshold)
    found = as_dict(find(corpus, threshold).pairs)
    assert len(expected) > 50
    assert len(found.keys() & expected.keys()) >= 0.98 * len(expected)


def test_every_pair_found_has_the_similarity_of_brute_force(corpus: list[str]) -> None:
    found = find(corpus)
    truth = all_pairs(corpus, 0.01)
    assert all(truth[pair] == similarity for pair, similarity in as_dict(found.verified).items())
    assert as_dict(found.pairs) == {pair: value for pair, value in as_dict(found.verified).items() if value >= 0.8}


@pytest.mark.parametrize("max_bucket", [pytest.param(3, marks=pytest.mark.full), 64])
def test_the_order_of_documents_changes_nothing(corpus: list[str], max_bucket: int) -> None:
    corpus = list({tuple(plain_words(text)): text for text in corpus}.values())
    shuffled = random.Random(5).sample(range(len(corpus)), len(corpus))
    before = as_dict(find(corpus, max_bucket=max_bucket).pairs)
    after = as_dict(find([corpus[place] for place in shuffled], max_bucket=max_bucket).pairs)
    assert {tuple(sorted((shuffled[a], shuffled[b]))): value for (a, b), value in after.items()} == before


def test_the_order_of_documents_of_the_same_words_changes_nothing_if_a_number_tells_them_apart(tmp_path: Path) -> None:
    texts = ["The same words in all of these", "the same words in all of these", "THE SAME WORDS IN ALL OF THESE!"] * 30
    shuffled = np.random.default_rng(1).permutation(90)
    before = as_dict(near_pairs(90, Tied(texts, np.arange(90), tmp_path / "1"), Reader(texts), max_bucket=3).pairs)
    mixed = [texts[place] for place in shuffled]
    after = as_dict(near_pairs(90, Tied(mixed, shuffled, tmp_path / "2"), Reader(mixed), max_bucket=3).pairs)
    assert {tuple(sorted((shuffled[a], shuffled[b]))): value for (a, b), value in after.items()} == before


def test_text_without_spaces_between_words_is_compared_character_by_character() -> None:
    draw = random.Random(1)
    page = "".join(chr(draw.randrange(0x4E00, 0x9000)) for _ in range(400))
    changed = page[:200] + "變" + page[201:]
    (similarity,) = find([page, changed, page[::-1]]).pairs.similarity
    assert similarity == all_pairs([page, changed], 0.1)[0, 1] == pytest.approx(391 / 401)


@pytest.fixture(scope="module")
def masses() -> list[str]:
    """Thousands of copies of nearly one page, and a few documents of their own."""
    page = prose(200, seed=1)
    copies = [f"{page} {number} visits" for number in range(5_000)]
    return copies + planted(5, (0.01,))


@pytest.mark.full
def test_masses_of_one_page_are_compared_with_few(masses: list[str]) -> None:
    found = find(masses)
    assert found.n_giant_buckets >= 20
    assert found.largest_bucket >= 4_500
    assert found.n_candidates < 60_000
    assert np.count_nonzero(clusters(len(masses), found.pairs) == 0) == 5_000


@pytest.mark.parametrize("threshold", [pytest.param(0.6, marks=pytest.mark.full), 0.8])
def test_signatures_in_several_folders_give_the_same_pairs(
    corpus: list[str], threshold: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.text.near._AT_ONCE", 100)
    filed = Tied(corpus, np.arange(len(corpus)), tmp_path)
    found = near_pairs(len(corpus), filed, Reader(corpus), threshold)
    assert as_dict(found.verified) == as_dict(find(corpus, threshold).verified)


def test_the_same_text_many_times_is_no_trouble() -> None:
    found = find(["the very same text again and again"] * 2_000)
    assert (clusters(2_000, found.pairs) == 0).all()
    assert found.n_candidates < 20_000


def test_clusters_agree_with_a_walk_through_the_graph() -> None:
    draw = random.Random(2)
    edges = {tuple(sorted(draw.sample(range(400), 2))) for _ in range(300)}
    neighbours: dict[int, set[int]] = {place: {place} for place in range(400)}
    for one, other in edges:
        neighbours[one].add(other)
        neighbours[other].add(one)
    expected = []
    for start in range(400):
        seen, front = {start}, {start}
        while front:
            front = {other for place in front for other in neighbours[place]} - seen
            seen |= front
        expected.append(min(seen))
    assert clusters(400, pairs_of(*edges)).tolist() == expected  # type: ignore[arg-type]
