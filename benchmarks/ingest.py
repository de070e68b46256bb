"""Ingestion compared with direct calls of the engines, and its cost as a corpus grows.

    python -m benchmarks.ingest [--only pdf,ocr,nasty,measures,dedup,unchanged,growth] [--rounds 3] [--full]
                                [--corpus FOLDER]

Both sides of a row take turns in one run, on two cores, and the medians are compared. `--full` grows the corpus to
200,000 files, which takes most of an hour. PDFs (`documents`), scans with their texts (`scans`) and hostile PDFs
(`nasty`) are in folders of a corpus, by default the development corpus next to the repository. Prints a Markdown table;
the exit code is 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import unicodedata
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import bare
from benchmarks.growth import grow, unchanged
from storage.digest import sha256_file
from storage.home import Home

if TYPE_CHECKING:
    from tasks.ingest.pool import ExtractJob
    from tasks.readers.records import PageText

CORPUS = Path(__file__).resolve().parents[2] / "shared" / "corpus"
WORKERS = 2
NASTY_SECONDS = 20


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        reached: True if the goal is reached; None without a goal.
    """

    what: str
    ours: str
    theirs: str
    ratio: str
    goal: str
    reached: bool | None

    def __str__(self) -> str:
        mark = "" if self.reached is None else "yes" if self.reached else "**no**"
        return f"| {self.what} | {self.ours} | {self.theirs} | {self.ratio} | {self.goal} | {mark} |"


def _files(folder: Path, pattern: str) -> list[Path]:
    found = sorted(folder.glob(pattern))
    if not found:
        sys.exit(f"{folder} holds no {pattern}: name the corpus with --corpus FOLDER, or choose other rows with --only")
    return found


def born_digital(corpus: Path, rounds: int) -> Iterator[Row]:
    """Measure files to `documents` in the store, compared with two loops of pypdfium2."""
    from flows.ingest import read_documents
    from tasks.core.machine import Machine
    from tasks.core.run import Run
    from tasks.core.settings import Settings

    paths = _files(corpus / "documents", "*.pdf")
    _have_bytecode(paths[0])
    shares = bare.dealt(paths, [path.stat().st_size for path in paths], WORKERS)
    commands = [[sys.executable, "-m", "benchmarks.bare", "pdf", *share] for share in shares]
    ours, theirs, ratios, pages = [], [], [], 0
    for _ in range(rounds):
        seconds, printed = bare.in_parallel(commands)
        pages = sum(json.loads(text)["pages"] for text in printed)
        theirs.append(seconds)
        with tempfile.TemporaryDirectory() as place:
            home = Home.from_environment(place).create()
            started = time.perf_counter()
            with Machine(workers=WORKERS) as machine:
                read_documents(Run(home, machine), str(corpus / "documents"), Settings())
                ours.append(time.perf_counter() - started)
        ratios.append(theirs[-1] / ours[-1])
    ratio = statistics.median(ratios)
    mine, other = (f"{pages / statistics.median(seconds):.0f} pages/s" for seconds in (ours, theirs))
    beside = f"{other} (two bare pypdfium2 loops)"
    yield Row(
        "born-digital PDFs, files to documents in Markdown", mine, beside, f"{ratio:.2f}", ">= 0.50", ratio >= 0.5
    )


def _have_bytecode(path: Path) -> None:
    """Start a process of the pool once, so that its modules are compiled like those of an installation."""
    from tasks.ingest.pool import ExtractionPool, ExtractJob

    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as place, closing(ExtractionPool(1)) as pool:
        pool.submit(ExtractJob(path, sha256_file(path), path.suffix, Path(place, "0"))).result()


