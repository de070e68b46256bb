"""The artefact store: immutable, content-addressed folders, and mutable refs.

    <store>/<stage>/<key>/     data files and manifest.json; complete, or absent
    <store>/.work/             unfinished work: `out` becomes the artefact, `scratch` survives a kill
    <store>/.locks/            owners of unfinished work
    <store>/.refs/<name>.json  refs: corpora, pinned tokenisers and evaluation sets, models, tombstones
    <store>/.removed/          manifests of removed artefacts, for the lineage of the remaining ones

`Store` is the store in a folder; `storage.s3.S3Store` is the store on S3, with such a folder as its cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from storage.atomic import GONE, finish_publish, fsync_path, make_folder, publish, read_bytes, write_file
from storage.digest import sha256_file, sha256_json
from storage.errors import UserError
from storage.locks import is_held, owner_lock, read_owner
from storage.manifest import ArtifactRef, FileEntry, Manifest, stays_inside

MANIFEST_NAME = "manifest.json"
INPUTS_NAME = ".inputs.json"  # of unfinished work, in its scratch folder


class StoreError(UserError):
    """The content of the store is damaged, missing or in conflict."""


@dataclass(frozen=True)
class Workspace:
    """Folders in which an artefact is made, owned by this process until the context ends.

    Attributes:
        out: becomes the artefact; empty at the start.
        scratch: kept when the process dies, for stages that resume.
        replaces: sha256 (on S3 the ETag) of the manifest that the commit replaces; None if there is none.
    """

    out: Path
    scratch: Path
    replaces: str | None = None


@dataclass(frozen=True)
class Unfinished:
    """Work on an artefact that has not been committed.

    Attributes:
        inputs: stage and key of the artefacts that it reads; None if they were not recorded.
        touched: time of the last change, in seconds since the epoch.
        size: bytes.
    """

    stage: str
    key: str
    inputs: frozenset[tuple[str, str]] | None
    touched: float
    size: int


class Store:
    """The artefact store in a folder of this machine, or in one that several machines mount.

    Args:
        root: the folder; created by the first write.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    # reading
    def find(self, stage: str, key: str, fresh: bool = False) -> Manifest | None:
        """Return the manifest of a complete artefact; None if it is absent, or lacks files or bytes.

        Args:
            fresh: read the store itself, not a cached listing.
        """
        manifest = self.read_manifest(stage, key)
        for entry in manifest.files if manifest is not None else ():
            if not has_size(self.root / stage / key / entry.name, entry.size):
                return None  # a missing or truncated file: the artefact is made again
        return manifest

    def read_manifest(self, stage: str, key: str) -> Manifest | None:
        """Return the manifest of an artefact, complete or not; None if there is none."""
        folder = self.root / stage / key
        text = read_bytes(folder / MANIFEST_NAME)
        return None if text is None else parse_manifest(text, f"{folder}/{MANIFEST_NAME}")

    def keys(self, stage: str) -> list[str]:
        """Return the keys of a stage's artefacts, complete or not, in order."""
        return _folders(self.root / stage)

    def manifests(self, stage: str) -> Iterator[Manifest]:
        """Yield the manifests of a stage's complete artefacts, by key."""
        for key in self.keys(stage):
            manifest = self.find(stage, key)
            if manifest is not None:
                yield manifest

    def stages(self) -> list[str]:
        """Return the names of the stages that have artefacts."""
        return _folders(self.root)

    def artifacts(self) -> Iterator[tuple[str, str]]:
        """Yield stage and key of all artefacts, complete or not."""
        return ((stage, key) for stage in self.stages() for key in self.keys(stage))

    def folder(self, ref: ArtifactRef, *names: str) -> Path:
        """Return the local folder of an artefact's files.

        Args:
            names: files that are needed; all of them by default. Others may be missing if the store is on S3.

        Raises:
            StoreError: if the artefact is not in the store.
        """
        folder = self.root / ref.stage / ref.key
        if not (folder / MANIFEST_NAME).is_file():
            raise self._absent(ref)
        return folder

    def _absent(self, ref: ArtifactRef) -> StoreError:
        return StoreError(
            f"the artefact {ref.stage}/{ref.key} is not in the store {self.address}; it was removed, or the name is "
            "from another store: run the command that makes it again"
        )

    @property
    def address(self) -> str:
        """The folder, or the `s3://` address, of the store."""
        return str(self.root)

    # making artefacts
    @contextmanager
    def workspace(self, stage: str, key: str, on_wait: Callable[[str], None] | None = None) -> Iterator[Workspace]:
        """Lock one artefact for making it, after waiting for another owner; yields its folders.

        Args:
            on_wait: called once before a wait, with a message that names the owner.
        """
        with self._hold(stage, key, on_wait):
            work = self.root / ".work" / stage / key
            replaces = self._finish_commit(stage, key)
            # a refresh must not resume from work on the present artefact, which a kill after its commit leaves
            scratch = work / ("scratch" if replaces is None else f"scratch-{sha256_json(replaces)[:16]}")
            for leftover in list(work.iterdir()) if work.is_dir() else []:
                if leftover != scratch:
                    shutil.rmtree(leftover)  # output of a killed owner, or scratch of a finished artefact
            (work / "out").mkdir(parents=True)
            scratch.mkdir(exist_ok=True)
            yield Workspace(work / "out", scratch, replaces)
            if (self.root / stage / key / MANIFEST_NAME).is_file():  # made, or found in the store
                shutil.rmtree(work)

    def _finish_commit(self, stage: str, key: str) -> str | None:
        """Complete a commit whose owner was killed; returns the value for `Workspace.replaces`."""
        work, folder = self.root / ".work" / stage / key, self.root / stage / key
        finish_publish(work / "out", folder, work / "replaced")
        return sha256_file(folder / MANIFEST_NAME) if (folder / MANIFEST_NAME).is_file() else None

    def commit(self, workspace: Workspace, manifest: Manifest) -> Manifest:
        """Commit the workspace's `out` as the artefact of `manifest`; returns the manifest with its files listed."""
        manifest = replace(manifest, files=_list_files(workspace.out))
        (workspace.out / MANIFEST_NAME).write_bytes(manifest.to_json().encode())  # publish makes it durable
        return self._publish(workspace.out, manifest, workspace.replaces)

    def _publish(self, made: Path, manifest: Manifest, replaces: str | None) -> Manifest:
        discard = made.with_name("replaced")
        publish(made, self.root / manifest.stage / manifest.key, discard)
        shutil.rmtree(discard, ignore_errors=True)
        return manifest

    def add(self, kind: str, sources: Mapping[str, Path]) -> ArtifactRef:
        """Copy files into the store as an artefact without inputs, unless it exists.

        The copies are hashed, so that key and digest are right even if a source is edited during the copy.

        Args:
            kind: the artefact's stage.
            sources: paths of the files, by name in the artefact.

        Raises:
            UserError: if a source cannot be read.
        """
        outside = [name for name in (kind, *sources) if not stays_inside(name) or name == MANIFEST_NAME]
        if outside or not sources:
            raise ValueError(f"store.add needs at least one file and plain names, not {outside or 'no file'}")
        incoming = f"incoming-{uuid.uuid4().hex}"
        with self._hold(kind, incoming):
            copies = self.root / ".work" / kind / incoming / "out"
            try:
                for name, path in sources.items():
                    _copy(path, copies / name)
                files = {entry.name: entry.sha256 for entry in _list_files(copies)}
                key = sha256_json({"stage": kind, "files": files})
                with self.workspace(kind, key) as workspace:
                    manifest = self.find(kind, key, fresh=True)
                    if manifest is None:
                        workspace.out.rmdir()
                        copies.rename(workspace.out)
                        created = datetime.now(UTC).isoformat(timespec="microseconds")
                        made = Manifest(kind, 1, key, sha256_json(files), {}, {}, [], created=created)
                        manifest = self.commit(workspace, made)
            finally:
                shutil.rmtree(copies.parent, ignore_errors=True)
        return manifest.ref

    def note_inputs(self, workspace: Workspace, inputs: Iterable[ArtifactRef]) -> None:
        """Record the inputs of unfinished work, so that garbage collection keeps them."""
        text = json.dumps(sorted({(ref.stage, ref.key) for ref in inputs}))
        (workspace.scratch / INPUTS_NAME).write_text(text, encoding="utf-8")

    # removing artefacts
    def remove(self, stage: str, key: str, keep_manifest: bool = False) -> None:
        """Remove an artefact, complete or not; does nothing if it is absent.

        Args:
            keep_manifest: keep its manifest, for the lineage of artefacts that were made from it.

        Raises:
            StoreError: if a process works on it.
        """
        with self._hold(stage, key, _refuse_to_wait):
            self._remove(stage, key, keep_manifest)

    def _remove(self, stage: str, key: str, keep_manifest: bool) -> None:
        folder = self.root / stage / key
        manifest = folder / MANIFEST_NAME
        if manifest.is_file():
            if keep_manifest:
                self._keep_manifest(stage, key, manifest.read_bytes())
            manifest.unlink()  # first: without it the folder is not an artefact, also after a kill
            fsync_path(folder)
        for place in (folder, self.root / ".work" / stage / key):
            if place.is_dir():
                shutil.rmtree(place)

    def _keep_manifest(self, stage: str, key: str, text: bytes) -> None:
        try:
            parse_manifest(text, f"{stage}/{key}")
        except StoreError:  # it is damaged
            return
        self._write_record(_removed(stage, key), text)

    def removed_manifest(self, stage: str, key: str) -> Manifest | None:
        """Return the manifest of a removed artefact, if it was kept.

        Raises:
            StoreError: if it cannot be read.
        """
        record = _removed(stage, key)
        found = self._read_record(record)
        return None if found is None else parse_manifest(found, f"{self.address}/{record}")

    def removed(self) -> list[tuple[str, str]]:
        """Return stage and key of the removed artefacts whose manifests were kept."""
        names = (name.split("/") for name in self._records(".removed"))
        return sorted((parts[0], parts[1]) for parts in names if len(parts) == 2)

    def drop_copy(self, stage: str, key: str) -> None:
        """Delete the cached copy of an artefact in a remote store; a store in a folder has none."""

    # use, owners and unfinished work
    def touch(self, ref: ArtifactRef) -> bool:
        """Record the use of an artefact; returns False if it is absent."""
        try:
            os.utime(self.root / ref.stage / ref.key / MANIFEST_NAME)
        except FileNotFoundError:
            return False
        except OSError:
            return True  # a read-only store cannot be garbage-collected either
        return True

    def last_used(self, stage: str, key: str, fresh: bool = False) -> float:
        """Return the time of an artefact's last use or its creation, in seconds since the epoch; 0 if it is absent.

        A store on S3 records uses once per hour.

        Args:
            fresh: read the store itself, not a cached listing.
        """
        try:
            return (self.root / stage / key / MANIFEST_NAME).stat().st_mtime
        except GONE:
            return 0.0

    def unfinished(self, owned: bool = False) -> list[Unfinished]:
        """Return unfinished work without an owner, or with one if `owned`."""
        work = self.root / ".work"
        return [
            _read_unfinished(work / stage / key)
            for stage in _folders(work)
            for key in _folders(work / stage)
            if is_held(self._lock_path(f"{stage}-{key}")) == owned
        ]

    def remove_work(self, stage: str, key: str) -> None:
        """Delete unfinished work, unless a process owns it."""
        with suppress(StoreError), self._hold(stage, key, _refuse_to_wait):
            shutil.rmtree(self.root / ".work" / stage / key, ignore_errors=True)

    def owners(self) -> list[str]:
        """Return a phrase for each process that holds a lock in this folder."""
        held = (path for path in sorted((self.root / ".locks").rglob("*.lock")) if is_held(path))
        return [f"{read_owner(path)} works on {path.stem}" for path in held]

    def is_owned(self, stage: str, key: str) -> bool:
        """Return True if a process works on an artefact; processes of other machines may remain unseen."""
        return is_held(self._lock_path(f"{stage}-{key}"))

    def lock(self, name: str) -> AbstractContextManager[None]:
        """Hold a named lock against other processes that use this folder."""
        return owner_lock(self._lock_path(name))

    def _hold(self, stage: str, key: str, on_wait: Callable[[str], None] | None = None) -> AbstractContextManager[None]:
        return owner_lock(self._lock_path(f"{stage}-{key}"), on_wait)

    def _lock_path(self, name: str) -> Path:
        return self.root / ".locks" / f"{name}.lock"

    # refs
    def read_ref(self, name: str) -> dict[str, Any] | None:
        """Return the value of a ref, or None.

        Raises:
            StoreError: if it cannot be read.
        """
        record = _ref(name)
        found = self._read_record(record)
        if found is None:
            return None
        try:
            return {**json.loads(found)}
        except (ValueError, TypeError) as error:
            raise StoreError(
                f"{self.address}/{record} is not a JSON object ({error}): remove it and run again"
            ) from error

    def write_ref(self, name: str, value: dict[str, Any]) -> None:
        """Write a ref, atomically."""
        self._write_record(_ref(name), json.dumps(value, indent=1, sort_keys=True).encode())

    def remove_ref(self, name: str) -> None:
        """Remove a ref, if it exists."""
        self._remove_record(_ref(name))

    def refs(self, prefix: str) -> list[str]:
        """Return the names of the refs that start with `prefix`."""
        return sorted(name for name in self._records(".refs") if name.startswith(prefix))

    # records: small JSON files that are replaced atomically
    def _read_record(self, record: str) -> bytes | None:
        return read_bytes(self.root / record)

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
        """Return the names of the records in a folder of the store, without their suffix."""
        root = self.root / folder
        found = (path for path in root.rglob("*.json") if not path.name.startswith("."))
        return [path.relative_to(root).with_suffix("").as_posix() for path in found]


