"""The checks of a corpus see what they are there to see, and what a repair removed comes back with the next run."""

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
from tiny_run import Ran, copy_of_store, home_at, run_prepare, run_whole, tiny_settings, write_texts

from flows.stages import stage_facts
from storage.catalog import read_state
from storage.manifest import ArtifactRef
from storage.schemas import EVALSET, SELECTION, SEQUENCES, SHARD_COUNTS_FILE, TOKENS
from storage.store import Store, open_store
from storage.tables import read_rows, write_table
from tasks.upkeep.verify import check_sequences, check_split, check_tokens, verify_home

State = dict[str, list[ArtifactRef]]


@pytest.fixture
def corpus(tiny: Ran, tmp_path: Path) -> tuple[Store, State]:
    """A copy of the tiny corpus that may be spoiled."""
    home = copy_of_store(tiny, tmp_path / "home")
    store = Store(Path(home.store))
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


def test_a_sound_corpus_has_no_problems(corpus: tuple[Store, State]) -> None:
    store, state = corpus
    split, tokens = check_split(store, state), check_tokens(store, state)
    assert (split.problems, tokens.problems) == ([], [])
    assert (split.checked, tokens.checked) == (12 + 3, 12)


def test_a_text_on_both_sides_is_found(corpus: tuple[Store, State]) -> None:
    store, state = corpus
    path = store.folder(state["curate"][0]) / "selection.parquet"
    rows = read_rows(path)
    place = next(index for index, row in enumerate(rows) if row["split"] != rows[0]["split"])
    spoil(path, SELECTION, place, cluster=rows[0]["cluster"])
    assert [problem for problem in check_split(store, state).problems if "both sides" in problem]


def test_an_evaluation_document_that_is_trained_on_is_found(corpus: tuple[Store, State]) -> None:
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
    """Return the share of each text that occurs in the others."""
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
def leaky(sound: Path, tmp_path: Path) -> tuple[Store, State]:
    """A copy of that store that may be spoiled."""
    home = home_at(Path(shutil.copytree(sound, tmp_path / "home")))
    store = Store(Path(home.store))
    return store, read_state(store, "default")


def sides_of(store: Store, state: State) -> dict[str, dict[str, str]]:
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


def test_a_split_that_saw_to_it_that_nothing_leaks_has_no_problems(leaky: tuple[Store, State]) -> None:
    store, state = leaky
    assert check_split(store, state).problems == []
    sides = sides_of(store, state)
    assert all(len(side) > 3 for side in sides.values())
    shares = plain_shares(sides["validation"], sides["train"]) | plain_shares(sides["train"], sides["validation"])
    assert max(shares.values()) < 0.2
    assert any(row["reason_code"].startswith("contained") for row in dropped_of(store, state))


def dropped_of(store: Store, state: State) -> list[dict[str, Any]]:
    return read_rows(store.folder(state["curate"][0]) / "dropped.parquet")


@pytest.mark.parametrize("code", ["contained_in_training", "contained_in_validation"])
def test_a_dropped_document_that_is_slipped_back_in_is_found_by_its_text(leaky: tuple[Store, State], code: str) -> None:
    """The expectation is counted in plain Python, from the texts."""
    store, state = leaky
    gone = [row["doc_id"] for row in dropped_of(store, state) if row["reason_code"] == code]
    path = store.folder(state["curate"][0]) / "selection.parquet"
    rows = read_rows(path)
    place = next(number for number, row in enumerate(rows) if row["doc_id"] in gone)
    spoil(path, SELECTION, place, kept=True)
    sides = sides_of(store, state)
    shares = plain_shares(sides["validation"], sides["train"]) | plain_shares(sides["train"], sides["validation"])
    expected = sorted(name for name, share in shares.items() if share > 0.2)
    found = [problem for problem in check_split(store, state).problems if "of its 13-grams" in problem]
    assert rows[place]["doc_id"] in expected
    assert sorted(problem.split()[1] for problem in found) == expected
    own = next(problem for problem in found if rows[place]["doc_id"] in problem)
    assert f"{shares[rows[place]['doc_id']]:.1%}" in own


