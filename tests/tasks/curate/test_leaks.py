"""What stands on both sides, over segments: the arrays of many are taken without their files staying open."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from dedup_samples import prose

from tasks.text import signatures

N_SHELVES = 200
DESCRIPTORS = 128

CHILD = """
import resource, sys
from pathlib import Path
import pyarrow as pa
import pyarrow.parquet as pq
from tasks.curate.leaks import SegmentSignatures, contained, repeated_paragraphs

folder, n, limit = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
shelves = []
for number in range(n):
    names = [f"{number}-{place}" for place in range(3)]
    documents = folder / f"documents-{number}"
    documents.mkdir()
    texts = [(folder / f"{place}.txt").read_text() for place in range(3)]
    pq.write_table(pa.table({"doc_id": names, "text": texts}), documents / "documents.parquet")
    measures = folder / f"measures-{number}"
    measures.mkdir()
    pq.write_table(pa.table({"doc_id": names}), measures / "measures.parquet")
    for file in (folder / "signed").iterdir():
        (measures / file.name).hardlink_to(file)
    shelves.append(SegmentSignatures(measures, documents, dict.fromkeys(names)))

resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
if sys.argv[4] == "grams":
    held = [shelf.grams(range(3)) for shelf in shelves]
    assert len({len(part.values) for part in held}) == 1
    sides = {name: "validation" if name.endswith("-0") else "train" for shelf in shelves for name in shelf.doc_ids}
    in_training, in_validation = contained(shelves, sides)
    assert set(in_training.values()) == {0.0} and len(in_validation) == 2 * n
else:
    order = {name: place for place, name in enumerate(name for shelf in shelves for name in shelf.doc_ids)}
    repeated = list(repeated_paragraphs(shelves, order))
    assert len(repeated) == 3 * (n - 1) and all(emptied for _, _, emptied in repeated)
print("done")
"""


@pytest.mark.parametrize("what", ["grams", "paragraphs"])
def test_the_files_of_many_segments_are_not_held_open(what: str, tmp_path: Path) -> None:
    texts = [prose(60, seed).replace("\n", " ") for seed in range(3)]
    for place, text in enumerate(texts):
        (tmp_path / f"{place}.txt").write_text(text)
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
