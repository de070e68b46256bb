"""The artefact store on S3, with a folder of this machine as its cache: stages, DuckDB and training work on files.

    <address>/<stage>/<key>/<sha256>/NAME     data files, below the first digits of their sha256
    <address>/<stage>/<key>/manifest.json     put last and on condition: its presence is the commit
    <address>/.refs/, .removed/               as in a folder

Two machines may make the same artefact at once: nothing keeps them apart but the condition on the manifest (nothing is
there yet, or still the artefact that is replaced). Data files are named by content, so no upload changes a file that a
manifest lists. Unfinished work, its locks and its scratch stay on the machine that does it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import obstore
from obstore import exceptions
from obstore.store import S3Store as Bucket

from storage.atomic import GONE, fsync_path, fsync_tree, write_file
from storage.errors import Unreachable, UserError
from storage.locks import owner_lock, owner_record
from storage.manifest import ArtifactRef, FileEntry, Manifest, stays_inside
from storage.store import MANIFEST_NAME, Store, StoreError, Workspace, has_size, list_files, parse_manifest

ETAG_NAME = ".etag"  # beside a cached manifest: ETag of the object that it is a copy of
TRANSFERS = 4  # files of an artefact that move at once
READS = 12  # manifests that are read at once
LISTING_SECONDS = 1.0  # for which a listing is believed at least
LISTING_TIMES = 10.0  # and this many times as long as it took
UPLOAD_SECONDS = 24 * 3600.0  # for which files without a manifest count as an upload of another machine
USE_SECONDS = 3600.0  # between two records of the use of an artefact, because each is a request
CLIENT: Any = {
    "allow_http": True,
    "timeout": timedelta(minutes=10),
    "connect_timeout": timedelta(seconds=10),
}
RETRY: Any = {"max_retries": 20, "retry_timeout": timedelta(minutes=2)}
_NAME_LENGTH = 16  # digits of a file's sha256 in its object's name
_NO_ETAG = f'"{"0" * 32}"'  # well-formed, and of no object


class S3Error(UserError):
    """S3 refuses a request, and the person has to change something."""


class S3Unreachable(S3Error, Unreachable):
    """S3 does not answer, or answers that it cannot now."""


@dataclass(frozen=True)
class _Object:
    size: int
    etag: str
    modified: float


@dataclass(frozen=True)
class _Small:
    """A small object, read whole."""

    data: bytes
    etag: str
    attributes: Mapping[str, str]


_Objects = dict[str, _Object]  # of one artefact, by name below its folder


class S3Store(Store):
    """The store below an `s3://` address.

    Args:
        address: `s3://BUCKET/PREFIX`; the prefix may be empty.
        root: folder of this machine for copies and unfinished work.

    Raises:
        S3Error: if the address names no bucket.
    """

    def __init__(self, address: str, root: Path) -> None:
        super().__init__(root)
        self._address = address.rstrip("/")
        self._name, _, self._prefix = self._address.removeprefix("s3://").partition("/")
        if not self._address.startswith("s3://") or not self._name:
            raise S3Error(f"{address!r} is not the address of a store: give s3://BUCKET/PREFIX, or a folder")
        self._opened = time.time()
        self._listings: dict[str, dict[str, _Objects]] = {}  # by stage and key; empty for what is known to be gone
        self._valid_until: dict[str, float] = {}  # on the monotonic clock
        self._held: dict[tuple[str, str], _Objects] = {}  # of artefacts that are made here now
        self._versions: dict[str, str | None] = {}  # ETags of records, when they were read last
        self._listing = threading.Lock()

    def __reduce__(self) -> tuple[Callable[..., S3Store], tuple[str, Path]]:
        return S3Store, (self._address, self.root)

    @property
    def address(self) -> str:
        return self._address

    # reading
    def find(self, stage: str, key: str, fresh: bool = False) -> Manifest | None:
        objects = self._ask(stage, key) if fresh else self._objects(stage, key)
        manifest = self._manifest(stage, key, objects)
        for entry in manifest.files if manifest is not None else ():
            found = objects.get(_object_name(entry))
            if found is None or found.size != entry.size:
                return None
        return manifest

    def read_manifest(self, stage: str, key: str) -> Manifest | None:
        return self._manifest(stage, key, self._objects(stage, key))

    def keys(self, stage: str) -> list[str]:
        listed = self._listed(stage)
        with self._listing:  # a request for one artefact changes it
            return sorted(key for key, objects in listed.items() if objects)

    def manifests(self, stage: str) -> Iterator[Manifest]:
        with ThreadPoolExecutor(READS) as threads:
            for manifest in threads.map(lambda key: self.find(stage, key), self.keys(stage)):
                if manifest is not None:
                    yield manifest

    def stages(self) -> list[str]:
        with self._explained("list"):
            found = obstore.list_with_delimiter(self._bucket)["common_prefixes"]
        return sorted(name for name in found if not name.startswith("."))

    def folder(self, ref: ArtifactRef, *names: str) -> Path:
        folder = self.root / ref.stage / ref.key
        for fresh in (False, True):
            manifest = self.find(ref.stage, ref.key, fresh)
            if manifest is not None and self._fetch(manifest, folder, names):
                return folder
        raise self._absent(ref)

    def touch(self, ref: ArtifactRef) -> bool:
        record = self._objects(ref.stage, ref.key).get(MANIFEST_NAME)
        if record is None:
            return False
        name = f"{ref.stage}/{ref.key}/{MANIFEST_NAME}"
        if time.time() - record.modified > USE_SECONDS:
            found = self._get(name)
            if found is None:
                return False
            return self._put(name, found.data, {"e_tag": found.etag}, found.attributes) is not None
        return True

    def last_used(self, stage: str, key: str) -> float:
        objects = self._objects(stage, key)
        record = objects.get(MANIFEST_NAME)
        if record is None:  # an upload, or what one left behind
            return max((info.modified for info in objects.values()), default=0.0)
        # uses between two records are unknown: the latest may have been just before this store was opened
        return max(record.modified, min(self._opened, record.modified + USE_SECONDS))

    def is_owned(self, stage: str, key: str) -> bool:
        objects = self._objects(stage, key)
        latest = max((info.modified for info in objects.values()), default=0.0)
        is_upload = MANIFEST_NAME not in objects and time.time() - latest < UPLOAD_SECONDS
        return is_upload or super().is_owned(stage, key)

    # listings
    def _objects(self, stage: str, key: str) -> _Objects:
        held = self._held.get((stage, key))  # without a listing, so that a commit costs the same in a large store
        return held if held is not None else self._listed(stage).get(key, {})

    def _listed(self, stage: str) -> dict[str, _Objects]:
        with self._listing:
            if time.monotonic() <= self._valid_until.get(stage, 0.0):
                return self._listings[stage]
            begun, started = time.time(), time.monotonic()
            artifacts: dict[str, _Objects] = defaultdict(dict)
            for path, info in self._list(stage):
                _, key, name = path.split("/", 2)
                if stays_inside(key):  # a foreign name must not lead out of the cache
                    artifacts[key][name] = info
            now = time.monotonic()
            self._valid_until[stage] = now + max(LISTING_SECONDS, LISTING_TIMES * (now - started))
            self._listings[stage] = dict(artifacts)
            self._drop_removed(stage, artifacts.keys(), begun)
            return self._listings[stage]

    def _ask(self, stage: str, key: str) -> _Objects:
        """Request the objects of one artefact, and correct the listing of its stage."""
        place = f"{stage}/{key}/"
        objects = {path.removeprefix(place): info for path, info in self._list(place)}
        self._know(stage, key, objects)
        return objects

    def _know(self, stage: str, key: str, objects: _Objects) -> None:
        with self._listing:
            if (stage, key) in self._held:
                self._held[stage, key] = objects
            self._listings.get(stage, {})[key] = objects

    # the cache
    def _cache_lock(self, stage: str, key: str) -> AbstractContextManager[None]:
        return owner_lock(self._lock_path(f"cache-{stage}-{key}"), poll=0.05)

    def _drop_removed(self, stage: str, present: Collection[str], asked: float) -> None:
        """Delete cached copies of artefacts that another machine removed from the bucket."""
        for key in set(super().keys(stage)).difference(present):
            folder = self.root / stage / key
            with suppress(*GONE):  # another process of this machine deletes it too
                if (folder / ETAG_NAME).stat().st_mtime < asked - 1:  # else it may be newer than the listing
                    shutil.rmtree(folder, ignore_errors=True)

    def _manifest(self, stage: str, key: str, objects: _Objects) -> Manifest | None:
        record = objects.get(MANIFEST_NAME)
        if record is None:
            return None
        place, folder = f"{stage}/{key}", self.root / stage / key
        text = _cached(folder, record.etag)
        if text is None:
            with self._cache_lock(stage, key):
                found = self._get(f"{place}/{MANIFEST_NAME}")
                if found is None:
                    return None
                text = found.data
                self._cache_manifest(folder, parse_manifest(text, f"{self.address}/{place}"), found)
        return parse_manifest(text, f"{self.address}/{place}")

    def _cache_manifest(self, folder: Path, manifest: Manifest, found: _Small) -> None:
        """Write a manifest to the cache, and delete the files of another one that it does not list."""
        with suppress(*GONE, StoreError):
            for entry in parse_manifest((folder / MANIFEST_NAME).read_bytes(), str(folder)).files:
                if entry not in manifest.files:
                    (folder / entry.name).unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / MANIFEST_NAME, found.data)
        write_file(folder / ETAG_NAME, found.etag.encode())

    def _fetch(self, manifest: Manifest, folder: Path, names: tuple[str, ...]) -> bool:
        """Download the files of an artefact that are not in the cache; returns False if one is gone."""
        wanted = [entry for entry in manifest.files if not names or entry.name in names]
        missing = [entry for entry in wanted if not has_size(folder / entry.name, entry.size)]
        if not missing:
            return True
        with ThreadPoolExecutor(TRANSFERS) as threads:
            return all(threads.map(lambda entry: self._download(manifest, entry, folder / entry.name), missing))

    def _download(self, manifest: Manifest, entry: FileEntry, path: Path) -> bool:
        name, digest = f"{manifest.stage}/{manifest.key}/{_object_name(entry)}", hashlib.sha256()
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            with temporary.open("wb") as file:
                try:
                    with self._explained("read"):
                        for block in obstore.get(self._bucket, name).stream():
                            digest.update(block)
                            file.write(block)
                except FileNotFoundError:
                    return False
            if digest.hexdigest() != entry.sha256:
                raise StoreError(f"{self.address}/{name} is not what its manifest lists: --refresh {manifest.stage}")
            fsync_path(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        return True

    # making and removing artefacts
    @contextmanager
    def _hold(self, stage: str, key: str, on_wait: Callable[[str], None] | None = None) -> Iterator[None]:
        self._check_conditional_writes()
        with super()._hold(stage, key, on_wait):
            try:
                yield
            finally:
                self._held.pop((stage, key), None)

    def _finish_commit(self, stage: str, key: str) -> str | None:
        self._held[stage, key] = {}
        there = self._ask(stage, key).get(MANIFEST_NAME)
        made = self.root / ".work" / stage / key / "complete"
        if there is None and made.is_dir():
            self._upload(made, parse_manifest((made / MANIFEST_NAME).read_bytes(), str(made)), None)
            there = self._objects(stage, key)[MANIFEST_NAME]
        return None if there is None else there.etag

    def commit(self, workspace: Workspace, manifest: Manifest) -> Manifest:
        """Upload the files, then the manifest if nobody else put one meanwhile.

        Raises:
            StoreError: if another machine made this artefact meanwhile, with another result.
        """
        manifest = list_files(workspace.out, manifest)
        write_file(workspace.out / MANIFEST_NAME, manifest.to_json().encode())
        fsync_tree(workspace.out)
        made = workspace.out.rename(workspace.out.with_name("complete"))  # what a kill leaves of it is uploaded later
        return self._upload(made, manifest, workspace.replaces)

    def _upload(self, made: Path, manifest: Manifest, replaces: str | None) -> Manifest:
        place, before = f"{manifest.stage}/{manifest.key}", self._objects(manifest.stage, manifest.key)

        def upload(entry: FileEntry) -> None:
            with self._explained("write to"):
                obstore.put(self._bucket, f"{place}/{_object_name(entry)}", made / entry.name)

        with ThreadPoolExecutor(TRANSFERS) as threads:
            list(threads.map(upload, manifest.files))
        objects = {_object_name(entry): _Object(entry.size, "", time.time()) for entry in manifest.files}
        text = (made / MANIFEST_NAME).read_bytes()
        owner = {name: str(value) for name, value in owner_record().items()}
        etag = self._put(f"{place}/{MANIFEST_NAME}", text, {"e_tag": replaces} if replaces else "create", owner)
        if etag is None:
            return self._yield_to_winner(manifest, objects.keys())
        objects[MANIFEST_NAME] = _Object(len(text), etag, time.time())
        self._know(manifest.stage, manifest.key, objects)
        self._delete(f"{place}/{name}" for name in before.keys() - objects.keys())
        write_file(made / ETAG_NAME, etag.encode())
        with self._cache_lock(manifest.stage, manifest.key):
            self._publish(made, manifest)
        return manifest

    def _yield_to_winner(self, manifest: Manifest, uploaded: Iterable[str]) -> Manifest:
        """Return the artefact that another machine committed first.

        Raises:
            StoreError: if its content is another.
        """
        place = f"{manifest.stage}/{manifest.key}"
        winner, found = self.find(manifest.stage, manifest.key, fresh=True), self._get(f"{place}/{MANIFEST_NAME}")
        if winner is None or found is None:
            raise StoreError(f"{place} was removed by another machine while it was made: run the same command again")
        self._delete(f"{place}/{name}" for name in set(uploaded) - {_object_name(entry) for entry in winner.files})
        if winner.digest != manifest.digest:
            owner = found.attributes
            raise StoreError(
                f"{place} was made meanwhile by process {owner.get('pid', '?')} on {owner.get('host', '?')} "
                f"({winner.created}), with another result than here: run the same command again to go on with that "
                f"one, or with --refresh {manifest.stage} to replace it"
            )
        return winner

    def _remove(self, stage: str, key: str, keep_manifest: bool) -> None:
        found = self._get(f"{stage}/{key}/{MANIFEST_NAME}") if keep_manifest else None
        if found is not None:
            self._keep_manifest(stage, key, found.data)
        self._delete([f"{stage}/{key}/{MANIFEST_NAME}"])  # first, as in a folder
        self._delete([path for path, _ in self._list(f"{stage}/{key}/")])
        with self._cache_lock(stage, key):
            super()._remove(stage, key, keep_manifest=False)
        self._know(stage, key, {})

    def drop_copy(self, stage: str, key: str) -> None:
        with self._cache_lock(stage, key):
            shutil.rmtree(self.root / stage / key, ignore_errors=True)

    # records
    def _read_record(self, record: str) -> bytes | None:
        found = self._get(record)
        self._versions[record] = None if found is None else found.etag
        return None if found is None else found.data

    def _write_record(self, record: str, data: bytes) -> None:
        """Write a record, on condition that it has not changed since this store read it."""
        self._check_conditional_writes()
        mode: Any = "overwrite"
        if record in self._versions:
            version = self._versions[record]
            mode = "create" if version is None else {"e_tag": version}
        etag = self._put(record, data, mode)
        if etag is None:
            raise StoreError(
                f"{self.address}/{record} was changed by another machine meanwhile: run the same command again"
            )
        self._versions[record] = etag

    def _remove_record(self, record: str) -> None:
        self._delete([record])
        self._versions.pop(record, None)

    def _records(self, folder: str) -> list[str]:
        names = (path.removeprefix(f"{folder}/") for path, _ in self._list(folder))
        return [name.removesuffix(".json") for name in names if name.endswith(".json")]

    # requests
    @cached_property
    def _bucket(self) -> Bucket:
        provider = None
        if "AWS_ACCESS_KEY_ID" not in os.environ:  # obstore reads no profiles and no login files
            from obstore.auth.boto3 import Boto3CredentialProvider

            try:
                provider = Boto3CredentialProvider()
            except ValueError as error:
                raise S3Error(
                    f"no keys for {self.address}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
                ) from error
        return Bucket(
            self._name,
            prefix=self._prefix or None,
            client_options=CLIENT,
            retry_config=RETRY,
            credential_provider=provider,
        )

    def _get(self, name: str) -> _Small | None:
        try:
            with self._explained("read"):
                found = obstore.get(self._bucket, name)
                return _Small(bytes(found.bytes()), str(found.meta["e_tag"]), found.attributes)
        except FileNotFoundError:
            return None

    def _put(
        self, name: str, data: bytes, mode: Any = "overwrite", attributes: Mapping[str, str] | None = None
    ) -> str | None:
        """Write a small object; returns its ETag, or None if another object stands in the way of the condition."""
        try:
            with self._explained("write to"):
                put = obstore.put(self._bucket, name, data, mode=mode, attributes=dict(attributes or {}))
                return str(put["e_tag"])
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            found = self._get(name)
            # our own write, if the answer to an earlier attempt was lost
            return found.etag if found is not None and found.data == data else None

    def _list(self, prefix: str) -> Iterator[tuple[str, _Object]]:
        with self._explained("list"):
            for page in obstore.list(self._bucket, prefix, chunk_size=1000):
                for item in page:
                    yield item["path"], _Object(item["size"], str(item["e_tag"]), item["last_modified"].timestamp())

    def _delete(self, names: Iterable[str]) -> None:
        with self._explained("remove from"), suppress(FileNotFoundError):
            obstore.delete(self._bucket, list(names))

    @contextmanager
    def _explained(self, action: str) -> Iterator[None]:
        """Raise errors of S3 as sentences that say what to do, without anything of the keys."""
        try:
            yield
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            raise
        except (exceptions.BaseError, FileNotFoundError) as error:
            found = str(error)
            what = found.partition("\n")[0]
            if "NoSuchBucket" in found:
                raise S3Error(
                    f"there is no bucket {self._name!r} for {self.address}: create it, or correct the address"
                ) from error
            if isinstance(error, FileNotFoundError):
                raise
            refused = ("403 Forbidden", "401 Unauthorized", "ertificate")
            if any(word in found for word in refused) or ("status code: 4" in what and "429" not in what):
                raise S3Error(
                    f"cannot {action} {self.address} ({what}): check the keys, their rights and the settings of S3"
                ) from error
            raise S3Unreachable(
                f"cannot {action} {self.address}: S3 did not answer as it should, in several attempts ({what}). What "
                "is finished is kept: look at the server and the network, and run again"
            ) from error

    def _check_conditional_writes(self) -> None:
        """Raise S3Error if the server ignores conditions on a write; asked once for each cache."""
        marker = self.root / ".conditional-writes"
        if marker.is_file():
            return
        trial = f".locks/trial-{uuid.uuid4().hex}"
        try:
            self._put(trial, b"first", "create")
            for header, mode in {"If-None-Match": "create", "If-Match": {"e_tag": _NO_ETAG}}.items():
                if self._put(trial, header.encode(), mode) is not None:
                    raise S3Error(
                        f"the server of {self.address} writes without regard to {header}, so two machines could "
                        "overwrite each other's artefacts: use Amazon S3, MinIO or another server with conditional "
                        "writes"
                    )
        finally:
            self._delete([trial])
        self.root.mkdir(parents=True, exist_ok=True)
        write_file(marker, b"")


def _object_name(entry: FileEntry) -> str:
    """Return the name of a data file's object below its artefact."""
    return f"{entry.sha256[:_NAME_LENGTH]}/{entry.name}"


def _cached(folder: Path, etag: str) -> bytes | None:
    """Return the cached manifest if it is a copy of the object with this ETag."""
    try:
        if (folder / ETAG_NAME).read_text(encoding="utf-8") == etag:
            return (folder / MANIFEST_NAME).read_bytes()
    except GONE:
        pass
    return None
