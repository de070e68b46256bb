"""A store on S3, behind a folder of this machine: stages, DuckDB and training work on files, the bucket is the truth.

    <address>/<stage>/<key>/<sha256>/NAME     data files, under the beginning of their sha256
    <address>/<stage>/<key>/manifest.json     put last: its presence is the commit
    <address>/.refs/, .removed/               as in a folder
    <address>/.locks/                         leases, see `storage.leases`
    <address>/.work/<stage>/<key>/            what unfinished work reads, for whoever clears up, and how far it is

The folder is a cache: it may be removed whenever nobody works. A commit is finished in the folder first and uploaded
then; killed in between, the next owner uploads what lies there instead of making it again. Since data files carry
their digest in their name, replacing an artefact overwrites nothing that the old manifest lists: the moment in which
the new manifest is put decides. Files are fetched when their folder is asked for, and checked against the manifest.
"""

from __future__ import annotations

import hashlib
import shutil
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from storage.atomic import fsync_path, write_file
from storage.bucket import Bucket, ObjectInfo
from storage.digest import sha256_file
from storage.leases import LEASE_SECONDS, Lease, check_conditions, in_words, lease
from storage.locks import owner_lock
from storage.manifest import ArtifactRef, FileEntry, Manifest, stays_inside
from storage.mirror import MIRROR_SECONDS, Mirror
from storage.store import (
    INPUTS_NAME,
    MANIFEST_NAME,
    LocalStore,
    StoreError,
    Unfinished,
    Workspace,
    parse_inputs,
    parse_manifest,
    removed_record,
)

ETAG_NAME = ".etag"  # beside a manifest in the cache: of the one in the bucket; not there until it is uploaded
TRANSFERS = 4  # files of an artefact that move at once
READS = 12  # manifests that are read at once
LISTING_SECONDS = 1.0  # for which a listing is believed at least
LISTING_TIMES = 10.0  # and so many times as long as it took
USE_SECONDS = 3600.0  # between two notes that an artefact is in use, because each is a request
_NAME_LENGTH = 16  # characters of a file's sha256 in its name

Objects = dict[str, ObjectInfo]  # of one artefact, by name below its folder


@dataclass(frozen=True)
class _Listing:
    """What a stage has in the bucket.

    Attributes:
        begun: when we asked, in seconds since the epoch.
        until: as long as it is believed, on the monotonic clock.
    """

    artefacts: dict[str, Objects]
    begun: float
    until: float


