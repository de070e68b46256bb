"""The store on a folder: what counts as there, what is said of damage, and the names that may move."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.digest import sha256_file
from storage.manifest import ArtifactRef
from storage.store import Store, StoreError

Put = Callable[..., ArtifactRef]


def test_a_committed_artefact_is_found_with_the_size_and_sha256_of_its_files(store: Store, put: Put) -> None:
    ref = put("pages", "a", files={"one.bin": b"one", "two.bin": b""})
    manifest = store.find(ref.stage, ref.key)
    assert manifest is not None and manifest.ref == ref
    folder = store.folder(ref)
    assert [(entry.name, entry.size) for entry in manifest.files] == [("one.bin", 3), ("two.bin", 0)]
    assert all(sha256_file(folder / entry.name) == entry.sha256 for entry in manifest.files)


def test_nothing_is_found_in_a_store_that_was_never_made(tmp_path: Path) -> None:
    store = Store(tmp_path / "absent")
    assert store.find("pages", "k") is None
    assert store.stages() == [] and store.keys("pages") == [] and list(store.manifests("pages")) == []
    assert store.read_ref("corpus/a") is None and store.refs("") == []
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda path: path.write_bytes(b"on"), lambda path: path.write_bytes(b"ones")]
)
def test_an_artefact_with_a_file_missing_or_of_another_size_counts_as_absent(
    store: Store, put: Put, damage: Callable[[Path], object]
) -> None:
    ref = put("pages", "a", files={"one.bin": b"one"})
    damage(store.folder(ref) / "one.bin")
    assert store.find(ref.stage, ref.key) is None
    assert list(store.manifests("pages")) == []
    put("pages", "a", files={"one.bin": b"one"})
    assert store.find(ref.stage, ref.key) is not None


def test_an_artefact_without_its_manifest_counts_as_absent(store: Store, put: Put) -> None:
    ref = put("pages", "a", files={"one.bin": b"one"})
    (store.folder(ref) / "manifest.json").unlink()
    assert store.find(ref.stage, ref.key) is None
    with pytest.raises(StoreError, match=f"pages/{ref.key} is not in the store"):
        store.folder(ref)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"format": 1}', b'{"format": 1, "files": [3]}', b"\xff\xfe\x00"])
def test_a_manifest_that_cannot_be_read_is_an_error_that_names_the_file_and_what_to_do(
    store: Store, put: Put, text: bytes
) -> None:
    ref = put("pages", "a")
    path = store.folder(ref) / "manifest.json"
    path.write_bytes(text)
    with pytest.raises(StoreError) as caught:
        store.find(ref.stage, ref.key)
    assert str(path) in str(caught.value)
    assert f"remove {path.parent} and run again" in str(caught.value)


def test_manifests_come_by_key_and_stages_by_name_without_the_stores_own_folders(store: Store, put: Put) -> None:
    refs = [put("pages", str(number)) for number in range(5)] + [put("documents", "x")]
    store.write_ref("corpus/a", {})
    assert store.stages() == ["documents", "pages"]
    assert [manifest.key for manifest in store.manifests("pages")] == sorted(ref.key for ref in refs[:5])


def test_what_a_file_manager_leaves_in_the_store_is_no_artefact_and_no_stage(store: Store, put: Put) -> None:
    ref = put("pages", "a")
    for stray in (".DS_Store", "pages/.DS_Store", "pages/.nfs0001", "notes.txt", "pages/notes.txt"):
        (store.root / stray).write_text("stray")
    (store.root / "pages" / ".Trash").mkdir()
    assert store.stages() == ["pages"]
    assert store.keys("pages") == [ref.key]


def test_a_finished_artefact_leaves_no_work_and_no_lock_behind(store: Store, put: Put) -> None:
    put("pages", "a", files={"one.bin": b"one"}, scratch="half way")
    put("pages", "a", files={"one.bin": b"two"}, scratch="half way again")
    assert [path for path in (store.root / ".work").rglob("*") if path.is_file()] == []
    assert list((store.root / ".locks").iterdir()) == []


def test_work_that_raises_leaves_no_artefact_and_keeps_its_scratch_but_not_its_output(store: Store) -> None:
    with pytest.raises(RuntimeError), store.workspace("train", "k") as workspace:
        (workspace.scratch / "step").write_text("100")
        (workspace.out / "weights").write_text("half")
        raise RuntimeError
    assert store.find("train", "k") is None
    with store.workspace("train", "k") as workspace:
        assert (workspace.scratch / "step").read_text() == "100"
        assert list(workspace.out.iterdir()) == []


def test_making_an_artefact_anew_does_not_go_on_from_what_a_kill_left_after_the_commit(
    store: Store, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:  # what is left when a process dies between the commit and its clean-up
        patch.setattr("storage.store.shutil.rmtree", lambda *_, **__: None)
        ref = put("train", "a", scratch="all steps done")
    assert list((store.root / ".work" / "train").rglob("note"))
    with store.workspace("train", ref.key) as workspace:
        assert list(workspace.scratch.iterdir()) == []


def test_making_an_artefact_anew_goes_on_where_the_same_attempt_was_cut_off(store: Store, put: Put) -> None:
    ref = put("train", "a")
    with pytest.raises(RuntimeError), store.workspace("train", ref.key) as workspace:
        (workspace.scratch / "step").write_text("100")
        raise RuntimeError
    assert store.find("train", ref.key) is not None  # the old one serves until the new one is there
    with store.workspace("train", ref.key) as workspace:
        assert (workspace.scratch / "step").read_text() == "100"


def test_a_second_commit_replaces_every_file_of_the_first(store: Store, put: Put) -> None:
    put("pages", "a", files={"one.bin": b"one", "gone.bin": b"gone"})
    ref = put("pages", "a", files={"one.bin": b"other"})
    assert sorted(path.name for path in store.folder(ref).iterdir()) == ["manifest.json", "one.bin"]
    assert (store.folder(ref) / "one.bin").read_bytes() == b"other"


def test_a_reader_never_sees_a_torn_ref_while_it_is_moved(store: Store) -> None:
    values = [{"stage": "x" * 50_000}, {"stage": "y" * 50_000}]
    store.write_ref("corpus/a", values[0])
    seen = []

    def move() -> None:
        for number in range(100):
            store.write_ref("corpus/a", values[number % 2])

    writer = threading.Thread(target=move)
    writer.start()
    while writer.is_alive():
        seen.append(store.read_ref("corpus/a"))
    writer.join()
    assert all(value in values for value in seen)


def test_refs_are_listed_by_prefix_with_their_dots(store: Store) -> None:
    for name in ("corpus/b", "corpus/a.v1.2", "tokenizer/a", "corpus/team/x"):
        store.write_ref(name, {"name": name})
    assert store.refs("corpus/") == ["corpus/a.v1.2", "corpus/b", "corpus/team/x"]
    assert store.read_ref("corpus/a.v1.2") == {"name": "corpus/a.v1.2"}


@pytest.mark.parametrize(
    "name", ["/etc/x", "../x", "corpus/../../x", "corpus/..", "corpus/", "", "a//b", "corpus/.x", "."]
)
def test_a_name_that_leaves_the_folder_of_refs_or_would_not_be_listed_is_refused(store: Store, name: str) -> None:
    with pytest.raises(ValueError, match="not a name for a ref"):
        store.write_ref(name, {})
    with pytest.raises(ValueError, match="not a name for a ref"):
        store.read_ref(name)
    assert not store.root.exists()


@pytest.mark.parametrize("text", ["", "{", "[1]"])
def test_a_ref_that_cannot_be_read_is_an_error_that_names_the_file(store: Store, text: str) -> None:
    store.write_ref("corpus/a", {})
    path = store.root / ".refs" / "corpus" / "a.json"
    path.write_text(text)
    with pytest.raises(StoreError, match=r"corpus/a\.json .* remove it and run again"):
        store.read_ref("corpus/a")


def test_a_stage_that_writes_a_manifest_of_its_own_does_not_spoil_the_artefact(store: Store, put: Put) -> None:
    ref = put("pages", "a", files={"manifest.json": b"{}", "one.bin": b"one"})
    manifest = store.find(ref.stage, ref.key)
    assert manifest is not None and [entry.name for entry in manifest.files] == ["one.bin"]
