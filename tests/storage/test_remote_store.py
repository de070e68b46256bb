"""The store on S3: two machines on one bucket, faults of the server, damage, and what is said of each."""

from __future__ import annotations

import itertools
import os
import pickle
import shutil
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import boto3
import pytest
from proxy import CUT, LOSE, PASS, Answer, Proxy
from s3 import BUCKET

from storage.bucket import Bucket, BucketError, BucketUnreachable, ObjectInfo
from storage.digest import sha256_json
from storage.errors import UserError
from storage.gc import find_garbage, remove_garbage
from storage.leases import Lease
from storage.manifest import ArtifactRef, Manifest, describe_inputs
from storage.mirror import Mirror
from storage.remote import RemoteStore
from storage.repair import repair
from storage.store import StoreError, open_store
from storage.verify import check_store

FILES = {"one.bin": b"one" * 1000, "folder/two.bin": b"", "three ä.txt": b"three"}


@pytest.fixture
def here(s3_address: str, tmp_path: Path) -> RemoteStore:
    """The store as this machine sees it; it believes no listing."""
    return opened(s3_address, tmp_path / "here")


@pytest.fixture
def there(s3_address: str, tmp_path: Path) -> RemoteStore:
    """The same as another machine sees it."""
    return opened(s3_address, tmp_path / "there")


