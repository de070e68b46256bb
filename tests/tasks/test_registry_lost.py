"""Names that a person takes back, and a registry that is lost: the store's book brings back all of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from flows.actions import checkpoint_of, ensure_training_run, promote_model, registry_of
from tasks.session import artifact
from tiny_run import Ran, copy_of_store, direct_session, home_at, run_whole, tiny_settings

from flows.names import rebuild_tracking, roll_back_champion
from storage.errors import UserError
from storage.home import Home
from storage.registered import note_version, noted_version
from storage.registry import NEWEST_TAG, Registry
from storage.store import open_store
from storage.tracking import Tracking
from tasks.promotion import WITHDRAWN_TAG, ChampionChanged, Promotion
from tasks.promotion import promote as move_names
from tasks.rollback import roll_back
from tasks.upkeep.gc import collect_garbage

WORSE = ("train.max_steps=2",)
BETTER = ("train.max_steps=80", "train.lr=0.01")


@dataclass(frozen=True)
class Promoted:
    """A home in which three models were promoted: 3 is champion, 1 was, 2 did not win.

    Beside its registry lies `older.db`, which is the registry before the third.
    """

    home: Home
    better: Ran


@pytest.fixture(scope="module")
def promoted(tiny: Ran, tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Promoted:
    home = copy_of_store(tiny, tmp_path_factory.mktemp("lost") / "home")
    made = [run_whole(home, tiny_source, tiny_settings(*assignments)) for assignments in ((), WORSE, BETTER)]
    for ran in made:
        shutil.copyfile(home.path / "mlflow.db", home.path / "older.db")
        promote(home, ran)
    return Promoted(home, made[-1])


@pytest.fixture
def home(promoted: Promoted, tmp_path: Path) -> Iterator[Home]:
    """A copy of that home, to be spoiled."""
    target = home_at(tmp_path / "home")
    for name in ("store", "mlflow.db", "older.db", "mlflow-artifacts"):
        source = promoted.home.path / name
        copy = shutil.copytree if source.is_dir() else shutil.copyfile
        copy(source, target.path / name, **({"dirs_exist_ok": True} if source.is_dir() else {}))
    yield target


def alone(command: Callable[..., dict[str, Any]], home: Home | Path, *arguments: str, **options: str) -> dict[str, Any]:
    """What a command says of a home, whatever database MLflow noted in the environment before."""
    folder = home.path if isinstance(home, Home) else home
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", "")
        return command(str(folder), *arguments, **options)


def promote(home: Home, ran: Ran) -> Promotion:
    assert ran.checkpoint is not None
    with direct_session(home) as session:
        return promote_model(session, ran.checkpoint, artifact(ran.evaluation))[0]


def names(home: Home) -> dict[str, str]:
    return Registry(Tracking(home)).names()


def contents(home: Home) -> dict[str, Any]:
    """All that a registry says of its versions but for ids and times."""
    tracking = Tracking(home)
    registry = Registry(tracking)
    found: dict[str, Any] = {"names": registry.names()}
    for version in registry.versions():
        run = tracking.client.get_run(version.run_id)
        points = tracking.client.get_logged_model(version.model_id).metrics or []
        found[version.version] = {
            "checkpoint": version.checkpoint,
            "tags": version.tags,
            "card": registry.description(version.version),
            "figures": {
                (point.key, point.value, point.dataset_name, point.dataset_digest)
                for point in points
                if not point.key.startswith("system/")  # of the machine, which is not what it was
            },
            "metrics": {name: value for name, value in run.data.metrics.items() if not name.startswith("system/")},
            "params": run.data.params,
            "datasets": {(item.dataset.name, item.dataset.digest) for item in run.inputs.dataset_inputs},
            "curve": [
                (point.step, point.value) for point in tracking.client.get_metric_history(run.info.run_id, "train/loss")
            ],
        }
    return found


def test_a_lost_registry_comes_back_with_its_numbers_names_cards_and_figures(promoted: Promoted, home: Home) -> None:
    before = contents(promoted.home)
    assert list(before) == ["names", "1", "2", "3"]
    assert before["1"]["figures"] and before["1"]["curve"] and before["1"]["datasets"]
    (home.path / "mlflow.db").unlink()
    shutil.rmtree(home.path / "mlflow-artifacts")
    done = alone(rebuild_tracking, home)
    assert (done["runs"], done["versions"], done["lost"]) == (3, ["1", "2", "3"], [])
    assert contents(home) == before


def test_where_nothing_is_lost_nothing_is_written(home: Home) -> None:
    before = contents(home)
    alone(rebuild_tracking, home)
    assert contents(home) == before


def test_a_number_that_nothing_has_stays_free(home: Home) -> None:
    (Path(home.store) / ".refs" / "registered" / "versions" / "1.json").unlink()
    (home.path / "mlflow.db").unlink()
    done = alone(rebuild_tracking, home)
    assert done["versions"] == ["2", "3"]
    assert names(home) == {"challenger": "2", "champion": "3"}


def test_a_rebuilding_that_was_killed_on_its_way_to_a_number_goes_on(home: Home, promoted: Promoted) -> None:
    (Path(home.store) / ".refs" / "registered" / "versions" / "1.json").unlink()
    (home.path / "mlflow.db").unlink()
    assert promoted.better.checkpoint is not None
    tracking = Tracking(home)
    registry = Registry(tracking)
    registry.by_digest("")  # makes the registered model
    tags = {"sheepfold.checkpoint_digest": promoted.better.checkpoint.digest}
    registry.client.create_model_version("sheepfold", source=home.path.as_uri(), tags=tags)
    assert alone(rebuild_tracking, home)["versions"] == ["2", "3"]
    assert [version.version for version in Registry(tracking).versions()] == ["2", "3"]


def test_a_promotion_brings_a_lost_registry_back_first(home: Home, promoted: Promoted) -> None:
    (home.path / "mlflow.db").unlink()
    done = promote(home, promoted.better)
    assert (done.version.version, done.alias, done.moved) == ("3", "champion", False)
    assert names(home) == {"champion": "3", "previous": "1", "challenger": "2"}


def test_an_older_registry_is_brought_up_to_the_book_before_its_champion_is_asked(
    home: Home, promoted: Promoted
) -> None:
    before = contents(home)
    older = Home(home.path, home.store, f"sqlite:///{home.path / 'older.db'}")
    assert names(older) == {"champion": "1", "challenger": "2"}
    with direct_session(older) as session:
        assert checkpoint_of(session, "champion") == promoted.better.checkpoint
    assert contents(older) == before
    assert names(older) == before["names"]


def test_a_rebuilding_that_was_killed_before_the_names_goes_on(home: Home, promoted: Promoted) -> None:
    registry = Registry(Tracking(home))
    registry.client.set_registered_model_tag("sheepfold", NEWEST_TAG, "2")
    for name in registry.names():
        registry.drop_alias(name)
    assert promote(home, promoted.better).alias == "champion"
    assert names(home) == {"champion": "3", "previous": "1", "challenger": "2"}


def test_a_name_that_a_person_moved_in_the_registry_stays_there(home: Home) -> None:
    Registry(Tracking(home)).move_alias("champion", "2")
    with direct_session(home) as session:
        assert registry_of(session).names()["champion"] == "2"


@pytest.mark.parametrize("number", ["2", "3"])
def test_a_version_that_a_person_deleted_is_told_and_gets_no_other_number(home: Home, number: str) -> None:
    Registry(Tracking(home)).delete(number)
    done = alone(rebuild_tracking, home)
    left = [version for version in ("1", "2", "3") if version != number]
    assert (done["versions"], done["deleted"]) == (left, [number])
    assert [version.version for version in Registry(Tracking(home)).versions()] == left


def test_a_new_version_takes_no_number_of_the_book(home: Home, promoted: Promoted, tiny_source: Path) -> None:
    assert promoted.better.checkpoint is not None
    (home.path / "mlflow.db").unlink()
    shutil.rmtree(Path(home.store) / "train" / promoted.better.checkpoint.key)
    done = promote(home, run_whole(home, tiny_source, tiny_settings("train.max_steps=3")))
    assert done.version.version == "4"
    noted = noted_version(open_store(home.store, home.cache), "3")
    assert noted is not None and noted.checkpoint == promoted.better.checkpoint


def test_nothing_is_promoted_into_a_registry_that_is_behind_the_book(home: Home, promoted: Promoted) -> None:
    assert promoted.better.checkpoint is not None
    older = Home(home.path, home.store, f"sqlite:///{home.path / 'older.db'}")
    store = open_store(home.store, home.cache)
    noted = noted_version(store, "3")
    assert noted is not None and noted.evaluation is not None and noted.gates is not None
    with pytest.raises(ChampionChanged, match="versions that the registry lacks"):
        move_names(store, Registry(Tracking(older)), "", noted.checkpoint, noted.evaluation, noted.gates, None)
    with pytest.raises(UserError, match="promoted elsewhere a moment ago"):
        roll_back(store, Registry(Tracking(older)))
    assert names(older) == {"champion": "1", "challenger": "2"}


def test_a_registry_that_is_newer_than_the_book_keeps_its_names(home: Home) -> None:
    store = open_store(home.store, home.cache)
    (Path(home.store) / ".refs" / "registered" / "versions" / "3.json").unlink()
    store.write_ref("registered/names", {"champion": "1", "challenger": "2"})
    with direct_session(home) as session:
        assert registry_of(session).names() == {"champion": "3", "previous": "1", "challenger": "2"}


def test_a_run_that_a_person_deleted_is_not_made_again(home: Home, tiny_source: Path) -> None:
    ran = run_whole(home, tiny_source, tiny_settings("train.max_steps=3"))
    assert ran.checkpoint is not None
    with direct_session(home) as session:
        tracking = session.resources.tracking
        tracking.client.delete_run(ensure_training_run(session, ran.checkpoint))
    assert alone(rebuild_tracking, home)["runs"] == 3
    assert Tracking(home).deleted_train_keys() == {ran.checkpoint.key}


def test_other_weights_under_the_key_of_a_version_are_not_taken_for_it(home: Home, promoted: Promoted) -> None:
    store = open_store(home.store, home.cache)
    noted = noted_version(store, "2")
    assert noted is not None
    note_version(store, replace(noted, checkpoint=replace(noted.checkpoint, digest="0" * 64)))
    (home.path / "mlflow.db").unlink()
    done = alone(rebuild_tracking, home)
    assert (done["versions"], done["lost"]) == (["1", "3"], ["2"])


def test_a_version_whose_checkpoint_is_gone_is_told(home: Home, promoted: Promoted) -> None:
    assert promoted.better.checkpoint is not None
    (home.path / "mlflow.db").unlink()
    shutil.rmtree(Path(home.store) / "train" / promoted.better.checkpoint.key)
    done = alone(rebuild_tracking, home)
    assert (done["versions"], done["lost"], done["names"]) == (["1", "2"], ["3"], {"challenger": "2", "previous": "1"})


def test_what_a_version_rests_on_is_not_cleared_up_even_if_the_registry_is_lost(promoted: Promoted, home: Home) -> None:
    (home.path / "mlflow.db").unlink()
    alone(lambda path: collect_garbage(home, open_store(home.store), -1, dry_run=False), home)
    alone(rebuild_tracking, home)
    assert contents(home) == contents(promoted.home)


# taking a champion back


def test_a_champion_is_taken_back_once_with_the_reason(home: Home) -> None:
    done = alone(roll_back_champion, home, "it swears")
    assert done == {"champion": "1", "withdrawn": "3", "moved": True, "reason": "it swears", "rebuilt": 0}
    assert names(home) == {"champion": "1", "challenger": "3"}
    again = alone(roll_back_champion, home, "it swears")
    assert again == {**done, "moved": False}
    assert names(home) == {"champion": "1", "challenger": "3"}


def test_a_champion_that_was_taken_back_is_remembered_when_a_newer_model_lost(home: Home) -> None:
    done = alone(roll_back_champion, home, "it swears")
    Registry(Tracking(home)).move_alias("challenger", "2")  # as a promotion that fails does
    again = alone(roll_back_champion, home)
    assert again == {**done, "moved": False}
    assert names(home) == {"champion": "1", "challenger": "2"}


def test_taking_a_champion_back_brings_a_lost_registry_back_first(home: Home) -> None:
    (home.path / "mlflow.db").unlink()
    done = alone(roll_back_champion, home, "it swears")
    assert (done["champion"], done["withdrawn"], done["moved"], done["rebuilt"]) == ("1", "3", True, 3)
    assert names(home) == {"champion": "1", "challenger": "3"}


def test_a_model_that_was_taken_back_is_not_promoted_again(home: Home, promoted: Promoted) -> None:
    alone(roll_back_champion, home, "it swears")
    done = promote(home, promoted.better)
    assert (done.alias, done.reason) == ("challenger", "it was taken back: it swears")
    assert names(home)["champion"] == "1"


def test_a_version_that_is_named_becomes_champion_and_may_stay(home: Home, promoted: Promoted) -> None:
    alone(roll_back_champion, home, "it swears")
    done = alone(roll_back_champion, home, "it does not", to="3")
    assert (done["champion"], done["withdrawn"], done["moved"]) == ("3", "1", True)
    assert promote(home, promoted.better).alias == "champion"
    found = Registry(Tracking(home)).by_number("3")
    assert found is not None and WITHDRAWN_TAG not in found.tags


def test_a_rolling_back_that_was_killed_between_two_names_is_finished(home: Home) -> None:
    registry = Registry(Tracking(home))
    registry.tag("3", {WITHDRAWN_TAG: "it swears"})
    registry.move_alias("challenger", "3")
    registry.move_alias("champion", "1")  # `previous` stands there still
    done = alone(roll_back_champion, home, "it swears")
    assert (done["champion"], done["withdrawn"], done["reason"]) == ("1", "3", "it swears")
    assert names(home) == {"champion": "1", "challenger": "3"}


def test_the_names_after_rolling_back_are_in_the_book(home: Home, tmp_path: Path) -> None:
    alone(roll_back_champion, home, "it swears")
    other = home_at(tmp_path / "other")  # an open database cannot be lost in the same process
    shutil.copytree(home.store, other.store, dirs_exist_ok=True)
    alone(rebuild_tracking, other)
    assert contents(other) == contents(home)


def test_what_cannot_be_taken_back_is_told(home: Home, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no version 9 to go back to; there are 1, 2, 3"):
        alone(roll_back_champion, home, to="9")
    with pytest.raises(UserError, match="has no registered model"):
        alone(roll_back_champion, tmp_path / "none")
    Registry(Tracking(home)).drop_alias("previous")
    with pytest.raises(UserError, match="version 3 is the first champion, so there is none to go back to"):
        alone(roll_back_champion, home)