def open_store(address: str, cache: Path | None = None) -> Store:
    """Return the store at an address.

    Args:
        address: a folder, or `s3://BUCKET/PREFIX`.
        cache: folder for local copies of a store on S3; by default that of the home in the environment.

    Raises:
        UserError: for an address of another kind, and for S3 without obstore.
    """
    if "://" not in address:
        return Store(Path(address))
    if not address.startswith("s3://"):
        raise StoreError(
            f"SHEEPFOLD_STORE is {address!r}, which is neither a folder nor on S3: give s3://BUCKET/PREFIX or a path"
        )
    if find_spec("obstore") is None:
        raise StoreError(f"{address} needs obstore, which is not installed: pip install 'sheepfold[s3]'")
    from storage.home import Home
    from storage.s3 import S3Store

    place = (cache or Home.from_environment().cache) / "store"
    return S3Store(address, place / hashlib.sha256(address.rstrip("/").encode()).hexdigest()[:16])


def _list_files(out: Path) -> list[FileEntry]:
    paths = sorted(path for path in out.rglob("*") if path.is_file() and path != out / MANIFEST_NAME)
    return [FileEntry(path.relative_to(out).as_posix(), path.stat().st_size, sha256_file(path)) for path in paths]


def parse_manifest(text: bytes, place: str) -> Manifest:
    """Return the manifest with this text.

    Args:
        place: path or address of the manifest, for the message.

    Raises:
        StoreError: if it is not a manifest.
    """
    try:
        return Manifest.from_json(text.decode("utf-8"))
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(
            f"{place} cannot be read ({error}); a commit never leaves such a file, so the disk or another program "
            f"damaged it: remove {place.removesuffix(f'/{MANIFEST_NAME}')} and run again"
        ) from error


