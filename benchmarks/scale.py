"""Whole-corpus stages at scale: `dedup` and `curate` over millions of documents in bounded memory.

The tables are synthetic: per-segment tables and signatures as `normalise` and `measure` write them, without texts. A
fifth of the documents are copies, half of them exact; all similarities are given as results of an earlier run, so that
no text is read. The functions of the stages run in a subprocess, as in a run.

    python -m benchmarks.scale --rows 10000000      the goal: 4 GB of memory and 30 minutes on two cores
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import psutil
import pyarrow as pa

from benchmarks.table import Row, report
from storage import schemas
from storage.tables import write_batches
from tasks.core.subprocesses import Subprocesses
from tasks.curate.corpus import SegmentTable
from tasks.curate.curate import CurationSettings, select_documents
from tasks.curate.dedup import VERIFIED_FILE, find_duplicates
from tasks.curate.settings import DedupSettings
from tasks.ingest.segments import SEGMENT_FILES
from tasks.text.minhash import N_PERMUTATIONS, Signatures

GOAL_BYTES = 4 * 10**9
GOAL_SECONDS_PER_DOCUMENT = 30 * 60 / 10_000_000
START_UP_SECONDS = 60  # of processes, and of data that does not grow with the corpus
GRAMS = 24  # 13-grams of a document
SAMPLE_SECONDS = 0.1
LARGE = 1 << 30  # bytes; enough for a subprocess

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]


def mixed(values: npt.NDArray[Any]) -> U64:
    """Return hashes of numbers (splitmix64), the same in every run."""
    values = values.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def sources(numbers: I64) -> I64:
    """Return the original of each document: itself, except that every tenth has a near and an exact copy."""
    return np.where(numbers % 5 == 4, numbers // 10 * 5, numbers)


@dataclass(frozen=True)
class Corpus:
    """Folders of a synthetic corpus, as inputs of the stages."""

    folder: Path
    tables: list[SegmentTable]
    measured: list[str]


def make_corpus(folder: Path, rows: int) -> Corpus:
    """Write the tables of the documents, with one segment in memory."""
    for name in ("snapshot", "evaluation", "before"):
        (folder / name).mkdir()
    np.save(folder / "evaluation" / schemas.GRAMS_FILE, np.zeros(0, np.uint64))
    corpus = Corpus(folder, [], [])
    write_batches(folder / "snapshot" / schemas.FILES_FILE, schemas.FILES, _write_segments(corpus, rows))
    pairs = duckdb.sql(
        "select least(ours, theirs) as text_sha256, greatest(ours, theirs) as other_sha256, 0.9::double as similarity "
        "from (select sha256('text ' || range) as ours, sha256('text ' || range // 10 * 5) as theirs "
        f"from range(4, {rows}, 10))"
    )
    batches = pairs.to_arrow_reader(SEGMENT_FILES)
    write_batches(folder / "before" / VERIFIED_FILE, schemas.VERIFIED_PAIRS, batches)
    return corpus


def _write_segments(corpus: Corpus, rows: int) -> Iterator[pa.RecordBatch]:
    """Write the segments of a corpus, and yield their rows of `files`."""
    for number, first in enumerate(range(0, rows, SEGMENT_FILES)):
        numbers = np.arange(first, min(first + SEGMENT_FILES, rows))
        documents, measures = corpus.folder / f"documents-{number}", corpus.folder / f"measures-{number}"
        documents.mkdir()
        measures.mkdir()
        corpus.tables.append(SegmentTable(f"segment-{number}", str(documents)))
        corpus.measured.append(str(measures))
        # an exact copy has the text of its original, a near one another text
        texts = np.where(numbers % 10 == 9, sources(numbers), numbers)
        named = duckdb.sql(
            "select sha256('document ' || number) as doc_id, sha256('text ' || text) as text_sha256 "
            "from (select unnest($numbers) as number, unnest($texts) as text)",
            params={"numbers": numbers, "texts": texts},
        ).to_arrow_table()
        yield _write_segment(documents, measures, numbers, named, f"segment-{number}")


def _write_segment(documents: Path, measures: Path, numbers: I64, named: pa.Table, segment: str) -> pa.RecordBatch:
    """Write the tables and signatures of a segment; returns its rows of `files`."""
    source = sources(numbers)
    n_bytes = 2_000 + mixed(source) % np.uint64(1_000)
    _write(
        documents / schemas.DOCUMENTS_FILE, schemas.NORMALISED, len(numbers),
        {**_columns(named), "digest": named["doc_id"], "kind": "text", "n_bytes": n_bytes,
         "ocr_share": (numbers % 7 == 0) * 1.0},
    )  # fmt: skip
    _write(
        measures / schemas.MEASURES_FILE, schemas.MEASURES, len(numbers),
        {"doc_id": named["doc_id"], "digest": named["text_sha256"], "kind": "text", "language": "en",
         "n_chars": n_bytes * (numbers % 50 != 1), "n_words": n_bytes // np.uint64(6), "distinct_share": 0.9,
         "compression_ratio": mixed(source) / 2**64, "stop_words": 8,
         "pii": pa.array([[]] * len(numbers), schemas.MEASURES.field("pii").type)},
    )  # fmt: skip
    _signatures(numbers, source).save(measures)
    return _batch(
        schemas.FILES, len(numbers),
        {"doc_id": named["doc_id"], "sha256": named["doc_id"], "path": named["doc_id"], "status": "ok",
         "segment": segment, "size": n_bytes},
    )  # fmt: skip


def _signatures(numbers: I64, source: I64) -> Signatures:
    """Return the signatures of the originals; near copies differ in some values."""
    at = source.astype(np.uint64)[:, None] * np.uint64(N_PERMUTATIONS) + np.arange(N_PERMUTATIONS, dtype=np.uint64)
    minima = mixed(at).astype(np.uint32)
    near = np.flatnonzero(numbers % 10 == 4)
    changed = mixed(numbers[near])[:, None] + np.arange(4, dtype=np.uint64) * np.uint64(29)
    minima[near[:, None], (changed % np.uint64(N_PERMUTATIONS)).astype(np.int64)] = changed.astype(np.uint32)
    grams = mixed(source.astype(np.uint64)[:, None] * np.uint64(GRAMS) + np.arange(GRAMS, dtype=np.uint64) + (1 << 62))
    values: dict[str, Any] = {
        "minima": minima,
        "n_shingles": 200 + source % 100,
        "grams": grams.reshape(-1),
        "gram_offsets": np.arange(len(numbers) + 1) * GRAMS,
        "paragraphs": mixed(source.astype(np.uint64) + (1 << 61)),
        "paragraph_starts": np.zeros(len(numbers), np.int64),
        "paragraph_lengths": np.full(len(numbers), 90),
        "paragraph_offsets": np.arange(len(numbers) + 1),
    }
    return Signatures(*(values[item.name] for item in fields(Signatures)))


def _columns(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    return dict(zip(table.column_names, table.columns, strict=True))


def _batch(schema: pa.Schema, n: int, columns: Mapping[str, Any]) -> pa.RecordBatch:
    """Return rows with some columns given, as one value or many; others are empty, zero or null."""
    made = []
    for field in schema:
        value = columns.get(field.name)
        if isinstance(value, pa.ChunkedArray):
            value = value.combine_chunks()
        elif value is None and field.nullable:
            value = pa.nulls(n, field.type)
        elif value is None and pa.types.is_list(field.type):
            value = [[]] * n
        elif value is None or isinstance(value, str | int | float):
            plain = "" if pa.types.is_string(field.type) or pa.types.is_large_string(field.type) else 0
            value = pa.repeat(pa.scalar(plain if value is None else value), n)
        made.append(pa.array(value, field.type) if isinstance(value, list) else pa.array(value).cast(field.type))
    return pa.RecordBatch.from_arrays(made, schema=schema)


def _write(path: Path, schema: pa.Schema, n: int, columns: Mapping[str, Any]) -> None:
    write_batches(path, schema, [_batch(schema, n, columns)])


@dataclass
class Cost:
    """Cost of a stage; memory of all processes, without pages of mapped files."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    spilled_bytes: int = 0


