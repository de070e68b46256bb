"""Verification finds each kind of damage, names it, and goes on to the rest of the store."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from storage import schemas
from storage.manifest import ArtifactRef, RefSet
from storage.store import LocalStore
from storage.verify import check_store

Put = Callable[..., ArtifactRef]
METRICS_ROWS = [{"metric": "val/loss", "value": 1.5}]


@pytest.fixture
def refs(put: Put) -> dict[str, ArtifactRef]:
    """A checkpoint, its evaluation and a curve over both."""
    train = put("train", "t", files={"weights.safetensors": bytes(1000)})
    evaluate = put(
        "evaluate", "e", tables={"metrics.parquet": (schemas.METRICS, METRICS_ROWS)}, inputs={"checkpoint": train}
    )
    both = put("report", "r", inputs={"parts": RefSet((train, evaluate), "union")})
    return {"train": train, "evaluate": evaluate, "report": both}


def problems(store: LocalStore) -> dict[str, list[str]]:
    return {check.name: check.problems for check in check_store(store) if check.problems}


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(bytes(data))


def test_a_sound_store_has_no_problems_and_everything_in_it_was_checked(
    store: LocalStore, refs: dict[str, ArtifactRef]
) -> None:
    assert problems(store) == {}
    assert {check.name: check.checked for check in check_store(store)} == {
        "artefacts whole": 3,
        "file digests": 2,
        "table schemas": 1,
        "inputs present": 3,
        "names": 0,
    }


def test_a_store_that_was_never_made_has_no_problems(tmp_path: Path) -> None:
    assert problems(LocalStore(tmp_path / "absent")) == {}


def test_one_flipped_bit_is_found(store: LocalStore, refs: dict[str, ArtifactRef]) -> None:
    path = store.folder(refs["train"]) / "weights.safetensors"
    flip(path, 500)
    assert problems(store) == {"file digests": [f"{path} is not what its manifest lists: --refresh train"]}


@pytest.mark.parametrize("place", [0, -1, -6, -20])
def test_a_table_damaged_where_its_schema_lies_is_a_problem_and_no_crash(
    store: LocalStore, refs: dict[str, ArtifactRef], place: int
) -> None:
    path = store.folder(refs["evaluate"]) / "metrics.parquet"
    flip(path, place)
    assert problems(store) == {"file digests": [f"{path} is not what its manifest lists: --refresh evaluate"]}


def test_a_missing_input_is_found_for_each_artefact_made_from_it(
    store: LocalStore, refs: dict[str, ArtifactRef]
) -> None:
    shutil.rmtree(store.folder(refs["train"]))
    gone = f"was made from train/{refs['train'].key}, which is gone"
    expected = [f"{stage}/{refs[stage].key} {gone}" for stage in ("evaluate", "report")]
    assert problems(store) == {"inputs present": expected}


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"cut")])
def test_an_artefact_that_lacks_a_file_or_has_it_cut_short_is_found(
    store: LocalStore, refs: dict[str, ArtifactRef], damage: Callable[[Path], object]
) -> None:
    damage(store.folder(refs["evaluate"]) / "metrics.parquet")
    (problem,) = problems(store)["artefacts whole"]
    assert problem.startswith(f"evaluate/{refs['evaluate'].key} lacks files")


def test_a_manifest_that_cannot_be_read_is_a_problem_and_the_rest_is_checked_all_the_same(
    store: LocalStore, refs: dict[str, ArtifactRef]
) -> None:
    (store.folder(refs["train"]) / "manifest.json").write_text("{")
    flip(store.folder(refs["evaluate"]) / "metrics.parquet", 10)
    found = problems(store)
    assert found.keys() == {"artefacts whole", "file digests"}
    assert "manifest.json cannot be read" in found["artefacts whole"][0]


def test_a_table_of_another_schema_is_found(store: LocalStore, put: Put) -> None:
    wrong = schemas.METRICS.append(schemas.FILES.field("status"))
    row = {**METRICS_ROWS[0], "status": "ok"}
    ref = put("evaluate", "e", tables={"metrics.parquet": (wrong, [row])})
    path = store.folder(ref) / "metrics.parquet"
    assert problems(store) == {"table schemas": [f"{path} does not have the schema of this version"]}
