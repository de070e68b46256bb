"""A promotion that is killed before any write into the registry: whoever promotes again comes to the same names."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine
from tiny_run import Ran, copy_of_store, direct_run, run_whole, tiny_settings

from flows.promote import promote_model
from storage.home import Home
from storage.registry import MODEL_NAME, Registry

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

BETTER = ("train.max_steps=80", "train.lr=0.01")


class Killed(BaseException):
    """Stands for a process that ends here."""


@contextmanager
def killed_before_write(number: int) -> Iterator[Callable[[], int]]:
    """Inside, the process ends before the so manieth transaction that changes a database; says how many came.

    What it had open is undone, as the database does when it is opened next; and the dead ask a database for nothing,
    whatever a `finally` on the way out would still say.
    """
    count = itertools.count(1)
    last = -1

    def note(connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
        if last == number:
            raise Killed
        if statement.lstrip()[:6].upper() in ("INSERT", "UPDATE", "DELETE"):
            connection.info["wrote"] = True

    def end(connection: Connection) -> None:
        nonlocal last
        if connection.info.pop("wrote", False):
            last = next(count)
            if last == number:
                connection.connection.rollback()  # SQLAlchemy itself takes a commit that failed for one that is over
                raise Killed

    event.listen(Engine, "before_cursor_execute", note)
    event.listen(Engine, "commit", end)
    try:
        yield lambda: last
    finally:
        event.remove(Engine, "before_cursor_execute", note)
        event.remove(Engine, "commit", end)


def promote(home: Home, ran: Ran) -> None:
    """Promote what a run trained."""
    assert ran.checkpoint is not None and ran.evaluation is not None
    with direct_run(home) as run:
        promote_model(run, ran.checkpoint, ran.evaluation)


def names(home: Home) -> tuple[dict[str, str], list[dict[str, str]]]:
    """The aliases, and the tags of all versions."""
    with direct_run(home) as run:
        registry = Registry(run.tracking, "default")
        aliases = registry.client.get_registered_model(MODEL_NAME).aliases
        return {name: str(version) for name, version in aliases.items()}, [one.tags for one in registry.versions()]


def test_a_promotion_killed_before_any_write_of_the_registry_is_finished_by_the_next(
    tiny: Ran, tiny_source: Path, tmp_path: Path
) -> None:
    home = copy_of_store(tiny, tmp_path / "home")
    promote(home, run_whole(home, tiny_source))
    better = run_whole(home, tiny_source, tiny_settings(*BETTER))

    def with_a_copy(name: str) -> Home:
        database, store = tmp_path / f"{name}.db", tmp_path / name
        shutil.copyfile(home.path / "mlflow.db", database)
        shutil.copytree(home.store, store)  # whose book goes with the registry
        return Home(home.path, str(store), f"sqlite:///{database}")

    alone = with_a_copy("alone")
    with killed_before_write(0) as writes:
        promote(alone, better)
    expected = names(alone)
    assert expected[0] == {"champion": "2", "previous": "1"}
    assert writes() > 10
    for number in range(1, writes() + 1):
        place = with_a_copy(str(number))
        with killed_before_write(number), pytest.raises(Killed):
            promote(place, better)
        promote(place, better)
        assert names(place) == expected, f"killed before write {number} of {writes()}"
