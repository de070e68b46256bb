"""Promotion: the better model gets the name, the worse one another, and asking again moves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny_run import Ran, copy_of_store, direct_session, run_whole, tiny_settings

from flows.actions import promote_model
from storage.registry import MODEL_NAME, Registry
from storage.tables import read_columns
from tasks.promotion import DECIDES, Promotion, Rival, decide, prepare_bundle, requirements
from tasks.session import Session, artifact


def figures(bits: float) -> dict[str, float]:
    return {DECIDES: bits}


@pytest.mark.parametrize(
    ("own", "champion", "same", "wins", "reason"),
    [
        (2.0, None, False, True, "there was no champion (2.0000 bits per byte)"),
        (2.0, 2.5, False, True, "2.0000 bits per byte are fewer than the champion's 2.5000"),
        (2.5, 2.0, False, False, "2.5000 bits per byte are not fewer than the champion's 2.0000"),
        (2.0, 2.0, False, False, "2.0000 bits per byte are not fewer than the champion's 2.0000"),
        (2.0, 2.0, True, True, "it is the champion already (2.0000 bits per byte)"),
        (float("nan"), 2.0, False, False, "nan bits per byte are not fewer than the champion's 2.0000"),
    ],
    ids=["no-champion", "better", "worse", "equal", "the-champion", "not-a-number"],
)
def test_fewer_bits_per_byte_decide(own: float, champion: float | None, same: bool, wins: bool, reason: str) -> None:
    rival = None if champion is None else Rival("1", figures(champion))
    assert decide(figures(own), rival, same) == (wins, reason)


def test_a_champion_without_comparable_figures_gives_way() -> None:
    wins, reason = decide(figures(2.0), Rival("1", None), same_model=False)
    assert wins
    assert reason == (
        "the champion was trained on documents of this evaluation set, so the two cannot be compared "
        "(2.0000 bits per byte)"
    )


@dataclass
class Names:
    """The registry after a promotion."""

    done: Promotion
    versions: int
    aliases: dict[str, str]
    tags: dict[str, str]


@dataclass
class History:
    """What successive promotions did."""

    tiny: Names
    tiny_again: Names
    worse: Names
    worse_again: Names
    better: Names
    better_again: Names
    tiny_later: Names


def read_names(session: Session, done: Promotion) -> Names:
    registry = Registry(session.resources.tracking)
    found = registry.client.search_model_versions(f"name = '{MODEL_NAME}'")
    model = registry.client.get_registered_model(MODEL_NAME)
    version = registry.by_number(done.version.version)
    assert version is not None
    return Names(done, len(found), {name: str(number) for name, number in model.aliases.items()}, version.tags)


@pytest.fixture(scope="module")
def history(tiny: Ran, tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    home = copy_of_store(tiny, tmp_path_factory.mktemp("promotion") / "home")

    def step(*assignments: str) -> Names:
        ran = run_whole(home, tiny_source, tiny_settings(*assignments))
        assert ran.checkpoint is not None
        assert ran.metrics is not None
        with direct_session(home) as session:
            done, _ = promote_model(session, ran.checkpoint, artifact(ran.prepared.evalset), ran.metrics)
            return read_names(session, done)

    worse, better = ("train.max_steps=2",), ("train.max_steps=80", "train.lr=0.01")
    yield History(step(), step(), step(*worse), step(*worse), step(*better), step(*better), step())


def test_the_first_model_is_champion(history: History) -> None:
    assert (history.tiny.versions, history.tiny.aliases) == (1, {"champion": "1"})
    assert (history.tiny.done.alias, history.tiny.done.moved) == ("champion", True)


def test_a_worse_model_is_challenger_and_the_champion_stays(history: History) -> None:
    assert (history.worse.versions, history.worse.aliases) == (2, {"champion": "1", "challenger": "2"})
    assert (history.worse.done.alias, history.worse.done.moved) == ("challenger", True)
    assert "not fewer" in history.worse.done.reason


def test_a_better_model_is_champion_and_the_old_one_previous(history: History) -> None:
    assert history.better.versions == 3
    assert history.better.aliases == {"champion": "3", "previous": "1", "challenger": "2"}
    assert (history.better.done.alias, history.better.done.moved) == ("champion", True)


@pytest.mark.parametrize("name", ["tiny", "worse", "better"])
def test_promoting_again_changes_nothing(history: History, name: str) -> None:
    once, again = getattr(history, name), getattr(history, f"{name}_again")
    assert (again.versions, again.aliases, again.tags) == (once.versions, once.aliases, once.tags)
    assert not again.done.moved
    assert again.done.alias == once.done.alias


def test_a_former_champion_does_not_come_back(history: History) -> None:
    assert history.tiny_later.versions == 3
    assert history.tiny_later.aliases["champion"] == "3"
    assert history.tiny_later.done.alias == "challenger"


def test_a_version_says_what_it_was_made_from_and_how_good_it_is(history: History, tiny: Ran) -> None:
    assert tiny.checkpoint is not None
    assert tiny.metrics is not None
    tags = history.tiny.tags
    assert tags["sheepfold.checkpoint_digest"] == tiny.checkpoint.digest
    assert tags["sheepfold.evalset"] == artifact(tiny.prepared.evalset).digest
    assert float(tags["sheepfold.bits_per_byte"]) == pytest.approx(tiny.metrics[DECIDES], abs=1e-6)
    assert "there was no champion" in tags["sheepfold.verdict"]


def test_a_bundle_holds_the_weights_and_the_code_and_nothing_of_the_store(tiny: Ran, tmp_path: Path) -> None:
    assert tiny.checkpoint is not None
    folder = prepare_bundle(tiny.folder(tiny.checkpoint), tmp_path / "bundle")
    names = {path.name for path in folder.iterdir()}
    assert names == {"model.safetensors", "config.json", "tokenizer.json", "token_counts.parquet", "code"}
    assert {path.name for path in (folder / "code").iterdir()} == {"__init__.py", "model", "tasks"}
    assert not list(folder.rglob("__pycache__"))
    assert len(read_columns(folder / "token_counts.parquet", ["token"])["token"]) > 4


def test_requirements_pin_releases_that_an_index_knows() -> None:
    assert all("==" in line and "+" not in line for line in requirements())
