"""Objects of an S3 bucket below a prefix: the few calls that the store needs, and what is said when one fails.

Keys and endpoint come from where boto3 looks for them (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL and so on) and are never
printed. What the server and the network may get over (500, 503, time-outs, connections that break) is asked again for
two minutes, with growing pauses, before it becomes an error. boto3 is imported late: only a store on S3 pays for it.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any

from storage.errors import Unreachable, UserError

logger = logging.getLogger("sheepfold")

SCHEME = "s3://"
PATIENCE_SECONDS = 120.0  # from the first failure of a request, within which it is tried again
PAUSE_SECONDS = 0.1  # before the second attempt; doubles from one to the next
LONGEST_PAUSE_SECONDS = 10.0
BODIES = 5  # of an answer that broke off, one after the other; as many as boto3 takes in a download
CONNECT_SECONDS = 10
READ_SECONDS = 60
CONNECTIONS = 16  # at once: a store moves many small files
_DELETED_AT_ONCE = 1000  # S3 takes no more
_LOST = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")
_ABSENT = ("NoSuchKey", "404", "NotFound")
_PASSING = ("SlowDown", "RequestTimeout", "PriorRequestNotComplete", "Throttling", "ThrottlingException")
_PASSING_STATUS = (429, 500, 502, 503, 504)
_TOLD_ATTEMPT = 6  # of a request, after some seconds: who waits wants to know why
_REFUSED = ("AccessDenied", "403", "Forbidden", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken")


class BucketError(UserError):
    """What S3 refuses, and what only the person can mend."""


class BucketUnreachable(BucketError, Unreachable):
    """S3 does not answer, or answers that it cannot."""


@dataclass(frozen=True)
class ObjectInfo:
    """One object.

    Attributes:
        name: below the prefix.
        modified: by the server's clock, in seconds since the epoch.
    """

    name: str
    size: int
    etag: str
    modified: float


@dataclass(frozen=True)
class Found:
    """A small object that was read whole.

    Attributes:
        age: seconds since it was written, both by the server's clock.
    """

    data: bytes
    etag: str
    age: float


class Bucket:
    """The objects below an address.

    Args:
        address: `s3://bucket/prefix`; the prefix may be empty.

    Raises:
        BucketError: if the address names no bucket.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self.name, _, prefix = self.address.removeprefix(SCHEME).partition("/")
        if not self.address.startswith(SCHEME) or not self.name:
            raise BucketError(f"{address!r} is no address of a store: give s3://BUCKET/PREFIX, or a folder")
        self._prefix = f"{prefix}/" if prefix else ""
        if find_spec("boto3") is None:
            raise BucketError(f"{self.address} needs boto3, which is not installed: pip install 'sheepfold[s3]'")

    @cached_property
    def _client(self) -> Any:
        import boto3
        from botocore.config import Config

        config = Config(
            retries={"mode": "standard", "total_max_attempts": 1},  # we decide, see `_pause`
            connect_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
            max_pool_connections=CONNECTIONS,
        )
        # a session of our own, because boto3's default one is not for several threads
        client = boto3.session.Session().client("s3", config=config)
        client.meta.events.register("needs-retry.s3", self._pause)
        return client

    def _pause(
        self, attempts: int, response: Any, caught_exception: Exception | None, request_dict: dict[str, Any], **_: Any
    ) -> float | None:
        """Seconds until a request is tried again, None if it is not; botocore asks after each attempt.

        botocore's own rules end within seconds, and allow all threads together some 35 of these attempts.
        """
        failed = _unanswered(caught_exception) if response is None else _cannot_now(response[1])
        if not failed:
            return None
        now = monotonic()
        since = request_dict["context"].setdefault("failing_since", now)
        pause = min(PAUSE_SECONDS * 2 ** min(attempts - 1, 16), LONGEST_PAUSE_SECONDS) * random.uniform(0.5, 1)
        if now - since + pause >= PATIENCE_SECONDS:
            return None
        if attempts == _TOLD_ATTEMPT:
            logger.warning(
                "%s does not answer as it should; it is asked again for up to %.0f s", self.address, PATIENCE_SECONDS
            )
        return pause

    def read(self, name: str) -> Found | None:
        """An object, whole; None if it is not there."""
        with self._told(f"read {name} in", _ABSENT):
            return self._whole(self._prefix + name, BODIES)
        return None

    def _whole(self, key: str, attempts: int) -> Found:
        from botocore.exceptions import HTTPClientError, IncompleteReadError

        answer = self._client.get_object(Bucket=self.name, Key=key)
        try:
            return Found(answer["Body"].read(), answer["ETag"], _age(answer))
        except (HTTPClientError, IncompleteReadError):
            if attempts == 1:
                raise
        return self._whole(key, attempts - 1)

    def write(self, name: str, data: bytes) -> str:
        """Write an object, whatever stood there; returns its ETag."""
        with self._told(f"write {name} to"):
            answer = self._client.put_object(Bucket=self.name, Key=self._prefix + name, Body=data)
            return str(answer["ETag"])

    def create(self, name: str, data: bytes) -> str | None:
        """Write an object that is not there yet; returns its ETag, or None if it is there."""
        return self._write_if(name, data, IfNoneMatch="*")

    def replace(self, name: str, data: bytes, etag: str) -> str | None:
        """Write an object over the one with this ETag; returns the new ETag, or None if another stands there now."""
        return self._write_if(name, data, IfMatch=etag)

    def _write_if(self, name: str, data: bytes, **condition: str) -> str | None:
        with self._told(f"write {name} to", _LOST + _ABSENT):
            answer = self._client.put_object(Bucket=self.name, Key=self._prefix + name, Body=data, **condition)
            return str(answer["ETag"])
        found = self.read(name)
        # what we wanted to write is there if the answer to an earlier attempt was lost on the way
        return found.etag if found is not None and found.data == data else None

    def upload(self, name: str, path: Path) -> None:
        """Write a file's bytes to an object, in parts where they are many."""
        with self._told(f"write {name} to"), path.open("rb") as file:
            self._client.upload_fileobj(file, self.name, self._prefix + name)

    def download(self, name: str, path: Path) -> bool:
        """Write an object's bytes to a file; False if it is not there."""
        with self._told(f"read {name} in", _ABSENT), path.open("wb") as file:
            self._client.download_fileobj(self.name, self._prefix + name, file)
            return True
        return False

    def touch(self, name: str) -> bool:
        """Make an object count as written now; False if it is not there."""
        place = {"Bucket": self.name, "Key": self._prefix + name}
        with self._told(f"write {name} to", _ABSENT):
            # S3 copies an object onto itself only if something changes, if only its description
            self._client.copy_object(**place, CopySource=place, MetadataDirective="REPLACE")
            return True
        return False

    def objects(self, prefix: str) -> Iterator[ObjectInfo]:
        """The objects whose names begin so, by name."""
        for page in self._pages(prefix):
            for item in page.get("Contents", ()):
                name = item["Key"].removeprefix(self._prefix)
                yield ObjectInfo(name, item["Size"], item["ETag"], item["LastModified"].timestamp())

    def folders(self) -> list[str]:
        """The first parts of the names of objects that have several parts."""
        pages = self._pages("", Delimiter="/")
        found = (item["Prefix"] for page in pages for item in page.get("CommonPrefixes", ()))
        return sorted(name.removeprefix(self._prefix).rstrip("/") for name in found)

    def _pages(self, prefix: str, **options: str) -> Iterator[dict[str, Any]]:
        with self._told("list"):
            paginator = self._client.get_paginator("list_objects_v2")
            yield from paginator.paginate(Bucket=self.name, Prefix=self._prefix + prefix, **options)

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects; harmless where they are not there.

        Raises:
            BucketError: if the server keeps one of them.
        """
        keys = [{"Key": self._prefix + name} for name in names]
        for first in range(0, len(keys), _DELETED_AT_ONCE):
            with self._told("remove from"):
                wanted = {"Objects": keys[first : first + _DELETED_AT_ONCE], "Quiet": True}
                answer = self._client.delete_objects(Bucket=self.name, Delete=wanted)
            if answer.get("Errors"):
                kept = answer["Errors"][0]
                raise BucketError(f"{self.address} keeps {kept['Key']} ({kept['Code']}): check the rights of the keys")

    @contextmanager
    def _told(self, action: str, expected: tuple[str, ...] = ()) -> Iterator[None]:
        """Say what failed and what to do, and nothing of the keys.

        Args:
            expected: codes of answers that are no failure; the block ends there.
        """
        from boto3.exceptions import Boto3Error
        from botocore import exceptions
        from s3transfer.exceptions import RetriesExceededError

        try:
            yield
        except exceptions.ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code not in expected:
                raise self._client_error(action, code, error) from error
        except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as error:
            raise BucketError(
                f"no keys for {self.address}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or what else boto3 reads"
            ) from error
        except (Boto3Error, RetriesExceededError) as error:
            raise BucketUnreachable(self._given_up(action, type(error).__name__)) from error
        except exceptions.BotoCoreError as error:
            if _unanswered(error):
                raise BucketUnreachable(self._given_up(action, type(error).__name__)) from error
            raise BucketError(f"cannot {action} {self.address} ({error}): check the settings of S3") from error

    def _client_error(self, action: str, code: str, error: Any) -> BucketError:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code == "NoSuchBucket":
            return BucketError(f"there is no bucket {self.name!r} for {self.address}: make it, or correct the address")
        if code in _REFUSED:
            return BucketError(f"S3 does not let us {action} {self.address} ({code}): check the keys and their rights")
        if _cannot_now(error.response):
            return BucketUnreachable(self._given_up(action, f"{code}, status {status}"))
        return BucketError(f"S3 did not {action} {self.address} ({code}, status {status}): check the server's settings")

    def _given_up(self, action: str, what: str) -> str:
        return (
            f"cannot {action} {self.address}: S3 did not answer as it should, in several attempts ({what}). What is "
            "finished is kept: look at the server and the network, and run again"
        )


def _cannot_now(answer: dict[str, Any]) -> bool:
    """Whether the server says that it cannot now."""
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status in _PASSING_STATUS or answer.get("Error", {}).get("Code") in _PASSING


def _unanswered(error: Exception | None) -> bool:
    """Whether there was no answer, or half of one, for another reason than a certificate."""
    from botocore import exceptions

    kinds = (exceptions.HTTPClientError, exceptions.ConnectionError, exceptions.IncompleteReadError)
    return isinstance(error, kinds) and "CERTIFICATE_VERIFY_FAILED" not in str(error)


def _age(answer: dict[str, Any]) -> float:
    now = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
    return float((now - answer["LastModified"]).total_seconds())
