"""Rollback: a champion is taken back once, with the reason, and is not promoted again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from registered import Promoted, aliases, promote
from tiny_run import home_at

from storage.errors import UserError
from storage.home import Home
from storage.registry import Models, Registry, find_version, read_models, registered_versions, write_models
from storage.store import open_store
from storage.tracking import Tracking
from tasks.registry.promote import WITHDRAWN_TAG, Rollback, roll_back


class Killed(BaseException):
    """Stands for the end of the process."""


def record_alias(home: Home, alias: str, version: str) -> None:
    """Record in the store that an alias is at a version; empty for none."""
    store = open_store(home.store)
    known, found = read_models(store, "default"), find_version(registered_versions(store), version or "1", "default")
    assert found is not None
    moved = {**known.aliases, alias: found.checkpoint.digest}
    if not version:
        del moved[alias]
    write_models(store, "default", Models(known.models, moved))


def tags(home: Home, version: str) -> Mapping[str, str]:
    """Tags of a version in MLflow."""
    return next(item.tags for item in Registry(Tracking(home), "default").versions() if item.version == version)


def test_a_champion_is_taken_back_once_with_the_reason(home: Home) -> None:
    done = roll_back(home, open_store(home.store), "default", "it swears")
    assert done == Rollback("1", "3", True, "it swears")
    assert aliases(home) == {"champion": "1", "challenger": "3"}
    again = roll_back(home, open_store(home.store), "default", "it swears")
    assert again == replace(done, moved=False)
    assert aliases(home) == {"champion": "1", "challenger": "3"}


def test_a_champion_that_was_taken_back_is_remembered_when_a_newer_model_lost(home: Home) -> None:
    done = roll_back(home, open_store(home.store), "default", "it swears")
    record_alias(home, "challenger", "2")  # as a promotion that fails does
    again = roll_back(home, open_store(home.store), "default")
    assert again == replace(done, moved=False)
    assert aliases(home) == {"champion": "1", "challenger": "2"}


def test_a_model_that_was_taken_back_is_not_promoted_again(home: Home, promoted: Promoted) -> None:
    roll_back(home, open_store(home.store), "default", "it swears")
    done = promote(home, promoted.better)
    assert (done.alias, done.reason) == ("challenger", "it was taken back: it swears")
    assert aliases(home)["champion"] == "1"


def test_a_version_that_is_named_becomes_champion_and_may_stay(home: Home, promoted: Promoted) -> None:
    roll_back(home, open_store(home.store), "default", "it swears")
    done = roll_back(home, open_store(home.store), "default", "it does not", to="3")
    assert (done.champion, done.withdrawn, done.moved) == ("3", "1", True)
    assert promote(home, promoted.better).alias == "champion"
    assert WITHDRAWN_TAG not in tags(home, "3")


@pytest.mark.parametrize(
    "call", ["set_model_version_tag", "set_registered_model_alias", "delete_registered_model_alias"]
)
def test_a_rollback_that_was_killed_before_a_write_into_mlflow_is_finished(
    home: Home, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(MlflowClient, call, killed)
        roll_back(home, open_store(home.store), "default", "it swears")
    done = roll_back(home, open_store(home.store), "default", "it swears")
    assert (done.champion, done.withdrawn, done.reason) == ("1", "3", "it swears")
    assert aliases(home) == {"champion": "1", "challenger": "3"}
    assert tags(home, "3")[WITHDRAWN_TAG] == "it swears"


def test_what_cannot_be_taken_back_is_told(home: Home, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no version 9; expected one of 1, 2, 3"):
        roll_back(home, open_store(home.store), "default", to="9")
    empty = home_at(tmp_path / "none")
    with pytest.raises(UserError, match="corpus default has no champion to withdraw"):
        roll_back(empty, open_store(empty.store), "default")
    store = open_store(home.store)
    known = read_models(store, "default")
    write_models(store, "default", Models(known.models, {**known.aliases, "previous": "0123456789abcdef"}))
    with pytest.raises(UserError, match=r"\(0123456789ab\) was promoted from another store: .* --to, one of 1"):
        roll_back(home, store, "default")
    record_alias(home, "previous", "")
    with pytest.raises(UserError, match="version 3 is the first champion, and there is no previous one"):
        roll_back(home, open_store(home.store), "default")
