"""Two corpora in one home: each has a registered model and a champion of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from flows.actions import champion_entry, checkpoint_of, model_entry, promote_model
from flows.clearing import clear_up
from tasks.session import Session, artifact
from tiny_run import Ran, TinyResources, copy_of_store, run_in, tiny_settings, write_texts

from flows.names import rebuild_tracking
from storage.home import Home
from storage.registry import Registry, model_name
from storage.tracking import Tracking
from tasks.registry.promote import Promotion

OTHER = "letters 1.0"


@pytest.mark.parametrize(
    ("corpus", "name"), [("default", "sheepfold"), ("letters", "sheepfold-letters"), (OTHER, "sheepfold-letters 1.0")]
)
def test_each_corpus_has_a_registered_model(corpus: str, name: str) -> None:
    assert model_name(corpus) == name


def promote(home: Home, ran: Ran, corpus: str) -> Promotion:
    with TinyResources(home, workers=1) as resources:
        session = Session(home, resources, corpus=corpus)
        return promote_model(session, artifact(ran.checkpoint), artifact(ran.evaluation))[0]


@pytest.fixture(scope="module")
def other(tiny: Ran, tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, Ran]:
    """A home with the models of two corpora, both promoted, the default one's twice."""
    folder = tmp_path_factory.mktemp("corpora")
    home = copy_of_store(tiny, folder / "home")
    with TinyResources(home, workers=1) as resources:
        session = Session(home, resources, corpus=OTHER)
        source = write_texts(folder / "letters", range(20, 32))
        made = run_in(session, source, tiny_settings("train.max_steps=3"))
    assert promote(home, tiny, "default").alias == "champion"
    done = promote(home, made, OTHER)
    assert (done.alias, done.version.version, done.reason[:22]) == ("champion", "1", "there was no champion ")
    again = promote(home, tiny, "default")
    assert (again.alias, again.moved) == ("champion", False)
    return home, made


def test_no_corpus_takes_the_champion_of_another(tiny: Ran, other: tuple[Home, Ran]) -> None:
    home, made = other
    for corpus, ran in (("default", tiny), (OTHER, made)):
        champion = Registry(Tracking(home), corpus).by_alias("champion")
        assert champion is not None and champion.checkpoint == ran.checkpoint
        assert champion.name == model_name(corpus)


@pytest.mark.parametrize("asked", ["champion", "1", f"models:/sheepfold-{OTHER}@champion"])
def test_names_mean_models_of_the_corpus_and_addresses_may_name_another(
    tiny: Ran, other: tuple[Home, Ran], asked: str
) -> None:
    home, made = other
    with TinyResources(home, workers=1) as resources:
        assert checkpoint_of(Session(home, resources, corpus=OTHER), asked) == made.checkpoint
        found = checkpoint_of(Session(home, resources), asked)
        assert found == (made.checkpoint if asked.startswith("models:/") else tiny.checkpoint)


def test_results_and_status_name_the_registered_model_of_the_corpus(other: tuple[Home, Ran]) -> None:
    home, made = other
    assert model_entry(promote(home, made, OTHER))["name"] == f"sheepfold-{OTHER}"
    entry = champion_entry(Registry(Tracking(home), OTHER))
    assert entry is not None and entry["uri"] == f"models:/sheepfold-{OTHER}@champion"


def test_checkpoints_of_all_corpora_are_kept_and_restored(
    other: tuple[Home, Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    home, made = other
    clear_up(str(home.path), -1, dry_run=False)
    place = copy_of_store(made, tmp_path / "home")
    done = rebuild_tracking(str(place.path))
    assert done["aliases"] == {"sheepfold@champion": "1", f"sheepfold-{OTHER}@champion": "1"}
    assert sorted(done["versions"]) == [f"sheepfold-{OTHER}/1", "sheepfold/1"] and not done["lost"]
    champion = Registry(Tracking(place), OTHER).by_alias("champion")
    assert champion is not None and champion.checkpoint == made.checkpoint
