"""The artefact store: immutable, content-addressed folders, and the few names that may move.

    <store>/<stage>/<key>/     data files and manifest.json; complete, or not there
    <store>/.work/             unfinished work: `out` becomes the artefact, `scratch` outlives a kill
    <store>/.locks/            owners of unfinished work
    <store>/.refs/<name>.json  movable names: corpus/<name>, tokenizer/<name>, evalset/<name>
    <store>/.removed/          manifests of artefacts that were taken out while others that came from them stay
    <store>/.damaged/          what a repair set aside

`Store` is the interface; `LocalStore` keeps it on a folder. `storage.remote` puts one on S3 behind such a folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from storage.atomic import finish_publish, fsync_path, make_folder, publish, write_file
from storage.digest import sha256_file
from storage.errors import UserError
from storage.locks import is_held, owner_lock, read_owner
from storage.manifest import ArtifactRef, FileEntry, Manifest
from storage.walk import walk

MANIFEST_NAME = "manifest.json"
INPUTS_NAME = ".inputs.json"  # of unfinished work, in its scratch folder


class StoreError(UserError):
    """The store holds something it should not, or lacks something it should hold."""


@dataclass(frozen=True)
class Workspace:
    """Where an artefact is being made, owned by us until the context ends.

    Attributes:
        out: becomes the artefact; empty at the start.
        scratch: kept when the process dies, for stages that go on where they stopped.
    """

    out: Path
    scratch: Path


@dataclass(frozen=True)
class Unfinished:
    """Work that somebody began on an artefact, and left.

    Attributes:
        inputs: stage and key of the artefacts that it reads; None where nobody noted them.
        touched: when something in it changed last, in seconds since the epoch.
        size: bytes.
    """

    stage: str
    key: str
    inputs: frozenset[tuple[str, str]] | None
    touched: float
    size: int


class Store(ABC):
    """What stages, lineage and catalogue need of a store."""

    @abstractmethod
    def find(self, stage: str, key: str) -> Manifest | None:
        """The artefact's manifest, or None when it is not there, whole."""

    def find_anew(self, stage: str, key: str) -> Manifest | None:
        """The same, whatever was listed before: another machine may have put it there a moment ago."""
        return self.find(stage, key)

    @abstractmethod
    def told(self, stage: str, key: str) -> Manifest | None:
        """The manifest that stands there, whether its files are whole or not; None where there is none."""

    @abstractmethod
    def keys(self, stage: str) -> list[str]:
        """The keys under which a stage has something, whole or not."""

    @abstractmethod
    def manifests(self, stage: str) -> Iterator[Manifest]:
        """All artefacts of a stage, by key."""

    @abstractmethod
    def stages(self) -> list[str]:
        """The stages that have artefacts."""

    @abstractmethod
    def folder(self, ref: ArtifactRef, *names: str) -> Path:
        """A local folder that holds the artefact's files.

        Args:
            names: of the files that are wanted, so that no others need be fetched; all where none is named.

        Raises:
            StoreError: if the artefact is not in the store.
        """

    @abstractmethod
    def workspace(
        self, stage: str, key: str, on_wait: Callable[[str], None] | None = None
    ) -> AbstractContextManager[Workspace]:
        """Own the making of one artefact, waiting for another living owner first."""

    @abstractmethod
    def commit(self, workspace: Workspace, manifest: Manifest) -> Manifest:
        """Make the workspace's `out` the artefact `manifest` names; returns the manifest with its files listed."""

    @abstractmethod
    def remove(self, stage: str, key: str, keep_record: bool = False) -> None:
        """Take an artefact out; harmless where there is none, or a half that an earlier attempt left.

        Args:
            keep_record: keep its manifest, for the lineage of what was made from it and stays.

        Raises:
            StoreError: if somebody works on it.
        """

    @abstractmethod
    def record(self, stage: str, key: str) -> Manifest | None:
        """The manifest of an artefact that was taken out, if it was kept."""

    @abstractmethod
    def records(self) -> list[tuple[str, str]]:
        """Stage and key of the artefacts that were taken out and whose manifests were kept."""

    @abstractmethod
    def remove_record(self, stage: str, key: str) -> None:
        """Take the kept manifest of a removed artefact away."""

    @abstractmethod
    def use(self, ref: ArtifactRef) -> bool:
        """Note that an artefact is used now; False if it was removed a moment ago."""

    @abstractmethod
    def used(self, stage: str, key: str) -> float:
        """When an artefact was made or used last, in seconds since the epoch; 0 if its manifest is not there."""

    @abstractmethod
    def note_inputs(self, workspace: Workspace, inputs: Iterable[ArtifactRef]) -> None:
        """Note what an artefact in the making reads, for whoever clears up."""

    @abstractmethod
    def unfinished(self, owned: bool = False) -> list[Unfinished]:
        """Unfinished work that nobody owns now; that which somebody owns instead if `owned`."""

    @abstractmethod
    def remove_work(self, stage: str, key: str) -> None:
        """Take unfinished work away, unless somebody owns it."""

    @abstractmethod
    def owners(self) -> list[str]:
        """Who works here now, in words."""

    @abstractmethod
    def read_ref(self, name: str) -> dict[str, Any] | None:
        """The value of a movable name, or None."""

    @abstractmethod
    def write_ref(self, name: str, value: dict[str, Any]) -> None:
        """Move a name, in one step."""

    @abstractmethod
    def remove_ref(self, name: str) -> None:
        """Take a name away; harmless if it is not there."""

    @abstractmethod
    def refs(self, prefix: str) -> list[str]:
        """The movable names that start with `prefix`."""

    @abstractmethod
    def lock(self, name: str) -> AbstractContextManager[None]:
        """Hold a named lock, for what must not happen twice at once."""

    @abstractmethod
    def check_lock(self, name: str) -> None:
        """Make sure that a lock that is held here is ours still; to be asked before a write that it is held for.

        Raises:
            BucketError: if it may be another's by now, because this machine slept or lost its network.
        """


