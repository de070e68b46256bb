"""The page of the gates, of made up and of real verdicts: whole, with their numbers, and words that stay words."""

from __future__ import annotations

from pathlib import Path

import pytest
from evaluation_report_samples import HOSTILE
from gates_samples import bare, rich
from html_tags import Tags, assert_alone
from tiny_run import Ran, copy_of_store, direct_run, run_whole, tiny_settings

from flows.promote import promote_model
from tasks.evaluation.gates import GATES
from tasks.report.gates import TITLES, gates_page, write
from tasks.report.page import Outcome
from tasks.report.queries import Row


@pytest.mark.parametrize("figures", [rich(), bare()], ids=["rich", "bare"])
def test_the_page_is_whole_fetches_nothing_and_runs_nothing(figures: Row) -> None:
    page, summary = gates_page(figures, "fold")
    assert_alone(page)
    assert len(summary.splitlines()) <= 60


def test_words_of_documents_are_only_words() -> None:
    page, summary = gates_page(rich(), "<b>fold")
    assert "<img" not in page and "<b>fold" not in page
    assert "\\<img" in summary
    for text in (page, summary):
        assert not set(text) & {"\u202e", "\x00"}
    assert HOSTILE.split("\n")[0] in " ".join(Tags(page).words)


def test_the_page_of_a_real_promotion_says_why_and_is_drawn_once(
    tiny: Ran, tiny_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.evaluation.compare.MIN_SLICE_BYTES", 0)  # its documents are short
    home = copy_of_store(tiny, tmp_path / "home")
    worse = run_whole(home, tiny_source, tiny_settings("train.max_steps=2"))
    with direct_run(home) as run:
        for ran in (tiny, worse):
            assert ran.checkpoint is not None
            done, _ = promote_model(run, ran.checkpoint, ran.evaluation)
        outcome = Outcome(run, promoted=done)
        made = write(outcome)
        assert made is not None
        (page,) = made.files
        drawn = page.stat().st_mtime_ns
        assert write(outcome) == made
        assert page.stat().st_mtime_ns == drawn
    words = " ".join(Tags(page.read_text(encoding="utf-8")).words)
    assert page == home.reports_of("default") / "gates.html"
    assert f"Version 2 is challenger: {done.reason}." in words
    for gate, item in zip(GATES, done.verdicts, strict=True):
        assert TITLES[gate.name] in words
        assert item.sentence in words
    assert "kind text" in words, "the slices stand beside the champion's"