@contextmanager
def watching(spill: Path) -> Iterator[Cost]:
    """Measure all child processes, and the temporary files of a folder."""
    cost, done = Cost(), threading.Event()

    def watch() -> None:
        while not done.wait(SAMPLE_SECONDS):
            cpu_seconds, held = _used()
            cost.cpu_seconds = max(cost.cpu_seconds, cpu_seconds)
            cost.peak_bytes = max(cost.peak_bytes, held)
            cost.spilled_bytes = max(cost.spilled_bytes, _size(spill))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    started = time.perf_counter()
    try:
        yield cost
    finally:
        cost.seconds = time.perf_counter() - started
        done.set()
        thread.join()


def _used() -> tuple[float, int]:
    """Return CPU seconds and memory of the child processes."""
    cpu_seconds, held = 0.0, 0
    for process in psutil.Process().children(recursive=True):
        try:
            memory, times = process.memory_info(), process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        held += memory.rss - memory.shared
        cpu_seconds += times.user + times.system
    return cpu_seconds, held


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def run_stages(corpus: Corpus, memory_bytes: int) -> Iterator[tuple[str, Cost, dict[str, Any]]]:
    """Run both stages; yields the cost of each with its counts."""
    spill = corpus.folder / "spill"
    common: dict[str, Any] = {
        "snapshot": str(corpus.folder / "snapshot"), "tables": corpus.tables, "spill": str(spill),
        "memory_bytes": memory_bytes,
    }  # fmt: skip
    calls: Sequence[tuple[Any, dict[str, Any]]] = (
        (find_duplicates, {"signed": corpus.measured, "settings": DedupSettings(),
                           "known": str(corpus.folder / "before" / VERIFIED_FILE)}),
        (select_documents, {"measured": corpus.measured, "scored": [], "settings": CurationSettings(),
                            "duplicates": corpus.folder / find_duplicates.__name__,
                            "evaluation": corpus.folder / "evaluation"}),
    )  # fmt: skip
    processes = Subprocesses(1)
    for function, own in calls:
        out = corpus.folder / function.__name__
        out.mkdir(exist_ok=True)
        spill.mkdir(exist_ok=True)
        with watching(spill) as cost:
            made = processes.call(function, lambda done, total: None, LARGE, **common, **own, out=str(out))
        yield function.__module__.rpartition(".")[2], cost, made
    processes.close()