@pytest.fixture(autouse=True)
def no_listing_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.remote.LISTING_SECONDS", -1000.0)
    monkeypatch.setattr("storage.remote.LISTING_TIMES", 0.0)


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that fails is tried again at once."""
    monkeypatch.setattr("storage.bucket.PAUSE_SECONDS", 0.0)


def opened(address: str, cache: Path) -> RemoteStore:
    store = open_store(address, cache)
    assert isinstance(store, RemoteStore)
    return store


def put(
    store: RemoteStore, stage: str, name: str, files: dict[str, bytes] | None = None, *inputs: ArtifactRef
) -> ArtifactRef:
    """Make an artefact, anew if it is there."""
    key = sha256_json([stage, name])
    with store.workspace(stage, key) as work:
        store.note_inputs(work, inputs)
        for path, data in (FILES if files is None else files).items():
            (work.out / path).parent.mkdir(exist_ok=True)
            (work.out / path).write_bytes(data)
        described = describe_inputs({str(number): ref for number, ref in enumerate(inputs)})
        return store.commit(work, Manifest(stage, 1, key, sha256_json(name), described, {}, [])).ref


def objects(address: str) -> dict[str, int]:
    """Name and size of all objects of a store."""
    return {info.name: info.size for info in Bucket(address).objects("")}


def contents(store: RemoteStore, ref: ArtifactRef) -> dict[str, bytes]:
    """The files of an artefact in the cache."""
    folder = store.folder(ref)
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name not in ("manifest.json", ".etag"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_what_one_machine_makes_another_finds_and_reads(here: RemoteStore, there: RemoteStore) -> None:
    ref = put(here, "pages", "a")
    found = there.find(ref.stage, ref.key)
    assert found is not None and found == here.find(ref.stage, ref.key) and found.ref == ref
    assert there.stages() == ["pages"] and there.keys("pages") == [ref.key]
    assert [manifest.ref for manifest in there.manifests("pages")] == [ref]
    assert contents(there, ref) == FILES
    assert there.use(ref)


def test_only_the_files_that_are_asked_for_are_fetched_and_each_once(
    here: RemoteStore, s3_address: str, proxy: Proxy, tmp_path: Path
) -> None:
    ref = put(here, "pages", "a")
    there, read = opened(s3_address, tmp_path / "there"), []
    proxy.decide = lambda method, path: read.append(path) or PASS  # type: ignore[func-returns-value]
    folder = there.folder(ref, "one.bin")
    assert (folder / "one.bin").read_bytes() == FILES["one.bin"] and not (folder / "three ä.txt").exists()
    assert contents(there, ref) == FILES
    there.folder(ref)
    assert sum(path.partition("?")[0].endswith("/one.bin") for path in read) == 2  # its size, and its bytes


def test_an_artefact_counts_as_absent_until_its_manifest_is_there_and_when_a_file_is_gone_or_cut(
    here: RemoteStore, there: RemoteStore, s3_address: str
) -> None:
    ref = put(here, "pages", "a")
    bucket = Bucket(s3_address)
    (name,) = (name for name in objects(s3_address) if name.endswith("one.bin"))
    bucket.write(name, b"one")
    assert there.find(ref.stage, ref.key) is None and here.find(ref.stage, ref.key) is None
    put(here, "pages", "a")
    assert contents(there, ref) == FILES
    bucket.delete([f"pages/{ref.key}/manifest.json"])
    assert there.find(ref.stage, ref.key) is None
    with pytest.raises(StoreError, match="is not in the store s3://"):
        there.folder(ref)


def test_a_file_that_is_not_what_the_manifest_lists_is_never_put_into_the_cache(
    here: RemoteStore, there: RemoteStore, s3_address: str
) -> None:
    ref = put(here, "pages", "a")
    (name,) = (name for name in objects(s3_address) if name.endswith("one.bin"))
    Bucket(s3_address).write(name, b"eno" * 1000)
    with pytest.raises(StoreError, match="is not what its manifest lists: --refresh pages"):
        there.folder(ref)
    assert not list(there.root.rglob("*one.bin*"))
    put(here, "pages", "a")
    assert contents(there, ref) == FILES


def test_a_damaged_copy_of_a_sound_artefact_is_fetched_again(here: RemoteStore) -> None:
    ref = put(here, "pages", "a")
    (here.folder(ref) / "one.bin").write_bytes(b"eno" * 1000)
    (done,) = repair(here, check_store(here))
    assert (done.thing, done.done) == (f"pages/{ref.key}", True)
    assert "the bucket is whole" in done.what
    assert contents(here, ref) == FILES
    assert not [check.problems for check in check_store(here) if check.problems]


def test_what_is_damaged_in_the_bucket_is_taken_out_and_can_be_made_again(
    here: RemoteStore, there: RemoteStore, s3_address: str
) -> None:
    ref, sound = put(here, "pages", "a"), put(here, "pages", "b")
    (name,) = (name for name in objects(s3_address) if ref.key in name and name.endswith("one.bin"))
    Bucket(s3_address).write(name, b"eno" * 1000)
    (done,) = repair(there, check_store(there))
    assert (done.thing, done.done) == (f"pages/{ref.key}", True)
    assert done.what.startswith("removed from the bucket, because s3://")
    assert "one.bin is not what its manifest lists: the next run" in done.what
    assert here.find("pages", ref.key) is None
    assert contents(here, sound) == FILES
    assert put(there, "pages", "a").digest == ref.digest
    assert not [check.problems for check in check_store(here) if check.problems]


def test_an_artefact_made_anew_replaces_the_cached_one_and_leaves_nothing_behind(
    here: RemoteStore, there: RemoteStore, s3_address: str
) -> None:
    ref = put(here, "pages", "a")
    assert contents(there, ref) == FILES
    new = {"one.bin": b"eno" * 1000, "three ä.txt": b"three"}
    put(here, "pages", "a", new)
    assert contents(there, ref) == new
    assert sum(name.startswith("pages/") for name in objects(s3_address)) == 3


def test_what_one_machine_removes_leaves_the_cache_of_another(here: RemoteStore, there: RemoteStore) -> None:
    ref = put(here, "pages", "a", {"secret.txt": b"to be forgotten"})
    other = put(here, "pages", "b")
    assert contents(there, ref) and contents(there, other)
    note = there.root / ref.stage / ref.key / ".etag"
    os.utime(note, (0, 0))  # it was fetched a while ago
    here.remove(ref.stage, ref.key, keep_record=True)
    assert not there.use(ref) and there.find(ref.stage, ref.key) is None
    assert not list(there.root.rglob("secret.txt")) and contents(there, other)
    record = there.record(ref.stage, ref.key)
    assert record is not None and record.ref == ref and there.records() == [(ref.stage, ref.key)]
    there.remove_record(ref.stage, ref.key)
    assert here.records() == []


def test_what_another_process_of_the_machine_took_out_of_the_cache_first_is_no_fault(
    here: RemoteStore, there: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = put(here, "pages", "a")
    assert contents(there, ref) == FILES
    os.utime(there.root / ref.stage / ref.key / ".etag", (0, 0))
    here.remove(ref.stage, ref.key)
    second, lock = pickle.loads(pickle.dumps(there)), there._fetching  # noqa: S301  # what we dumped ourselves

    def behind_the_second(stage: str, key: str) -> AbstractContextManager[None]:
        assert second.keys(stage) == []
        return lock(stage, key)

    monkeypatch.setattr(there, "_fetching", behind_the_second)
    assert there.keys("pages") == [] and not (there.root / ref.stage / ref.key).exists()


def listings(proxy: Proxy) -> list[str]:
    """The prefixes that are listed from now on; one that is listed in pages comes several times."""
    asked: list[str] = []

    def note(method: str, path: str) -> Answer:
        query = parse_qs(urlsplit(path).query)
        if "list-type" in query:
            asked.extend(query.get("prefix", [""]))
        return PASS

    proxy.decide = note
    return asked


def test_making_an_artefact_asks_for_nothing_else_of_its_stage(
    here: RemoteStore, s3_address: str, proxy: Proxy, tmp_path: Path
) -> None:
    """So what a commit costs does not grow with what is there."""
    put(here, "pages", "a")
    there, asked = opened(s3_address, tmp_path / "there"), listings(proxy)
    ref = put(there, "pages", "b")
    assert asked and all(f"pages/{ref.key}/" in prefix for prefix in asked)


def test_what_is_made_and_removed_is_known_while_an_older_listing_is_believed(
    here: RemoteStore, s3_address: str, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.remote.LISTING_SECONDS", 1000.0)
    first = put(here, "pages", "a")
    there, asked = opened(s3_address, tmp_path / "there"), listings(proxy)
    assert there.keys("pages") == [first.key]
    second = put(there, "pages", "b")
    assert there.keys("pages") == sorted([first.key, second.key]) and there.use(second)
    there.remove(first.stage, first.key)
    assert there.keys("pages") == [second.key] and there.find(first.stage, first.key) is None
    assert [prefix.rpartition("/pages/")[2] for prefix in asked].count("") == 1  # the whole stage


def test_an_artefact_that_another_made_is_found_anew_and_fetched_while_an_older_listing_is_believed(
    here: RemoteStore, there: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.remote.LISTING_SECONDS", 1000.0)
    assert there.keys("pages") == []
    first, second = put(here, "pages", "a"), put(here, "pages", "b")
    assert there.find(first.stage, first.key) is None
    found = there.find_anew(first.stage, first.key)
    assert found is not None and found.ref == first and there.keys("pages") == [first.key]
    assert contents(there, second) == FILES


def test_one_machine_waits_for_another_that_makes_the_same(here: RemoteStore, there: RemoteStore) -> None:
    order, waits = [], []

    def second() -> None:
        with there.workspace("pages", "k", waits.append):
            order.append("second")

    with here.workspace("pages", "k"):
        assert there.owners() == here.owners() and len(here.owners()) == 1
        with pytest.raises(StoreError, match="pages/k cannot be removed now: waiting for process"):
            there.remove("pages", "k")
        thread = Thread(target=second)
        thread.start()
        while not waits:
            thread.join(0.01)
        order.append("first")
    thread.join()
    assert order == ["first", "second"] and here.owners() == []


@pytest.fixture
def vanishing(s3_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RemoteStore, RemoteStore]:
    """Two machines, the first of which gives no signs of life."""
    vanishes, lives = 1.0, 3.0  # seconds of their leases; the second one's is kept, however slow this machine is
    keep = Lease.keep
    monkeypatch.setattr(Lease, "keep", lambda lease: None if lease._seconds == vanishes else keep(lease))
    return (
        RemoteStore(Bucket(s3_address), tmp_path / "slow", vanishes),
        RemoteStore(Bucket(s3_address), tmp_path / "quick", lives),
    )


def test_a_machine_that_gives_no_sign_of_life_loses_what_it_works_on_and_cannot_commit(
    vanishing: tuple[RemoteStore, RemoteStore],
) -> None:
    slow, quick = vanishing
    with pytest.raises(BucketError, match="without a sign of life"), slow.workspace("pages", "k") as work:
        made = Manifest("pages", 1, "k", "d", {}, {}, [])
        with quick.workspace("pages", "k") as other:
            quick.commit(other, replace(made, digest="e"))
        slow.commit(work, made)
    found = quick.find("pages", "k")
    assert found is not None and found.digest == "e"


def test_a_machine_that_gives_no_sign_of_life_is_told_that_its_lock_may_be_another_s(
    vanishing: tuple[RemoteStore, RemoteStore],
) -> None:
    slow, quick = vanishing
    with slow.lock("promote"), quick.lock("promote"):
        quick.check_lock("promote")
        with pytest.raises(BucketError, match="without a sign of life"):
            slow.check_lock("promote")


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="on Linux alone this clock stands still in sleep")
def test_a_machine_that_slept_asks_whether_its_lock_is_still_its_own(
    vanishing: tuple[RemoteStore, RemoteStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = vanishing
    with slow.lock("promote"):
        asleep, read = time.monotonic(), time.clock_gettime
        with quick.lock("promote"), monkeypatch.context() as patch:
            patch.setattr("time.monotonic", lambda: asleep)
            patch.setattr("time.clock_gettime", lambda clock: asleep if clock == time.CLOCK_MONOTONIC else read(clock))
            with pytest.raises(BucketError, match="without a sign of life"):
                slow.check_lock("promote")


def test_a_copy_of_a_cache_does_not_take_the_leases_of_the_first(here: RemoteStore, s3_address: str) -> None:
    with here.lock("corpus/a"):
        copy = Path(shutil.copytree(here.root, here.root.with_name("copy")))
        waits: list[str] = []

        def refuse(told: str) -> None:
            waits.append(told)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt), RemoteStore(Bucket(s3_address), copy)._hold("corpus/a", refuse):
            pass
        assert len(waits) == 1


def test_names_move_for_all_and_records_of_unfinished_work_are_seen_by_all(
    here: RemoteStore, there: RemoteStore
) -> None:
    here.write_ref("corpus/a.v1", {"a": 1})
    there.write_ref("corpus/b", {"b": 2})
    assert here.refs("corpus/") == there.refs("") == ["corpus/a.v1", "corpus/b"]
    assert there.read_ref("corpus/a.v1") == {"a": 1}
    there.remove_ref("corpus/a.v1")
    there.remove_ref("corpus/a.v1")
    assert here.read_ref("corpus/a.v1") is None
    ref = put(here, "pages", "a")
    with pytest.raises(RuntimeError), here.workspace("train", "k") as work:
        here.note_inputs(work, [ref])
        (owned,) = there.unfinished(owned=True)
        assert owned.inputs == {(ref.stage, ref.key)} and there.unfinished() == []
        raise RuntimeError
    (left,) = there.unfinished()
    assert (left.stage, left.key, left.inputs) == ("train", "k", frozenset({(ref.stage, ref.key)}))
    there.remove_work("train", "k")
    assert there.unfinished() == []


def test_what_nothing_needs_is_cleared_from_the_bucket_and_what_is_needed_stays(
    here: RemoteStore, there: RemoteStore, s3_address: str
) -> None:
    kept = put(here, "pages", "a")
    named = put(here, "texts", "a", None, kept)
    put(here, "texts", "b", None, put(here, "pages", "b"))
    here.write_ref("corpus/a", {"texts": [vars(named)]})
    garbage = find_garbage(there, (), grace=0)
    assert len(garbage.artefacts) == 2
    assert remove_garbage(there, garbage, grace=0) == []
    assert here.keys("pages") == [kept.key] and here.keys("texts") == [named.key]
    assert not any(check.problems for check in check_store(here))
    assert len(objects(s3_address)) == 2 * (len(FILES) + 1) + 1


@pytest.mark.parametrize("status", [500, 503])
def test_a_server_that_fails_now_and_then_is_asked_again(
    status: int, s3_address: str, proxy: Proxy, tmp_path: Path
) -> None:
    asked = itertools.count(1)
    proxy.decide = lambda method, path: PASS if next(asked) % 5 else status
    ref = put(opened(s3_address, tmp_path / "here"), "pages", "a", {"one.bin": b"one"})
    assert contents(opened(s3_address, tmp_path / "there"), ref) == {"one.bin": b"one"}


@pytest.mark.parametrize("answer", [429, 500, 502, 503, 504, LOSE])
def test_a_server_that_is_away_for_some_time_is_waited_for(
    answer: Answer, s3_address: str, proxy: Proxy, restless: None, tmp_path: Path
) -> None:
    def away(requests: int) -> None:
        left = itertools.count(requests, -1)
        proxy.decide = lambda method, path: answer if next(left) > 0 else PASS

    bucket, text = Bucket(s3_address), tmp_path / "text"
    text.write_bytes(b"text")
    for action in (
        lambda: bucket.create("lock", b"mine") is not None,
        lambda: bucket.create("lock", b"another's") is None,
        lambda: bucket.upload("text", text) is None,
        lambda: [info.name for info in bucket.objects("")] == ["lock", "text"],
        lambda: bucket.download("text", tmp_path / "copy") and (tmp_path / "copy").read_bytes() == b"text",
        lambda: bucket.touch("text"),
        lambda: bucket.delete(["text"]) is None and bucket.read("text") is None,
    ):
        away(requests=50)
        assert action()


def test_a_request_is_tried_again_for_two_minutes(
    s3_address: str, proxy: Proxy, restless: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, asked = itertools.count(0, 10), []
    monkeypatch.setattr("storage.bucket.monotonic", lambda: float(next(clock)))
    proxy.decide = lambda method, path: asked.append(path) or 503  # type: ignore[func-returns-value]
    with pytest.raises(BucketUnreachable, match=r"did not answer as it should, in several attempts .*503"):
        Bucket(s3_address).read("text")
    assert len(asked) == 13  # at 0, 10, 20 and so on up to 120 seconds


def test_pauses_between_attempts_grow_up_to_a_limit() -> None:
    answer = (None, {"ResponseMetadata": {"HTTPStatusCode": 503}})
    pauses = [
        Bucket("s3://bucket")._pause(attempts, answer, None, {"context": {}}) or 0.0 for attempts in (1, 2, 5, 9, 2000)
    ]
    for pause, longest in zip(pauses, (0.1, 0.2, 1.6, 10.0, 10.0), strict=True):
        assert longest / 2 <= pause <= longest


def test_an_answer_that_breaks_off_is_asked_for_again(s3_address: str, proxy: Proxy, tmp_path: Path) -> None:
    bucket, asked = Bucket(s3_address), itertools.count(1)
    bucket.write("text", b"a text")
    proxy.decide = lambda method, path: PASS if method != "GET" or next(asked) % 3 == 0 else CUT
    found = bucket.read("text")
    assert found is not None and found.data == b"a text"
    assert bucket.download("text", tmp_path / "text") and (tmp_path / "text").read_bytes() == b"a text"
    proxy.decide = lambda method, path: CUT if method == "GET" else PASS
    for read in (lambda: bucket.read("text"), lambda: bucket.download("text", tmp_path / "text")):
        with pytest.raises(BucketUnreachable, match="did not answer as it should"):
            read()


def test_a_server_that_takes_no_connection_does_not_answer(s3_address: str, proxy: Proxy, impatient: None) -> None:
    proxy.close()
    with pytest.raises(BucketUnreachable, match=r"did not answer as it should.*EndpointConnectionError"):
        Bucket(s3_address).read("text")


@pytest.mark.parametrize("answer", [500, 503])
def test_a_server_that_keeps_failing_is_told_in_words_and_nothing_that_was_made_is_lost(
    answer: int, s3_address: str, proxy: Proxy, impatient: None, tmp_path: Path
) -> None:
    here = opened(s3_address, tmp_path / "here")
    proxy.decide = lambda method, path: answer if path.endswith("manifest.json") and method == "PUT" else PASS
    with pytest.raises(BucketUnreachable, match=rf"s3://.*did not answer as it should, in several attempts.*{answer}"):
        put(here, "pages", "a")
    proxy.decide = lambda method, path: PASS
    key = sha256_json(["pages", "a"])
    assert here.find("pages", key) is None
    with here.workspace("pages", key):
        found = here.find("pages", key)
    assert found is not None and contents(opened(s3_address, tmp_path / "there"), found.ref) == FILES


def test_a_write_whose_answer_is_lost_counts_as_done(s3_address: str, s3_endpoint: str, proxy: Proxy) -> None:
    bucket, direct = Bucket(s3_address), boto3.session.Session().client("s3", endpoint_url=s3_endpoint)

    def lose_the_answer(method: str, path: str) -> Answer:
        proxy.decide = lambda method, path: PASS
        direct.put_object(Bucket=BUCKET, Key=path.split("/", 2)[2], Body=b"mine")
        return 500

    proxy.decide = lose_the_answer
    assert bucket.create("lock", b"mine") is not None
    assert bucket.create("lock", b"another's") is None


@pytest.mark.parametrize("condition", ["If-None-Match", "If-Match"])
def test_a_server_that_takes_no_notice_of_a_condition_is_refused(
    condition: str, s3_address: str, proxy: Proxy, tmp_path: Path
) -> None:
    proxy.hidden = {condition.lower()}
    here = opened(s3_address, tmp_path)
    with pytest.raises(BucketError, match=f"without regard to {condition},"), here.workspace("pages", "k"):
        pass
    assert objects(s3_address) == {}


@pytest.mark.parametrize("address", ["s3://", "s3:///prefix", "gs://bucket/x"])
def test_an_address_that_cannot_be_served_is_refused_by_name(address: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=address):
        open_store(address, tmp_path)


def test_a_bucket_that_is_not_there_and_keys_that_are_not_set_are_told(
    s3_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BucketError, match="there is no bucket 'nowhere'"):
        opened("s3://nowhere/store", tmp_path).find("pages", "k")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(BucketError, match=r"no keys for s3://.*AWS_ACCESS_KEY_ID"):
        opened(s3_address, tmp_path).find("pages", "k")


def test_no_error_tells_anything_of_the_keys(s3_address: str, proxy: Proxy, impatient: None, tmp_path: Path) -> None:
    store = opened(s3_address, tmp_path)
    for answer in (403, 500):
        proxy.decide = lambda method, path, answer=answer: answer  # type: ignore[misc]
        with pytest.raises(BucketError) as caught:
            store.find("pages", "k")
        assert "sheepfold-test" not in f"{caught.value} {caught.value.__cause__}"


def test_a_store_goes_to_other_processes_by_its_address(here: RemoteStore) -> None:
    ref = put(here, "pages", "a")
    assert contents(pickle.loads(pickle.dumps(here)), ref) == FILES  # noqa: S301  # what we dumped ourselves


def test_nothing_of_the_bucket_but_the_store_is_touched(here: RemoteStore, s3_address: str) -> None:
    client = boto3.session.Session().client("s3")
    client.put_object(Bucket=BUCKET, Key=f"{s3_address.rpartition('/')[2]}-beside/pages/k/manifest.json", Body=b"{}")
    assert here.stages() == []
    put(here, "pages", "a")
    assert here.stages() == ["pages"]


def test_names_of_objects_that_lead_out_of_the_cache_are_passed_over(
    here: RemoteStore, s3_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers may list such names; not all can be asked for them."""
    planted = ("letters/../manifest.json", ".work/letters/k/scratch/../../planted.txt")

    def listed(bucket: Bucket, prefix: str) -> list[ObjectInfo]:
        return [ObjectInfo(name, 7, "", 4e9) for name in planted if name.startswith(prefix)]

    monkeypatch.setattr(Bucket, "objects", listed)
    monkeypatch.setattr(Bucket, "download", lambda bucket, name, path: path.write_bytes(b"planted"))
    assert here.keys("letters") == []
    Mirror(Bucket(s3_address), ".work/letters/k/scratch/", tmp_path / "a" / "b" / "scratch").restore()
    assert not (tmp_path / "a").exists()
