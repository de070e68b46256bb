"""Tokenising, packing and reading compared with common engines, and the cost of one added document.

    python -m benchmarks.prepare [--only bpe,char,packing,reads,memory,added] [--rounds 3] [--megabytes 100] [--full]

Both sides of a row take turns in one run, on two cores, each in a new process, and the medians are compared. The text
is the source and documentation of the installed packages, each document once. `--full` also tokenises 2 GB, to check
that memory does not grow. Prints a Markdown table; the exit code is 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import encoding, texts
from benchmarks.adding import FEW_DOCUMENTS, VOCABULARY, add_documents
from benchmarks.ingest import Row
from storage.schemas import REFINED
from storage.tables import ROW_GROUP_ROWS, TableWriter
from tasks.tokens.tokenizer import learn_merges

TABLES = 4
FIT_BYTES = 16 * 2**20
CACHE_BYTES = 2**28  # the encoder's own
N_DOCUMENTS = 100_000


def write_tables(folder: Path, n_bytes: int) -> list[Path]:
    """Write documents in the tables that the stage reads, distributed over four segments."""
    folder.mkdir()
    paths = [folder / f"{number}.parquet" for number in range(TABLES)]
    documents = texts.documents(n_bytes)
    with ExitStack() as stack:
        writers = [stack.enter_context(TableWriter(path, REFINED)) for path in paths]
        for number in count():
            rows = [_row(f"{number}-{place}", text) for place, text in enumerate(islice(documents, ROW_GROUP_ROWS))]
            if not rows:
                break
            writers[number % TABLES].write(rows)
    return paths


def _row(name: str, text: str) -> dict[str, object]:
    size = len(text.encode())
    counts = {"n_bytes": size, "redactions": 0, "cut_chars": 0, "mends": 0}
    return {"doc_id": name, "kind": "text", "text": text, "digest": name, **counts}


def fit(folder: Path, kind: str, tables: Sequence[Path]) -> Path:
    """Fit a tokeniser on the first texts of the tables."""
    from tasks.tokens.tokenizer_kinds import CharTokenizer

    chosen: list[str] = []
    size = 0
    for text in pq.read_table(tables[0], columns=["text"])["text"].to_pylist():
        if size >= FIT_BYTES:
            break
        chosen.append(text)
        size += len(text.encode())
    path = folder / f"{kind}.json"
    fitted = CharTokenizer.fit(chosen) if kind == "char" else learn_merges(chosen, VOCABULARY)
    fitted.save(path)
    return path


class Speeds:
    """Megabytes of text per second of several sides, in turns."""

    def __init__(self, sides: Sequence[str], tokenizer: Path, tables: Sequence[Path], rounds: int) -> None:
        megabytes = sum(pq.read_table(path, columns=["n_bytes"])["n_bytes"].to_numpy().sum() for path in tables) / 1e6
        self.found: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(rounds):
            for side in sides:
                with tempfile.TemporaryDirectory() as place:
                    seconds = encoding.run(side, tokenizer, Path(place) / "out", tables)["seconds"]
                self.found[side].append(megabytes / seconds)

    def ratio(self, peer: str) -> float:
        """Return our speed divided by theirs, the median over the rounds."""
        pairs = zip(self.found["ours"], self.found[peer], strict=True)
        return statistics.median(mine / other for mine, other in pairs)

    def shown(self, side: str) -> str:
        """Return the median as text."""
        return f"{statistics.median(self.found[side]):.1f} MB/s"


def bpe(folder: Path, tables: Sequence[Path], rounds: int) -> Iterator[Row]:
    """Measure byte-pair encoding, from Parquet to shards, cold."""
    speeds = Speeds(["ours", "hugging_face", "tiktoken"], fit(folder, "bpe", tables), tables, rounds)
    for peer, name, least in (
        ("hugging_face", "Hugging Face encode_batch", 25),
        ("tiktoken", "tiktoken, 2 threads", 5),
    ):
        ratio = speeds.ratio(peer)
        yield Row(
            f"BPE of {VOCABULARY}, Parquet to shards, cold", speeds.shown("ours"), f"{speeds.shown(peer)} ({name})",
            f"{ratio:.1f}", f">= {least}x", ratio >= least,
        )  # fmt: skip


def char(folder: Path, tables: Sequence[Path], rounds: int) -> Iterator[Row]:
    """Measure encoding of characters, from Parquet to shards."""
    speeds = Speeds(["ours", "numpy_table"], fit(folder, "char", tables), tables, rounds)
    reached = statistics.median(speeds.found["ours"])
    yield Row(
        "characters, Parquet to shards", speeds.shown("ours"), f"{speeds.shown('numpy_table')} (bare NumPy table)",
        f"{speeds.ratio('numpy_table'):.2f}", ">= 100 MB/s", reached >= 100,
    )  # fmt: skip


def packing(rounds: int) -> Iterator[Row]:
    """Measure best-fit packing of realistic lengths."""
    from tasks.tokens.packing import account, packed_pieces

    lengths = np.random.default_rng(0).lognormal(6.5, 1.3, 100_000).astype(np.int64) + 2
    for seq_len in (256, 1024):
        seconds = []
        for _ in range(rounds):
            started = time.perf_counter()
            pieces = packed_pieces(lengths, seq_len)
            seconds.append(time.perf_counter() - started)
        found = account(pieces, lengths, seq_len)
        speed = int(lengths.sum()) / statistics.median(seconds) / 1e6
        fill = found.kept / (found.sequences * seq_len)
        what = f"best-fit packing of {len(lengths):,} documents into {seq_len}"
        yield Row(f"{what}: tokens", f"{speed:.0f}M tokens/s", "", "", ">= 50M", speed >= 50)
        yield Row(f"{what}: fill", f"{fill:.3%}", "", "", ">= 99.9 %", fill >= 0.999)
        yield Row(f"{what}: tokens lost", str(found.cut), "", "", "0", not found.cut)


def reads() -> Iterator[Row]:
    """Measure reads of random sequences across shards."""
    from benchmarks.reads import random_reads

    found = random_reads()
    yield Row(
        "random reads of 256 tokens", f"{found.tokens_per_second / 1e6:.1f}M tokens/s",
        f"{found.memmap_tokens_per_second / 1e6:.1f}M tokens/s (bare memmap loop)", f"{found.ratio:.2f}", ">= 0.80",
        found.ratio >= 0.8,
    )  # fmt: skip


def memory(folder: Path, tables: Sequence[Path], full: bool) -> Iterator[Row]:
    """Measure the memory of one encoding process, with the encoder's bounded cache."""
    tokenizer = fit(folder, "bpe", tables)
    sizes = [("of the text", list(tables))]
    if full:
        sizes.append(("of 2 GB", list(_large_tables(folder / "large", tables))))
    for what, chosen in sizes:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            peak = encoding.run("alone", tokenizer, Path(place) / "out", chosen)["peak_bytes"]
        most = 600e6 + CACHE_BYTES
        yield Row(
            f"memory of one encoding process, {what}", f"{peak / 1e6:.0f} MB", "",
            "", f"<= 600 MB beyond the cache of {CACHE_BYTES / 1e6:.0f} MB", peak <= most,
        )  # fmt: skip