def test_a_document_that_changed_sides_is_found_by_the_text_it_shares(leaky: tuple[Store, State]) -> None:
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


def change_shard(store: Store, state: State, place: int, token: int, *, counted: bool = True) -> None:
    """Another id at a place of the first document that lost nothing, and counts that agree."""
    folder = store.folder(state["tokenise"][0])
    row = next(row for row in read_rows(folder / "tokens.parquet") if not row["lost_bytes"])
    shard = np.load(folder / "tokens.npy", allow_pickle=False)
    at = row["offset"] + place % row["length"]
    before, shard[at] = int(shard[at]), token
    np.save(folder / "tokens.npy", shard, allow_pickle=False)
    counts = np.load(folder / SHARD_COUNTS_FILE, allow_pickle=False)
    if counted and token < len(counts):
        counts[before] -= 1
        counts[token] += 1
        np.save(folder / SHARD_COUNTS_FILE, counts, allow_pickle=False)


@pytest.mark.parametrize(
    ("place", "token", "problem"),
    [
        (0, 10, "where 2 is expected"),
        (-1, 10, "where 3 is expected"),
        (-1, 10, "special id 3 occurs"),
        (3, 250, "id 250 is outside the vocabulary"),
        (3, 2, "special id 2 occurs"),
        (3, 1, "do not decode to its text"),
        (3, 10, "do not decode to its text"),
    ],
    ids=["no-bos", "no-eos", "eos-count", "outside", "bos-inside", "unk", "altered"],
)
def test_ids_that_are_not_the_documents_are_found(
    corpus: tuple[Store, State], place: int, token: int, problem: str
) -> None:
    store, state = corpus
    change_shard(store, state, place, token)
    assert [found for found in check_tokens(store, state).problems if problem in found]


def test_ids_that_are_not_counted_are_found(corpus: tuple[Store, State]) -> None:
    store, state = corpus
    change_shard(store, state, 3, 10, counted=False)
    assert any("differs from the counts of its ids" in problem for problem in check_tokens(store, state).problems)


def test_altered_counts_are_found(corpus: tuple[Store, State]) -> None:
    store, state = corpus
    path = store.folder(state["tokenise"][0]) / SHARD_COUNTS_FILE
    counts = np.load(path, allow_pickle=False)
    counts[7] += 1
    np.save(path, counts, allow_pickle=False)
    problems = check_tokens(store, state).problems
    assert ["differs from the counts of its ids" in problem for problem in problems] == [True]


def test_a_table_that_does_not_fit_its_shard_is_found(corpus: tuple[Store, State]) -> None:
    store, state = corpus
    path = store.folder(state["tokenise"][0]) / "tokens.parquet"
    spoil(path, TOKENS, 1, offset=read_rows(path)[1]["offset"] + 1)
    assert any("are not contiguous" in problem for problem in check_tokens(store, state).problems)


def test_sequences_of_a_sound_corpus_have_no_problems(corpus: tuple[Store, State]) -> None:
    store, state = corpus
    check = check_sequences(store, state)
    assert check.problems == []
    assert check.checked == len(read_rows(store.folder(state["dataset"][0]) / "sequences.parquet"))


