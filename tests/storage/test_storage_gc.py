"""Garbage is what no name, no root, no unfinished work and no recent use leads to; nothing else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from storage.gc import find_garbage, remove_garbage, sizes
from storage.locks import owner_lock
from storage.manifest import ArtifactRef, RefSet, StageFacts
from storage.store import Store, StoreError
from storage.verify import check_store

Put = Callable[..., ArtifactRef]
FACTS = {
    "evaluate": StageFacts(keep_with=("checkpoint", "evalset")),
    "complete": StageFacts(keep_with=("checkpoint",)),
    "generate": StageFacts(keep_with=("parts",)),
}


@pytest.fixture
def refs(put: Put) -> dict[str, ArtifactRef]:
    """A corpus of two segments, an older state of it, a model with an evaluation, and completions with prompts."""
    made = {name: put("extract", name, {"pages": name.encode() * 10}) for name in ("one", "two", "old")}
    made["corpus"] = put("snapshot", "corpus", inputs={"segments": RefSet((made["one"], made["two"]), "both")})
    made["before"] = put("snapshot", "before", inputs={"segments": RefSet((made["one"], made["old"]), "before")})
    made["dataset"] = put("dataset", "dataset", inputs={"snapshot": made["corpus"]})
    made["model"] = put("train", "model", inputs={"dataset": made["dataset"]})
    made["evalset"] = put("evalset", "evalset", inputs={"snapshot": made["corpus"]})
    made["frozen"] = put("evalset", "frozen", inputs={"snapshot": made["before"]})
    made["figures"] = put("evaluate", "now", inputs={"checkpoint": made["model"], "evalset": made["evalset"]})
    made["former"] = put("evaluate", "then", inputs={"checkpoint": made["model"], "evalset": made["frozen"]})
    made["prompts"] = put("prompts", "prompts")
    made["part"] = put("complete", "part", inputs={"checkpoint": made["model"], "prompts": made["prompts"]})
    made["words"] = put("generate", "words", inputs={"parts": RefSet((made["part"],), "parts")})
    return made


@pytest.fixture
def named(store: Store, refs: dict[str, ArtifactRef]) -> dict[str, ArtifactRef]:
    """The same, with the names of a corpus whose last run was complete."""
    store.write_ref("corpus/default", {"snapshot": [asdict(refs["corpus"])], "train": [asdict(refs["model"])]})
    store.write_ref("evalset/default", asdict(refs["evalset"]))
    return refs


def garbage_of(store: Store, refs: dict[str, ArtifactRef], **options: Any) -> set[str]:
    """Names of what can be removed."""
    names = {(ref.stage, ref.key): name for name, ref in refs.items()}
    return {
        names[item] for item in find_garbage(store, **{"roots": (), "facts": FACTS, "grace": -1.0, **options}).artefacts
    }


def test_without_names_all_is_garbage_but_what_the_roots_lead_to(store: Store, refs: dict[str, ArtifactRef]) -> None:
    assert garbage_of(store, refs) == set(refs)
    model = refs["model"]
    left = set(refs) - garbage_of(store, refs, roots=[(model.stage, model.key)])
    assert left == {"model", "dataset", "corpus", "one", "two", "words", "part", "prompts"}


def test_what_was_used_a_moment_ago_stays_with_all_that_it_was_made_from(
    store: Store, named: dict[str, ArtifactRef]
) -> None:
    for ref in named.values():
        os.utime(store.folder(ref) / "manifest.json", (1_000, 1_000))
    assert garbage_of(store, named, grace=3600) == {"old", "before", "frozen", "former"}
    assert store.touch(named["before"])
    assert garbage_of(store, named, grace=3600) == {"frozen", "former"}


def test_what_unfinished_work_reads_stays_while_somebody_owns_it(store: Store, named: dict[str, ArtifactRef]) -> None:
    with store.workspace("dataset", "0123") as workspace:
        store.note_inputs(workspace, [named["before"]])
        assert garbage_of(store, named) == {"frozen", "former"}
        assert find_garbage(store, (), FACTS, grace=-1).work == []
    found = find_garbage(store, (), FACTS, grace=-1)
    assert [(item.stage, item.key) for item in found.work] == [("dataset", "0123")]
    remove_garbage(store, found, grace=-1)
    assert store.unfinished() == []


def test_what_somebody_works_on_is_left(store: Store, named: dict[str, ArtifactRef]) -> None:
    found = find_garbage(store, (), FACTS, grace=-1)
    old = (named["old"].stage, named["old"].key)
    with owner_lock(store.root / ".locks" / f"{old[0]}-{old[1]}.lock"):
        assert remove_garbage(store, found, grace=-1) == [old]
    assert store.find(*old) is not None


def test_after_it_the_rest_is_whole_and_there_is_no_more(store: Store, named: dict[str, ArtifactRef]) -> None:
    before = {item.stage: item.artefacts for item in sizes(store)}
    assert remove_garbage(store, find_garbage(store, (), FACTS, grace=-1), grace=-1) == []
    assert [problem for check in check_store(store, FACTS) for problem in check.problems] == []
    assert find_garbage(store, (), FACTS, grace=-1).artefacts == []
    after = {item.stage: item.artefacts for item in sizes(store)}
    assert (before["extract"], after["extract"]) == (3, 2)
    assert (before["evaluate"], after["evaluate"]) == (2, 1)


def test_what_is_needed_stays_although_it_is_damaged_with_what_it_was_made_from(
    store: Store, named: dict[str, ArtifactRef]
) -> None:
    expected = garbage_of(store, named)
    (store.folder(named["one"]) / "pages").write_bytes(b"cut")
    manifest = store.folder(named["corpus"]) / "manifest.json"
    manifest.write_text(
        manifest.read_text().replace('"files": []', '"files": [{"name": "gone", "size": 1, "sha256": ""}]')
    )
    assert store.find(named["corpus"].stage, named["corpus"].key) is None
    assert store.find(named["one"].stage, named["one"].key) is None
    assert garbage_of(store, named) == expected


def test_what_is_damaged_and_not_needed_goes(store: Store, named: dict[str, ArtifactRef]) -> None:
    (store.folder(named["old"]) / "pages").unlink()
    assert garbage_of(store, named) == {"old", "before", "frozen", "former"}
    remove_garbage(store, find_garbage(store, (), FACTS, grace=-1), grace=-1)
    assert len(store.keys("extract")) == 2


def test_nothing_goes_while_the_manifest_of_something_needed_cannot_be_read(
    store: Store, named: dict[str, ArtifactRef]
) -> None:
    (store.folder(named["model"]) / "manifest.json").write_text("{ torn")
    with pytest.raises(StoreError, match=r"train/\w+ is needed and its manifest cannot be read .* verify --repair"):
        find_garbage(store, (), FACTS, grace=-1)
    (store.folder(named["former"]) / "manifest.json").write_text("{ torn")  # nobody needs this one
    store.remove_ref("corpus/default")
    store.remove_ref("evalset/default")
    assert find_garbage(store, (), FACTS, grace=-1).artefacts


def test_what_is_taken_up_while_others_go_keeps_what_it_was_made_from(
    store: Store, named: dict[str, ArtifactRef]
) -> None:
    for ref in named.values():
        os.utime(store.folder(ref) / "manifest.json", (1_000, 1_000))
    found = find_garbage(store, (), FACTS, grace=3600)
    assert store.touch(named["frozen"])
    left = remove_garbage(store, found, grace=3600)
    assert {key for _, key in left} == {named[name].key for name in ("frozen", "before", "old")}
    assert [problem for check in check_store(store, FACTS) for problem in check.problems] == []


class Killed(BaseException):
    """Stands for a process that ends here."""


def test_killed_at_any_removal_of_a_file_or_folder_it_leaves_whole_artefacts_and_is_finished_by_the_next(
    store: Store, named: dict[str, ArtifactRef], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(100):
        root = shutil.copytree(store.root, tmp_path / f"copy-{number}")
        copy = Store(root)
        left = number

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    raise Killed
                return function(*arguments, **options)

            return call

        done = False
        with monkeypatch.context() as patch:
            for name in ("unlink", "rmdir", "fsync"):
                patch.setattr(os, name, counted(getattr(os, name)))
            try:
                remove_garbage(copy, find_garbage(copy, (), FACTS, grace=-1), grace=-1)
                done = True
            except Killed:
                pass
        gone = [
            problem
            for check in check_store(copy, FACTS)
            if check.name == "inputs present"
            for problem in check.problems
        ]
        assert gone == [], f"killed at call {number}"
        assert all(copy.find(ref.stage, ref.key) for name, ref in named.items() if name in ("one", "model", "words"))
        remove_garbage(copy, find_garbage(copy, (), FACTS, grace=-1), grace=-1)
        assert [problem for check in check_store(copy, FACTS) for problem in check.problems] == [], (
            f"killed at call {number}"
        )
        assert len(copy.keys("extract")) == 2
        if done:
            break
        shutil.rmtree(root)
    assert done and number > 10
