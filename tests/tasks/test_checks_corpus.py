"""The checks of a corpus's meaning see what they are there to see."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
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
    """Change one row of a table."""
    rows = read_rows(path)
    rows[place] |= changes
    write_table(path, schema, rows)
    assert pq.read_schema(path).equals(schema)


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
    assert check_split(store, state).problems == [f"evaluation document {trained} is trained on"]


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
