"""Signatures of documents for deduplication, computed once per segment.

A signature has the MinHash of 5-gram shingles and the hashes of all 13-grams and paragraphs, and depends on its
document alone. Classic MinHash has one permutation per value: vectorised it costs less than reading the text, and
unlike one-permutation hashing its estimate is as good for short documents as for long ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tasks.text.words import I64, U64, Hashes, distinct, joined, read_batches, running_sums, word_runs

SHINGLE_WORDS = 5
GRAM_WORDS = 13
N_PERMUTATIONS = 120

U32 = npt.NDArray[np.uint32]

_SLICE = 1 << 16  # shingles permuted at a time, so that buffers stay in the cache
_NOTHING = np.uint32(0xFFFFFFFF)

# each permutation xors with one number and multiplies by another (odd, so a bijection of 32 bits); from splitmix64
_STATES = (np.arange(1, 2 * N_PERMUTATIONS + 1, dtype=np.uint64) + np.uint64(0x5EED)) * np.uint64(0x9E3779B97F4A7C15)
_STATES = (_STATES ^ (_STATES >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
_STATES = (_STATES ^ (_STATES >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
_XORED = (_STATES >> np.uint64(32)).astype(np.uint32)[:N_PERMUTATIONS]
_FACTORS = (_STATES >> np.uint64(32)).astype(np.uint32)[N_PERMUTATIONS:] | np.uint32(1)


@dataclass(frozen=True)
class Signatures:
    """Signatures of n documents: flat arrays, each a `.npy` file that can be memory-mapped.

    Attributes:
        minima: (n, 120) MinHash values; all ones for a document without words.
        n_shingles: (n,) numbers of distinct shingles.
        grams: Hashes of 13-grams, in order; a shorter document has one, of all its words. 64 bits, because with 32 a
            corpus of 200,000 documents (60 million 13-grams) would contain any given one by accident with probability
            1.4 %.
        gram_offsets: (n + 1,) offsets of the documents in `grams`.
        paragraphs: Hashes of paragraphs of at least 80 characters, white space folded.
        paragraph_starts, paragraph_lengths: Position of each in its document, in characters.
        paragraph_offsets: (n + 1,) offsets of the documents in the three arrays above.
    """

    minima: U32
    n_shingles: I64
    grams: U64
    gram_offsets: I64
    paragraphs: U64
    paragraph_starts: I64
    paragraph_lengths: I64
    paragraph_offsets: I64

    def __len__(self) -> int:
        return len(self.n_shingles)

    @property
    def gram_hashes(self) -> Hashes:
        """Return the hashes of 13-grams by document."""
        return Hashes(self.grams, self.gram_offsets)

    def minhashes_of(self, numbers: I64) -> tuple[U32, I64, U64]:
        """Return MinHash values, numbers of shingles and tie-breakers of documents, for `tasks.text.near`."""
        return self.minima[numbers], self.n_shingles[numbers], numbers.astype(np.uint64)

    def save(self, folder: Path) -> None:
        """Write one `.npy` file per array; the same signatures give the same bytes."""
        for field in fields(self):
            np.save(folder / f"{field.name}.npy", np.ascontiguousarray(getattr(self, field.name)), allow_pickle=False)


def load_signatures(folder: Path) -> Signatures:
    """Return the signatures in a folder, memory-mapped; each array keeps its file open."""
    return Signatures(*(np.load(folder / f"{field.name}.npy", "r", allow_pickle=False) for field in fields(Signatures)))


def read_minima(folders: Sequence[str | Path], part: I64, place: I64) -> tuple[U32, I64]:
    """Return (m, 120) MinHash values and (m,) numbers of shingles of documents in several folders of signatures.

    Args:
        part, place: (m,) index of the folder of each document, ascending, and (m,) its row there.
    """
    parts = distinct(part)
    bounds = np.searchsorted(part, [*parts, len(folders)])
    found = [np.zeros((0, N_PERMUTATIONS), np.uint32)]
    n_shingles = [np.zeros(0, np.int64)]
    for number, begin, end in zip(parts.tolist(), bounds[:-1], bounds[1:], strict=True):
        signed = load_signatures(Path(folders[number]))
        found.append(signed.minima[place[begin:end]])
        n_shingles.append(signed.n_shingles[place[begin:end]])
    return np.concatenate(found), np.concatenate(n_shingles)


def join_signatures(parts: Sequence[Signatures]) -> Signatures:
    """Concatenate the documents of several parts."""
    grams = joined([part.gram_hashes for part in parts])
    paragraphs = joined([Hashes(part.paragraphs, part.paragraph_offsets) for part in parts])
    nothing = np.zeros(0, np.int64)
    return Signatures(
        np.concatenate([np.zeros((0, N_PERMUTATIONS), np.uint32), *(part.minima for part in parts)]),
        np.concatenate([nothing, *(part.n_shingles for part in parts)]),
        grams.values,
        grams.offsets,
        paragraphs.values,
        np.concatenate([nothing, *(part.paragraph_starts for part in parts)]),
        np.concatenate([nothing, *(part.paragraph_lengths for part in parts)]),
        paragraphs.offsets,
    )


def signatures(texts: Sequence[str]) -> Signatures:
    """Return the signatures of texts; each depends only on its own text."""
    parts = []
    for batch in read_batches(texts, with_paragraphs=True):
        shingles = _distinct(word_runs(batch.words, SHINGLE_WORDS))
        minima, n_shingles = _minima(shingles), shingles.counts
        del shingles  # frees memory before the 13-grams, of which there are as many
        grams = word_runs(batch.words, GRAM_WORDS)
        found = batch.paragraphs
        places = (batch.starts, batch.lengths)
        parts.append(Signatures(minima, n_shingles, grams.values, grams.offsets, found.values, *places, found.offsets))
    return join_signatures(parts)


def shingle_sets(texts: Sequence[str]) -> Hashes:
    """Return the set of shingles of each text, as sorted distinct hashes."""
    return joined([_distinct(word_runs(batch.words, SHINGLE_WORDS)) for batch in read_batches(texts)])


def gram_hashes(texts: Sequence[str]) -> Hashes:
    """Return the hashes of the 13-grams of each text, in order, as in `Signatures.grams`."""
    return joined([word_runs(batch.words, GRAM_WORDS) for batch in read_batches(texts)])


def _distinct(hashes: Hashes) -> Hashes:
    """Return the sorted distinct hashes of each document; overwrites the given ones, as there may be many."""
    values, offsets = hashes.values, hashes.offsets
    bounds = list(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True))
    for begin, end in bounds:
        values[begin:end].sort()
    first = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    first[offsets[:-1][hashes.counts > 0]] = True
    counts = [int(np.count_nonzero(first[begin:end])) for begin, end in bounds]
    done = 0
    for start in range(0, len(values), _SLICE):
        part = values[start : start + _SLICE][first[start : start + _SLICE]]
        values[done : done + len(part)] = part
        done += len(part)
    return Hashes(values[:done], running_sums(counts))


def _minima(shingles: Hashes) -> U32:
    """Return (n, 120) the MinHash values of sets of shingles."""
    minima = np.full((len(shingles), N_PERMUTATIONS), _NOTHING)
    filled = np.flatnonzero(shingles.counts)
    if not len(filled):
        return minima
    begins = shingles.offsets[:-1][filled]
    if len(filled) == 1:  # perhaps a long document: the minimum of the minima of its slices
        slices = (shingles.values[start : start + _SLICE] for start in range(0, len(shingles.values), _SLICE))
        rows = [_permuted_minima(part, np.zeros(1, np.int64)) for part in slices]
        minima[filled] = np.min(rows, axis=0)
    else:
        minima[filled] = _permuted_minima(shingles.values, begins)
    return minima


def _permuted_minima(hashes: U64, begins: I64) -> U32:
    """Return (n, 120) the minimum of each range of hashes under each permutation; ranges start at `begins`."""
    values = (hashes >> np.uint64(32)).astype(np.uint32)
    permuted = np.empty_like(values)
    minima = np.empty((N_PERMUTATIONS, len(begins)), np.uint32)
    for place in range(N_PERMUTATIONS):
        np.bitwise_xor(values, _XORED[place], out=permuted)
        np.multiply(permuted, _FACTORS[place], out=permuted)
        np.minimum.reduceat(permuted, begins, out=minima[place])
    return minima.T
