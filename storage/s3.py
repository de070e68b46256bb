"""The artefact store on S3, with a local folder as its cache, because stages, DuckDB and training read files.

    <address>/<stage>/<key>/<sha256>/NAME     data files, below the first digits of their sha256
    <address>/<stage>/<key>/manifest.json     put last, by a conditional write: its presence is the commit
    <address>/.refs/, .removed/               as in a folder

Two machines may make the same artefact at once: the conditional write of the manifest decides (it succeeds if there is
none yet, or still the one that is replaced). Data files are named by content, so an upload never changes a file that a
manifest lists. Unfinished work, locks and scratch folders are local.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
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

from storage.atomic import GONE, fsync_path, fsync_tree, read_bytes, write_file
from storage.errors import Unreachable, UserError
from storage.manifest import ArtifactRef, FileEntry, Manifest, stays_inside
from storage.store import MANIFEST_NAME, Store, StoreError, has_size, parse_manifest

ETAG_NAME = ".etag"  # in the cache, next to a manifest: ETag of the object that was downloaded
TRANSFERS = 4  # files of an artefact that are transferred at once
READS = 12  # manifests that are read at once
LISTING_SECONDS = 300.0  # lifetime of a cached listing, used where an older state is harmless
UPLOAD_SECONDS = 24 * 3600.0  # during which files without a manifest count as an upload by another machine
USE_SECONDS = 3600.0  # interval of recording the use of an artefact; each record is a request
CLIENT: Any = {
    "allow_http": True,
    "timeout": timedelta(minutes=10),
    "connect_timeout": timedelta(seconds=10),
}
RETRY: Any = {"max_retries": 20, "retry_timeout": timedelta(minutes=2)}
_NAME_LENGTH = 16  # digits of a file's sha256 in its object's name
_CONDITIONS: dict[str, Any] = {"If-None-Match": "create", "If-Match": {"e_tag": f'"{"0" * 32}"'}}  # an unused ETag


@dataclass(frozen=True)
class _Object:
    size: int
    etag: str
    modified: float


_Objects = dict[str, _Object]  # of one artefact, by name below its folder


class S3Store(Store):
    """The store below an `s3://` address.

    Args:
        address: `s3://BUCKET/PREFIX`; the prefix may be empty.
        root: local folder for copies and unfinished work.

    Raises:
        UserError: if the address names no bucket.
    """

    def __init__(self, address: str, root: Path) -> None:
        super().__init__(root)
        self._address = address.rstrip("/")
        self._name, _, self._prefix = self._address.removeprefix("s3://").partition("/")
        if not self._address.startswith("s3://") or not self._name:
            raise UserError(f"{address!r} is not the address of a store: give s3://BUCKET/PREFIX, or a folder")
        self._listed: dict[str, dict[str, _Objects]] = defaultdict(dict)  # by stage and key
        self._until: dict[str, float] = {}  # when the listing of a stage expires
        self._listing = threading.Lock()
        self._conditions: dict[str, Any] = {}  # by record: write mode that fails if it changed since it was read

    def __reduce__(self) -> tuple[Callable[..., S3Store], tuple[str, Path]]:
        return S3Store, (self._address, self.root)

    @property
    def address(self) -> str:
        return self._address

    # reading
    def find(self, stage: str, key: str, fresh: bool = False) -> Manifest | None:
        manifest, objects = self._read(stage, key, fresh)
        for entry in manifest.files if manifest is not None else ():
            found = objects.get(_object_name(entry))
            if found is None or found.size != entry.size:
                return None
        return manifest

    def read_manifest(self, stage: str, key: str) -> Manifest | None:
        return self._read(stage, key)[0]

    def keys(self, stage: str) -> list[str]:
        self._objects(stage, "")
        with self._listing:
            return sorted(key for key, objects in self._listed[stage].items() if objects)

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
        objects = self._objects(ref.stage, ref.key)
        record = objects.get(MANIFEST_NAME)
        if record is None or time.time() - record.modified <= USE_SECONDS:
            return record is not None
        name = f"{ref.stage}/{ref.key}/{MANIFEST_NAME}"
        found = self._get(name)
        etag = None if found is None else self._put(name, found[0], {"e_tag": found[1]})
        if etag is not None:
            self._note_objects(ref.stage, ref.key, {**objects, MANIFEST_NAME: _Object(record.size, etag, time.time())})
        return etag is not None

    def last_used(self, stage: str, key: str, fresh: bool = False) -> float:
        return max((found.modified for found in self._objects(stage, key, fresh).values()), default=0.0)

    def is_owned(self, stage: str, key: str) -> bool:
        is_upload = (
            MANIFEST_NAME not in self._objects(stage, key) and time.time() - self.last_used(stage, key) < UPLOAD_SECONDS
        )
        return is_upload or super().is_owned(stage, key)

    # listings
    def _objects(self, stage: str, key: str, fresh: bool = False) -> _Objects:
        """Return an artefact's objects: from the bucket if `fresh`, else from the cached listing."""
        with self._listing:
            if fresh:
                self._listed[stage][key] = self._list_artifacts(stage, key).get(key, {})
            elif time.monotonic() > self._until.get(stage, 0.0):
                begun = time.time()
                self._listed[stage] = self._list_artifacts(stage)
                self._drop_removed(stage, begun)
                self._until[stage] = time.monotonic() + LISTING_SECONDS
            return self._listed[stage].get(key, {})

    def _list_artifacts(self, stage: str, key: str = "") -> dict[str, _Objects]:
        """List the objects of one artefact, or of a whole stage if the key is empty."""
        artifacts: dict[str, _Objects] = {}
        for path, found in self._list(f"{stage}/{key}"):
            listed, _, name = path.removeprefix(f"{stage}/").partition("/")
            if name and stays_inside(listed):  # the name is not ours, and must not lead out of the cache
                artifacts.setdefault(listed, {})[name] = found
        return artifacts

    def _note_objects(self, stage: str, key: str, objects: _Objects) -> None:
        """Update the cached listing after an artefact was made or removed here."""
        with self._listing:
            self._listed[stage][key] = objects

    # the cache
    def _cache_lock(self, stage: str, key: str) -> AbstractContextManager[None]:
        return self.lock(f"cache-{stage}-{key}")

    def _drop_removed(self, stage: str, asked: float) -> None:
        """Delete cached copies of artefacts that another machine removed from the bucket."""
        for key in set(super().keys(stage)) - self._listed[stage].keys():
            folder = self.root / stage / key
            with suppress(*GONE):  # another local process deletes it too
                if (folder / ETAG_NAME).stat().st_mtime < asked - 1:  # a later one may be newer than the listing
                    shutil.rmtree(folder, ignore_errors=True)

    def drop_copy(self, stage: str, key: str) -> None:
        with self._cache_lock(stage, key):
            shutil.rmtree(self.root / stage / key, ignore_errors=True)

    def _read(self, stage: str, key: str, fresh: bool = False) -> tuple[Manifest | None, _Objects]:
        """Return the manifest of an artefact, complete or not, and its objects."""
        objects = self._objects(stage, key, fresh)
        record = objects.get(MANIFEST_NAME)
        if record is None:
            return None, objects
        place, folder = f"{stage}/{key}", self.root / stage / key
        text = read_bytes(folder / MANIFEST_NAME) if read_bytes(folder / ETAG_NAME) == record.etag.encode() else None
        if text is None:
            with self._cache_lock(stage, key):
                found = self._get(f"{place}/{MANIFEST_NAME}")
                if found is None:
                    return None, objects
                text, etag = found
                if read_bytes(folder / MANIFEST_NAME) != text:
                    shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True, exist_ok=True)
                write_file(folder / MANIFEST_NAME, text)
                write_file(folder / ETAG_NAME, etag.encode())
        return parse_manifest(text, f"{self.address}/{place}/{MANIFEST_NAME}"), objects

    def _fetch(self, manifest: Manifest, folder: Path, names: tuple[str, ...]) -> bool:
        """Download the files of an artefact that are not in the cache; returns False if the bucket lacks one."""
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
            with temporary.open("wb") as file, self._explained("read"):
                for block in obstore.get(self._bucket, name).stream():
                    digest.update(block)
                    file.write(block)
            if digest.hexdigest() != entry.sha256:
                raise StoreError(f"{self.address}/{name} is not what its manifest lists: --refresh {manifest.stage}")
            fsync_path(temporary)
            temporary.replace(path)
        except FileNotFoundError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        return True

    # making and removing artefacts
    def _finish_commit(self, stage: str, key: str) -> str | None:
        self._check_conditional_writes()
        there = self._objects(stage, key, fresh=True).get(MANIFEST_NAME)
        made = self.root / ".work" / stage / key / "complete"
        if there is None and made.is_dir():
            self._upload(made, parse_manifest((made / MANIFEST_NAME).read_bytes(), f"{made}/{MANIFEST_NAME}"), None)
            there = self._listed[stage][key][MANIFEST_NAME]
        return None if there is None else there.etag

    def _publish(self, made: Path, manifest: Manifest, replaces: str | None) -> Manifest:
        """Upload the files, then the manifest unless another machine has put one.

        Raises:
            StoreError: if another machine made this artefact with a different result.
        """
        fsync_tree(made)
        complete = made.rename(made.with_name("complete"))  # `_finish_commit` uploads it after a kill
        return self._upload(complete, manifest, replaces)

    def _upload(self, made: Path, manifest: Manifest, replaces: str | None) -> Manifest:
        place, before = f"{manifest.stage}/{manifest.key}", self._listed[manifest.stage].get(manifest.key, {})
        with ThreadPoolExecutor(TRANSFERS) as threads:
            list(threads.map(lambda e: self._put(f"{place}/{_object_name(e)}", made / e.name), manifest.files))
        objects = {_object_name(entry): _Object(entry.size, "", time.time()) for entry in manifest.files}
        text = (made / MANIFEST_NAME).read_bytes()
        etag = self._put(f"{place}/{MANIFEST_NAME}", text, {"e_tag": replaces} if replaces else "create")
        if etag is None:
            return self._use_committed(manifest, objects.keys())
        objects[MANIFEST_NAME] = _Object(len(text), etag, time.time())
        self._note_objects(manifest.stage, manifest.key, objects)
        self._delete(f"{place}/{name}" for name in before.keys() - objects.keys())
        write_file(made / ETAG_NAME, etag.encode())
        with self._cache_lock(manifest.stage, manifest.key):
            return super()._publish(made, manifest, replaces)

    def _use_committed(self, manifest: Manifest, uploaded: Iterable[str]) -> Manifest:
        """Return the manifest that another machine committed first, after deleting our uploads.

        Raises:
            StoreError: if its content differs from ours.
        """
        place = f"{manifest.stage}/{manifest.key}"
        first = self.find(manifest.stage, manifest.key, fresh=True)
        if first is None:
            raise StoreError(f"another machine removed {place} while it was made here: run the same command again")
        self._delete(f"{place}/{name}" for name in set(uploaded) - {_object_name(entry) for entry in first.files})
        if first.digest != manifest.digest:
            raise StoreError(
                f"another machine made {place} at the same time ({first.created}) with a different result: run the "
                f"same command again to use that one, or with --refresh {manifest.stage} to replace it"
            )
        return first

    def _remove(self, stage: str, key: str, keep_manifest: bool) -> None:
        found = self._get(f"{stage}/{key}/{MANIFEST_NAME}") if keep_manifest else None
        if found is not None:
            self._keep_manifest(stage, key, found[0])
        self._delete([f"{stage}/{key}/{MANIFEST_NAME}"])  # first, as in `Store._remove`
        self._delete([path for path, _ in self._list(f"{stage}/{key}")])
        with self._cache_lock(stage, key):
            super()._remove(stage, key, keep_manifest=False)
        self._note_objects(stage, key, {})

    # records
    def _read_record(self, record: str) -> bytes | None:
        found = self._get(record)
        self._conditions[record] = "create" if found is None else {"e_tag": found[1]}
        return None if found is None else found[0]

    def _write_record(self, record: str, data: bytes) -> None:
        """Write a record.

        Raises:
            StoreError: if it changed since this store read it.
        """
        self._check_conditional_writes()
        etag = self._put(record, data, self._conditions.get(record, "overwrite"))
        if etag is None:
            raise StoreError(
                f"another machine changed {self.address}/{record} at the same time: run the same command again"
            )
        self._conditions[record] = {"e_tag": etag}

    def _remove_record(self, record: str) -> None:
        self._delete([record])
        self._conditions.pop(record, None)

    def _records(self, folder: str) -> list[str]:
        names = (path.removeprefix(f"{folder}/") for path, _ in self._list(folder))
        return [name.removesuffix(".json") for name in names if name.endswith(".json")]

    # requests
    @cached_property
    def _bucket(self) -> Bucket:
        provider = None
        if "AWS_ACCESS_KEY_ID" not in os.environ:  # obstore does not read profiles and credential files
            from obstore.auth.boto3 import Boto3CredentialProvider

            try:
                provider = Boto3CredentialProvider()
            except ValueError as error:
                raise UserError(
                    f"no keys for {self.address}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
                ) from error
        return Bucket(
            self._name,
            prefix=self._prefix or None,
            client_options=CLIENT,
            retry_config=RETRY,
            credential_provider=provider,
        )

    def _get(self, name: str) -> tuple[bytes, str] | None:
        """Return bytes and ETag of a small object; None if it is absent."""
        try:
            with self._explained("read"):
                found = obstore.get(self._bucket, name)
                return bytes(found.bytes()), str(found.meta["e_tag"])
        except FileNotFoundError:
            return None

    def _put(self, name: str, data: bytes | Path, mode: Any = "overwrite") -> str | None:
        """Write an object; returns its ETag, or None if the condition failed."""
        try:
            with self._explained("write to"):
                return str(obstore.put(self._bucket, name, data, mode=mode)["e_tag"])
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            found = self._get(name)
            # equal data is our own write, whose response to an earlier attempt was lost
            return found[1] if found is not None and found[0] == data else None

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
        """Raise S3's errors as UserError with advice, without any secret."""
        try:
            yield
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            raise
        except (exceptions.BaseError, FileNotFoundError) as error:
            found = str(error)
            summary = found.partition("\n")[0]
            if "NoSuchBucket" in found:
                raise UserError(
                    f"there is no bucket {self._name!r} for {self.address}: create it, or correct the address"
                ) from error
            if isinstance(error, FileNotFoundError):
                raise
            refused = ("403 Forbidden", "401 Unauthorized", "ertificate")
            if any(word in found for word in refused) or ("status code: 4" in summary and "429" not in summary):
                raise UserError(
                    f"cannot {action} {self.address} ({summary}): check the keys, their rights and the settings of S3"
                ) from error
            raise Unreachable(
                f"cannot {action} {self.address}: no valid response from S3 in several attempts ({summary}). Check the "
                "server and the network, and run the same command again; finished work is kept"
            ) from error

    def _check_conditional_writes(self) -> None:
        """Raise UserError if the server does not support conditional writes; checked once per cache folder."""
        marker = self.root / ".conditional-writes"
        if marker.is_file():
            return
        trial = f".locks/trial-{uuid.uuid4().hex}"
        self._put(trial, b"")
        ignored = [name for name, mode in _CONDITIONS.items() if self._put(trial, name.encode(), mode) is not None]
        self._delete([trial])
        if ignored:
            raise UserError(
                f"the server of {self.address} ignores the header {ignored[0]}, so two machines could overwrite each "
                "other's artefacts: use Amazon S3, MinIO or another server with conditional writes"
            )
        self.root.mkdir(parents=True, exist_ok=True)
        write_file(marker, b"")


def _object_name(entry: FileEntry) -> str:
    """Return the name of a data file's object below its artefact."""
    return f"{entry.sha256[:_NAME_LENGTH]}/{entry.name}"
