"""A tokeniser from elsewhere: looked at before anything runs, and not needed any more once the corpus has it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from ingest_run import prose, settings_of, write
from tiny_run import run_prepare

from flows.plan import plan_retraining
from storage.errors import UserError
from storage.home import Home
from storage.tables import read_rows
from tasks.core.run import Run
from tasks.core.settings import Settings
from tasks.tokens.tokenizer_kinds import ByteTokenizer


def asked(path: Path, *more: str) -> Settings:
    return settings_of("model.preset=tiny", "tokenizer.kind=file", f"tokenizer.file={path}", *more)


def test_a_pinned_tokeniser_outlives_its_file(home: Home, tmp_path: Path) -> None:
    source = write(tmp_path / "in", {"a.txt": prose(1), "b.txt": prose(2)})
    path = tmp_path / "bytes.json"
    ByteTokenizer().save(path)
    before = run_prepare(home, source, asked(path))
    path.unlink()
    after = run_prepare(home, source, asked(path))
    assert after.reports["tokenizer"].cached and after.reports["dataset"].cached
    assert before.reports["tokenizer"].computed == 1
    with pytest.raises(UserError, match="there is no file"):
        run_prepare(home, source, asked(path, "tokenizer.reserved=3"))


def test_the_lines_of_a_file_are_samples_in_the_ids_of_a_table(home: Home, tmp_path: Path) -> None:
    lines = [f"line {number}: machine learning is cool." for number in range(20)]
    source = write(tmp_path / "in", {"a.txt": "\n\n".join(lines)})
    table = tmp_path / "characters.json"
    table.write_text(json.dumps({character: 3 * ord(character) for character in map(chr, range(32, 127))}))
    wanted = ("extract.lines=true", "policy.preset=off", "curate.near_duplicates=keep", "curate.max_containment=1")
    ran = run_prepare(home, source, asked(table, "model.max_seq_len=64", *wanted))
    (shard,) = ran.prepared.shards
    ids = np.load(ran.folder(shard) / "tokens.npy").tolist()
    rows = read_rows(ran.folder(shard) / "tokens.parquet")
    read = [ids[row["offset"] :][: row["length"]] for row in rows]
    assert sorted(read) == sorted([2, *(3 * ord(character) for character in line), 3] for line in lines)
    record = json.loads((ran.folder(ran.prepared.dataset) / "dataset.json").read_text())
    assert sum(split["sequences"] for split in record["splits"].values()) == len(lines)


@pytest.mark.parametrize(("content", "told"), [(None, "there is no file"), ("{", "it is not JSON")])
def test_a_file_of_no_use_is_told_before_anything_runs(
    home: Home, tmp_path: Path, content: str | None, told: str
) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_text(content)
    planner = Run(home, plan=True)
    with pytest.raises(UserError, match=told):
        plan_retraining(planner, "", asked(path))
    assert not planner.reports
