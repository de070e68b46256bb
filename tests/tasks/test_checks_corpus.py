"""The checks of a corpus's meaning see what they are there to see."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from ingest_run import ingest, prose, write
from tiny_run import Ran, home_at

from storage.catalog import read_state
from storage.manifest import ArtifactRef
from storage.schemas import EVALSET, SELECTION, TOKENS
from storage.store import LocalStore
from storage.tables import read_rows, write_table
from tasks.checks import check_split, check_tokens

State = dict[str, list[ArtifactRef]]


@pytest.fixture
def corpus(tiny: Ran, tmp_path: Path) -> tuple[LocalStore, State]:
    """A copy of the tiny corpus that may be spoiled."""
    home = home_at(tmp_path / "home")
    shutil.copytree(tiny.session.home.store, home.store, ignore=shutil.ignore_patterns(".work", ".locks"))
    store = LocalStore(Path(home.store))
    return store, read_state(store, "default")


def spoil(path: Path, schema: Any, place: int, **changes: Any) -> None:
    """Change one row of a table, and whatever would tell."""
    rows = read_rows(path)
    rows[place] |= changes
    write_table(path, schema, rows)
    assert pq.read_schema(path).equals(schema)
    agree(path)


def agree(path: Path) -> None:
    """Let the manifest list a file as it is now."""
    manifest = json.loads((path.parent / "manifest.json").read_text())
    for entry in manifest["files"]:
        if entry["name"] == path.name:
            entry |= {"size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    (path.parent / "manifest.json").write_text(json.dumps(manifest))


def test_a_sound_corpus_has_no_problems(corpus: tuple[LocalStore, State]) -> None:
    store, state = corpus
    split, tokens = check_split(store, state), check_tokens(store, state)
    assert (split.problems, tokens.problems) == ([], [])
    assert (split.checked, tokens.checked) == (12 + 3, 12)


def test_a_text_on_both_sides_is_found(corpus: tuple[LocalStore, State]) -> None:
    store, state = corpus
    path = store.folder(state["curate"][0]) / "selection.parquet"
    rows = read_rows(path)
    place = next(index for index, row in enumerate(rows) if row["split"] != rows[0]["split"])
    spoil(path, SELECTION, place, cluster=rows[0]["cluster"])
    assert [problem for problem in check_split(store, state).problems if "both sides" in problem]


def test_an_evaluation_document_that_is_trained_on_is_found(corpus: tuple[LocalStore, State]) -> None:
    store, state = corpus
    rows = read_rows(store.folder(state["curate"][0]) / "selection.parquet")
    trained = next(row["doc_id"] for row in rows if row["split"] == "train")
    spoil(store.folder(state["evalset"][0]) / "documents.parquet", EVALSET, 0, doc_id=trained)
    assert check_split(store, state).problems[0] == f"evaluation document {trained} is trained on"


def plain_grams(text: str) -> list[tuple[str, ...]]:
    """Runs of thirteen words, in plain Python."""
    words = re.findall(r"\w+", text.lower())
    return [tuple(words[place : place + 13]) for place in range(len(words) - 12)]


def plain_shares(texts: dict[str, str], others: dict[str, str]) -> dict[str, float]:
    """How much of each text stands in the others."""
    there = {gram for text in others.values() for gram in plain_grams(text)}
    grams = {name: plain_grams(text) for name, text in texts.items()}
    return {name: sum(gram in there for gram in own) / len(own) for name, own in grams.items()}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of documents that have whole paragraphs in common, where the split saw to it; read only."""
    folder = tmp_path_factory.mktemp("sound")
    files = {f"{number:02}.txt": prose(number, 300) for number in range(20)}
    files |= {f"page-{number:02}.txt": "\n".join(prose(number, 300).split("\n")[5:10]) for number in range(20)}
    files |= {f"mixed-{number}.txt": f"{prose(number, 40)}\n{prose(100 + number, 300)}" for number in range(6)}
    ingest(home_at(folder / "home"), write(folder / "in", files))
    return folder / "home"


@pytest.fixture
def leaky(sound: Path, tmp_path: Path) -> tuple[LocalStore, State]:
    """A copy of that store that may be spoiled."""
    home = home_at(Path(shutil.copytree(sound, tmp_path / "home")))
    store = LocalStore(Path(home.store))
    return store, read_state(store, "default")


