"""One commit, as a process of its own that can be killed: the child of `test_commit_kill`.

    command(ACTION, ROOT, TEXT)      (see `ACTIONS`)

It imports `storage` only, so that it starts in a blink. It exits with 0 when all went well, and with `FAULT` when a
call failed as an `OSError`, the store was whole afterwards, and a second attempt in the same process succeeded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from storage.digest import sha256_file, sha256_json
from storage.gc import find_garbage, remove_garbage
from storage.manifest import ArtifactRef, Manifest, describe_inputs
from storage.store import Store, Workspace
from storage.tombstones import Tombstone, Tombstones, read_tombstones, write_tombstones

STAGE, KEY, REF = "letters", "0123abcd", "corpus/letters"
MADE, MADE_KEY = "words", "4567cdef"  # what was made from it
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
    make(Store(root), text, refresh)


def make(store: Store, text: str, refresh: bool = False) -> None:
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
    Store(root).write_ref(REF, {"text": text})


def unref(root: Path, text: str) -> None:
    """Take the ref away."""
    Store(root).remove_ref(REF)


def tombstone(root: Path, text: str) -> None:
    """Note that one more document is forgotten, and that something is to be done about it."""
    store = Store(root)
    known = read_tombstones(store).documents
    write_tombstones(store, Tombstones({**known, text: Tombstone(text, sha256_json(text))}, pending=[(STAGE, KEY)]))


def make_two(root: Path, text: str) -> None:
    """The artefact and another that was made from it."""
    commit(root, text)
    store = Store(root)
    with store.workspace(MADE, MADE_KEY, refuse_to_wait) as workspace:
        (workspace.out / "words.txt").write_text(text)
        inputs = describe_inputs({"letters": ArtifactRef(STAGE, KEY, sha256_json(text))})
        store.commit(workspace, Manifest(MADE, 1, MADE_KEY, sha256_json(text), inputs, {"text": text}, files=[]))


def sweep(root: Path, text: str) -> None:
    """Clear up where no name stands at anything."""
    store = Store(root)
    if remove_garbage(store, find_garbage(store, (), {}, grace=-1), grace=-1):
        raise AssertionError("something was left")


def remove(root: Path, text: str) -> None:
    """Take the artefact out and keep its manifest, for what was made from it."""
    Store(root).remove(STAGE, KEY, keep_manifest=True)


ACTIONS: dict[str, Callable[[Path, str], None]] = {
    "commit": commit,
    "refresh": refresh,
    "ref": ref,
    "unref": unref,
    "tombstone": tombstone,
    "sweep": sweep,
    "remove": remove,
}


def prepare(root: Path, action: str, text: str) -> None:
    """Put there what an action has to replace or to remove; nothing for a first commit."""
    if action in ("refresh", "ref", "unref", "tombstone"):
        {"refresh": commit, "unref": ref}.get(action, ACTIONS[action])(root, text)
    elif action in ("sweep", "remove"):
        make_two(root, text)


def is_done(root: Path, action: str, text: str) -> bool:
    """Return True if the effect of an action with this text is visible."""
    match action:
        case "ref":
            return ref_text(root) == text
        case "unref":
            return ref_text(root) is None
        case "tombstone":
            return text in forgotten(root)
        case "sweep":
            return not whole(root)
        case "remove":
            return whole(root) == {MADE}
    return artifact_text(root) == text


def whole(root: Path) -> set[str]:
    """Stages of the artefacts that are there.

    Raises:
        AssertionError: if one of them is torn, or what it was made from is neither there nor recorded.
    """
    store = Store(root)
    found = {MADE} if store.find(MADE, MADE_KEY) is not None else set()
    found |= {STAGE} if artifact_text(root) is not None else set()
    assert MADE not in found or STAGE in found or store.removed_manifest(STAGE, KEY) is not None, "the lineage is cut"
    return found


def artifact_text(root: Path) -> str | None:
    """The text that the artefact in the store was made of, or None when there is no artefact.

    Raises:
        AssertionError: if the artefact is torn.
    """
    return text_in(Store(root))


def text_in(store: Store) -> str | None:
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
    store = Store(root)
    value = store.read_ref(REF)
    assert store.refs("corpus/") == ([] if value is None else [REF])
    return None if value is None else str(value["text"])


def forgotten(root: Path) -> set[str]:
    """The forgotten documents."""
    return set(read_tombstones(Store(root)).documents)


def command(action: str, root: Path, text: str) -> list[str]:
    """The command that carries out an action with the code that lies beside this, whatever is installed."""
    here = Path(__file__)
    start = f"import sys; sys.path[:0] = {[str(here.parents[2]), str(here.parent)]}; import commit_child as child"
    run = "sys.exit(child.main(*sys.argv[1:]))"
    return [sys.executable, "-I", "-B", "-c", f"{start}; {run}", action, str(root), text]


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
