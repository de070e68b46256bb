"""Small segments become one, and no digest, no row and no later run notices it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from ingest_run import prose, write
from tiny_run import Ran, home_at, run_prepare

import storage.store
import tasks.ingest.extract as segments_module
import tasks.upkeep.compact as compact_module
from flows.stages import stage_facts
from storage.catalog import Catalog, read_state
from storage.home import Home
from storage.store import Store, open_store
from tasks.upkeep.compact import compact, compact_home
from tasks.upkeep.forget import forget
from tasks.upkeep.verify import verify_home

FILES_EACH = 3
SECRET = "the marmalade cathedral hums beneath seventeen violet lanterns"
QUERIES = (
    "select path, status, doc_id from files order by path",
    'select * exclude ("offset", ids) from tokens order by doc_id',
    "select doc_id, ids from tokens order by doc_id",
    "select * from documents order by doc_id",
    "select * from pages order by doc_id, page",
    "select * from measures order by doc_id",
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve files, of which one is an archive and one is refused."""
    import io
    import zipfile

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for number in range(2):
            archive.writestr(f"member{number}.txt", prose(100 + number))
    files: dict[str, str | bytes] = {f"{number:02}.txt": prose(number) for number in range(9)}
    files |= {
        "secret.txt": f"{SECRET}.\n{prose(50)}\n",
        "two.zip": packed.getvalue(),
        "none.bin": bytes(range(256)) * 9,
    }
    return write(tmp_path_factory.mktemp("compaction") / "in", files)


def prepared(home: Home, source: Path) -> Ran:
    """Prepare in segments of three files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments_module, "SEGMENT_FILES", FILES_EACH)
        return run_prepare(home, source)


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Home:
    """A prepared corpus of four segments; read only."""
    home = home_at(tmp_path_factory.mktemp("grown") / "home")
    prepared(home, source)
    return home


@pytest.fixture
def home(grown: Home, tmp_path: Path) -> Home:
    return copy_of(grown, tmp_path / "home")


def copy_of(home: Home, folder: Path) -> Home:
    """The same home elsewhere, to be changed."""
    found = home_at(folder)
    shutil.copytree(home.store, found.store, dirs_exist_ok=True)
    return found


def shown(home: Home) -> list[list[dict[str, Any]]]:
    """What a person sees of a corpus."""
    catalog = Catalog(open_store(home.store), "default")
    return [catalog.query(query) for query in QUERIES]


def test_four_segments_become_one_and_the_snapshots_digest_stays(home: Home) -> None:
    store = open_store(home.store)
    before, rows = read_state(store, "default"), shown(home)
    assert len(before["extract"]) == 4
    done = compact_home(home, open_store(home.store), at_least=4)
    assert [len(parts) for parts in done["joined"].values()] == [4]
    assert (done["followed"], done["waiting"]) == (["default"], [])
    after = read_state(store, "default")
    for stage in ("extract", "normalise", "measure", "refine", "tokenise"):
        assert len(after[stage]) == 1, stage
    assert after["snapshot"][0].digest == before["snapshot"][0].digest
    assert after["snapshot"][0].key != before["snapshot"][0].key
    assert after["dataset"] == before["dataset"]
    assert shown(home) == rows
    assert verify_home(home, open_store(home.store), stage_facts(), "default")["ok"]


def test_the_next_run_finds_everything_it_asks_for(home: Home, source: Path) -> None:
    compact_home(home, open_store(home.store), at_least=4)
    state = read_state(open_store(home.store), "default")
    ran = run_prepare(home, source)
    assert ran.computed() == {}
    assert read_state(ran.run.store, "default") == state


def test_joined_artefacts_are_those_that_computing_them_gives(home: Home, source: Path) -> None:
    compact_home(home, open_store(home.store), at_least=4)
    state = read_state(open_store(home.store), "default")
    stages = ("normalise", "measure", "refine", "tokenise", "evalset_overlap", "snapshot")
    joined = {stage: contents(home, stage) for stage in stages}
    again = run_prepare(home, source, refresh=stages)
    assert set(again.computed()) >= set(stages)
    for stage in stages:
        for key in {ref.key for ref in state.get(stage, [])} or set(joined[stage]):
            assert contents(home, stage)[key] == joined[stage][key], stage


def contents(home: Home, stage: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Digest and data of the artefacts of a stage: tables by their rows, arrays by their values."""
    found = {}
    for path in (Path(home.store) / stage).glob("*/manifest.json"):
        digest = json.loads(path.read_text())["digest"]
        tables = {file.name: pq.read_table(file).to_pylist() for file in path.parent.glob("*.parquet")}
        arrays = {file.name: np.load(file, allow_pickle=False).tolist() for file in path.parent.glob("*.npy")}
        found[path.parent.name] = (digest, {**tables, **arrays})
    return found


