"""CPU time of preparation, from refined texts to the dataset: of a whole corpus, and of one added document.

    python -m benchmarks.adding HOME SOURCE...      ingests, prepares, and prints the CPU time of preparing as JSON

Each preparation is a new process, like the command. Its start-up (imports, subprocesses) does not depend on the size of
the corpus, so it is measured alternately with a corpus of a hundred documents.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import texts

DOCUMENT_CHARS = 1_000
VOCABULARY = 8192
FEW_DOCUMENTS = 100


@dataclass(frozen=True)
class Adding:
    """CPU seconds, including start-up.

    Attributes:
        cold, added: preparation of the whole corpus, and after one added document (median).
        few_cold, few_added: the same for a hundred documents, as the start-up.
    """

    cold: float
    added: float
    few_cold: float
    few_added: float


class Corpus:
    """A corpus that grows by one document at a time.

    Args:
        folder: folder of its files and its home.
        n_documents: initial number of documents.
    """

    def __init__(self, folder: Path, n_documents: int) -> None:
        folder.mkdir()
        self._folder = folder
        long = texts.documents(int(1.5 * n_documents * DOCUMENT_CHARS))
        parts = (text[at : at + DOCUMENT_CHARS] for text in long for at in range(0, len(text), DOCUMENT_CHARS))
        path = folder / "corpus.parquet"
        pq.write_table(pa.table({"text": list(islice(parts, n_documents))}), path, 1_000)
        self._sources = [f"documents:{path}"]

    def add(self) -> None:
        """Add one document, in a new folder."""
        number = len(self._sources)
        place = self._folder / f"more{number}"
        place.mkdir()
        (place / "one.txt").write_text(f"One document more, number {number}: " + "words of its own " * 20)
        self._sources.append(str(place))

    def prepare(self) -> float:
        """Return the CPU seconds of preparing the present corpus."""
        command = [sys.executable, "-m", "benchmarks.adding", str(self._folder / "home"), *self._sources]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        return float(json.loads(done.stdout)["cpu_seconds"])


def add_documents(n_documents: int, rounds: int) -> Adding:
    """Prepare a corpus, and again after each added document."""
    with tempfile.TemporaryDirectory(prefix="sheepfold-adding-") as place:
        corpora = {n: Corpus(Path(place) / str(n), n) for n in (FEW_DOCUMENTS, n_documents)}
        cold = {n: corpus.prepare() for n, corpus in corpora.items()}
        more: dict[int, list[float]] = {n: [] for n in corpora}
        for _ in range(rounds):
            for n, corpus in corpora.items():
                corpus.add()
                more[n].append(corpus.prepare())
    return Adding(cold[n_documents], median(more[n_documents]), cold[FEW_DOCUMENTS], median(more[FEW_DOCUMENTS]))


def cpu_seconds() -> float:
    """Return the CPU time of this process and its running children, with their ended children."""
    own = os.times()
    total = own.user + own.system + own.children_user + own.children_system
    ticks = os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == os.getpid():
                total += sum(map(int, fields[11:15])) / ticks
    return total


def prepare(home: Path, sources: Sequence[str]) -> float:
    """Ingest and prepare; returns the CPU seconds of the latter."""
    from flows.ingest import ingest_documents
    from flows.prepare import prepare_documents
    from storage.home import Home
    from tasks.core.machine import Machine
    from tasks.core.run import Run
    from tasks.core.settings import load_settings, parse_assignments

    settings = load_settings(None, parse_assignments(["tokenizer.kind=bpe", f"tokenizer.vocab_size={VOCABULARY}"]))
    place = Home.from_environment(str(home)).create()
    with Machine(workers=2) as machine:
        run = Run(place, machine)
        ingested = ingest_documents(run, "\n".join(sources), settings)
        before = cpu_seconds()
        prepare_documents(run, settings, ingested)
        return cpu_seconds() - before


if __name__ == "__main__":
    print(json.dumps({"cpu_seconds": prepare(Path(sys.argv[1]), sys.argv[2:])}))
