"""`why` and completions: the address of one, what a bare id means, and what comes before it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from runs import Command

from storage.errors import UserError
from storage.home import Home
from storage.manifest import ArtifactRef, Manifest
from storage.registry import MODEL_NAME, Models, Registered, write_models
from storage.schemas import COMPLETIONS
from storage.store import Store, StoreError, open_store
from storage.tables import write_table
from tasks.lineage.why import explain

OLD, NEW, LAST = "b" * 64, "a" * 63 + "c", "a" * 64  # by name the newest comes first


def add_completions(
    store: Store, key: str, created: str, *ids: str, samples: int = 1, fields: str | None = None
) -> None:
    rows = [
        {
            "id": name,
            "sample": sample,
            "prompt": f"prompt of {created}",
            "text": f"text {sample}",
            "finish_reason": "length",
            "n_tokens": 1,
            "logprobs": [0.0],
            "model": "m",
            "settings": "{}",
            "seed": 0,
            "ids": [0],
            "top_ids": [],
            "top_logprobs": [],
            "fields": fields,
            "error": None,
        }
        for name in ids
        for sample in range(samples)
    ]
    with store.workspace("generate", key) as work:
        write_table(work.out / "completions.parquet", COMPLETIONS, rows)
        store.commit(work, Manifest("generate", 1, key, key, {}, {}, [], created=created))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home with three generations."""
    for name in ("SHEEPFOLD_STORE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    home = Home.from_environment(tmp_path / "home").create()
    store = Store(Path(home.store))
    add_completions(store, OLD, "2026-01-01", "0", "1", "a/b", "deadbeef")
    add_completions(store, NEW, "2026-01-03", "0", "1")
    add_completions(store, LAST, "2026-01-02", "0", "x")
    return home


@pytest.mark.parametrize(
    ("thing", "created"),
    [
        (f"{OLD}/0", "2026-01-01"),
        (f"generate/{OLD}/0", "2026-01-01"),
        ("bbbb/0", "2026-01-01"),
        ("b/a/b", "2026-01-01"),
        ("b/deadbeef", "2026-01-01"),
        (f"{LAST}/0", "2026-01-02"),
        ("a/x", "2026-01-02"),
    ],
)
def test_a_completion_is_named_by_its_generation_and_its_id(home: Home, thing: str, created: str) -> None:
    found = explain(open_store(home.store), thing, "default")
    assert found["completion"]["prompt"] == f"prompt of {created}"
    assert found["completion"]["id"] == thing.removeprefix("generate/").partition("/")[2]


def test_an_address_that_two_generations_share_is_refused_with_both(home: Home) -> None:
    with pytest.raises(UserError, match=f"'aaaa/0' .*{NEW}/0.*{LAST}/0|'aaaa/0' .*{LAST}/0.*{NEW}/0"):
        explain(open_store(home.store), "aaaa/0", "default")


def test_further_samples_of_a_prompt_are_named_by_their_number(home: Home) -> None:
    key = "c" * 64
    add_completions(Store(Path(home.store)), key, "2026-01-04", "s", samples=3)
    for name, text in (("s", "text 0"), ("s#1", "text 1"), ("s#2", "text 2")):
        for thing in (f"cccc/{name}", name):
            found = explain(open_store(home.store), thing, "default")
            assert (found["completion"]["text"], found["address"]) == (text, f"{key}/{name}")
    with pytest.raises(StoreError, match="'cccc/s#3' is not found"):
        explain(open_store(home.store), "cccc/s#3", "default")


def test_a_bare_id_is_that_of_the_newest_generation_and_says_that_there_are_others(home: Home) -> None:
    found = explain(open_store(home.store), "0", "default")
    assert found["completion"]["prompt"] == "prompt of 2026-01-03"
    assert found["note"].startswith("that of the last run, else the newest, of 3 completions '0'")
    assert explain(open_store(home.store), f"{found['address']}", "default")["completion"] == found["completion"]


def test_a_bare_id_that_is_there_once_needs_no_note(home: Home) -> None:
    assert "note" not in explain(open_store(home.store), "x", "default")


def test_an_id_keeps_the_json_type_of_the_prompts_file(home: Home) -> None:
    store = open_store(home.store)
    add_completions(store, "d" * 64, "2026-01-05", "41", fields='{"id": 41}')
    assert explain(store, "41", "default")["completion"]["id"] == 41
    assert explain(store, "x", "default")["completion"]["id"] == "x"


def test_looking_for_a_completion_makes_no_database(home: Home) -> None:
    explain(open_store(home.store), "0", "default")
    assert sorted(path.name for path in home.path.iterdir()) == ["store"]


def test_a_model_version_comes_before_a_completion_of_that_name(home: Home) -> None:
    ref = ArtifactRef("generate", OLD, OLD)
    write_models(open_store(home.store), "default", Models({OLD: Registered(ref, ref, ref, version="1")}))
    found = explain(open_store(home.store), "1", "default")
    assert found["model"]["version"] == "1"
    assert "completion" not in explain(open_store(home.store), f"models:/{MODEL_NAME}/1", "default")


def test_the_command_prints_it(home: Home) -> None:
    tree = Command(home.path, ["why", "bbbb/0"]).finish()
    assert json.loads(json.dumps(tree))["artifact"] == f"generate/{OLD}"
