"""Verification finds each kind of damage, names it, and goes on to the rest of the store."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from s3 import Objects

from storage import s3, schemas, verify
from storage.locks import owner_lock
from storage.manifest import ArtifactRef, Manifest, RefSet, StageFacts, describe_inputs
from storage.store import Store, StoreError, open_store
from storage.verify import check_store

Put = Callable[..., ArtifactRef]
FACTS = {"evaluate": StageFacts(tables={"metrics.parquet": schemas.METRICS})}
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


def problems(store: Store) -> dict[str, list[str]]:
    return {check.name: check.problems for check in check_store(store, FACTS) if check.problems}


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(bytes(data))


def test_a_sound_store_has_no_problems_and_everything_in_it_was_checked(
    store: Store, refs: dict[str, ArtifactRef]
) -> None:
    assert problems(store) == {}
    assert {check.name: check.checked for check in check_store(store, FACTS)} == {
        "artefacts whole": 3,
        "file digests": 2,
        "table schemas": 1,
        "inputs present": 3,
        "names": 0,
    }


def test_a_store_that_was_never_made_has_no_problems(tmp_path: Path) -> None:
    assert problems(Store(tmp_path / "absent")) == {}


@pytest.mark.parametrize("place", [0, -1, -6, -20])
def test_a_table_damaged_where_its_schema_lies_is_a_problem_and_no_crash(
    store: Store, refs: dict[str, ArtifactRef], place: int
) -> None:
    path = store.folder(refs["evaluate"]) / "metrics.parquet"
    flip(path, place)
    assert problems(store) == {"file digests": [f"{path} is not what its manifest lists: --refresh evaluate"]}


def test_a_file_on_a_bad_sector_is_a_problem_and_the_rest_is_checked_all_the_same(
    store: Store, refs: dict[str, ArtifactRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, original = store.folder(refs["train"]) / "weights.safetensors", verify.sha256_file

    def sha256_file(path: Path) -> str:
        if path == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return original(path)

    monkeypatch.setattr(verify, "sha256_file", sha256_file)
    flip(store.folder(refs["evaluate"]) / "metrics.parquet", 4)
    first, second = problems(store)[verify.DIGESTS]
    assert f"{bad} cannot be read (Input/output error): --refresh train" in (first, second)


def test_a_damaged_record_of_a_removed_artefact_is_named(store: Store, refs: dict[str, ArtifactRef]) -> None:
    store.remove("train", refs["train"].key, keep_manifest=True)
    (record,) = (store.root / ".removed").rglob("*.json")
    record.write_text('{"format": 1')
    with pytest.raises(StoreError, match=rf"{record} cannot be read"):
        store.removed_manifest("train", refs["train"].key)


def test_a_missing_input_is_found_for_each_artefact_made_from_it(store: Store, refs: dict[str, ArtifactRef]) -> None:
    shutil.rmtree(store.folder(refs["train"]))
    gone = f"was made from train/{refs['train'].key}, which is not in the store"
    expected = [f"{stage}/{refs[stage].key} {gone}" for stage in ("evaluate", "report")]
    assert problems(store) == {"inputs present": expected}


def test_a_manifest_that_cannot_be_read_is_a_problem_and_the_rest_is_checked_all_the_same(
    store: Store, refs: dict[str, ArtifactRef]
) -> None:
    (store.folder(refs["train"]) / "manifest.json").write_text("{")
    flip(store.folder(refs["evaluate"]) / "metrics.parquet", 10)
    found = problems(store)
    assert found.keys() == {"artefacts whole", "file digests"}
    assert "manifest.json cannot be read" in found["artefacts whole"][0]


def test_a_table_of_another_schema_is_found(store: Store, put: Put) -> None:
    wrong = schemas.METRICS.append(schemas.FILES.field("status"))
    row = {**METRICS_ROWS[0], "status": "ok"}
    ref = put("evaluate", "e", tables={"metrics.parquet": (wrong, [row])})
    path = store.folder(ref) / "metrics.parquet"
    assert problems(store) == {"table schemas": [f"{path} does not have the schema of this version"]}


# while others work


def when_asked(
    monkeypatch: pytest.MonkeyPatch, method: str, arguments: tuple[str, ...], act: Callable[[], object]
) -> None:
    """Do something at the moment in which a store is first asked for these."""
    original, left = getattr(Store, method), [act]

    def asked(store: Store, *given: str) -> Any:
        if left and given == arguments:
            left.pop()()
        return original(store, *given)

    monkeypatch.setattr(Store, method, asked)


def test_what_is_committed_with_its_input_while_the_stages_are_listed_is_no_problem(
    store: Store, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("extract", "before")
    put("normalise", "before")

    def ingest() -> None:
        put("normalise", "n", inputs={"segment": put("extract", "e")})

    when_asked(monkeypatch, "keys", ("normalise",), ingest)  # the segments are listed by then
    assert problems(store) == {}
    assert {check.name: check.checked for check in check_store(store, FACTS)}["inputs present"] == 1


@pytest.mark.parametrize("moment", ["find", "folder", "sha256_file"])
def test_what_is_taken_out_while_it_is_looked_at_is_no_problem(
    store: Store, refs: dict[str, ArtifactRef], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    left = [refs[stage] for stage in ("train", "evaluate", "report")]
    asked_for = {"find": Store, "folder": Store, "sha256_file": verify}[moment]
    original = getattr(asked_for, moment)

    def ask(*given: Any) -> Any:
        while left:  # each before what it was made from
            ref = left.pop()
            store.remove(ref.stage, ref.key)
        return original(*given)

    monkeypatch.setattr(asked_for, moment, ask)
    assert problems(store) == {}
    assert store.keys("train") == []


def test_what_is_taken_out_with_its_input_at_the_second_look_is_no_problem(
    store: Store, refs: dict[str, ArtifactRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store.folder(refs["evaluate"]) / "metrics.parquet"
    flip(path, 10)
    is_owned = Store.is_owned

    def clear_up(self: Store, *name: str) -> bool:
        for stage in ("report", "evaluate", "train"):
            store.remove(stage, refs[stage].key)
        return is_owned(self, *name)

    monkeypatch.setattr(Store, "is_owned", clear_up)
    assert problems(store) == {}


def test_what_is_half_there_is_a_problem_unless_somebody_works_on_it(
    store: Store, refs: dict[str, ArtifactRef]
) -> None:
    key = refs["train"].key
    (store.folder(refs["train"]) / "manifest.json").unlink()
    with owner_lock(store.root / ".locks" / f"train-{key}.lock"):
        assert problems(store) == {}
    assert problems(store)["artefacts whole"][0].startswith(f"train/{key} lacks files")


def test_damage_is_told_although_somebody_works_on_it(store: Store, refs: dict[str, ArtifactRef]) -> None:
    flip(store.folder(refs["train"]) / "weights.safetensors", 500)
    with owner_lock(store.root / ".locks" / f"train-{refs['train'].key}.lock"):
        assert problems(store).keys() == {"file digests"}


def test_what_another_machine_uploads_or_has_just_uploaded_is_no_problem(
    s3_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "LISTING_SECONDS", 3600.0)  # as if the listing had taken so long
    here, there = (open_store(s3_address, tmp_path / name) for name in ("here", "there"))

    def put(stage: str, key: str, **inputs: ArtifactRef) -> ArtifactRef:
        with there.workspace(stage, key) as work:
            (work.out / "file").write_text(key)
            return there.commit(work, Manifest(stage, 1, key, key, describe_inputs(inputs), {}, [])).ref

    put("extract", "before")
    assert here.keys("extract") == ["before"]
    put("normalise", "n", segment=put("extract", "e"))
    assert problems(here) == {}
    Objects(s3_address).write("train/t/0123/weights", b"the manifest comes later")
    assert problems(open_store(s3_address, tmp_path / "here")) == {}
    monkeypatch.setattr(s3, "UPLOAD_SECONDS", -1.0)  # as if it had been left there long ago
    found = problems(open_store(s3_address, tmp_path / "here"))
    assert found["artefacts whole"][0].startswith("train/t lacks files")