def test_sequences_have_no_problems_for_any_packing_and_mix(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "source")
    code = "".join(f"value_{number} = {number} * other_{number}\n" for number in range(80))
    write(source, {"code.py": code})
    for settings in (
        ["dataset.stride=16"],
        ["dataset.packing=concat", "dataset.drop_last=true"],
        ["dataset.packing=pack", "mix.by=kind", "mix.weights=code=0.5,text=0.5"],
        ["dataset.packing=pack", "mix.by=kind", "mix.weights=code=0,text=1"],
    ):
        store = run_prepare(home_at(tmp_path / "home"), source, tiny_settings(*settings)).run.store
        assert check_sequences(store, read_state(store, "default")).problems == [], settings


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda row, _: {"start": row["start"] + 10_000}, "is not within its document"),
        (lambda row, _: {"length": row["length"] + 10_000}, "is not within its document"),
        (lambda _, other: {"doc_id": other["doc_id"]}, "on the other side of the split"),
        (lambda row, _: {"doc_id": "0" * len(row["doc_id"])}, "is of a document that is not kept"),
        (lambda row, _: {"length": row["length"] - 1}, "in dataset.json"),
    ],
    ids=["start", "length", "side", "unknown", "shorter"],
)
def test_a_piece_that_is_not_of_its_document_is_found(corpus: tuple[Store, State], change: Any, problem: str) -> None:
    store, state = corpus
    path = store.folder(state["dataset"][0]) / "sequences.parquet"
    rows = read_rows(path)
    place = next(number for number, row in enumerate(rows) if row["split"] == "train")
    other = next(row for row in rows if row["split"] == "validation")
    spoil(path, SEQUENCES, place, **change(rows[place], other))
    assert any(problem in found for found in check_sequences(store, state).problems)


@pytest.mark.parametrize("name", ["documents", "ids", "kept", "repeated", "padded", "cut", "labels"])
def test_an_account_that_does_not_add_up_is_found(corpus: tuple[Store, State], name: str) -> None:
    store, state = corpus
    change_record(store, state, lambda record: record["splits"]["train"].update({name: -1}))
    problems = check_sequences(store, state).problems
    assert any(f"{name} is " in problem and "but -1 in" in problem for problem in problems)


@pytest.mark.parametrize("name", ["first", "count", "reads", "tokens", "sequences"])
def test_groups_that_are_not_in_the_index_are_found(corpus: tuple[Store, State], name: str) -> None:
    store, state = corpus
    change_record(store, state, lambda record: record["groups"][0].update({name: record["groups"][0][name] + 1}))
    assert any("group 'all': " in problem for problem in check_sequences(store, state).problems)


def test_reads_that_the_manifest_does_not_count_are_found(corpus: tuple[Store, State]) -> None:
    store, state = corpus
    path = store.folder(state["dataset"][0]) / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["counts"]["train_reads"] += 1
    path.write_text(json.dumps(manifest))
    (problem,) = check_sequences(store, state).problems
    assert "but the manifest counts" in problem


def change_record(store: Store, state: State, change: Any) -> None:
    """Change what dataset.json says."""
    path = store.folder(state["dataset"][0]) / "dataset.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    agree(path)


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.full
def test_damaged_segment_shard_manifest_checkpoint_and_name_are_made_again_as_they_were(
    tiny: Ran, tiny_source: Path, tmp_path: Path
) -> None:
    home = copy_of_store(tiny, tmp_path / "home")
    store = open_store(home.store)
    before = {(found.stage, found.key): found.digest for stage in store.stages() for found in store.manifests(stage)}
    (segment,), (shard,) = store.keys("extract"), store.keys("tokenise")
    (curated,), (trained,) = store.keys("curate"), store.keys("train")
    root = Path(home.store)
    damage(root / "extract" / segment / "pages.parquet")
    (root / "tokenise" / shard / "tokens.npy").unlink()
    (root / "curate" / curated / "manifest.json").write_text("{")
    damage(root / "train" / trained / "model.safetensors")
    (root / ".refs" / "corpus" / "default.json").write_text("")
    report = verify_home(home, open_store(home.store), stage_facts(), "default", mend=True)
    assert len([item for item in report["repaired"] if item["done"]]) == 5
    assert report["ok"]
    ran = run_whole(home, tiny_source)
    assert set(ran.computed()) == {"extract", "tokenise", "curate", "train"}
    after = {(found.stage, found.key): found.digest for stage in store.stages() for found in store.manifests(stage)}
    assert after == before
    assert verify_home(home, open_store(home.store), stage_facts(), "default")["ok"]