class RemoteStore(LocalStore):
    """The store below an `s3://` address.

    Args:
        bucket: where it lies.
        root: the cache.
        lease_seconds: after which a machine that gives no sign of life has lost what it works on.
        mirror_seconds: between two copies of how far unfinished work is.
    """

    def __init__(
        self,
        bucket: Bucket,
        root: Path,
        lease_seconds: float = LEASE_SECONDS,
        mirror_seconds: float = MIRROR_SECONDS,
    ) -> None:
        super().__init__(root)
        self._bucket = bucket
        self._lease_seconds = lease_seconds
        self._mirror_seconds = mirror_seconds
        self._opened = time.time()
        self._listings: dict[str, _Listing] = {}
        self._leases: dict[str, Lease] = {}
        self._listing = threading.Lock()

    def __reduce__(self) -> tuple[Callable[..., RemoteStore], tuple[str, Path, float, float]]:
        return _reopen, (self._bucket.address, self.root, self._lease_seconds, self._mirror_seconds)

    @classmethod
    def at(cls, address: str, cache: Path) -> RemoteStore:
        """The store at an address, with a folder of its own below `cache`."""
        bucket = Bucket(address)
        return cls(bucket, cache / "store" / hashlib.sha256(bucket.address.encode()).hexdigest()[:16])

    # what is there
    def told(self, stage: str, key: str) -> Manifest | None:
        return self._told_by(stage, key, self._listed(stage).get(key, {}))

    def find(self, stage: str, key: str) -> Manifest | None:
        if _lock_name(stage, key) in self._leases:  # we make it: its stage need not be listed for what we do
            return self.find_anew(stage, key)
        return self._whole(stage, key, self._listed(stage).get(key, {}))

    def find_anew(self, stage: str, key: str) -> Manifest | None:
        """What the bucket has now, whatever listing is believed: another process may have changed it a moment ago."""
        return self._whole(stage, key, self._ask_for(stage, key))

    def _told_by(self, stage: str, key: str, objects: Objects) -> Manifest | None:
        record = objects.get(MANIFEST_NAME)
        text = None if record is None else self._manifest_text(stage, key, record.etag)
        return None if text is None else parse_manifest(text, f"{self._bucket.address}/{stage}/{key}")

    def _whole(self, stage: str, key: str, objects: Objects) -> Manifest | None:
        manifest = self._told_by(stage, key, objects)
        for entry in manifest.files if manifest is not None else ():
            found = objects.get(_object_name(entry))
            if found is None or found.size != entry.size:
                return None
        return manifest

    def manifests(self, stage: str) -> Iterator[Manifest]:
        with ThreadPoolExecutor(READS) as threads:
            for manifest in threads.map(lambda key: self.find(stage, key), self.keys(stage)):
                if manifest is not None:
                    yield manifest

    def keys(self, stage: str) -> list[str]:
        listed = self._listed(stage)
        with self._listing:  # a look at one artefact changes it
            return sorted(listed)

    def stages(self) -> list[str]:
        return [name for name in self._bucket.folders() if not name.startswith(".")]

    def _listed(self, stage: str) -> dict[str, Objects]:
        with self._listing:
            known = self._listings.get(stage)
            if known is not None and time.monotonic() <= known.until:
                return known.artefacts
            known = self._listings[stage] = self._list(stage)
        # not inside: whoever commits holds a lock of the cache that this waits for, and looks at the bucket then
        self._drop_removed(stage, known)
        return known.artefacts

    def _list(self, stage: str) -> _Listing:
        begun, started = time.time(), time.monotonic()
        artefacts: dict[str, Objects] = defaultdict(dict)
        for info in self._bucket.objects(f"{stage}/"):
            _, key, name = info.name.split("/", 2)
            if stays_inside(key):  # the others are none of ours, and no place for a copy
                artefacts[key][name] = info
        now = time.monotonic()
        return _Listing(dict(artefacts), begun, now + max(LISTING_SECONDS, LISTING_TIMES * (now - started)))

    def _drop_removed(self, stage: str, listing: _Listing) -> None:
        """Take out of the cache what another machine has taken out of the bucket; it may have been for good reason."""

        def is_old(folder: Path) -> bool:  # what was uploaded since we asked is not in the listing
            try:
                return (folder / ETAG_NAME).stat().st_mtime < listing.begun - 1
            except (FileNotFoundError, NotADirectoryError):
                return False

        for key in super().keys(stage):
            folder = self.root / stage / key
            if key not in listing.artefacts and is_old(folder):
                with self._fetching(stage, key):
                    if is_old(folder):  # still: another process of this machine may have come first
                        shutil.rmtree(folder)

    def _ask_for(self, stage: str, key: str) -> Objects:
        """Ask for one artefact alone, whose place among the others is known from then on."""
        place = f"{stage}/{key}/"
        objects = {info.name.removeprefix(place): info for info in self._bucket.objects(place)}
        with self._listing:
            known = self._listings.get(stage)
            if known is not None and objects:
                known.artefacts[key] = objects
            elif known is not None:
                known.artefacts.pop(key, None)
        return objects

    def _fetching(self, stage: str, key: str) -> AbstractContextManager[None]:
        """Keeps other processes of this machine from changing the cached copy of an artefact."""
        return owner_lock(self._lock_path(f"fetch-{stage}-{key}"), poll=0.05)

    # from the bucket
    def _manifest_text(self, stage: str, key: str, etag: str) -> bytes | None:
        folder = self.root / stage / key
        if (text := _cached(folder, etag)) is not None:
            return text
        with self._fetching(stage, key):
            if (text := _cached(folder, etag)) is not None:
                return text  # by whom we waited for
            found = self._bucket.read(f"{stage}/{key}/{MANIFEST_NAME}")
            if found is None:
                return None
            self._keep_manifest(folder, found.data, found.etag)
        return found.data

    def _keep_manifest(self, folder: Path, text: bytes, etag: str) -> None:
        """Put a manifest into the cache, and keep of the files there only those that it lists too."""
        wanted = set(parse_manifest(text, str(folder)).files)
        with suppress(FileNotFoundError):
            for entry in parse_manifest((folder / MANIFEST_NAME).read_bytes(), str(folder)).files:
                if entry not in wanted:
                    (folder / entry.name).unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / MANIFEST_NAME, text)
        write_file(folder / ETAG_NAME, etag.encode())

    def folder(self, ref: ArtifactRef, *names: str) -> Path:
        folder = self.root / ref.stage / ref.key
        for find in (self.find, self.find_anew):
            manifest = find(ref.stage, ref.key)
            if manifest is not None and self._fetch(manifest, folder, names):
                return folder
        raise StoreError(
            f"the artefact {ref.stage}/{ref.key} is not in the store {self._bucket.address}; it was removed, or the "
            "name came from another store: run the command that made it again"
        )

    def _fetch(self, manifest: Manifest, folder: Path, names: tuple[str, ...]) -> bool:
        """Get those files of an artefact that are not in the cache; False if one is gone."""

        def missing() -> list[FileEntry]:
            wanted = (entry for entry in manifest.files if not names or entry.name in names)
            return [entry for entry in wanted if not _is_there(folder / entry.name, entry.size)]

        if not missing():
            return True
        with self._fetching(manifest.stage, manifest.key), ThreadPoolExecutor(TRANSFERS) as threads:
            return all(threads.map(lambda entry: self._fetch_file(manifest, entry, folder / entry.name), missing()))

    def _fetch_file(self, manifest: Manifest, entry: FileEntry, path: Path) -> bool:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        name = f"{manifest.stage}/{manifest.key}/{_object_name(entry)}"
        try:
            if not self._bucket.download(name, temporary):
                return False
            if sha256_file(temporary) != entry.sha256:
                raise StoreError(
                    f"{self._bucket.address}/{name} is not what its manifest lists: --refresh {manifest.stage}"
                )
            fsync_path(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        return True

    # into the bucket
    @contextmanager
    def workspace(self, stage: str, key: str, on_wait: Callable[[str], None] | None = None) -> Iterator[Workspace]:
        self.find_anew(stage, key)  # so that the cache has the manifest, by which the base tells what to go on from
        with super().workspace(stage, key, on_wait) as workspace:
            if self.find(stage, key) is None:
                self._finish_upload(stage, key)
            mirror = Mirror(self._bucket, f".work/{stage}/{key}/{workspace.scratch.name}/", workspace.scratch)
            mirror.restore()
            with mirror.kept(self._mirror_seconds):
                yield workspace
            if self.find(stage, key) is not None:
                self._delete_below(f".work/{stage}/{key}/")

    def _finish_upload(self, stage: str, key: str) -> None:
        """Upload what was committed here by an owner who was killed then."""
        if not (self.root / stage / key / ETAG_NAME).is_file():
            manifest = super().find(stage, key)
            if manifest is not None:
                with self._fetching(stage, key):
                    self._upload(manifest)

    def commit(self, workspace: Workspace, manifest: Manifest) -> Manifest:
        # nobody here may take what is not uploaded yet for an old copy, and fetch what is in the bucket over it
        with self._fetching(manifest.stage, manifest.key):
            manifest = super().commit(workspace, manifest)
            self._upload(manifest)
        return manifest

    def _upload(self, manifest: Manifest) -> None:
        place, folder = f"{manifest.stage}/{manifest.key}", self.root / manifest.stage / manifest.key

        def upload(entry: FileEntry) -> str:
            self._bucket.upload(f"{place}/{_object_name(entry)}", folder / entry.name)
            return f"{place}/{_object_name(entry)}"

        with ThreadPoolExecutor(TRANSFERS) as threads:
            put = {f"{place}/{MANIFEST_NAME}", *threads.map(upload, manifest.files)}
        self.check_lock(_lock_name(manifest.stage, manifest.key))
        etag = self._bucket.write(f"{place}/{MANIFEST_NAME}", (folder / MANIFEST_NAME).read_bytes())
        write_file(folder / ETAG_NAME, etag.encode())
        there = self._ask_for(manifest.stage, manifest.key).values()
        self._bucket.delete(info.name for info in there if info.name not in put)

    def _take_out(self, stage: str, key: str, keep_record: bool) -> None:
        if keep_record:
            self.keep_record(stage, key)
        self._bucket.delete([f"{stage}/{key}/{MANIFEST_NAME}"])  # first, as in a folder
        self._delete_below(f"{stage}/{key}/")
        self._delete_below(f".work/{stage}/{key}/")
        with self._fetching(stage, key):  # else a process that lists the stage takes it out of the cache at once too
            super()._take_out(stage, key, keep_record=False)
        self._ask_for(stage, key)

    def keep_record(self, stage: str, key: str) -> None:
        found = self._bucket.read(f"{stage}/{key}/{MANIFEST_NAME}")
        if found is not None:
            self._write_record(removed_record(stage, key), found.data)

    def drop_copy(self, stage: str, key: str) -> None:
        """Take an artefact out of the cache, to be fetched again; what is not uploaded yet stays."""
        folder = self.root / stage / key
        with self._fetching(stage, key):
            if (folder / ETAG_NAME).is_file():
                shutil.rmtree(folder)

    def _delete_below(self, prefix: str) -> None:
        self._bucket.delete([info.name for info in self._bucket.objects(prefix)])

    # use, and unfinished work
    def use(self, ref: ArtifactRef) -> bool:
        record = self._listed(ref.stage).get(ref.key, {}).get(MANIFEST_NAME)
        if record is None:
            return False
        return time.time() - record.modified < USE_SECONDS or self._bucket.touch(
            f"{ref.stage}/{ref.key}/{MANIFEST_NAME}"
        )

    def used(self, stage: str, key: str) -> float:
        record = self._listed(stage).get(key, {}).get(MANIFEST_NAME)
        if record is None:
            return 0.0
        # uses between two notes are not known: the last of them may have been just before we came
        return max(record.modified, min(self._opened, record.modified + USE_SECONDS))

    def note_inputs(self, workspace: Workspace, inputs: Iterable[ArtifactRef]) -> None:
        super().note_inputs(workspace, inputs)
        note = workspace.scratch / INPUTS_NAME
        key, stage = workspace.scratch.parent.name, workspace.scratch.parent.parent.name
        self._bucket.write(f".work/{stage}/{key}/{INPUTS_NAME}", note.read_bytes())

    def unfinished(self, owned: bool = False) -> list[Unfinished]:
        either = [*super().unfinished(owned), *super().unfinished(not owned)]
        here = {(work.stage, work.key) for work in either}
        return [*super().unfinished(owned), *self._unfinished_elsewhere(owned, here)]

    def _unfinished_elsewhere(self, owned: bool, here: set[tuple[str, str]]) -> Iterator[Unfinished]:
        work: dict[tuple[str, str], list[ObjectInfo]] = defaultdict(list)
        for info in self._bucket.objects(".work/"):
            _, stage, key, _ = info.name.split("/", 3)
            work[stage, key].append(info)
        for (stage, key), objects in sorted(work.items()):
            if (stage, key) not in here and self._is_leased(_lock_name(stage, key)) == owned:
                note = self._bucket.read(f".work/{stage}/{key}/{INPUTS_NAME}")
                touched = max(info.modified for info in objects)
                size = sum(info.size for info in objects)
                yield Unfinished(stage, key, None if note is None else parse_inputs(note.data), touched, size)

    def remove_work(self, stage: str, key: str) -> None:
        super().remove_work(stage, key)
        if not self._is_leased(_lock_name(stage, key)):
            self._delete_below(f".work/{stage}/{key}/")

    # who works here
    @contextmanager
    def _hold(self, name: str, on_wait: Callable[[str], None] | None = None) -> Iterator[None]:
        with (
            super()._hold(name, on_wait),
            lease(self._bucket, _lease_name(name), self._place, on_wait, self._lease_seconds) as held,
        ):
            self._leases[name] = held
            try:
                yield
            finally:
                del self._leases[name]

    def check_lock(self, name: str) -> None:
        self._leases[name].check()

    @cached_property
    def _place(self) -> str:
        """What tells this cache from all others, copies of it too; made once, when the server was found fit."""
        path = self.root / ".place"
        with owner_lock(self._lock_path(".place"), poll=0.05):
            if not path.is_file():
                check_conditions(self._bucket, ".locks/trial")
                write_file(path, uuid.uuid4().hex.encode())
        return f"{path.read_text(encoding='utf-8')}-{path.stat().st_ino}"

    def _is_leased(self, name: str) -> bool:
        found = self._bucket.read(_lease_name(name))
        return found is not None and found.age <= self._lease_seconds

    def owners(self) -> list[str]:
        words = []
        for name in self._records(".locks"):
            found = self._bucket.read(_lease_name(name))
            if found is not None and found.age <= self._lease_seconds:
                words.append(f"{in_words(found)} works on {name}")
        return words

    # records
    def _told(self, record: str) -> str:
        return f"{self._bucket.address}/{record}"

    def _read_record(self, record: str) -> bytes | None:
        found = self._bucket.read(record)
        return None if found is None else found.data

    def _write_record(self, record: str, data: bytes) -> None:
        self._bucket.write(record, data)

    def _remove_record(self, record: str) -> None:
        self._bucket.delete([record])

    def _records(self, folder: str) -> list[str]:
        found = (info.name.removeprefix(f"{folder}/") for info in self._bucket.objects(f"{folder}/"))
        return [name.removesuffix(".json") for name in found if name.endswith(".json")]


def _reopen(address: str, *arguments: Any) -> RemoteStore:
    return RemoteStore(Bucket(address), *arguments)


def _object_name(entry: FileEntry) -> str:
    """Name of a data file below its artefact."""
    return f"{entry.sha256[:_NAME_LENGTH]}/{entry.name}"


def _lock_name(stage: str, key: str) -> str:
    """Name of the lock that whoever makes an artefact holds, as in a folder."""
    return f"{stage}-{key}"


def _lease_name(lock: str) -> str:
    return f".locks/{lock}.json"


def _cached(folder: Path, etag: str) -> bytes | None:
    """The manifest in the cache, if it is the one in the bucket."""
    try:
        if (folder / ETAG_NAME).read_text(encoding="utf-8") == etag:
            return (folder / MANIFEST_NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        pass
    return None


def _is_there(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except (FileNotFoundError, NotADirectoryError):
        return False