def has_size(path: Path, size: int) -> bool:
    """Return True if a file exists and has this many bytes."""
    try:
        return path.stat().st_size == size
    except GONE:
        return False


def _refuse_to_wait(owner: str) -> None:
    raise StoreError(f"it cannot be removed now: {owner}; try again when that process has ended")


def _removed(stage: str, key: str) -> str:
    return f".removed/{stage}/{key}.json"


def _ref(name: str) -> str:
    if any(not part or part.startswith(".") for part in name.split("/")):
        raise ValueError(f"not a name for a ref: {name!r}; its parts may neither be empty nor begin with a dot")
    return f".refs/{name}.json"


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        reading = source.open("rb")
    except OSError as error:
        raise UserError(f"{source} cannot be read ({error.strerror}): give a readable file") from error
    with reading, target.open("wb") as writing:
        shutil.copyfileobj(reading, writing)


def _read_unfinished(work: Path) -> Unfinished:
    inputs = None
    touched = size = 0.0

    def refuse(error: OSError) -> None:
        if not isinstance(error, GONE):  # os.walk would take a folder that it cannot list for an empty one
            raise error

    for folder, _, files in os.walk(work, onerror=refuse):
        for path in (Path(folder), *(Path(folder, name) for name in files)):
            with suppress(*GONE):  # its owner may be at work
                found = path.lstat()
                touched, size = max(touched, found.st_mtime), size + found.st_size
    for path in work.glob(f"*/{INPUTS_NAME}"):
        with suppress(FileNotFoundError, ValueError):  # removed, or cut off by a kill
            inputs = frozenset((stage, key) for stage, key in json.loads(path.read_bytes()))
    return Unfinished(work.parent.name, work.name, inputs, touched, int(size))


def _folders(parent: Path) -> list[str]:
    """Return the names of the folders in a folder, sorted, without hidden ones."""
    if not parent.is_dir():
        return []
    return sorted(entry.name for entry in parent.iterdir() if entry.is_dir() and not entry.name.startswith("."))
