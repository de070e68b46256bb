"""A tokeniser from elsewhere: looked at before anything runs, and not needed any more once the corpus has it."""

from __future__ import annotations

from pathlib import Path

import pytest
from ingest_run import prose, settings_of, write
from tiny_run import run_prepare

from flows.plan import plan_retraining
from storage.errors import UserError
from storage.home import Home
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
