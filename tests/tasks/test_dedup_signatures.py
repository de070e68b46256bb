"""Signatures: estimates as good as those of datasketch, the same in any company, joined and read back unchanged."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from dedup_samples import edited, jaccard, peak_memory, plain_runs, plain_words, prose

from tasks.curate.dedup import Signatures, gram_hashes, shingle_sets, signatures
from tasks.curate.dedup.minhash import N_PERMUTATIONS, estimate
from tasks.curate.dedup.words import BATCH_CHARS

PINNED_MINIMA = "8f57358bbdc2f85e"
TEXTS = ["", "one", "four words are few", "漢字" * 30, *(prose(20 + 40 * seed, seed) for seed in range(40)), " \n"]


def equal(one: Signatures, other: Signatures) -> bool:
    return all(np.array_equal(getattr(one, field.name), getattr(other, field.name)) for field in fields(Signatures))


def test_a_signature_depends_on_its_document_alone() -> None:
    together = signatures(TEXTS)
    for place, text in enumerate(TEXTS):
        assert equal(together.take([place]), signatures([text]))


def test_parts_join_to_the_whole() -> None:
    whole = signatures(TEXTS)
    assert equal(Signatures.join([signatures(TEXTS[:7]), signatures([]), signatures(TEXTS[7:])]), whole)
    assert equal(Signatures.join([whole.take(range(30)), whole.take(range(30, len(TEXTS)))]), whole)


def test_documents_taken_are_those_of_their_texts() -> None:
    chosen = [17, 3, 0, 17, 44]
    assert equal(signatures(TEXTS).take(chosen), signatures([TEXTS[place] for place in chosen]))


@pytest.mark.parametrize("chosen", [[], [5], [4, 5, 6], [6, 5, 4], [0, 44, 44]])
def test_runs_and_paragraphs_are_taken_alone(chosen: list[int]) -> None:
    signed, expected = signatures(TEXTS), signatures([TEXTS[place] for place in chosen])
    grams, paragraphs = signed.gram_hashes.take(chosen), signed.paragraph_spans.take(chosen)
    assert np.array_equal(grams.values, expected.grams)
    assert np.array_equal(grams.offsets, expected.gram_offsets)
    assert np.array_equal(paragraphs.values, expected.paragraphs)
    assert np.array_equal(paragraphs.starts, expected.paragraph_starts)
    assert equal(signed.take(chosen), expected)


def test_documents_are_taken_by_a_mask() -> None:
    mask = np.array([len(text) > 500 for text in TEXTS])
    assert equal(signatures(TEXTS).take(mask), signatures([text for text in TEXTS if len(text) > 500]))


@pytest.mark.parametrize("texts", [TEXTS, [], [""]])
def test_signatures_are_read_back_as_written(texts: list[str], tmp_path: Path) -> None:
    written = signatures(texts)
    written.save(tmp_path)
    assert equal(Signatures.load(tmp_path), written)
    assert equal(Signatures.join([Signatures.load(tmp_path), written]), Signatures.join([written, written]))


def test_the_same_signatures_give_the_same_files(tmp_path: Path) -> None:
    digests = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        files = signatures(TEXTS).save(folder)
        digests.append([(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files])
    assert digests[0] == digests[1]


def test_signatures_are_the_same_for_ever() -> None:
    minima = signatures([prose(200, seed=1)]).minima
    assert hashlib.sha256(minima.astype("<u4").tobytes()).hexdigest()[:16] == PINNED_MINIMA


def test_shingles_are_counted_once_each() -> None:
    texts = [*TEXTS, "again and again " * 50]
    expected = [len(set(plain_runs(text, 5))) for text in texts]
    assert signatures(texts).n_shingles.tolist() == expected
    assert shingle_sets(texts).counts.tolist() == expected


def test_grams_are_those_of_thirteen_words_in_order() -> None:
    signed = signatures(TEXTS)
    assert np.diff(signed.gram_offsets).tolist() == [len(plain_runs(text, 13)) for text in TEXTS]
    assert np.array_equal(signed.grams, gram_hashes(TEXTS).values)


def test_a_document_without_words_has_nothing() -> None:
    signed = signatures(["", "..."])
    assert signed.n_shingles.tolist() == [0, 0]
    assert (signed.minima == 2**32 - 1).all()


def test_a_document_longer_than_a_batch_is_signed_like_its_set_of_shingles() -> None:
    short = prose(300, seed=5)
    long = " ".join([short] * (3 * BATCH_CHARS // len(short)))
    common = estimate(signatures([long]).minima, signatures([f"{short} {short}"]).minima)
    assert common[0] == 1.0  # repeating a text adds only the shingles of the seam


def test_a_long_document_needs_no_more_than_its_words_and_one_kind_of_runs() -> None:
    """Eight bytes for each word and each run, and what a piece of the text takes."""
    text = " ".join(prose(50_000, seed) for seed in range(12))
    n_words = len(plain_words(text))
    assert peak_memory(lambda: signatures([text])) < 2 * 8 * n_words + 8 * 2**20


def test_estimates_are_as_close_as_those_of_datasketch() -> None:
    datasketch = pytest.importorskip("datasketch")
    ours, theirs = [], []
    for number in range(80):
        one = prose(200, seed=number)
        pair = [one, edited(one, 0.002 * number, seed=number)]
        true = jaccard(*pair)
        minima = signatures(pair).minima
        ours.append(float(estimate(minima[0], minima[1])) - true)
        sketches = []
        for text in pair:
            sketch = datasketch.MinHash(num_perm=N_PERMUTATIONS, seed=1)
            sketch.update_batch([" ".join(run).encode() for run in plain_runs(text, 5)])
            sketches.append(sketch)
        theirs.append(sketches[0].jaccard(sketches[1]) - true)
    assert np.std(ours) < 1.3 * np.std(theirs)
    assert abs(np.mean(ours)) < 0.02
