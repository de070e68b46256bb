"""Random reads of sequences across token shards, as in training, compared with a loop over NumPy's memory maps.

    python -m benchmarks.reads

Both sides read the same sequences in turn, in this process, from files in the page cache. The loop only copies ids from
`numpy.memmap` into an array of the same type. Our side returns the network's inputs and labels, int64.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from model.data import SpanSource

GOAL_RATIO = 0.8
Span = tuple[np.ndarray, np.ndarray]  # shard and start of each sequence
Side = Callable[[np.ndarray], Any]  # reads one batch


@dataclass(frozen=True)
class Reads:
    """Result of the two sides.

    Attributes:
        tokens_per_second: our speed, median over the rounds.
        memmap_tokens_per_second: speed of the loop over memory maps.
        array_tokens_per_second: speed of the same loop over plain array views, the maximum for NumPy.
        ratio: our speed divided by the loop over memory maps, median over the rounds.
        array_ratio: our speed divided by the loop over plain arrays.
    """

    tokens_per_second: float
    memmap_tokens_per_second: float
    array_tokens_per_second: float
    ratio: float
    array_ratio: float


def random_reads(
    n_shards: int = 8,
    shard_ids: int = 8_000_000,
    seq_len: int = 256,
    batch_size: int = 16,
    n_sequences: int = 32_000,
    rounds: int = 9,
) -> Reads:
    """Measure both sides on shards of random ids in a temporary folder.

    Args:
        n_shards: token shards.
        shard_ids: 16-bit ids per shard.
        seq_len: inputs of a sequence; one more id is read as the last label.
        batch_size: sequences per batch.
        n_sequences: sequences per side and round, a multiple of batch_size.
        rounds: turns of each side, each with new sequences.
    """
    generator = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        shards = [_written(Path(folder) / f"{number}.npy", generator, shard_ids) for number in range(n_shards)]
        shard = generator.integers(0, n_shards, n_sequences)
        start = generator.integers(0, shard_ids - seq_len, n_sequences)
        source = SpanSource(shards, shard, start, np.full(n_sequences, seq_len + 1), seq_len, pad_id=0)
        views = [np.asarray(ids) for ids in shards]
        sides: list[Side] = [
            source.batch,
            lambda batch: bare_batch(shards, (shard, start), batch, seq_len),
            lambda batch: bare_batch(views, (shard, start), batch, seq_len),
        ]
        _check_equal(sides, np.arange(batch_size))
        seconds = [
            [_seconds(side, order.reshape(-1, batch_size)) for side in sides]
            for order in (generator.permutation(n_sequences) for _ in range(rounds))
        ]
    ours, maps, arrays = (n_sequences * seq_len / statistics.median(column) for column in zip(*seconds, strict=True))
    return Reads(
        ours,
        maps,
        arrays,
        statistics.median(bare / own for own, bare, _ in seconds),
        statistics.median(bare / own for own, _, bare in seconds),
    )


def bare_batch(shards: Sequence[np.ndarray], spans: Span, batch: np.ndarray, seq_len: int) -> np.ndarray:
    """Return the ids of the sequences of one batch, copied row by row."""
    ids = np.empty((len(batch), seq_len + 1), dtype=shards[0].dtype)
    for row, number in enumerate(batch):
        start = spans[1][number]
        ids[row] = shards[spans[0][number]][start : start + seq_len + 1]
    return ids


def _written(path: Path, generator: np.random.Generator, n_ids: int) -> np.ndarray:
    np.save(path, generator.integers(0, 2**15, n_ids, dtype=np.uint16))
    ids: np.ndarray = np.load(path, mmap_mode="r")
    return ids


def _check_equal(sides: Sequence[Side], batch: np.ndarray) -> None:
    (inputs, labels, _), *others = (side(batch) for side in sides)
    for ids in others:
        if not np.array_equal(inputs, ids[:, :-1]) or not np.array_equal(labels, ids[:, 1:]):
            raise AssertionError("the two sides read different ids from the same spans")


def _seconds(side: Side, batches: np.ndarray) -> float:
    started = time.perf_counter()
    for batch in batches:
        side(batch)
    return time.perf_counter() - started


def main() -> None:
    """Entry point."""
    found = random_reads()
    print("| side | tokens/s | ratio | goal |")
    print("|---|---|---|---|")
    print(f"| ours | {found.tokens_per_second:,.0f} | | |")
    print(f"| loop over numpy.memmap | {found.memmap_tokens_per_second:,.0f} | {found.ratio:.2f} | >= {GOAL_RATIO} |")
    print(f"| loop over plain arrays | {found.array_tokens_per_second:,.0f} | {found.array_ratio:.2f} | |")
    raise SystemExit(found.ratio < GOAL_RATIO)


if __name__ == "__main__":
    main()
