"""One commit, as a process of its own that can be killed: the child of `test_commit_kill`.

    python commit_child.py commit|refresh|ref ROOT TEXT

It imports `storage` only, so that it starts in a blink. It exits with 0 when all went well, and with `FAULT` when a
call failed as an `OSError`, the store was whole afterwards, and a second attempt in the same process succeeded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from storage.digest import sha256_file, sha256_json
from storage.manifest import Manifest
from storage.store import LocalStore, Workspace

STAGE, KEY, REF = "letters", "0123abcd", "corpus/letters"
FAULT = 5


def refuse_to_wait(message: str) -> None:
    """For `on_wait`: nobody else works here, so a lock that is held was left behind."""
    raise AssertionError(f"the lock is not free: {message}")


def contents(text: str) -> dict[str, bytes]:
    """The data files of the artefact for `text`; the larger one takes several writes."""
    return {"words.txt": text.encode(), "pages/first.bin": text.encode() * 4096}


def _make(workspace: Workspace, text: str) -> Manifest:
    (workspace.scratch / "progress").write_text("half way")
    for name, data in contents(text).items():
        path = workspace.out / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    return Manifest(STAGE, 1, KEY, sha256_json(text), inputs={}, settings={"text": text}, files=[])


def commit(root: Path, text: str, refresh: bool = False) -> None:
    """Make the artefact, like a stage does: not if it is there, unless it is to be made anew."""
    make(LocalStore(root), text, refresh)


def make(store: LocalStore, text: str, refresh: bool = False) -> None:
    """Make the artefact in a store that may lie elsewhere."""
    if store.find(STAGE, KEY) is not None and not refresh:
        return
    with store.workspace(STAGE, KEY, refuse_to_wait) as workspace:
        if store.find(STAGE, KEY) is not None and not refresh:
            return
        store.commit(workspace, _make(workspace, text))


def refresh(root: Path, text: str) -> None:
    """Make the artefact anew."""
    commit(root, text, refresh=True)


def ref(root: Path, text: str) -> None:
    """Move the ref."""
    LocalStore(root).write_ref(REF, {"text": text})


ACTIONS: dict[str, Callable[[Path, str], None]] = {"commit": commit, "refresh": refresh, "ref": ref}


def artifact_text(root: Path) -> str | None:
    """The text that the artefact in the store was made of, or None when there is no artefact.

    Raises:
        AssertionError: if the artefact is torn.
    """
    return text_in(LocalStore(root))


def text_in(store: LocalStore) -> str | None:
    """The same of a store that may lie elsewhere."""
    manifest = store.find(STAGE, KEY)
    if manifest is None:
        return None
    folder = store.folder(manifest.ref)
    text = str(manifest.settings["text"])
    assert manifest.digest == sha256_json(text)
    assert sorted(entry.name for entry in manifest.files) == sorted(contents(text))
    for entry in manifest.files:
        assert sha256_file(folder / entry.name) == entry.sha256, f"{entry.name} is not what its manifest lists"
        assert (folder / entry.name).read_bytes() == contents(text)[entry.name]
    return text


def ref_text(root: Path) -> str | None:
    """The text that the ref stands at, or None when there is no ref."""
    store = LocalStore(root)
    value = store.read_ref(REF)
    assert store.refs("") == ([] if value is None else [REF])
    return None if value is None else str(value["text"])


def main(action: str, root: str, text: str) -> int:
    """Carry out one action; see the module's text for the exit codes."""
    try:
        ACTIONS[action](Path(root), text)
    except OSError:
        artifact_text(Path(root))
        ref_text(Path(root))
        ACTIONS[action](Path(root), text)
        return FAULT
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