def _large_tables(folder: Path, tables: Sequence[Path]) -> Iterator[Path]:
    """Write twenty tables of the same texts, each with another order of words, to measure memory."""
    folder.mkdir()
    for number in range(5 * len(tables)):
        rows = pq.read_table(tables[number % len(tables)])
        words = [text.split(" ") for text in rows["text"].to_pylist()]
        turned = [" ".join(part[number:] + part[:number]) for part in words]
        path = folder / f"{number}.parquet"
        changed = rows.set_column(
            rows.schema.get_field_index("text"), REFINED.field("text"), pa.array(turned, pa.large_string())
        )
        pq.write_table(changed.cast(REFINED), path, 1_000)
        yield path


def added(rounds: int) -> Iterator[Row]:
    """Measure the CPU time of preparation, from refined texts to the dataset: 100,000 documents, then one more."""

    found = add_documents(N_DOCUMENTS, rounds)
    more, cold = found.added - found.few_added, found.cold - found.few_cold
    yield Row(
        f"one document added to {N_DOCUMENTS:,}: CPU time beyond start-up, which is that of {FEW_DOCUMENTS} documents",
        f"{more:.2f} s (start-up {found.few_added:.2f} s)", f"{cold:.2f} s (cold; start-up {found.few_cold:.2f} s)",
        f"{more / cold:.1%}", "<= 2 %", more / cold <= 0.02,
    )  # fmt: skip


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="bpe,char,packing,reads,memory,added")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--full", action="store_true")
    chosen = parser.parse_args()
    names = chosen.only.split(",")
    missed = 0
    with tempfile.TemporaryDirectory(prefix="sheepfold-prepare-") as place:
        folder = Path(place)
        needed = {"bpe", "char", "memory"} & set(names)
        tables = write_tables(folder / "tables", chosen.megabytes * 10**6) if needed else []
        parts: dict[str, Callable[[], Iterator[Row]]] = {
            "bpe": lambda: bpe(folder, tables, chosen.rounds),
            "char": lambda: char(folder, tables, chosen.rounds),
            "packing": lambda: packing(chosen.rounds),
            "reads": reads,
            "memory": lambda: memory(folder, tables, chosen.full),
            "added": lambda: added(chosen.rounds),
        }
        print("| row | Sheepfold | baseline | ratio | goal | reached |\n|---|---|---|---|---|---|", flush=True)
        for name in names:
            for row in parts[name]():
                print(row, flush=True)
                missed += row.reached is False
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
