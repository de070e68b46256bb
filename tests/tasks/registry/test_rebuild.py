"""A lost or older MLflow database: nothing is promoted into it, and `rebuild-tracking` restores models and aliases."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from registered import WORSE, Promoted, aliases, promote
from tiny_run import direct_run, home_at, run_whole, tiny_settings

from flows.stages import stage_facts
from storage.errors import UserError
from storage.home import Home
from storage.registry import Registry, read_models
from storage.store import open_store
from storage.tracking import Tracking
from tasks.registry import promote as module
from tasks.registry.models import checkpoint_of, ensure_training_run, version_of
from tasks.registry.promote import rebuild, roll_back
from tasks.upkeep.garbage import collect_garbage

LACKS = "lacks the champion .* of corpus default, .* `sheepfold rebuild-tracking`"


class Killed(BaseException):
    """Stands for the end of the process."""


def lose(home: Home) -> None:
    (home.path / "mlflow.db").unlink()
    shutil.rmtree(home.path / "mlflow-artifacts")


def contents(home: Home) -> dict[str, Any]:
    """Aliases, tags, card and figures of each version in MLflow, by the digest of its checkpoint."""
    tracking = Tracking(home)
    found: dict[str, Any] = {}
    for version in Registry(tracking, "default").versions():
        run = tracking.client.get_run(version.run_id)
        points = tracking.client.get_logged_model(version.model_id).metrics or []
        found[version.checkpoint.digest] = {
            "aliases": version.aliases,
            "tags": {name: text for name, text in version.tags.items() if name != "sheepfold.attempt"},
            "card": tracking.client.get_model_version("sheepfold", version.version).description,
            "figures": {
                (point.key, point.value, point.dataset_name, point.dataset_digest)
                for point in points
                if not point.key.startswith("system/")
            },
            "metrics": {name: value for name, value in run.data.metrics.items() if not name.startswith("system/")},
            "params": run.data.params,
            "datasets": {(item.dataset.name, item.dataset.digest) for item in run.inputs.dataset_inputs},
            "curve": [
                (point.step, point.value) for point in tracking.client.get_metric_history(run.info.run_id, "train/loss")
            ],
        }
    return found


def test_a_lost_database_is_rebuilt_with_aliases_cards_curves_and_figures(promoted: Promoted, home: Home) -> None:
    before = contents(promoted.home)
    assert sorted(item["aliases"] for item in before.values()) == [("challenger",), ("champion",), ("previous",)]
    assert all(item["figures"] and item["curve"] and item["datasets"] for item in before.values())
    lose(home)
    done = rebuild(home, open_store(home.store))
    assert (done.runs, len(done.versions), done.lost) == (3, 3, [])
    assert contents(home) == before


def test_where_nothing_is_lost_nothing_is_written(home: Home) -> None:
    before = contents(home)
    rebuild(home, open_store(home.store))
    assert contents(home) == before


@pytest.mark.parametrize("database", [pytest.param("lost", marks=pytest.mark.full), "older"])
def test_nothing_is_promoted_or_taken_back_without_the_recorded_champion(
    home: Home, promoted: Promoted, tiny_source: Path, database: str
) -> None:
    if database == "older":  # its champion is a worse model
        shutil.copyfile(home.path / "older.db", home.path / "mlflow.db")
    else:
        lose(home)
    before = aliases(home)
    worse = run_whole(home, tiny_source, tiny_settings("train.max_steps=3"))
    for ran in (worse, promoted.better):
        with pytest.raises(UserError, match=LACKS):
            promote(home, ran)
    with pytest.raises(UserError, match=LACKS):
        roll_back(home, open_store(home.store), "default")
    with direct_run(home) as run:
        assert checkpoint_of(run, "champion") == promoted.better.checkpoint
        with pytest.raises(UserError, match=LACKS.replace("champion", "model")):
            version_of(run, promoted.better.checkpoint)
    assert aliases(home) == before
    rebuild(home, open_store(home.store))
    assert promote(home, worse).alias == "challenger"
    with direct_run(home) as run:
        assert checkpoint_of(run, "champion") == promoted.better.checkpoint


@pytest.mark.full
@pytest.mark.parametrize("database", ["lost", "older"])
@pytest.mark.parametrize("step", ["_published", "_sync"])
def test_a_rebuild_that_is_killed_promotes_no_worse_model_and_can_be_repeated(
    home: Home, promoted: Promoted, tiny_source: Path, monkeypatch: pytest.MonkeyPatch, database: str, step: str
) -> None:
    if database == "older":
        shutil.copyfile(home.path / "older.db", home.path / "mlflow.db")
    else:
        lose(home)
    calls = 2 if step == "_published" else 0
    original = getattr(module, step)

    def killed(*arguments: Any) -> Any:
        nonlocal calls
        if calls == 0:
            raise Killed
        calls -= 1
        return original(*arguments)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(module, step, killed)
        rebuild(home, open_store(home.store))
    worse = run_whole(home, tiny_source, tiny_settings(*WORSE))
    if step == "_published":  # the champion is the third and not there yet
        with pytest.raises(UserError, match=LACKS):
            promote(home, worse)
    else:
        assert promote(home, worse).alias == "challenger"
    rebuild(home, open_store(home.store))
    assert aliases(home) == {"champion": "3", "previous": "1", "challenger": "2"}


def test_an_alias_that_was_moved_in_mlflow_alone_makes_no_worse_model_champion(home: Home, tiny_source: Path) -> None:
    worse = run_whole(home, tiny_source, tiny_settings(*WORSE))
    Tracking(home).client.set_registered_model_alias("sheepfold", "champion", "2")
    assert promote(home, worse).alias == "challenger"
    assert aliases(home) == {"champion": "3", "previous": "1", "challenger": "2"}


def test_a_version_that_a_person_deleted_hinders_no_promotion(home: Home, promoted: Promoted) -> None:
    registry = Registry(Tracking(home), "default")
    registry.client.delete_model_version(registry.name, "2")
    assert promote(home, promoted.better).alias == "champion"
    assert aliases(home) == {"champion": "3", "previous": "1"}


@pytest.mark.full
def test_a_run_that_a_person_deleted_is_not_made_again(home: Home, tiny_source: Path) -> None:
    ran = run_whole(home, tiny_source, tiny_settings("train.max_steps=3"))
    assert ran.checkpoint is not None
    with direct_run(home) as run:
        tracking = run.tracking
        tracking.client.delete_run(ensure_training_run(run, ran.checkpoint))
    assert rebuild(home, open_store(home.store)).runs == 3
    assert Tracking(home).deleted_train_keys() == {ran.checkpoint.key}


@pytest.mark.full
def test_a_champion_whose_checkpoint_is_gone_is_reported_and_no_longer_recorded(home: Home, promoted: Promoted) -> None:
    checkpoint = promoted.better.checkpoint
    assert checkpoint is not None
    lose(home)
    shutil.rmtree(Path(home.store) / "train" / checkpoint.key)
    done = rebuild(home, open_store(home.store))
    assert done.lost == [f"train/{checkpoint.key}"]
    assert done.aliases.keys() == {"sheepfold@challenger", "sheepfold@previous"}
    assert read_models(open_store(home.store), "default").aliases.keys() == {"challenger", "previous"}


@pytest.mark.full
def test_what_a_recorded_model_rests_on_is_not_cleared_up(promoted: Promoted, home: Home) -> None:
    lose(home)
    collect_garbage(home, open_store(home.store), stage_facts(), -1, dry_run=False)
    rebuild(home, open_store(home.store))
    assert contents(home) == contents(promoted.home)


@pytest.mark.full
def test_the_aliases_after_a_rollback_are_recorded(home: Home, tmp_path: Path) -> None:
    roll_back(home, open_store(home.store), "default", "it swears")
    other = home_at(tmp_path / "other")
    shutil.copytree(home.store, other.store, dirs_exist_ok=True)
    rebuild(other, open_store(other.store))
    assert contents(other) == contents(home)