def scans(corpus: Path, rounds: int) -> Iterator[Row]:
    """Measure speed and errors on scans, compared with two Tesseract processes."""
    from tasks.ingest.pool import ExtractionPool, ExtractJob

    paths = _files(corpus / "scans", "*.jpg")
    digests = {path: sha256_file(path) for path in paths}
    ours, theirs, ratios = [], [], []
    read: dict[str, str] = {}
    peer: dict[str, str] = {}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as place:
            seconds, peer = _bare_tesseract(paths, Path(place))
        theirs.append(seconds)
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as place, closing(ExtractionPool(WORKERS)) as pool:
            # the largest first, as in a segment
            order = sorted(paths, key=lambda path: -path.stat().st_size)
            jobs = [ExtractJob(path, digests[path], path.suffix, Path(place, path.stem)) for path in order]
            futures = [pool.submit(job) for job in jobs]
            for future in futures:
                future.result()
            read = {job.path.name: "\n\n".join(page.text for page in _pages(job)) for job in jobs}
            ours.append(time.perf_counter() - started)
        ratios.append(theirs[-1] / ours[-1])
    ratio = statistics.median(ratios)
    yield Row(
        "OCR, 15 scans of 200 and 300 dpi", f"{len(paths) / statistics.median(ours):.3f} pages/s",
        f"{len(paths) / statistics.median(theirs):.3f} pages/s (two bare Tesseracts, one thread each)", f"{ratio:.2f}",
        ">= 0.95", ratio >= 0.95,
    )  # fmt: skip
    rates = {
        side: [_error_rate(texts[path.name], path) for path in paths]
        for side, texts in (("ours", read), ("bare", peer))
    }
    for name, figure, most in (("median", statistics.median, 0.0106), ("worst", max, 0.084)):
        mine, other = figure(rates["ours"]), figure(rates["bare"])
        goal = f"<= {100 * most:.2g} %"
        yield Row(f"their character error rate, {name}", f"{mine:.2%}", f"{other:.2%}", "", goal, mine <= most)


def _pages(job: ExtractJob) -> list[PageText]:
    from tasks.ingest.journal import read_document

    return next(read_document(job.out)).pages


def _bare_tesseract(paths: list[Path], folder: Path) -> tuple[float, dict[str, str]]:
    """Run two processes over a list of files each; returns the seconds, and the text by file."""
    shares = bare.dealt(paths, [path.stat().st_size for path in paths], WORKERS)
    commands = []
    for number, share in enumerate(shares):
        listed = folder / f"{number}.txt"
        listed.write_text("\n".join(share) + "\n")
        commands.append(["tesseract", str(listed), "-", "-l", "eng"])
    seconds, printed = bare.in_parallel(commands, {**os.environ, "OMP_THREAD_LIMIT": "1"})
    texts: dict[str, str] = {}
    for share, text in zip(shares, printed, strict=True):
        pages = text.split("\f")
        texts |= {Path(path).name: page for path, page in zip(share, pages, strict=False)}
    return seconds, texts


def _error_rate(text: str, scan: Path) -> float:
    """Return the edit distance to the reference divided by its length, after NFKC and folding of white space."""
    found, wanted = (_folded(part) for part in (text, scan.with_suffix(".txt").read_text(encoding="utf-8")))
    return _edit_distance(found, wanted) / max(1, len(wanted))


def _folded(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).split())


def _edit_distance(one: str, other: str) -> int:
    """Return the Levenshtein distance, with one row of the table in memory."""
    import numpy as np

    letters = np.frombuffer(other.encode("utf-32-le"), np.uint32)
    places = np.arange(len(letters) + 1)
    row = places.copy()
    for number, letter in enumerate(np.frombuffer(one.encode("utf-32-le"), np.uint32), start=1):
        best = np.concatenate([[number], np.minimum(row[1:] + 1, row[:-1] + (letters != letter))])
        row = np.minimum.accumulate(best - places) + places  # insertions
    return int(row[-1])


def nasty(corpus: Path) -> Iterator[Row]:
    """Measure hostile PDFs: no lost row, and a text layer in as many files as the better engine alone."""
    from tasks.ingest.pool import ExtractionPool, ExtractJob
    from tasks.readers.records import ExtractOptions

    paths = _files(corpus / "nasty", "*.pdf")
    started = time.perf_counter()
    options = ExtractOptions(ocr=False)
    with tempfile.TemporaryDirectory() as place, closing(ExtractionPool(WORKERS)) as pool:
        jobs = [
            ExtractJob(path, sha256_file(path), ".pdf", Path(place, str(number)), options)
            for number, path in enumerate(paths)
        ]
        futures = [pool.submit(job) for job in jobs]
        outcomes = [replace(future.result(), pages=_pages(job)) for future, job in zip(futures, jobs, strict=True)]
    seconds = time.perf_counter() - started
    with_text = sum(any(bare.prints(page.text) for page in outcome.pages) for outcome in outcomes)
    rows = sum(bool(outcome.status) and (outcome.status == "ok" or bool(outcome.reason)) for outcome in outcomes)
    with ThreadPoolExecutor(WORKERS) as threads:
        found = {
            engine: sum(threads.map(lambda path, engine=engine: _bare_has_text(engine, path), paths))
            for engine in ("pypdfium2", "pypdf")
        }
    best = max(found.values())
    what = f"nasty PDFs with text in the text layer, of {len(paths)}"
    beside = ", ".join(f"{engine} {count}" for engine, count in found.items())
    yield Row(what, str(with_text), beside, f"{with_text / best:.2f}", ">= 1.00", with_text >= best)
    yield Row("nasty PDFs with a row and a reason", str(rows), "", "", str(len(paths)), rows == len(paths))
    yield Row("nasty PDFs, all of them", f"{seconds:.1f} s", "", "", "", None)


