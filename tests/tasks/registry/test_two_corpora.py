"""Two corpora in one home: each has a registered model and a champion of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_run import Ran, TinyMachine, copy_of_store, run_in, tiny_settings, write_texts

from flows.promote import promote_model
from flows.report import model_entry
from flows.stages import stage_facts
from storage.home import Home
from storage.registry import find_version, model_name, registered_versions
from storage.store import open_store
from tasks.core.run import Run
from tasks.registry.models import checkpoint_of
from tasks.registry.promote import Promotion, rebuild
from tasks.upkeep.garbage import collect_garbage
from tasks.upkeep.status import status_of

OTHER = "letters 1.0"


def promote(home: Home, ran: Ran, corpus: str) -> Promotion:
    with TinyMachine(workers=1) as machine:
        run = Run(home, machine, corpus=corpus)
        return promote_model(run, ran.checkpoint, ran.evaluation)[0]


@pytest.fixture(scope="module")
def other(tiny: Ran, tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, Ran]:
    """A home with the models of two corpora, both promoted, the default one's twice."""
    folder = tmp_path_factory.mktemp("corpora")
    home = copy_of_store(tiny, folder / "home")
    with TinyMachine(workers=1) as machine:
        run = Run(home, machine, corpus=OTHER)
        source = write_texts(folder / "letters", range(20, 32))
        made = run_in(run, source, tiny_settings("train.max_steps=3"))
    assert promote(home, tiny, "default").alias == "champion"
    done = promote(home, made, OTHER)
    assert (done.alias, done.version.version, done.reason[:22]) == ("champion", "1", "it is the first model ")
    again = promote(home, tiny, "default")
    assert (again.alias, again.moved) == ("champion", False)
    return home, made


@pytest.mark.full
def test_no_corpus_takes_the_champion_of_another(tiny: Ran, other: tuple[Home, Ran]) -> None:
    home, made = other
    for corpus, ran in (("default", tiny), (OTHER, made)):
        champion = find_version(registered_versions(open_store(home.store)), "champion", corpus)
        assert champion is not None and champion.checkpoint == ran.checkpoint
        assert champion.name == model_name(corpus)


@pytest.mark.full
@pytest.mark.parametrize("asked", ["champion", "1", f"models:/sheepfold-{OTHER}@champion"])
def test_names_mean_models_of_the_corpus_and_addresses_may_name_another(
    tiny: Ran, other: tuple[Home, Ran], asked: str
) -> None:
    home, made = other
    with TinyMachine(workers=1) as machine:
        assert checkpoint_of(Run(home, machine, corpus=OTHER), asked) == made.checkpoint
        found = checkpoint_of(Run(home, machine), asked)
        assert found == (made.checkpoint if asked.startswith("models:/") else tiny.checkpoint)


@pytest.mark.full
def test_results_and_status_name_the_registered_model_of_the_corpus(other: tuple[Home, Ran]) -> None:
    home, made = other
    assert model_entry(promote(home, made, OTHER))["name"] == f"sheepfold-{OTHER}"
    entry = status_of(home, open_store(home.store), OTHER)["champion"]
    assert entry is not None and entry["uri"] == f"models:/sheepfold-{OTHER}@champion"


@pytest.mark.full
def test_checkpoints_of_all_corpora_are_kept_and_restored(
    other: tuple[Home, Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    home, made = other
    collect_garbage(home, open_store(home.store), stage_facts(), -1, dry_run=False)
    place = copy_of_store(made, tmp_path / "home")
    done = rebuild(place, open_store(place.store))
    assert done.aliases == {"sheepfold@champion": "1", f"sheepfold-{OTHER}@champion": "1"}
    assert sorted(done.versions) == [f"sheepfold-{OTHER}/1", "sheepfold/1"] and not done.lost
    champion = find_version(registered_versions(open_store(place.store)), "champion", OTHER)
    assert champion is not None and champion.checkpoint == made.checkpoint
