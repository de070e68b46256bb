"""Looking things up is quick: it imports no heavy library, and reads no more of a store than it needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from storage.home import Home
from storage.manifest import ArtifactRef, Manifest
from storage.registry import Models, Registered, write_models
from storage.store import open_store

HEAVY = {"mlflow", "prefect", "sqlalchemy", "torch"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with two corpora, one of which has a champion."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SHEEPFOLD_STORE", "MLFLOW_TRACKING_URI"):
            patch.delenv(name, raising=False)
        home = Home.from_environment(tmp_path_factory.mktemp("lookup")).create()
    store = open_store(home.store)
    for corpus in ("default", "poems"):
        store.write_ref(f"corpus/{corpus}", {})
    ref = ArtifactRef("train", "k", "d")
    poems = Registered(ref, ref, ref, tags={"sheepfold.bits_per_byte": "1.25"}, version="1", run_id="r")
    write_models(store, "poems", Models({"d": poems}, {"champion": "d"}))
    return home


def look_up(home: Home, *arguments: str) -> str:
    """Run a command in a process of its own, and see that nothing heavy was imported."""
    code = (
        "import sys\nfrom flows.cli import app\n"
        f"app({list(arguments)!r}, standalone_mode=False)\n"
        f"found = {HEAVY!r} & set(sys.modules)\nassert not found, found\n"
    )
    variables = {**os.environ, "SHEEPFOLD_HOME": str(home.path)}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_status_names_the_champion_of_each_corpus_without_mlflow(home: Home) -> None:
    found = json.loads(look_up(home, "status", "--json"))
    assert found["corpora"] == ["default", "poems"]
    assert found["champion"] is None and found["champions"]["default"] is None
    champion = found["champions"]["poems"]
    assert (champion["uri"], champion["tags"]["bits_per_byte"]) == ("models:/sheepfold-poems@champion", "1.25")
    assert json.loads(look_up(home, "status", "--corpus", "poems", "--json"))["champion"] == champion
    assert "poems: sheepfold-poems version 1" in look_up(home, "status")


def test_status_of_a_home_whose_tracking_server_is_away_names_the_champion(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    found = json.loads(look_up(home, "status", "--corpus", "poems", "--json"))
    assert (found["champion"]["version"], found["mlflow_tracking_uri"]) == ("1", "http://127.0.0.1:9")


def test_sql_and_why_import_nothing_heavy(home: Home) -> None:
    store = open_store(home.store)
    store.write_ref("corpus/empty", {"snapshot": []})
    assert json.loads(look_up(home, "sql", "select 1 as n", "--corpus", "empty", "--json")) == [{"n": 1}]
    store.remove_ref("corpus/empty")
    with store.workspace("tokenizer", "a" * 64) as work:
        store.commit(work, Manifest("tokenizer", 1, "a" * 64, "b" * 64, {}, {}, []))
    for name in ("aaaaaaaa", "bbbbbbbb", "tokenizer/aaaaaaaa"):
        assert json.loads(look_up(home, "why", name, "--json"))["artifact"] == f"tokenizer/{'a' * 64}"
