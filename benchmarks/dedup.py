"""Near-duplicate clustering from texts in Parquet segments to clusters and kept documents.

    python -m benchmarks.dedup [--documents 100000] [--size 2000] [--processes 2]

Documents are generated from a word list with the word frequencies of natural language; a tenth of them are copies of
others with a share of their words replaced. Spawned processes (start-up included) compute the signatures, a segment at
a time, and write them; one process reads them back to find pairs and clusters. Recall and false pairs are counted
against all pairs of a sample, compared as Python sets. Prints a Markdown table; the exit code is 1 if a goal is missed.
On a shared machine, documents per CPU second are more reliable than documents per second.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.text.minhash import U32, read_minima, signatures
from tasks.text.near import clusters, keep_best, near_pairs
from tasks.text.words import I64, U64

GOAL_DOCUMENTS_PER_SECOND = 4_000
GOAL_RECALL = 0.95
THRESHOLD = 0.8
SEGMENT_DOCUMENTS = 2_500
SAMPLE = 2_000
COPIES = 0.1  # share of documents that are edited copies of others
EDITS = (0.0, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.1, 0.2)  # share of words replaced in a copy
VOCABULARY = 50_000
CHARS_PER_WORD = 5.15  # of the generated words, with separators


@dataclass(frozen=True)
class Result:
    """Figures of one run.

    Attributes:
        seconds: seconds of each step.
        cpu_seconds: CPU seconds of all processes in all steps.
        peak_bytes: peak resident memory of the process that finds pairs, and of the largest that computes signatures.
        recall: share of the pairs of the sample at or above the threshold that were found.
        false_pairs: reported pairs of the sample that are below the threshold or have another similarity.
    """

    n: int
    processes: int
    seconds: dict[str, float]
    cpu_seconds: float
    peak_bytes: dict[str, int]
    n_pairs: int
    n_clusters: int
    n_kept: int
    n_true: int
    recall: float
    false_pairs: int

    @property
    def documents_per_second(self) -> float:
        """Documents per second through all steps."""
        return self.n / sum(self.seconds.values())


@lru_cache(maxsize=1)
def _vocabulary() -> list[str]:
    letters = random.Random(1)
    syllables = [c + v + e for c in "bcdfghklmnprstvw" for v in "aeiou" for e in ("", "n", "r", "s")]
    words = dict.fromkeys("".join(letters.choices(syllables, k=letters.randint(1, 4))) for _ in range(4 * VOCABULARY))
    return sorted(list(words)[:VOCABULARY], key=len)  # frequent words are short


def _prose(words: list[str], draw: random.Random) -> str:
    """Words as sentences and paragraphs."""
    pieces = []
    left = draw.randint(6, 20)
    for word in words:
        left -= 1
        if left:
            pieces.append(word + " ")
        else:
            pieces.append(word + (".\n\n" if draw.random() < 0.2 else ". "))
            left = draw.randint(6, 20)
    return "".join(pieces)


def make_documents(first: int, count: int, n: int, size: int) -> list[str]:
    """Return documents `first` to `first + count` of n; each depends on its number alone."""
    return [_document(number, n, size) for number in range(first, first + count)]


def _document(number: int, n: int, size: int) -> str:
    draw = random.Random(number)
    originals = n - int(n * COPIES)
    if number < originals:
        return _prose(_original(number, size), draw)
    copied = random.Random(-number).randrange(originals)
    words = _original(copied, size)
    share = EDITS[number % len(EDITS)]
    vocabulary = _vocabulary()
    return _prose([draw.choice(vocabulary) if draw.random() < share else word for word in words], draw)


def _original(number: int, size: int) -> list[str]:
    vocabulary = _vocabulary()
    bounds = _cumulated(len(vocabulary))
    chosen = np.searchsorted(bounds, np.random.default_rng(number).random(int(size / CHARS_PER_WORD)) * bounds[-1])
    return [vocabulary[place] for place in chosen]


@lru_cache(maxsize=1)
def _cumulated(size: int) -> Any:
    """Return cumulated Zipf weights with Mandelbrot's offset."""
    return np.cumsum(1 / (np.arange(size) + 2.7))


def write_segment(number: int, folder: Path, n: int, size: int) -> None:
    """Write a segment's texts as a Parquet file."""
    first = number * SEGMENT_DOCUMENTS
    texts = make_documents(first, min(SEGMENT_DOCUMENTS, n - first), n, size)
    (folder / f"{number}").mkdir()
    table = pa.table({"text": pa.array(texts, pa.large_string())})
    pq.write_table(table, folder / f"{number}" / "documents.parquet", row_group_size=1_000, compression="zstd")


def sign_segment(number: int, folder: Path) -> int:
    """Compute the signatures of a segment; returns the peak memory of the process."""
    own = folder / f"{number}"
    signatures(_read(own)).save(own)
    return _peak()


def _read(segment: Path) -> list[str]:
    texts: list[str] = pq.read_table(segment / "documents.parquet", columns=["text"])["text"].to_pylist()
    return texts


