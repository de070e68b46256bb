"""Files from outside enter the store under the digest of the bytes that lie there."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from storage.digest import sha256_file, sha256_json
from storage.errors import UserError
from storage.store import Store


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b"a prompt")
    return path


def test_a_file_gets_key_and_digest_from_its_content_alone(store: Store, source: Path, tmp_path: Path) -> None:
    ref = store.add("prompts_file", {source.name: source})
    files = {"prompts.jsonl": sha256(b"a prompt")}
    assert (ref.stage, ref.key) == ("prompts_file", sha256_json({"stage": "prompts_file", "files": files}))
    assert (store.folder(ref) / "prompts.jsonl").read_bytes() == b"a prompt"
    manifest = store.find(ref.stage, ref.key)
    assert manifest is not None and manifest.inputs == {} and manifest.ref == ref
    other = Store(tmp_path / "other").add("prompts_file", {source.name: source})
    assert other == ref


def test_adding_it_again_changes_nothing(store: Store, source: Path) -> None:
    ref = store.add("prompts_file", {source.name: source})
    created = [found.created for found in store.manifests("prompts_file")]
    assert store.add("prompts_file", {source.name: source}) == ref
    assert [found.created for found in store.manifests("prompts_file")] == created
    assert store.unfinished() == []
    assert list((store.root / ".locks").iterdir()) == []


def test_several_files_lie_under_the_names_they_are_given(store: Store, source: Path) -> None:
    ref = store.add("bundle", {"config.json": source, "deep/weights": source})
    folder = store.folder(ref)
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()) == [
        "config.json",
        "deep/weights",
        "manifest.json",
    ]


def test_what_is_edited_while_it_is_copied_has_the_key_of_the_copy(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.COPY_BUFSIZE", 4)
    path = tmp_path / "in"
    path.write_bytes(b"old text")
    opened = Path.open

    class Edited:
        """Replaces the rest of the file after the first block was read."""

        def __init__(self, handle: object) -> None:
            self.handle, self.reads = handle, 0

        def read(self, size: int) -> bytes:
            self.reads += 1
            if self.reads == 2:
                with opened(path, "r+b") as writing:
                    writing.write(b"new news, and longer")
            return bytes(self.handle.read(size))  # type: ignore[attr-defined]

        def __enter__(self) -> Edited:
            return self

        def __exit__(self, *_: object) -> None:
            self.handle.close()  # type: ignore[attr-defined]

    def edited(self: Path, mode: str = "r", *arguments: object, **options: object) -> object:
        handle = opened(self, mode, *arguments, **options)  # type: ignore[call-overload]
        return Edited(handle) if self == path and mode == "rb" else handle

    monkeypatch.setattr(Path, "open", edited)
    ref = store.add("texts", {path.name: path})
    monkeypatch.undo()
    copy = store.folder(ref) / "in"
    assert copy.read_bytes() == b"old text, and longer"  # which the file never was as a whole
    assert ref.key == sha256_json({"stage": "texts", "files": {"in": sha256_file(copy)}})


def test_a_kill_while_it_is_copied_leaves_no_artefact_and_work_that_can_be_cleared(
    store: Store, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:  # what is left when a process dies: no clean-up runs
        patch.setattr("storage.store.shutil.rmtree", lambda *_, **__: None)
        patch.setattr("storage.store.Store.workspace", None)
        with pytest.raises(TypeError):
            store.add("texts", {source.name: source})
    assert store.keys("texts") == []
    (left,) = store.unfinished()
    store.remove_work(left.stage, left.key)
    assert store.unfinished() == []
    assert store.find("texts", store.add("texts", {source.name: source}).key) is not None


def test_a_file_that_cannot_be_read_is_named(store: Store, tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(UserError, match=rf"{path} cannot be read \(.*\)"):
            store.add("texts", {"a": path})
    assert store.keys("texts") == [] and store.unfinished() == []


@pytest.mark.parametrize("names", [[], ["../a"], ["manifest.json"], ["/a"]])
def test_names_that_lead_out_or_none_at_all_are_refused(store: Store, source: Path, names: list[str]) -> None:
    with pytest.raises(ValueError, match=r"store\.add needs"):
        store.add("texts", dict.fromkeys(names, source))