class LocalStore(Store):
    """The store on a folder of this machine (or one that several machines mount)."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def told(self, stage: str, key: str) -> Manifest | None:
        return _manifest_in(self.root / stage / key)

    def find(self, stage: str, key: str) -> Manifest | None:
        manifest = _manifest_in(self.root / stage / key)
        for entry in manifest.files if manifest is not None else ():
            data = self.root / stage / key / entry.name
            if not data.is_file() or data.stat().st_size != entry.size:
                return None  # somebody removed or cut a file: as good as never made, so it is made again
        return manifest

    def manifests(self, stage: str) -> Iterator[Manifest]:
        for key in self.keys(stage):
            manifest = self.find(stage, key)
            if manifest is not None:
                yield manifest

    def keys(self, stage: str) -> list[str]:
        return _folders(self.root / stage)

    def stages(self) -> list[str]:
        return _folders(self.root)

    def folder(self, ref: ArtifactRef, *names: str) -> Path:
        folder = self.root / ref.stage / ref.key
        if not (folder / MANIFEST_NAME).is_file():
            raise StoreError(
                f"the artefact {ref.stage}/{ref.key} is not in the store {self.root}; it was removed, or the name came "
                "from another store: run the command that made it again"
            )
        return folder

    @contextmanager
    def workspace(self, stage: str, key: str, on_wait: Callable[[str], None] | None = None) -> Iterator[Workspace]:
        with self._hold(f"{stage}-{key}", on_wait):
            root = self.root / ".work" / stage / key
            finish_publish(root / "out", self.root / stage / key, root / "replaced")
            workspace = Workspace(out=root / "out", scratch=root / self._scratch_name(stage, key))
            for leftover in list(root.iterdir()) if root.is_dir() else []:
                if leftover != workspace.scratch:
                    shutil.rmtree(leftover)  # what a dead owner left half made, or done with
            workspace.out.mkdir(parents=True)
            workspace.scratch.mkdir(exist_ok=True)
            yield workspace
            if self.find(stage, key) is not None:
                shutil.rmtree(root)

    def _scratch_name(self, stage: str, key: str) -> str:
        """Name of the folder to go on from.

        Making an artefact anew has one of its own: it must not go on from the work that led to the present artefact,
        which a kill between commit and clean-up leaves behind.
        """
        try:
            present = (self.root / stage / key / MANIFEST_NAME).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return "scratch"
        return f"scratch-{hashlib.sha256(present).hexdigest()[:16]}"

    def commit(self, workspace: Workspace, manifest: Manifest) -> Manifest:
        record = workspace.out / MANIFEST_NAME
        names = sorted(path for path in workspace.out.rglob("*") if path.is_file() and path != record)
        files = [
            FileEntry(path.relative_to(workspace.out).as_posix(), path.stat().st_size, sha256_file(path))
            for path in names
        ]
        manifest = replace(manifest, files=files)
        write_file(record, manifest.to_json().encode())
        discard = workspace.out.with_name("replaced")
        publish(workspace.out, self.root / manifest.stage / manifest.key, discard)
        shutil.rmtree(discard, ignore_errors=True)
        return manifest

    def remove(self, stage: str, key: str, keep_record: bool = False) -> None:
        def refuse(owner: str) -> None:
            raise StoreError(f"{stage}/{key} cannot be removed now: {owner}; try again when that has ended")

        with self._hold(f"{stage}-{key}", refuse):
            self._take_out(stage, key, keep_record)

    def _take_out(self, stage: str, key: str, keep_record: bool) -> None:
        folder = self.root / stage / key
        manifest = folder / MANIFEST_NAME
        if manifest.is_file():
            if keep_record:
                self.keep_record(stage, key)
            manifest.unlink()  # first: a folder without it is nobody's artefact, whenever we are killed
            fsync_path(folder)
        for place in (folder, self.root / ".work" / stage / key):
            if place.is_dir():
                shutil.rmtree(place)

    def keep_record(self, stage: str, key: str) -> None:
        """Keep the manifest of an artefact that is about to be taken out."""
        self._write_record(removed_record(stage, key), (self.root / stage / key / MANIFEST_NAME).read_bytes())

    def record(self, stage: str, key: str) -> Manifest | None:
        found = self._read_record(removed_record(stage, key))
        return None if found is None else Manifest.from_json(found.decode("utf-8"))

    def records(self) -> list[tuple[str, str]]:
        names = (name.split("/") for name in self._records(".removed"))
        return sorted((parts[0], parts[1]) for parts in names if len(parts) == 2)

    def remove_record(self, stage: str, key: str) -> None:
        self._remove_record(removed_record(stage, key))

    def use(self, ref: ArtifactRef) -> bool:
        try:
            os.utime(self.root / ref.stage / ref.key / MANIFEST_NAME)
        except FileNotFoundError:
            return False
        except OSError:
            return True  # a store that can only be read is not cleared up either
        return True

    def used(self, stage: str, key: str) -> float:
        try:
            return (self.root / stage / key / MANIFEST_NAME).stat().st_mtime
        except (FileNotFoundError, NotADirectoryError):
            return 0.0

    def note_inputs(self, workspace: Workspace, inputs: Iterable[ArtifactRef]) -> None:
        text = json.dumps(sorted({(ref.stage, ref.key) for ref in inputs}))
        (workspace.scratch / INPUTS_NAME).write_text(text, encoding="utf-8")

    def unfinished(self, owned: bool = False) -> list[Unfinished]:
        root = self.root / ".work"
        return [
            self._look_at(root / stage / key)
            for stage in _folders(root)
            for key in _folders(root / stage)
            if is_held(self._lock_path(f"{stage}-{key}")) == owned
        ]

    def _look_at(self, work: Path) -> Unfinished:
        inputs = None
        touched = size = 0.0
        with suppress(FileNotFoundError):  # its owner goes on meanwhile
            touched = work.lstat().st_mtime
        for path, found in walk(work):
            if path.name == INPUTS_NAME:
                with suppress(FileNotFoundError):
                    inputs = parse_inputs(path.read_bytes())
            touched = max(touched, found.st_mtime)
            size += found.st_size
        return Unfinished(work.parent.name, work.name, inputs, touched, int(size))

    def remove_work(self, stage: str, key: str) -> None:
        if not is_held(self._lock_path(f"{stage}-{key}")):
            with self._hold(f"{stage}-{key}"):
                shutil.rmtree(self.root / ".work" / stage / key, ignore_errors=True)

    def _lock_path(self, name: str) -> Path:
        return self.root / ".locks" / f"{name}.lock"

    def _hold(self, name: str, on_wait: Callable[[str], None] | None = None) -> AbstractContextManager[None]:
        return owner_lock(self._lock_path(name), on_wait)

    def owners(self) -> list[str]:
        held = (path for path in sorted((self.root / ".locks").rglob("*.lock")) if is_held(path))
        return [f"{read_owner(path)} works on {path.stem}" for path in held]

    def read_ref(self, name: str) -> dict[str, Any] | None:
        found = self._read_record(_ref(name))
        if found is None:
            return None
        try:
            value = json.loads(found)
        except ValueError as error:
            raise StoreError(f"{self._told(_ref(name))} is not JSON ({error}): remove it and run again") from error
        if not isinstance(value, dict):
            raise StoreError(f"{self._told(_ref(name))} does not hold an object: remove it and run again")
        return value

    def write_ref(self, name: str, value: dict[str, Any]) -> None:
        self._write_record(_ref(name), json.dumps(value, indent=1, sort_keys=True).encode())

    def remove_ref(self, name: str) -> None:
        self._remove_record(_ref(name))

    def refs(self, prefix: str) -> list[str]:
        return sorted(name for name in self._records(".refs") if name.startswith(prefix))

    def lock(self, name: str) -> AbstractContextManager[None]:
        return self._hold(name)

    def check_lock(self, name: str) -> None:
        pass  # the system holds the file for as long as the process lives

    # records: small files of JSON that are replaced in one step
    def _told(self, record: str) -> str:
        """Where a record lies, for a person."""
        return str(self.root / record)

    def _read_record(self, record: str) -> bytes | None:
        try:
            return (self.root / record).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _write_record(self, record: str, data: bytes) -> None:
        path = self.root / record
        make_folder(path.parent, self.root)
        write_file(path, data)

    def _remove_record(self, record: str) -> None:
        path = self.root / record
        if path.exists():
            path.unlink()
            fsync_path(path.parent)

    def _records(self, folder: str) -> list[str]:
        """Names of the records in a folder of the store, without their ending."""
        root = self.root / folder
        found = (path for path in root.rglob("*.json") if not path.name.startswith("."))
        return [path.relative_to(root).with_suffix("").as_posix() for path in found]


def removed_record(stage: str, key: str) -> str:
    """The record that keeps the manifest of an artefact that was taken out."""
    return f".removed/{stage}/{key}.json"


def _ref(name: str) -> str:
    """The record that keeps a movable name."""
    if any(not part or part.startswith(".") for part in name.split("/")):
        raise ValueError(f"not a name for a ref: {name!r}; its parts may neither be empty nor begin with a dot")
    return f".refs/{name}.json"


def _manifest_in(folder: Path) -> Manifest | None:
    try:
        text = (folder / MANIFEST_NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return parse_manifest(text, str(folder))


def parse_manifest(text: bytes, folder: str) -> Manifest:
    """Read the manifest of an artefact.

    Raises:
        StoreError: if it is none; it names the folder, where the manifest lies.
    """
    try:
        return Manifest.from_json(text.decode("utf-8"))
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(
            f"{folder}/{MANIFEST_NAME} cannot be read ({error}); a commit never leaves such a file, so the disk or "
            f"another program changed it: remove {folder} and run again"
        ) from error


def parse_inputs(text: bytes) -> frozenset[tuple[str, str]] | None:
    """Read what unfinished work notes of its inputs; None if a kill tore that."""
    try:
        return frozenset((stage, key) for stage, key in json.loads(text))
    except ValueError:
        return None


def _folders(parent: Path) -> list[str]:
    """Names of the folders in a folder, without hidden ones and without files, which are none of ours."""
    if not parent.is_dir():
        return []
    return sorted(entry.name for entry in parent.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def open_store(address: str, cache: Path | None = None) -> Store:
    """The store at an address.

    Args:
        address: a folder, or `s3://BUCKET/PREFIX`.
        cache: folder for copies of what a store elsewhere holds; that of the home in the environment unless given.

    Raises:
        UserError: for an address that cannot be served.
    """
    if "://" not in address:
        return LocalStore(Path(address))
    if not address.startswith("s3://"):
        raise StoreError(
            f"SHEEPFOLD_STORE is {address!r}, but only folders and s3:// are served: give s3://BUCKET/PREFIX or a path"
        )
    from storage.home import Home
    from storage.remote import RemoteStore

    return RemoteStore.at(address, cache or Home.from_environment().cache)
