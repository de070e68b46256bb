"""The frozen evaluation set beside a corpus that grows: nothing that models are measured on is ever trained on."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
from ingest_run import edited, prose, write
from tiny_run import Ran, hash_share, home_at, run_prepare, tiny_settings

from storage.catalog import read_state
from storage.tables import read_columns
from tasks.upkeep.verify import check_split

SETTINGS = tiny_settings("tokenizer.kind=char")


def held_out(text: str) -> bool:
    """Return True if the hash of a text puts it into validation."""
    curate = SETTINGS.curate
    return hash_share(hashlib.sha256(text.encode()).hexdigest(), curate.salt) < curate.validation_share


def frozen(ran: Ran) -> list[str]:
    return read_columns(ran.folder(ran.prepared.evalset) / "documents.parquet", ["text"])["text"]


def problems(ran: Ran) -> list[str]:
    return check_split(ran.run.store, read_state(ran.run.store, "default")).problems


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Ran]:
    """Home, source and first run of a corpus with documents on both sides."""
    folder = tmp_path_factory.mktemp("begun")
    source = write(folder / "in", {f"{number:02}.txt": prose(number) for number in range(12)})
    ran = run_prepare(home_at(folder / "home"), source, SETTINGS)
    assert len(frozen(ran)) > 1
    return folder / "home", source, ran


@pytest.fixture
def grown(begun: tuple[Path, Path, Ran], tmp_path: Path) -> tuple[Path, Path, Ran]:
    """Copies of that home and source, which may grow, and the first run."""
    home, source, ran = begun
    return Path(shutil.copytree(home, tmp_path / "home")), Path(shutil.copytree(source, tmp_path / "in")), ran


def test_an_evaluation_document_that_a_new_training_document_quotes_leaves_the_evaluation_set(
    grown: tuple[Path, Path, Ran],
) -> None:
    home, source, before = grown
    quoted = frozen(before)[0]
    manual = next(
        text for seed in range(100, 200) if not held_out(text := f"{prose(seed, 900)}\n{quoted}\n{prose(seed + 100)}")
    )
    after = run_prepare(home_at(home), write(source, {"manual.txt": manual}), SETTINGS)
    assert quoted not in frozen(after)
    assert problems(after) == []


def test_an_evaluation_document_with_a_near_duplicate_in_training_leaves_the_evaluation_set(
    grown: tuple[Path, Path, Ran],
) -> None:
    home, source, before = grown
    original = frozen(before)[0]
    # longer, so that it is the one that is kept
    twin = next(
        text for seed in range(200) if not held_out(text := f"{edited(original, seed, 1)} and {prose(seed, 5)}")
    )
    after = run_prepare(home_at(home), write(source, {"twin.txt": twin}), SETTINGS)
    assert original not in frozen(after)
    assert problems(after) == []


@pytest.mark.full
def test_an_evaluation_document_that_was_removed_and_then_quoted_leaves_the_evaluation_set(
    grown: tuple[Path, Path, Ran],
) -> None:
    """It has no row any more that could say so: only its text can."""
    home, source, before = grown
    quoted = frozen(before)[0]
    for path in source.iterdir():
        if path.read_text() == quoted:
            path.unlink()
    manual = next(text for seed in range(100, 200) if not held_out(text := f"{prose(seed, 900)}\n{quoted}\n"))
    after = run_prepare(home_at(home), write(source, {"manual.txt": manual}), SETTINGS)
    assert quoted not in frozen(after)
    assert problems(after) == []


def test_new_documents_that_have_nothing_to_do_with_it_leave_the_evaluation_set_as_it_is(
    grown: tuple[Path, Path, Ran],
) -> None:
    home, source, before = grown
    more = {f"new-{number}.txt": prose(number) for number in range(52, 57)}
    assert [held_out(text) for text in more.values()].count(True) == 1
    after = run_prepare(home_at(home), write(source, more), SETTINGS)
    assert after.prepared.evalset == before.prepared.evalset
    assert after.run.notes == before.run.notes


@pytest.mark.full
def test_a_small_evaluation_set_is_frozen_again_once_the_split_gives_twice_its_text(
    grown: tuple[Path, Path, Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, source, before = grown
    more = {f"new-{number}.txt": prose(number) for number in range(50, 90)}
    with monkeypatch.context() as patched:
        patched.setattr("flows.prepare.ENOUGH_BYTES", 100)
        enough = run_prepare(home_at(home), write(source, more), SETTINGS)
    assert enough.prepared.evalset == before.prepared.evalset
    after = run_prepare(home_at(home), source, SETTINGS)
    assert len(frozen(after)) >= 2 * len(frozen(before))
    assert set(frozen(before)) <= set(frozen(after))
    assert any("so it is frozen again" in note for note in after.run.notes)
    assert run_prepare(home_at(home), source, SETTINGS).prepared.evalset == after.prepared.evalset
    assert problems(after) == []


@pytest.mark.full
def test_of_a_corpus_that_grows_only_what_is_new_is_compared_with_the_evaluation_set(
    grown: tuple[Path, Path, Ran],
) -> None:
    home, source, before = grown
    assert before.computed()["evalset_overlap"] == 12
    after = run_prepare(home_at(home), write(source, {"new.txt": prose(50)}), SETTINGS)
    assert after.computed()["evalset_overlap"] == 1
    assert after.computed()["evalset_leaks"] == 1
