"""A model without one of its sources: what is left out, what is computed for it, and that it stays out of the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_run import Ran, copy_of_store, run_whole, tiny_settings, write_texts

from flows.compare import ablate
from flows.options import AblateOptions
from flows.stages import stage_facts
from storage.catalog import Catalog, read_state
from storage.errors import UserError
from storage.home import Home
from storage.schemas import DATASET_FILE, SEQUENCES_FILE
from storage.store import Store, open_store
from storage.tables import read_rows
from tasks.training.ablate import documents_of
from tasks.upkeep.verify import verify_home

WITHOUT = "text-0[0-4].txt"


@pytest.fixture(scope="module")
def catalog(tiny: Ran) -> Catalog:
    return Catalog(tiny.run.store, "default")


@pytest.mark.parametrize(
    ("source", "words", "n_documents"),
    [
        ("text-0[0-4].txt", "in text-0[0-4].txt", 5),
        ("text-03.txt", "in text-03.txt", 1),
        ("{folder}", "in {folder}", 12),
        ("{folder}/text-1*", "in {folder}/text-1*", 2),
        ("text", "of kind text", 12),
        ("n_bytes > 0 and kind = 'text'", "where n_bytes > 0 and kind = 'text'", 12),
    ],
    ids=["pattern", "path", "folder", "absolute pattern", "kind", "condition"],
)
def test_a_source_may_be_said_in_several_ways(
    catalog: Catalog, tiny_source: Path, source: str, words: str, n_documents: int
) -> None:
    found = documents_of(catalog, source.format(folder=tiny_source))
    assert found.words == words.format(folder=tiny_source)
    known = {row["doc_id"] for row in catalog.query("select doc_id from files where status = 'ok'")}
    assert len(found.doc_ids) == n_documents
    assert found.doc_ids <= known


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("nowhere/", "is not a kind of document .text., not a path of the corpus"),
        ("kind = 'pdf'", "no document of the corpus is where kind = 'pdf'"),
        (" ", "--without is empty"),
    ],
)
def test_a_source_that_is_not_there_is_refused_with_what_is(catalog: Catalog, source: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        documents_of(catalog, source)


@pytest.fixture(scope="module")
def home(tiny: Ran, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with the tiny run and an MLflow database."""
    return copy_of_store(tiny, tmp_path_factory.mktemp("ablation") / "home")


@pytest.fixture(scope="module")
def ablated(home: Home) -> dict[str, Any]:
    return ablate_from(home)


def ablate_from(home: Home, without: str = WITHOUT) -> dict[str, Any]:
    """Call the flow's function without Prefect; returns its report."""
    return ablate.function(AblateOptions(home=str(home.path), without=without))


def trained_documents(store: Store, training: str) -> set[str]:
    """The documents in a training's dataset."""
    manifest = store.find(*training.split("/"))
    assert manifest is not None
    (dataset,) = manifest.input_refs("dataset")
    rows = read_rows(store.folder(dataset) / SEQUENCES_FILE, ["doc_id", "split"])
    return {row["doc_id"] for row in rows if row["split"] == "train"}


def test_it_trains_on_the_rest_alone_and_both_are_measured_on_the_same_documents(
    tiny: Ran, home: Home, ablated: dict[str, Any], catalog: Catalog
) -> None:
    store = open_store(home.store)
    assert tiny.checkpoint is not None
    assert ablated["b"]["checkpoint"] == f"train/{tiny.checkpoint.key}"
    left_out = documents_of(catalog, WITHOUT).doc_ids
    before, now = (trained_documents(store, ablated[side]["checkpoint"]) for side in "ba")
    assert now == before - left_out
    assert (ablated["documents_left_out"], ablated["documents_trained_on"]) == (len(before & left_out), len(now))
    assert now
    assert now < before
    evaluations = [store.find(*ablated[side]["evaluation"].split("/")) for side in "ab"]
    sets = [found.inputs["evalset"] for found in evaluations if found is not None]
    assert len(sets) == 2 and sets[0] == sets[1]
    assert ablated["difference"]["low"] <= ablated["difference"]["value"]
    assert Path(ablated["page"]).read_text(encoding="utf-8").count(WITHOUT)


def test_nothing_is_extracted_cleaned_or_encoded_for_it(ablated: dict[str, Any]) -> None:
    computed = {item["stage"] for item in ablated["stages"] if item["computed"]}
    assert {"ablate", "dataset", "train", "evaluate"} <= computed
    assert computed <= {"ablate", "dataset", "train", "evaluate", "ngram", "prompts", "complete", "generate"}


def test_the_same_again_computes_nothing(home: Home, ablated: dict[str, Any]) -> None:
    again = ablate_from(home)
    assert [item["stage"] for item in again["stages"] if item["computed"]] == []
    assert again["a"] == ablated["a"]


def test_it_is_no_version_and_not_the_training_that_promotion_takes(
    tiny: Ran, home: Home, ablated: dict[str, Any]
) -> None:
    from storage.registry import Registry
    from storage.tracking import Tracking

    assert Registry(Tracking(home), "default").versions() == []
    store = open_store(home.store)
    assert read_state(store, "default")["train"] == [tiny.checkpoint]
    assert verify_home(home, open_store(home.store), stage_facts(), "default")["ok"]


@pytest.mark.full
def test_a_group_that_the_mix_names_may_be_left_out(tiny: Ran, tmp_path: Path) -> None:
    home = copy_of_store(tiny, tmp_path / "home")
    folders = {"early": range(5), "late": range(5, 8), "latest": range(8, 12)}
    for name, numbers in folders.items():
        write_texts(tmp_path / "texts" / name, numbers)
    shares = "mix.weights=early=0.5, late=0.3, latest=0.2"
    run_whole(home, tmp_path / "texts", tiny_settings("mix.by=folder", shares))
    said = ablate_from(home, "early/*")
    store = open_store(home.store)
    before, now = (groups_read(store, said[side]["checkpoint"]) for side in "ba")
    assert set(before) == {"early", "late", "latest"}
    assert set(now) == {"late", "latest"}
    assert now["late"] / now["latest"] == pytest.approx(1.5, abs=0.5)


def groups_read(store: Store, training: str) -> dict[str, float]:
    """Tokens that an epoch of a training reads of each group."""
    manifest = store.find(*training.split("/"))
    assert manifest is not None
    (dataset,) = manifest.input_refs("dataset")
    record = json.loads((store.folder(dataset) / DATASET_FILE).read_text("utf-8"))
    return {group["name"]: group["reads"] / group["count"] * group["tokens"] for group in record["groups"]}


@pytest.mark.full
def test_what_was_not_trained_on_and_what_is_all_there_is_are_refused(home: Home, ablated: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="nothing is left to train on"):
        ablate_from(home, "text")
    with pytest.raises(UserError, match="was trained on"):
        ablate_from(home, "split = 'validation'")
