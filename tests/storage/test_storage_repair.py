"""Repair removes what is damaged, and nothing else; what a run cannot make again it leaves, and says so."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.locks import owner_lock
from storage.manifest import ArtifactRef, StageFacts
from storage.store import Store
from storage.tombstones import TOMBSTONES_REF
from storage.verify import Repair, check_store, repair

Put = Callable[..., ArtifactRef]
FACTS = {"tokenizer": StageFacts(pinned=True), "evalset": StageFacts(pinned=True)}


@pytest.fixture
def refs(put: Put) -> dict[str, ArtifactRef]:
    """A dataset, a checkpoint made from it, and its evaluation."""
    dataset = put("dataset", "d", files={"sequences.bin": bytes(100)})
    train = put("train", "t", files={"weights.safetensors": bytes(1000)}, inputs={"dataset": dataset})
    evaluate = put("evaluate", "e", files={"figures.json": b"{}"}, inputs={"checkpoint": train})
    return {"dataset": dataset, "train": train, "evaluate": evaluate}


def repaired(store: Store) -> list[Repair]:
    return repair(store, check_store(store, FACTS), FACTS)


def contents(root: Path) -> dict[str, bytes]:
    """Every file that readers of a store find."""
    found = (path for path in sorted(root.rglob("*")) if path.is_file())
    names = {path.relative_to(root).as_posix(): path for path in found}
    hidden = (".removed/", ".locks/")
    return {name: path.read_bytes() for name, path in names.items() if not name.startswith(hidden)}


def problems(store: Store) -> list[str]:
    return [problem for check in check_store(store, FACTS) for problem in check.problems]


def test_a_sound_store_is_left_as_it_is(store: Store, refs: dict[str, ArtifactRef]) -> None:
    store.write_ref("corpus/default", {"train": []})
    before = contents(store.root)
    assert repaired(store) == []
    assert contents(store.root) == before


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("stage", "name", "damage", "words"),
    [
        ("train", "weights.safetensors", flip, "weights.safetensors is damaged: it is not what its manifest lists"),
        ("train", "weights.safetensors", lambda path: path.write_bytes(b"cut"), "lacks files, or has truncated"),
        ("dataset", "sequences.bin", Path.unlink, "lacks files"),
        ("evaluate", "manifest.json", lambda path: path.write_text("{"), "manifest.json cannot be read"),
    ],
    ids=["checkpoint changed", "checkpoint cut", "data file gone", "manifest torn"],
)
def test_what_is_damaged_is_removed_and_the_rest_is_untouched(
    store: Store,
    refs: dict[str, ArtifactRef],
    stage: str,
    name: str,
    damage: Callable[[Path], object],
    words: str,
) -> None:
    thing = f"{stage}/{refs[stage].key}"
    damage(store.root / thing / name)
    sound = {path: data for path, data in contents(store.root).items() if not path.startswith(thing)}
    (done,) = repaired(store)
    assert (done.thing, done.done) == (thing, True)
    assert words in done.what
    assert contents(store.root) == sound
    assert not (store.root / thing).exists()
    assert problems(store) == []  # lineage leads back through the manifest that was kept


def test_a_damaged_artefact_can_be_made_again_and_damaged_again(store: Store, put: Put) -> None:
    for _ in range(2):
        ref = put("train", "t", files={"weights.safetensors": bytes(1000)})
        flip(store.folder(ref) / "weights.safetensors")
        assert [done.done for done in repaired(store)] == [True]
    assert put("train", "t", files={"weights.safetensors": bytes(1000)}) == ref
    assert problems(store) == []


def test_what_somebody_works_on_is_left(store: Store, refs: dict[str, ArtifactRef]) -> None:
    key = refs["train"].key
    flip(store.root / "train" / key / "weights.safetensors")
    with owner_lock(store.root / ".locks" / f"train-{key}.lock"):
        (done,) = repaired(store)
    assert not done.done
    assert (store.root / "train" / key / "manifest.json").is_file()


def spoil(store: Store, name: str) -> None:
    (store.root / ".refs" / f"{name}.json").write_text('{"torn')


def test_a_damaged_name_of_a_corpus_is_removed(store: Store, refs: dict[str, ArtifactRef]) -> None:
    store.write_ref("corpus/default", {"train": []})
    spoil(store, "corpus/default")
    (done,) = repaired(store)
    assert done.done
    assert store.read_ref("corpus/default") is None
    assert problems(store) == []


@pytest.mark.parametrize("stage", ["tokenizer", "evalset"])
def test_the_pinned_tokeniser_and_evaluation_set_are_pinned_again_where_the_corpus_knows_them(
    store: Store, stage: str
) -> None:
    pinned = {"stage": stage, "key": "k", "digest": "d"}
    store.write_ref(f"{stage}/default", pinned)
    store.write_ref("corpus/default", {stage: [pinned]})
    spoil(store, f"{stage}/default")
    (done,) = repaired(store)
    assert done.done
    assert store.read_ref(f"{stage}/default") == pinned


def test_the_tombstones_are_never_taken_away(store: Store, refs: dict[str, ArtifactRef]) -> None:
    store.write_ref(TOMBSTONES_REF, {"documents": {}, "pending": None})
    spoil(store, TOMBSTONES_REF)
    (done,) = repaired(store)
    assert not done.done
    assert "forgotten documents would be read again" in done.what
    assert TOMBSTONES_REF in store.refs("")


def test_a_kill_at_any_write_of_a_repair_is_made_good_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def spoilt(root: Path) -> Store:
        from storage.manifest import Manifest

        store = Store(root)
        for key in ("a", "b"):
            with store.workspace("train", key) as workspace:
                (workspace.out / "weights.safetensors").write_bytes(bytes(100))
                store.commit(workspace, Manifest("train", 1, key, key, {}, {}, []))
        flip(root / "train" / "a" / "weights.safetensors")
        store.write_ref("corpus/default", {})
        spoil(store, "corpus/default")
        return store

    real = {name: getattr(os, name) for name in ("fsync", "replace", "unlink", "rmdir")}
    number = 0
    while True:
        store = spoilt(tmp_path / str(number))
        left = number

        def counted(name: str) -> Callable[..., object]:
            def call(*arguments: object, **options: object) -> object:
                nonlocal left
                left -= 1
                if left < 0:
                    raise Killed
                return real[name](*arguments, **options)

            return call

        with monkeypatch.context() as patch:
            for name in real:
                patch.setattr(os, name, counted(name))
            try:
                repaired(store)
            except Killed:
                killed = True
            else:
                killed = False
        assert all(done.done for done in repaired(store)), f"killed at call {number}"
        assert problems(store) == [], f"killed at call {number}"
        assert [path.name for path in (store.root / "train").iterdir()] == ["b"]
        if not killed:
            break
        number += 1
    assert number >= 8