def _bare_has_text(engine: str, path: Path) -> bool:
    import subprocess

    command = [sys.executable, "-m", "benchmarks.bare", "nasty", engine, str(path)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=NASTY_SECONDS, text=True)
    except subprocess.TimeoutExpired:
        return False
    return bool(done.returncode == 0 and json.loads(done.stdout)["text"])


def measures() -> Iterator[Row]:
    """Measure the speed of measures and policy on one core."""
    from benchmarks.measures import documents_per_second

    found = documents_per_second()
    yield Row("measures and policy, text of 5 kB", f"{found:.0f} documents/s/core", "", "", ">= 600", found >= 600)


def dedup() -> Iterator[Row]:
    """Measure near-duplicate clustering on two cores."""
    from benchmarks.dedup import run

    result = run()
    speed = result.documents_per_second
    yield Row(
        f"near-duplicates of {result.n:,} documents of 2 kB",
        f"{speed:.0f} documents/s",
        "",
        "",
        ">= 4,000",
        speed >= 4_000,
    )
    yield Row("their recall at 0.8, on a sample", f"{result.recall:.1%}", "", "", ">= 95 %", result.recall >= 0.95)
    yield Row("false pairs in it", str(result.false_pairs), "", "", "0", result.false_pairs == 0)


def unchanged_corpus() -> Iterator[Row]:
    """Measure an unchanged corpus, and one added file; the command on one cached file is the start-up."""
    found = unchanged(20_000)
    for what, seconds in (("unchanged", found.unchanged), ("one file added to the same", found.one_added)):
        beyond = seconds - found.start_up
        yield Row(
            f"20,000 files, {what}" if what == "unchanged" else what, f"{beyond:.1f} s beyond start-up",
            f"start-up {found.start_up:.1f} s", "", "<= 3 s" if what == "unchanged" else "<= 3 s more",
            beyond <= 3 if what == "unchanged" else seconds - found.unchanged <= 3,
        )  # fmt: skip


def growth(full: bool) -> Iterator[Row]:
    """Measure the cost per file, memory and task runs for growing numbers of small files."""
    rounds = {2_000: 5, 20_000: 3} | ({200_000: 1} if full else {})
    found = [grow(size, turns) for size, turns in rounds.items()]
    first = found[0].cpu_seconds_per_file
    for item in found:
        change = item.cpu_seconds_per_file / first
        yield Row(
            f"{item.n_files:,} small files: CPU time per file", f"{1000 * item.cpu_seconds_per_file:.2f} ms", "",
            f"{change:.2f}", "within 15 %", abs(change - 1) <= 0.15,
        )  # fmt: skip
        peak = item.peak_bytes / 10**6
        yield Row(f"{item.n_files:,} small files: largest process", f"{peak:.0f} MB", "", "", "<= 600 MB", peak <= 600)
        yield Row(
            f"{item.n_files:,} small files: task runs", str(item.task_runs), "", "", "<= 300", item.task_runs <= 300
        )


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="pdf,ocr,nasty,measures,dedup,unchanged,growth")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    chosen = parser.parse_args()
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "pdf": lambda: born_digital(chosen.corpus, chosen.rounds),
        "ocr": lambda: scans(chosen.corpus, chosen.rounds),
        "nasty": lambda: nasty(chosen.corpus),
        "measures": measures,
        "dedup": dedup,
        "unchanged": unchanged_corpus,
        "growth": lambda: growth(chosen.full),
    }
    print("| row | Sheepfold | baseline | ratio | goal | reached |\n|---|---|---|---|---|---|", flush=True)
    missed = 0
    for name in chosen.only.split(","):
        for row in parts[name]():
            print(row, flush=True)
            missed += row.reached is False
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
