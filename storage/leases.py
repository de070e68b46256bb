"""Leases: one machine at a time works on something, told by an object in a bucket.

A machine may vanish without a word, so what it holds falls by itself some time after its last sign of life. A server
that takes no notice of the conditions that a write is made under would let two machines in at once; it is refused.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from storage.bucket import Bucket, BucketError, BucketUnreachable, Found
from storage.locks import owner_record

logger = logging.getLogger("sheepfold")

LEASE_SECONDS = 60.0
_SIGNS = 3  # of life in the time of a lease
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # of Linux, of macOS: these go on while a machine sleeps
_NO_ETAG = f'"{"0" * 32}"'  # looks like one, and no object has it


class Lease:
    """What one process holds.

    Args:
        place: what is the same for all processes that share the locks of one folder; empty where there is none.
    """

    def __init__(self, bucket: Bucket, name: str, place: str, seconds: float) -> None:
        self.name = name
        self._bucket = bucket
        self._record = {**owner_record(), "place": place, "token": uuid.uuid4().hex}
        self._seconds = seconds
        self._signs = 0
        self._etag = ""
        self._until = 0.0
        self._signing = threading.Lock()
        self._ended = threading.Event()

    def _sign(self, write: Callable[[bytes], str | None]) -> bool:
        """Give a sign of life; False if the lease is another's."""
        self._signs += 1
        asked = _now()
        etag = write(json.dumps({**self._record, "signs": self._signs}).encode())
        if etag is None:
            self._until = 0.0
            return False
        self._etag, self._until = etag, asked + self._seconds  # the server counts from after we asked
        return True

    def _renew(self) -> bool:
        with self._signing:
            return self._sign(lambda data: self._bucket.replace(self.name, data, self._etag))

    def take(self) -> Found | None:
        """Take the lease; returns None then, and else what tells who has it."""
        while True:
            if self._sign(lambda data: self._bucket.create(self.name, data)):
                return None
            found = self._bucket.read(self.name)
            if found is None:
                continue  # given back a moment ago
            if found.age <= self._seconds and not self._is_of_the_dead(found):
                return found
            self._etag = found.etag
            if self._renew():
                return None

    def _is_of_the_dead(self, found: Found) -> bool:
        """Whether it was held in our place: whoever comes here holds the lock of the folder, so that owner is gone."""
        return bool(self._record["place"]) and _record(found).get("place") == self._record["place"]

    def check(self) -> None:
        """Make sure that it is still ours; one that ran out is, if nobody took it meanwhile.

        Raises:
            BucketError: if it is another's by now, or S3 does not tell.
        """
        while _now() >= self._until:
            if not self._renew():
                raise BucketError(
                    f"{self.name} was held too long without a sign of life (this machine slept, or lost its network), "
                    "and another took it meanwhile: run again"
                )

    def keep(self) -> None:
        """Give signs of life until `give_back` is called."""
        while not self._ended.wait(self._seconds / _SIGNS):
            try:
                if not self._renew():
                    return
            except BucketError as error:
                logger.warning("no sign of life for %s: %s", self.name, error)

    def give_back(self) -> None:
        """Let others take it."""
        self._ended.set()
        try:
            found = self._bucket.read(self.name)
            if found is not None and _record(found).get("token") == self._record["token"]:
                self._bucket.delete([self.name])
        except BucketUnreachable as error:
            logger.warning("%s is given back when its time is over: %s", self.name, error)


@contextmanager
def lease(
    bucket: Bucket,
    name: str,
    place: str = "",
    on_wait: Callable[[str], None] | None = None,
    seconds: float = LEASE_SECONDS,
    poll: float = 1.0,
) -> Iterator[Lease]:
    """Hold the lease `name`, waiting for whoever has it.

    Args:
        place: see `Lease`; to be given only by who holds the lock of the same name in a folder, so that a dead owner
            need not be waited for.
        on_wait: told once, in words, whom we wait for.
        seconds: after which a lease falls without a sign of life.
        poll: seconds between two looks.
    """
    mine = Lease(bucket, name, place, seconds)
    holder = mine.take()
    if holder is not None and on_wait is not None:
        on_wait(f"waiting for {in_words(holder)}, which works on {name}")
    while holder is not None:
        time.sleep(min(poll, seconds))
        holder = mine.take()
    keeper = threading.Thread(target=mine.keep, name=f"lease {name}", daemon=True)
    keeper.start()
    try:
        yield mine
    finally:
        mine.give_back()


def _now() -> float:
    return time.clock_gettime(_CLOCK)


def in_words(found: Found) -> str:
    """Who holds a lease."""
    record = _record(found)
    return f"process {record.get('pid', '?')} on {record.get('host', '?')}"


def _record(found: Found) -> dict[str, object]:
    try:
        record = json.loads(found.data)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def check_conditions(bucket: Bucket, name: str) -> None:
    """Make sure that the server takes notice of the conditions that a write is made under.

    Args:
        name: of an object for the trial.

    Raises:
        BucketError: if it does not.
    """
    trial = f"{name}-{uuid.uuid4().hex}"
    try:
        bucket.create(trial, b"first")
        for condition, written in {
            "If-None-Match": bucket.create(trial, b"second"),
            "If-Match": bucket.replace(trial, b"third", _NO_ETAG),
        }.items():
            if written is not None:
                raise BucketError(
                    f"the server of {bucket.address} writes without regard to {condition}, so nothing would keep two "
                    "machines from the same work: use Amazon S3, MinIO or another server with conditional writes"
                )
    finally:
        bucket.delete([trial])
