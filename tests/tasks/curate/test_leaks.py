"""Text on both sides of a split, over many segments, without keeping their files open."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from dedup_samples import prose

from tasks.curate.corpus import Corpus
from tasks.curate.leaks import SegmentSignatures, contained, repeated_paragraphs
from tasks.text.minhash import signatures

N_SHELVES = 200
DESCRIPTORS = 128

CHILD = """
import resource, sys
from pathlib import Path
import numpy as np
from tasks.curate.corpus import Corpus
from tasks.curate.leaks import SegmentSignatures, contained, repeated_paragraphs

folder, n, limit = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
shelves = []
for number in range(n):
    measures = folder / f"measures-{number}"
    measures.mkdir()
    for file in (folder / "signed").iterdir():
        (measures / file.name).hardlink_to(file)
    shelves.append(SegmentSignatures(measures, folder, np.arange(3), np.arange(3) + 3 * number))

resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
if sys.argv[4] == "grams":
    held = [shelf.grams() for shelf in shelves]
    assert len({len(part.values) for part in held}) == 1
    in_training, in_validation = contained(shelves[:1], lambda: shelves[1:], limit=0.99)
    assert len(in_training) == 3 and len(in_validation) == 3 * (n - 1)
else:
    with Corpus() as corpus:
        repeated_paragraphs(corpus, shelves)
        assert corpus.sql("select count(distinct number) from repeated").fetchall() == [(3 * (n - 1),)]
        assert corpus.sql("select count(*), min(number) from whole").fetchall() == [(3 * (n - 1), 3)]
print("done")
"""


@pytest.mark.parametrize("what", ["grams", pytest.param("paragraphs", marks=pytest.mark.full)])
def test_the_files_of_many_segments_are_not_held_open(what: str, tmp_path: Path) -> None:
    texts = [prose(60, seed).replace("\n", " ") for seed in range(3)]
    (tmp_path / "signed").mkdir()
    signatures(texts).save(tmp_path / "signed")
    root = str(Path(__file__).resolve().parents[3])
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), str(N_SHELVES), str(DESCRIPTORS), what],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"


def test_a_paragraph_counts_as_repeated_in_all_documents_but_the_first(tmp_path: Path) -> None:
    shared, alone = prose(40, 1).replace("\n", " "), prose(40, 2).replace("\n", " ")
    signatures([f"{shared}\n\n{shared}", f"{alone}\n\n{shared}", shared]).save(tmp_path)
    with Corpus() as corpus:
        numbers = np.array([7, 3, 9])  # the second document is the first by its number
        repeated_paragraphs(corpus, [SegmentSignatures(tmp_path, tmp_path, np.arange(3), numbers)])
        repeated = corpus.sql("select number, start from repeated order by all").fetchall()
        whole = corpus.sql("select number from whole order by all").fetchall()
    assert repeated == [(7, 0), (7, len(shared) + 2), (9, 0)]
    assert whole == [(7,), (9,)]


@pytest.mark.parametrize("grams_at_once", [1, 100, 1_000])
def test_shares_are_the_same_however_few_runs_are_held_at_a_time(tmp_path: Path, grams_at_once: int) -> None:
    page, quoted = prose(300, 1), prose(90, 2)
    sides = [[page, prose(200, 3), f"{quoted} {prose(60, 4)}"], [f"{prose(500, 5)} {page}", quoted, prose(300, 6)]]
    held_out, trained = [], []
    for texts, segments in zip(sides, (held_out, trained), strict=True):
        folder = tmp_path / f"{len(texts[0])}"
        folder.mkdir()
        signatures(texts).save(folder)
        segments.append(SegmentSignatures(folder, folder, np.arange(3), np.arange(3)))
    found = contained(held_out, lambda: trained, 0.2, grams_at_once)
    assert found == contained(held_out, lambda: trained, 0.2)
    assert [table["number"].to_pylist() for table in found] == [[0, 2], [0, 1]]