def measure(folder: Path, rows: int, memory_bytes: int) -> Iterator[Row]:
    """Write a corpus, run the stages, and compare their cost with the goal."""
    started = time.perf_counter()
    corpus = make_corpus(folder, rows)
    yield Row("making the tables, s", "", "", time.perf_counter() - started)
    seconds, peak = 0.0, 0
    for name, cost, made in run_stages(corpus, memory_bytes):
        counts = ", ".join(f"{key} {value:,}" for key, value in made["counts"].items())
        yield Row(f"{name}, s", f"{rows:,} rows", counts, cost.seconds)
        yield Row(f"{name}, CPU s", "", "", cost.cpu_seconds)
        yield Row(f"{name}, peak memory, MB", "", "", cost.peak_bytes / 1e6, GOAL_BYTES / 1e6, at_most=True)
        yield Row(f"{name}, spilled, MB", "", "", cost.spilled_bytes / 1e6)
        seconds, peak = seconds + cost.seconds, max(peak, cost.peak_bytes)
    goal = START_UP_SECONDS + rows * GOAL_SECONDS_PER_DOCUMENT
    yield Row("both, s", f"{rows:,} rows", "", seconds, goal, at_most=True)


def main() -> None:
    """Run and report; the exit code is 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--memory", type=int, default=2 * 1024**3, help="limits.query_memory_bytes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sheepfold-scale-") as folder:
        sys.exit(not report(measure(Path(folder), options.rows, options.memory)))


if __name__ == "__main__":
    main()