def test_new_documents_come_beside_the_joined_segment_and_cost_themselves_alone(
    home: Home, source: Path, tmp_path: Path
) -> None:
    compact_home(home, open_store(home.store), at_least=4)
    more = write(Path(shutil.copytree(source, tmp_path / "in")), {"new.txt": prose(77)})
    # the copied files are the same documents at other paths
    ran = run_prepare(home, more)
    assert (ran.reports["extract"].computed, ran.reports["tokenise"].computed) == (1, 1)
    assert len(read_state(ran.run.store, "default")["extract"]) == 2
    assert verify_home(home, open_store(home.store), stage_facts(), "default")["ok"]


def test_few_segments_are_left_alone_and_a_dry_run_changes_nothing(home: Home) -> None:
    before = sorted(path.relative_to(home.store) for path in Path(home.store).rglob("*"))
    assert compact_home(home, open_store(home.store))["joined"] == {}
    assert [
        len(parts) for parts in compact_home(home, open_store(home.store), at_least=2, dry_run=True)["joined"].values()
    ] == [4]
    assert sorted(path.relative_to(home.store) for path in Path(home.store).rglob("*")) == before


def test_segments_that_fill_one_are_joined_however_few_and_not_again(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact_module, "SEGMENT_FILES", 2 * FILES_EACH)
    assert [len(parts) for parts in compact_home(home, open_store(home.store))["joined"].values()] == [2]
    assert len(read_state(open_store(home.store), "default")["extract"]) == 3
    assert compact_home(home, open_store(home.store))["joined"] == {}


def test_what_was_joined_goes_when_nobody_used_it_and_lineage_leads_through_it(home: Home, source: Path) -> None:
    store = open_store(home.store)
    old = read_state(store, "default")
    assert compact(store, at_least=4).removed == []
    done = compact_home(home, open_store(home.store), grace_days=0)
    gone = {f"{ref.stage}/{ref.key}" for stage in ("extract", "normalise", "measure") for ref in old[stage]}
    assert gone <= set(done["removed"])
    assert {ref.key for ref in old["tokenise"]} <= set(store.keys("tokenise"))  # the dataset's spans point into them
    assert verify_home(home, open_store(home.store), stage_facts(), "default")["ok"]
    assert run_prepare(home, source).computed() == {}


@pytest.mark.parametrize("tidied", [False, True])
def test_a_document_is_forgotten_in_the_joined_segment_and_in_what_was_joined(home: Home, tidied: bool) -> None:
    compact_home(home, open_store(home.store), at_least=4, grace_days=0 if tidied else 1)
    assert len(open_store(home.store).keys("extract")) == (1 if tidied else 5)
    forget(home, open_store(home.store), "secret.txt", "", "default", False)
    for path in Path(home.store).rglob("*.parquet"):
        assert SECRET not in json.dumps(pq.read_table(path).to_pylist(), default=str), path
    store = open_store(home.store)
    assert len(store.keys("extract")) == (1 if tidied else 4)  # what was joined is not rewritten beside it
    assert store.keys("tokenise") == []  # every shard, joined or not, that may have held it
    assert verify_home(home, open_store(home.store), stage_facts(), "default")["ok"]


class Killed(BaseException):
    """What ends a compaction here."""


WRITES = 24  # of this compaction: seven artefacts, the ref, and what goes


@pytest.mark.parametrize(
    "writes",
    [(2, 6, 7, 9), pytest.param(tuple(range(WRITES + 1)), marks=pytest.mark.faults)],
    ids=["some", "each"],
)
def test_a_kill_at_a_write_costs_nothing(grown: Home, source: Path, tmp_path: Path, writes: tuple[int, ...]) -> None:
    """Every commit, move of a name and removal in turn; then compaction again, and here and there a run between."""
    whole = copy_of(grown, tmp_path / "whole")
    compact_home(whole, open_store(whole.store), at_least=4, grace_days=0)
    expected = read_state(open_store(whole.store), "default")
    for number in writes:
        home = copy_of(grown, tmp_path / str(number))
        killed = _killed(lambda home=home: compact_home(home, open_store(home.store), at_least=4, grace_days=0), number)
        assert killed == (number < WRITES)
        if number in (2, 12):
            assert run_prepare(home, source).computed().keys().isdisjoint({"extract", "dataset"}), number
        compact_home(home, open_store(home.store), at_least=4, grace_days=0)
        assert read_state(open_store(home.store), "default") == expected, f"killed at write {number}"
        assert verify_home(home, open_store(home.store), stage_facts(), "default")["ok"], f"killed at write {number}"
        shutil.rmtree(home.path)


def _killed(function: Callable[[], object], number: int) -> bool:
    """Whether calling a function ended at this write, counted from 0."""
    left = number

    def counting(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            nonlocal left
            if not left:
                raise Killed
            left -= 1
            return real(*arguments, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage.store, "publish", counting(storage.store.publish))
        for name in ("write_ref", "remove"):
            patch.setattr(Store, name, counting(getattr(Store, name)))
        try:
            function()
        except Killed:
            return True
    return False
