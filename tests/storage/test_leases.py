"""A lease on S3 by itself: how long it is ours, and what is asked when it ran out."""

from __future__ import annotations

import pytest
from proxy import PASS, Answer, Proxy

from storage.bucket import Bucket, BucketError, BucketUnreachable
from storage.leases import LEASE_SECONDS, Lease


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that leases go by, to be moved by the test."""
    clock = [1000.0]
    monkeypatch.setattr("storage.leases._now", lambda: clock[0])
    return clock


def test_a_lease_that_ran_out_is_kept_by_who_had_it_unless_another_took_it(s3_address: str, clock: list[float]) -> None:
    bucket = Bucket(s3_address)
    held = Lease(bucket, "lock", "", LEASE_SECONDS)
    assert held.take() is None
    clock[0] += LEASE_SECONDS
    held.check()
    held.check()
    bucket.write("lock", b"{}")
    held.check()  # its time is not over: nobody could take it in the ordinary way
    clock[0] += LEASE_SECONDS
    for _ in range(2):
        with pytest.raises(BucketError, match="another took it meanwhile"):
            held.check()
    bucket.delete(["lock"])
    with pytest.raises(BucketError, match="another took it meanwhile"):
        held.check()


def test_the_time_of_a_lease_is_counted_from_before_the_sign_of_life_was_asked_for(
    s3_address: str, proxy: Proxy, clock: list[float]
) -> None:
    held = Lease(Bucket(s3_address), "lock", "", LEASE_SECONDS)
    assert held.take() is None
    clock[0] += LEASE_SECONDS
    writes = proxy.writes

    def fall_asleep(method: str, path: str) -> Answer:
        proxy.decide = lambda method, path: PASS
        clock[0] += LEASE_SECONDS
        return PASS

    proxy.decide = fall_asleep
    held.check()
    assert proxy.writes == writes + 2  # the first sign was too old when its answer came


def test_a_sign_of_life_that_fails_does_not_count(
    s3_address: str, proxy: Proxy, impatient: None, clock: list[float]
) -> None:
    held = Lease(Bucket(s3_address), "lock", "", LEASE_SECONDS)
    assert held.take() is None
    clock[0] += LEASE_SECONDS
    proxy.decide = lambda method, path: 503
    for _ in range(2):
        with pytest.raises(BucketUnreachable, match="did not answer as it should"):
            held.check()
