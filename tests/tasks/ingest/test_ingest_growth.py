"""Ingestion of a corpus that changes: the cost follows the change, and a plan says beforehand what will be done."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from ingest_run import PER_SEGMENT, STAGES, Ingestion, home_at, ingest, plan, prose, write

from storage.home import Home


def write_texts(folder: Path) -> Path:
    """Twelve texts; returns the folder."""
    return write(folder, {f"{number:02}.txt": prose(number) for number in range(12)})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Twelve texts that a test may change."""
    return write_texts(tmp_path / "in")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same twelve texts; read only."""
    return write_texts(tmp_path_factory.mktemp("texts") / "in")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, texts: Path) -> Ingestion:
    """Their first ingestion; read only."""
    return ingest(home_at(tmp_path_factory.mktemp("first") / "home"), texts)


@pytest.fixture
def known(first: Ingestion, tmp_path: Path) -> Home:
    """A home that has seen the twelve texts: a copy of the first ingestion's."""
    return home_at(Path(shutil.copytree(Path(first.store.root).parent, tmp_path / "known")))


def test_the_stages_of_ingestion_are_reported_in_their_order(first: Ingestion) -> None:
    assert tuple(first.reports) == STAGES
    assert {name: report.computed for name, report in first.reports.items()} == {
        name: 12 if name in PER_SEGMENT else 1 for name in STAGES
    }


def test_one_added_archive_is_its_members_and_nothing_else(known: Home, source: Path, tmp_path: Path) -> None:
    members = write(tmp_path / "members", {f"{number}.txt": prose(100 + number) for number in range(3)})
    shutil.make_archive(str(source / "box"), "zip", members)
    ran = ingest(known, source)
    assert (ran.reports["extract"].computed, ran.reports["extract"].reused) == (1, 12)
    for name in ("normalise", "measure", "refine"):
        assert (ran.reports[name].computed, ran.reports[name].reused) == (3, 12), name


@pytest.mark.parametrize(
    ("setting", "computed"),
    [
        ("dedup.threshold=0.7", {"dedup": 1}),
        ("dedup.max_bucket=10", {"dedup": 1}),
        ("curate.salt=pepper", {"curate": 1}),
        ("curate.max_containment=0.1", {"curate": 1}),
        ("policy.preset=web", {"curate": 1}),
        ("refine.redact=email", {"refine": 12}),
        ("normalise.repair_mojibake=false", {"normalise": 12}),
    ],
)
def test_a_setting_computes_its_own_stage_and_where_nothing_changes_by_it_no_other(
    first: Ingestion, known: Home, texts: Path, setting: str, computed: dict[str, int]
) -> None:
    ran = ingest(known, texts, setting)
    assert ran.computed() == computed
    assert ran.reports["measure"].cached
    assert len(first.ingested.measured) == len(ran.ingested.measured)


def test_an_option_that_came_with_an_upgrade_reads_nothing_again(known: Home, texts: Path) -> None:
    for manifest in Path(known.store).glob("extract/*/manifest.json"):
        record = json.loads(manifest.read_text(encoding="utf-8"))
        del record["settings"]["options"]["lines"]
        manifest.write_text(json.dumps(record), encoding="utf-8")
    assert ingest(known, texts).reports["extract"].computed == 0
    assert ingest(known, texts, "extract.lines=true").reports["extract"].computed == 12


def cached(reports: dict) -> dict[str, bool]:
    return {name: report.cached for name, report in reports.items()}


@pytest.mark.parametrize("settings", [("dedup.threshold=0.6",), ("refine.redact=",)])
def test_a_plan_of_a_known_corpus_says_what_the_run_then_does(
    known: Home, texts: Path, settings: tuple[str, ...]
) -> None:
    planned = plan(known, texts, *settings)
    done = ingest(known, texts, *settings).reports
    changed = next((name for name in STAGES if not done[name].cached), None)
    until = STAGES[: STAGES.index(changed) + 1] if changed else STAGES
    # what lies behind a stage that is computed may turn out to be there: its result may be the one of before
    assert {name: planned[name].cached for name in until} == {name: done[name].cached for name in until}
    assert all(planned[name].cached <= done[name].cached for name in STAGES)


def test_a_refreshed_stage_is_computed_again_and_what_follows_is_not(
    first: Ingestion, known: Home, texts: Path
) -> None:
    for name in STAGES:
        again = ingest(known, texts, refresh=[name])
        assert again.computed() == {name: first.reports[name].computed}, name


def test_two_corpora_in_one_store_share_what_they_have_in_common(known: Home, tmp_path: Path) -> None:
    other = write(tmp_path / "other", {"copy.txt": prose(3), "own.txt": prose(70)})
    ran = ingest(known, other)
    for name in ("extract", "normalise", "measure"):
        assert ran.reports[name].computed == 1, name
