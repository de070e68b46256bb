"""Promotion against a champion that cannot be compared, or that was not yet champion when it was measured."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from registered import aliases
from tiny_run import Ran, copy_of_store, direct_run, run_whole, tiny_settings

from flows.evaluate import evaluate_model
from flows.promote import promote_model
from storage.errors import UserError
from storage.home import Home
from storage.registry import CHALLENGER, CHAMPION, PREVIOUS, Registry, find_version, read_models, registered_versions
from storage.store import open_store
from storage.tracking import Tracking
from tasks.core.run import Run
from tasks.evaluation.gates import GateSettings, gates
from tasks.registry.promote import ChampionChanged, Promotion, move_aliases, roll_back
from tasks.report.gates import collect_gates, gates_page

WORSE = ("train.max_steps=2",)


@pytest.fixture
def home(tiny: Ran, tmp_path: Path) -> Home:
    """The store of the tiny run, with an empty registry."""
    return copy_of_store(tiny, tmp_path / "home")


def promote_ran(run: Run, ran: Ran) -> Promotion:
    assert ran.checkpoint is not None
    return promote_model(run, ran.checkpoint, ran.evaluation)[0]


def test_a_champion_trained_on_the_evaluation_set_is_not_compared_and_stays_until_a_person_decides(
    tiny: Ran, tiny_source: Path, home: Home
) -> None:
    with direct_run(home) as run:
        promote_ran(run, tiny)
    worse = run_whole(home, tiny_source, tiny_settings("curate.salt=other", *WORSE))
    with direct_run(home) as run:
        done = promote_ran(run, worse)
        assert (done.alias, done.version.version) == (CHALLENGER, "2")
        assert "the champion was trained on documents of this evaluation set" in done.reason
        assert done.version.tags["sheepfold.gates"] == "failed: bits_per_byte"
        assert done.version.tags["sheepfold.gate.bits_per_byte"] == "not_comparable"
        page, _ = gates_page(collect_gates(run.store, done.gates, "2", [], {}), "default")
        assert "so no slice was compared" in page
        again = promote_ran(run, worse)
        assert (again.moved, again.gates) == (False, done.gates)
        assert run.notes == [
            "the champion, version 1, was trained on documents of this evaluation set, so its figures on it are not "
            "valid; the two were not compared and it stays champion"
        ]
        assert aliases(run.home) == {CHAMPION: "1", CHALLENGER: "2"}
        roll_back(run.home, run.store, "default", "another split", to="2")
        assert aliases(run.home)[CHAMPION] == "2"


def test_a_model_trained_on_the_evaluation_set_is_not_promoted(tiny: Ran, tiny_source: Path, home: Home) -> None:
    other = run_whole(home, tiny_source, tiny_settings("curate.salt=other", *WORSE))
    assert tiny.checkpoint is not None
    with direct_run(home) as run:
        evaluation, _ = evaluate_model(run, tiny.checkpoint, other.prepared.evalset)
        with pytest.raises(UserError, match=r"was trained on documents of the evaluation set .* train on the present"):
            promote_model(run, tiny.checkpoint, evaluation)
        assert find_version(registered_versions(run.store), CHAMPION, "default") is None


@pytest.mark.full
def test_a_champion_that_was_not_measured_stops_a_promotion_before_it_writes(
    tiny: Ran, tiny_source: Path, home: Home
) -> None:
    worse = run_whole(home, tiny_source, tiny_settings(*WORSE))
    assert worse.checkpoint is not None
    assert worse.evaluation is not None
    with direct_run(home) as run:
        promote_ran(run, tiny)
        registry = Registry(run.tracking, "default")
        inputs = {"checkpoint": worse.checkpoint, "evaluation": worse.evaluation}
        judged = gates(run, GateSettings(), **inputs)
        with pytest.raises(ChampionChanged, match="version 1 is champion, but none was evaluated"):
            move_aliases(run.store, registry, "", worse.checkpoint, worse.evaluation, judged, None)
        assert registry.by_digest().get(worse.checkpoint.digest) is None


@pytest.mark.full
def test_a_champion_of_another_process_is_measured_before_names_move(
    tiny: Ran, tiny_source: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    worse = run_whole(home, tiny_source, tiny_settings(*WORSE))
    overtaken: list[Promotion] = []

    def overtake(*arguments: Any) -> Promotion:
        monkeypatch.undo()  # the first promotion only
        overtaken.append(promote_ran(run, tiny))
        return move_aliases(*arguments)

    with direct_run(home) as run:
        monkeypatch.setattr("flows.promote.move_aliases", overtake)
        done = promote_ran(run, worse)
        assert [item.alias for item in overtaken] == [CHAMPION]
        assert done.alias == CHALLENGER
        champion = find_version(registered_versions(run.store), CHAMPION, "default")
    assert champion is not None
    assert tiny.checkpoint is not None
    assert champion.checkpoint.digest == tiny.checkpoint.digest


@pytest.mark.full
def test_of_two_promotions_at_once_the_better_model_is_champion(tiny: Ran, tiny_source: Path, home: Home) -> None:
    worse = run_whole(home, tiny_source, tiny_settings(*WORSE))

    def promote_alone(ran: Ran) -> Promotion:
        with direct_run(home) as run:
            return promote_ran(run, ran)

    Tracking(home)  # creates the database; which version is first is open
    with ThreadPoolExecutor(2) as threads:
        done = list(threads.map(promote_alone, (worse, tiny)))
    assert {item.version.version for item in done} == {"1", "2"}
    assert done[1].alias == CHAMPION
    names = aliases(home)
    assert names[CHAMPION] == done[1].version.version
    other = PREVIOUS if done[0].alias == CHAMPION else CHALLENGER
    assert names == {CHAMPION: done[1].version.version, other: done[0].version.version}
    digests = {item.version.version: item.version.checkpoint.digest for item in done}
    recorded = read_models(open_store(home.store), "default").aliases
    assert recorded == {alias: digests[number] for alias, number in names.items()}