def minhashes_of(documents: I64, folder: Path) -> tuple[U32, I64, U64]:
    """Return MinHash values, numbers of shingles and ties of documents, read from their segments in order."""
    folders = [folder / f"{number}" for number in range(int(documents[-1]) // SEGMENT_DOCUMENTS + 1)]
    minima, n_shingles = read_minima(folders, *np.divmod(documents, SEGMENT_DOCUMENTS))
    return minima, n_shingles, documents.astype(np.uint64)


def texts_of(documents: Sequence[int], folder: Path) -> list[str]:
    """Return the texts of documents by ascending numbers, read segment by segment."""
    found = []
    start = 0
    while start < len(documents):
        segment = documents[start] // SEGMENT_DOCUMENTS
        stop = start
        while stop < len(documents) and documents[stop] // SEGMENT_DOCUMENTS == segment:
            stop += 1
        table = pq.read_table(folder / f"{segment}" / "documents.parquet", columns=["text"])
        rows = [document % SEGMENT_DOCUMENTS for document in documents[start:stop]]
        found += table["text"].take(rows).to_pylist()
        start = stop
    return found


def run(n: int = 100_000, size: int = 2_000, processes: int = 2) -> Result:
    """Generate documents, find their near-duplicates, and check a sample by brute force."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        segments = range(-(-n // SEGMENT_DOCUMENTS))
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, mp_context=spawn) as pool:
            list(pool.map(partial(write_segment, folder=folder, n=n, size=size), segments))
        seconds = {}
        busy = sum(os.times()[:4])
        started = time.perf_counter()
        with ProcessPoolExecutor(processes, mp_context=spawn) as pool:
            peak_signing = max(pool.map(partial(sign_segment, folder=folder), segments))
        seconds["signatures"] = time.perf_counter() - started

        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
        started = time.perf_counter()
        found = near_pairs(n, partial(minhashes_of, folder=folder), partial(texts_of, folder=folder), THRESHOLD)
        seconds["pairs"] = time.perf_counter() - started
        started = time.perf_counter()
        labels = clusters(n, found.pairs)
        kept, _ = keep_best(n, found.pairs)
        seconds["clusters"] = time.perf_counter() - started
        busy = sum(os.times()[:4]) - busy  # of this process and of ended children
        peaks = {"signatures": peak_signing, "pairs": _peak()}

        reported = dict(zip(zip(found.pairs.first.tolist(), found.pairs.second.tolist(), strict=True),
                            found.pairs.similarity.tolist(), strict=True))  # fmt: skip
        sample = _sample(n)
        true, false_pairs, found_true = _check(sample, texts_of(sample, folder), reported)
    return Result(n, processes, seconds, busy, peaks, len(found.pairs), len(np.unique(labels)), int(kept.sum()),
                  true, found_true / max(true, 1), false_pairs)  # fmt: skip


def _sample(n: int) -> list[int]:
    """Return a sample of copies and their originals, in equal numbers."""
    originals = n - int(n * COPIES)
    copies = range(originals, min(n, originals + SAMPLE // 2))
    return sorted({*copies, *(random.Random(-copy).randrange(originals) for copy in copies)})


def _check(sample: list[int], texts: list[str], reported: dict[tuple[int, int], float]) -> tuple[int, int, int]:
    """Return the numbers of true pairs of the sample, of false pairs, and of true pairs that were found."""
    true = {pair: value for pair, value in brute_force(texts) if value >= THRESHOLD}
    true = {(sample[a], sample[b]): value for (a, b), value in true.items()}
    inside = set(sample)
    claimed = {pair: value for pair, value in reported.items() if inside.issuperset(pair)}
    wrong = sum(true.get(pair) != value for pair, value in claimed.items())
    return len(true), wrong, len(true.keys() & claimed.keys())


def brute_force(texts: list[str]) -> Iterator[tuple[tuple[int, int], float]]:
    """Yield the exact similarity of all pairs with a common shingle, computed with Python sets."""
    sets = []
    for text in texts:
        words = re.findall(r"\w+", text.lower())
        sets.append({tuple(words[place : place + 5]) for place in range(max(len(words) - 4, 1))})
    holders = defaultdict(list)
    for place, shingles in enumerate(sets):
        for shingle in shingles:
            holders[shingle].append(place)
    common = Counter(pair for places in holders.values() for pair in combinations(places, 2))
    for (one, other), count in sorted(common.items()):
        yield (one, other), count / (len(sets[one]) + len(sets[other]) - count)


def _peak() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None, "/proc/self/status has no VmHWM"
    return int(found[1]) * 1024


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=2_000)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    result = run(options.documents, options.size, options.processes)
    print(f"{result.n} documents, {result.processes} processes\n")
    print("| step | seconds |\n|---|---|")
    for step, seconds in result.seconds.items():
        print(f"| {step} | {seconds:.2f} |")
    print("\n| figure | value | goal |\n|---|---|---|")
    print(f"| documents/s | {result.documents_per_second:,.0f} | {GOAL_DOCUMENTS_PER_SECOND:,} |")
    print(f"| documents per CPU second | {result.n / result.cpu_seconds:,.0f} | |")
    print(f"| recall ({result.n_true} pairs) | {result.recall:.2%} | {GOAL_RECALL:.0%} |")
    print(f"| false pairs | {result.false_pairs} | 0 |")
    for process, peak in result.peak_bytes.items():
        print(f"| peak memory, {process} | {peak / 2**20:.0f} MiB | |")
    print(f"\n{result.n_pairs} pairs, {result.n_clusters} clusters, {result.n_kept} documents kept")
    met = (
        result.documents_per_second >= GOAL_DOCUMENTS_PER_SECOND
        and result.recall >= GOAL_RECALL
        and not result.false_pairs
    )
    sys.exit(not met)


if __name__ == "__main__":
    main()
