"""Cost of one per cent of new documents: CPU time of `prepare` (with ingestion) compared with the cold corpus.

    python -m benchmarks.one_percent [--full]

Both are the whole command line with all its processes. A run without a change is measured between the others, as the
fixed cost of every run, and is reported with the share. The documents are distinct pieces of the installed packages'
text, one per file: all of them as plain text, which is cheap to read, and as a mix of seven text files, two PDFs and
one scan of every ten.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from statistics import median

from benchmarks import texts
from benchmarks.table import Row, report
from tasks.sources.sample import add_grain, draw_page, image_pdf, text_pdf, wrap_pages

GOAL = 0.05
TEXTS, FULL_TEXTS = 5_000, 20_000
OFFICE, FULL_OFFICE = 1_000, 4_000
DOCUMENT_CHARS = 2_000
PDF_PAGE, SCAN_PAGE = (90, 50), (60, 34)  # characters of a line, lines of a page
FILES_PER_FOLDER = 500
ROUNDS = 3


def pieces(n_documents: int) -> Iterator[str]:
    """Yield distinct texts of one length, from the installed packages."""
    long = texts.documents(int(1.5 * n_documents * DOCUMENT_CHARS))  # ends of files are left out
    cut = (text[at : at + DOCUMENT_CHARS] for text in long for at in range(0, len(text), DOCUMENT_CHARS))
    whole = dict.fromkeys(piece for piece in cut if len(piece) == DOCUMENT_CHARS)
    if len(whole) < n_documents:
        raise RuntimeError(f"the packages gave {len(whole):,} texts, {n_documents:,} were asked for")
    yield from islice(whole, n_documents)


def as_text(number: int, text: str) -> tuple[str, bytes]:
    """Return suffix and bytes of a plain text file."""
    return ".txt", text.encode()


def as_office(number: int, text: str) -> tuple[str, bytes]:
    """Return suffix and bytes: of ten files one scan, two PDFs with a text layer, seven plain texts."""
    place = number % 10
    if place < 7:
        return as_text(number, text)
    width, height = PDF_PAGE if place < 9 else SCAN_PAGE
    pages = wrap_pages([" ".join(text.split())], width, height)
    title = f"Document {number}"
    if place < 9:
        return ".pdf", text_pdf(title, pages)
    return ".pdf", image_pdf(title, [add_grain(draw_page(lines), number) for lines in pages])


def write_files(folder: Path, documents: Iterable[str], made: Callable[[int, str], tuple[str, bytes]]) -> None:
    """Write one file per text, with an old modification time: recently written files are hashed again."""
    long_ago = time.time() - 3600
    for number, text in enumerate(documents):
        ending, content = made(number, text)
        path = folder / f"{number // FILES_PER_FOLDER:04d}" / f"{number:06d}{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (long_ago, long_ago))


def cpu_of_prepare(source: Path, home: Path) -> float:
    """Return the CPU seconds of the command and its descendants.

    Raises:
        RuntimeError: if it fails.
    """
    command = [sys.executable, "-m", "flows.cli", "prepare", str(source), "--home", str(home), "--json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:])} ended with exit code {done.returncode}: {done.stderr[-2000:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def one_percent_rows(full: bool = False) -> Iterator[Row]:
    """Yield rows for both kinds of corpus: the share of the cold CPU time, and the fixed cost of a run."""
    yield from _rows("texts of 2 kB", FULL_TEXTS if full else TEXTS, as_text)
    yield from _rows("texts, PDFs and scans (7:2:1) of 2 kB", FULL_OFFICE if full else OFFICE, as_office)


def _rows(what: str, n_documents: int, made: Callable[[int, str], tuple[str, bytes]]) -> Iterator[Row]:
    n_new = n_documents // 100
    with tempfile.TemporaryDirectory(prefix="sheepfold-percent-") as place:
        source, home = Path(place) / "files", Path(place) / "home"
        texts_left = pieces(n_documents + ROUNDS * n_new)
        write_files(source / "old", islice(texts_left, n_documents), made)
        cold = cpu_of_prepare(source, home)
        idle, grown = [], []
        for turn in range(ROUNDS):
            idle.append(cpu_of_prepare(source, home))
            write_files(source / f"new{turn}", islice(texts_left, n_new), made)
            grown.append(cpu_of_prepare(source, home))
    nothing, more = median(idle), median(grown)
    yield Row(
        f"1 % new documents: ingest and prepare, beside {n_documents:,} {what} cold",
        f"{more:.1f} s CPU for {n_new}",
        f"{cold:.1f} s CPU",
        more / cold,
        GOAL,
        at_most=True,
    )
    yield Row(
        "of these: a run with nothing new, which is start-up and a look at every file",
        f"{nothing:.1f} s CPU",
        f"{cold:.1f} s CPU",
        nothing / cold,
    )
    yield Row(
        "1 % new documents without what every run costs, on both sides",
        f"{more - nothing:.2f} s CPU",
        f"{cold - nothing:.1f} s CPU",
        (more - nothing) / (cold - nothing),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="four times as many documents")
    sys.exit(0 if report(one_percent_rows(parser.parse_args().full)) else 1)
