"""Signatures: the same in any company, joined and read back unchanged."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from dedup_samples import peak_memory, plain_words, prose

from tasks.text.minhash import Signatures, join_signatures, load_signatures, signatures

PINNED_MINIMA = "8f57358bbdc2f85e"
TEXTS = ["", "one", "four words are few", "漢字" * 30, *(prose(20 + 40 * seed, seed) for seed in range(40)), " \n"]


def equal(one: Signatures, other: Signatures) -> bool:
    return all(np.array_equal(getattr(one, field.name), getattr(other, field.name)) for field in fields(Signatures))


def test_a_signature_depends_on_its_document_alone() -> None:
    assert equal(signatures(TEXTS), join_signatures([signatures([text]) for text in TEXTS]))


@pytest.mark.parametrize("texts", [TEXTS, [], [""]])
def test_signatures_are_read_back_as_written(texts: list[str], tmp_path: Path) -> None:
    written = signatures(texts)
    written.save(tmp_path)
    assert equal(load_signatures(tmp_path), written)
    assert equal(join_signatures([load_signatures(tmp_path), written]), join_signatures([written, written]))


def test_signatures_are_the_same_for_ever() -> None:
    minima = signatures([prose(200, seed=1)]).minima
    assert hashlib.sha256(minima.astype("<u4").tobytes()).hexdigest()[:16] == PINNED_MINIMA


@pytest.mark.full
def test_a_long_document_needs_no_more_than_its_words_and_one_kind_of_runs() -> None:
    """Eight bytes for each word and each run, and what a piece of the text takes."""
    text = " ".join(prose(50_000, seed) for seed in range(12))
    n_words = len(plain_words(text))
    assert peak_memory(lambda: signatures([text])) < 2 * 8 * n_words + 8 * 2**20
