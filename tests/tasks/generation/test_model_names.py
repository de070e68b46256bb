"""Names of models: registered ones first, then folders, and a sentence for what is neither."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_run import Ran, copy_of_store, direct_run

from flows.promote import promote_model
from storage.home import Home
from tasks.core.run import Run
from tasks.registry.models import UnknownModel, checkpoint_of, resolve_version


@pytest.fixture(scope="module")
def home(tiny: Ran, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home whose only version, 1, is champion."""
    target = copy_of_store(tiny, tmp_path_factory.mktemp("names") / "home")
    assert tiny.checkpoint is not None
    assert tiny.evaluation is not None
    with direct_run(target) as run:
        promote_model(run, tiny.checkpoint, tiny.evaluation)
    return target


@pytest.fixture
def run(home: Home) -> Iterator[Run]:
    with direct_run(home) as opened:
        yield opened


@pytest.mark.parametrize("name", ["champion", "1"])
def test_a_folder_does_not_hide_a_registered_model_of_its_name(
    name: str, run: Run, tiny: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    assert checkpoint_of(run, name) == tiny.checkpoint


@pytest.mark.parametrize("name", ["mine", "2", "challenger", "./champion", "it's"])
def test_a_folder_is_taken_in_where_no_model_is_registered_under_its_name(
    name: str, run: Run, tiny: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tiny.checkpoint is not None
    shutil.copytree(tiny.folder(tiny.checkpoint), tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert checkpoint_of(run, name).stage == "bundle"


@pytest.mark.parametrize(
    "name", ["it's", "²", "a b", "a' or run_id = 'b", "models:/sheepfold/2", "models:/", "", "../x"]
)
def test_what_leads_nowhere_is_told_in_a_sentence(
    name: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UnknownModel, match="no model"):
        resolve_version(run, name)
    if name:
        with pytest.raises(UnknownModel, match="no model"):
            checkpoint_of(run, name)


def test_every_way_to_name_a_registered_model_leads_to_it(run: Run) -> None:
    version = resolve_version(run, "champion")
    names = ["1", "models:/sheepfold/1", "models:/sheepfold@champion", version.run_id]
    assert [resolve_version(run, name) for name in names] == [version] * 4
