"""Share of a corpus that changed since its latest model; each change is announced once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tiny_run import Ran, copy_of_store, direct_run, home_at, run_prepare, text_of, tiny_settings, write_texts

from flows.ingest import ingest_documents
from flows.report import publish
from storage.home import Home
from storage.manifest import ArtifactRef
from storage.store import Store, open_store
from tasks.lineage.changes import HOLDS, changed_share, record_announcement, unannounced_share
from tasks.upkeep.forget import forget


@pytest.mark.parametrize(
    ("now", "before", "share"),
    [
        ("abcd", "abcd", 0),
        ("abcde", "abcd", 0.25),
        ("abc", "abcd", 0.25),
        ("abce", "abcd", 0.5),
        ("a", "", 1),
        ("", "", 0),
    ],
)
def test_documents_that_came_and_went_count_against_those_there_were(now: str, before: str, share: float) -> None:
    assert changed_share(set(now), set(before)) == share


def ingested(home: Home, source: Path) -> tuple[Store, ArtifactRef]:
    """The snapshot of a folder as it is now, the corpus standing at it."""
    with direct_run(home) as run:
        found = ingest_documents(run, str(source), tiny_settings())
        publish(run)
    return open_store(home.store), found.snapshot


def test_a_corpus_without_a_model_has_changed_wholly_until_that_is_told(tmp_path: Path) -> None:
    home = home_at(tmp_path / "home")
    source = write_texts(tmp_path / "texts", range(4))
    store, now = ingested(home, source)
    assert unannounced_share(store, "default", now) == 1
    record_announcement(store, "default", now)
    assert unannounced_share(store, "default", now) == 0


def test_changes_add_up_and_copies_are_none(tiny: Ran, tmp_path: Path) -> None:
    home = copy_of_store(tiny, tmp_path / "home")
    source = write_texts(tmp_path / "texts")
    store, now = ingested(home, source)
    assert unannounced_share(store, "default", now) == 0  # what the model was trained on, at another place
    (source / "copy.txt").write_text(text_of(3))
    assert unannounced_share(*with_corpus(ingested(home, source))) == 0
    (source / "new-1.txt").write_text(text_of(101))
    assert unannounced_share(*with_corpus(ingested(home, source))) == pytest.approx(1 / 12)
    (source / "new-2.txt").write_text(text_of(102))
    store, now = ingested(home, source)
    assert unannounced_share(store, "default", now) == pytest.approx(2 / 12)
    record_announcement(store, "default", now)
    (source / "new-3.txt").write_text(text_of(103))
    assert unannounced_share(*with_corpus(ingested(home, source))) == pytest.approx(1 / 14)


def with_corpus(found: tuple[Store, ArtifactRef]) -> tuple[Store, str, ArtifactRef]:
    return found[0], "default", found[1]


def test_what_was_told_lapses_when_no_training_has_come_of_it_and_none_is_at_work(tmp_path: Path) -> None:
    home = home_at(tmp_path / "home")
    store, now = ingested(home, write_texts(tmp_path / "texts", range(4)))
    told = datetime(2026, 3, 1, 12, tzinfo=UTC)
    record_announcement(store, "default", now, told)
    later = told + HOLDS + timedelta(minutes=1)
    assert unannounced_share(store, "default", now, told + HOLDS) == 0
    assert unannounced_share(store, "default", now, later) == 1
    with store.workspace("train", "0" * 64):
        assert unannounced_share(store, "default", now, later) == 0


def test_a_training_that_came_of_what_was_told_outlasts_it(tiny: Ran, tmp_path: Path) -> None:
    home = copy_of_store(tiny, tmp_path / "home")
    store, now = ingested(home, write_texts(tmp_path / "texts"))
    told = datetime(2026, 3, 1, 12, tzinfo=UTC)
    record_announcement(store, "default", now, told)
    assert unannounced_share(store, "default", now, told + 2 * HOLDS) == 0


@pytest.mark.full
def test_after_a_forgetting_the_share_is_that_of_the_documents_that_went_and_came(tiny: Ran, tmp_path: Path) -> None:
    home = copy_of_store(tiny, tmp_path / "home")
    source = write_texts(tmp_path / "texts")
    assert unannounced_share(*with_corpus(ingested(home, source))) == 0
    forget(home, open_store(home.store), "text-03.txt", "", "default", dry_run=False)
    assert unannounced_share(*with_corpus(ingested(home, source))) == pytest.approx(1 / 12)
    (source / "new-1.txt").write_text(text_of(101))
    store, now = ingested(home, source)
    assert unannounced_share(store, "default", now) == pytest.approx(2 / 12)
    record_announcement(store, "default", now)
    forget(home, open_store(home.store), "new-1.txt", "", "default", dry_run=False)
    assert unannounced_share(*with_corpus(ingested(home, source))) == pytest.approx(1 / 12)


@pytest.mark.full
def test_where_nobody_noted_what_was_read_before_a_forgetting_changes_count_from_then_on(
    tiny: Ran, tmp_path: Path
) -> None:
    home = copy_of_store(tiny, tmp_path / "home")
    source = write_texts(tmp_path / "texts")
    ingested(home, source)
    forget(home, open_store(home.store), "text-03.txt", "", "default", dry_run=False)
    assert unannounced_share(*with_corpus(ingested(home, source))) == 0
    (source / "new-1.txt").write_text(text_of(101))
    assert unannounced_share(*with_corpus(ingested(home, source))) == pytest.approx(1 / 11)


def test_documents_that_were_prepared_and_gave_the_dataset_of_the_model_count_as_read(
    tiny: Ran, tmp_path: Path
) -> None:
    home = copy_of_store(tiny, tmp_path / "home")
    source = write_texts(tmp_path / "texts")
    (source / "dropped.txt").write_text("a " * 2_000)
    assert unannounced_share(*with_corpus(ingested(home, source))) == pytest.approx(1 / 12)
    prepared = run_prepare(home, source).prepared
    assert prepared.dataset.digest == tiny.prepared.dataset.digest
    assert unannounced_share(*with_corpus(ingested(home, source))) == 0