def sides_of(store: LocalStore, state: State) -> dict[str, dict[str, str]]:
    """The texts of either side."""
    texts = {
        row["doc_id"]: row["text"]
        for ref in state["normalise"]
        for row in read_rows(store.folder(ref) / "documents.parquet")
    }
    sides: dict[str, dict[str, str]] = {"train": {}, "validation": {}}
    for row in read_rows(store.folder(state["curate"][0]) / "selection.parquet"):
        if row["kept"]:
            sides[row["split"]][row["doc_id"]] = texts[row["doc_id"]]
    return sides


def test_a_split_that_saw_to_it_that_nothing_leaks_has_no_problems(leaky: tuple[LocalStore, State]) -> None:
    store, state = leaky
    assert check_split(store, state).problems == []
    sides = sides_of(store, state)
    assert all(len(side) > 3 for side in sides.values())
    shares = plain_shares(sides["validation"], sides["train"]) | plain_shares(sides["train"], sides["validation"])
    assert max(shares.values()) < 0.2
    assert any(row["reason_code"].startswith("contained") for row in dropped_of(store, state))


def dropped_of(store: LocalStore, state: State) -> list[dict[str, Any]]:
    return read_rows(store.folder(state["curate"][0]) / "dropped.parquet")


@pytest.mark.parametrize("code", ["contained_in_training", "contained_in_validation"])
def test_a_dropped_document_that_is_slipped_back_in_is_found_by_its_text(
    leaky: tuple[LocalStore, State], code: str
) -> None:
    """The expectation is counted in plain Python, from the texts."""
    store, state = leaky
    gone = [row["doc_id"] for row in dropped_of(store, state) if row["reason_code"] == code]
    path = store.folder(state["curate"][0]) / "selection.parquet"
    rows = read_rows(path)
    place = next(number for number, row in enumerate(rows) if row["doc_id"] in gone)
    spoil(path, SELECTION, place, kept=True)
    sides = sides_of(store, state)
    shares = plain_shares(sides["validation"], sides["train"]) | plain_shares(sides["train"], sides["validation"])
    expected = sorted(name for name, share in shares.items() if share >= 0.2)
    found = [problem for problem in check_split(store, state).problems if "runs of thirteen words" in problem]
    assert rows[place]["doc_id"] in expected
    assert sorted(problem.split()[1] for problem in found) == expected
    own = next(problem for problem in found if rows[place]["doc_id"] in problem)
    assert f"{shares[rows[place]['doc_id']]:.1%}" in own


def test_a_document_that_changed_sides_is_found_by_the_text_it_shares(leaky: tuple[LocalStore, State]) -> None:
    """Cluster and all go to the other side, so that only the texts can tell."""
    store, state = leaky
    path = store.folder(state["curate"][0]) / "selection.parquet"
    rows = read_rows(path)
    train = sides_of(store, state)["train"]
    pages = {name for name in train if _stands_in_another(name, train)}
    place = next(number for number, row in enumerate(rows) if row["doc_id"] in pages)
    spoil(path, SELECTION, place, split="validation")
    problems = check_split(store, state).problems
    assert any(f"document {rows[place]['doc_id']} is held out" in problem for problem in problems)


def _stands_in_another(name: str, texts: dict[str, str]) -> bool:
    others = {other: text for other, text in texts.items() if other != name}
    return plain_shares({name: texts[name]}, others)[name] > 0.5


def test_a_shard_that_differs_from_its_table_is_found(corpus: tuple[LocalStore, State]) -> None:
    store, state = corpus
    path = store.folder(state["tokenise"][0]) / "tokens.npy"
    shard = np.load(path, allow_pickle=False)
    shard[5] += 1
    np.save(path, shard, allow_pickle=False)
    assert ["the shard differs from the table" in problem for problem in check_tokens(store, state).problems] == [True]


@pytest.mark.parametrize(
    ("place", "token", "problem"),
    [(0, 5, "not bos"), (-1, 5, "not bos"), (3, 4_000, "ids of the vocabulary"), (3, 1, "do not give its text back")],
    ids=["no-bos", "no-eos", "outside", "unk"],
)
def test_ids_that_are_not_the_documents_are_found(
    corpus: tuple[LocalStore, State], place: int, token: int, problem: str
) -> None:
    store, state = corpus
    path = store.folder(state["tokenise"][0]) / "tokens.parquet"
    row = next(index for index, row in enumerate(read_rows(path)) if not row["lost_bytes"])
    ids = read_rows(path)[row]["ids"]
    ids[place] = token
    spoil(path, TOKENS, row, ids=ids)
    assert [found for found in check_tokens(store, state).problems if problem in found]
