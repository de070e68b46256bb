"""Small segments become one, and no digest, no row and no later run notices it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from ingest_run import PER_SEGMENT, prose, write
from tiny_run import Ran, home_at, run_prepare

import storage.store
import tasks.ingest.segments as segments_module
import tasks.upkeep.compact as compact_module
from flows.stages import stage_facts
from storage.catalog import Catalog, read_state
from storage.home import Home
from storage.store import Store, open_store
from tasks.upkeep.compact import compact_home
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
    """Return the rows of the queries over a corpus."""
    catalog = Catalog(open_store(home.store), "default")
    return [catalog.query(query) for query in QUERIES]


FOLLOWING = {*PER_SEGMENT, "tokenise", "evalset_overlap"} - {"extract"}  # of a joined segment, by the next run


def test_four_segments_become_one_and_the_next_run_reads_no_file_and_leaves_every_digest(
    home: Home, source: Path
) -> None:
    store = open_store(home.store)
    before, rows = read_state(store, "default"), shown(home)
    assert len(before["extract"]) == 4
    assert [len(parts) for parts in compact_home(home, store, at_least=4)["joined"].values()] == [4]
    assert read_state(store, "default") == before
    ran = run_prepare(home, source)
    assert set(ran.computed()) - {"snapshot"} == FOLLOWING
    after = read_state(store, "default")
    for stage in ("extract", "normalise", "measure", "refine", "tokenise"):
        assert len(after[stage]) == 1, stage
    assert after["snapshot"][0].digest == before["snapshot"][0].digest
    assert after["dataset"] == before["dataset"]
    assert shown(home) == rows
    assert verify_home(home, open_store(home.store), stage_facts(), "default")["ok"]
    assert run_prepare(home, source).computed() == {}


def test_the_joined_segment_is_the_one_that_reading_the_files_gives(home: Home, source: Path) -> None:
    compact_home(home, open_store(home.store), at_least=4)
    run_prepare(home, source)
    (joined,) = read_state(open_store(home.store), "default")["extract"]
    copied = contents(home, "extract")[joined.key]
    run_prepare(home, source, refresh=("extract",))
    assert contents(home, "extract")[joined.key] == copied


def contents(home: Home, stage: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Digest and rows of the artefacts of a stage, by key."""
    found = {}
    for path in (Path(home.store) / stage).glob("*/manifest.json"):
        tables = {file.name: pq.read_table(file).to_pylist() for file in path.parent.glob("*.parquet")}
        found[path.parent.name] = (json.loads(path.read_text())["digest"], tables)
    return found


@pytest.mark.full
def test_new_documents_come_beside_the_joined_segment_and_cost_themselves_alone(
    home: Home, source: Path, tmp_path: Path
) -> None:
    compact_home(home, open_store(home.store), at_least=4)
    more = write(Path(shutil.copytree(source, tmp_path / "in")), {"new.txt": prose(77)})
    # the copied files are the same documents at other paths
    run_prepare(home, source)
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
    home: Home, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact_module, "SEGMENT_FILES", 2 * FILES_EACH)
    assert [len(parts) for parts in compact_home(home, open_store(home.store))["joined"].values()] == [2]
    run_prepare(home, source)
    assert len(read_state(open_store(home.store), "default")["extract"]) == 3
    assert compact_home(home, open_store(home.store))["joined"] == {}


def test_what_was_joined_goes_when_no_corpus_stands_at_it_and_lineage_leads_through_it(
    home: Home, source: Path
) -> None:
    store = open_store(home.store)
    old = {f"extract/{ref.key}" for ref in read_state(store, "default")["extract"]}
    assert compact_home(home, store, at_least=4, grace_days=0)["removed"] == []
    run_prepare(home, source)
    assert compact_home(home, store)["removed"] == []
    assert set(compact_home(home, store, grace_days=0)["removed"]) == old
    assert verify_home(home, open_store(home.store), stage_facts(), "default")["ok"]
    assert run_prepare(home, source).computed() == {}


@pytest.mark.parametrize("tidied", [False, True])
def test_a_document_is_forgotten_in_the_joined_segment_and_in_what_was_joined(
    home: Home, source: Path, tidied: bool
) -> None:
    compact_home(home, open_store(home.store), at_least=4)
    run_prepare(home, source)
    compact_home(home, open_store(home.store), grace_days=0 if tidied else 1)
    assert len(open_store(home.store).keys("extract")) == (1 if tidied else 5)
    forget(home, open_store(home.store), "secret.txt", "", "default", False)
    for path in Path(home.store).rglob("*.parquet"):
        assert SECRET not in json.dumps(pq.read_table(path).to_pylist(), default=str), path
    store = open_store(home.store)
    assert len(store.keys("extract")) == (1 if tidied else 4)  # what was joined is not rewritten beside it
    assert store.keys("tokenise") == []  # every shard, joined or not, that may have held it
    assert verify_home(home, open_store(home.store), stage_facts(), "default")["ok"]


class Killed(BaseException):
    """Exception that stands for a kill."""


@pytest.mark.parametrize("number", range(5))
def test_a_kill_at_a_write_costs_nothing(home: Home, source: Path, number: int) -> None:
    """The commit of the joined segment, and each removal of one that it replaces."""

    def join() -> object:
        return compact_home(home, open_store(home.store), at_least=4, grace_days=0)

    assert number or _killed(join, 0)
    join()
    run_prepare(home, source)
    assert not number or _killed(join, number - 1)
    join()
    store = open_store(home.store)
    assert store.keys("extract") == [ref.key for ref in read_state(store, "default")["extract"]]
    assert len(store.keys("extract")) == 1
    assert verify_home(home, store, stage_facts(), "default")["ok"]
    assert run_prepare(home, source).computed() == {}


def _killed(function: Callable[[], object], number: int) -> bool:
    """Return True if the function was ended at this write, counted from 0."""
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
        patch.setattr(Store, "remove", counting(Store.remove))
        try:
            function()
        except Killed:
            return True
    return False
