"""The store on S3: two machines on one bucket, faults of the server, damage, and what is said of each."""

from __future__ import annotations

import itertools
import os
import pickle
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import boto3
import pytest
from proxy import PASS, Answer, Proxy
from s3 import BUCKET, Objects

from storage.digest import sha256_json
from storage.errors import Unreachable, UserError
from storage.gc import find_garbage, remove_garbage
from storage.manifest import ArtifactRef, Manifest, describe_inputs
from storage.registry import Models, read_models, write_models
from storage.s3 import S3Store, _Object
from storage.store import StoreError, open_store
from storage.verify import check_store, repair

FILES = {"one.bin": b"one" * 1000, "folder/two.bin": b"", "three ä.txt": b"three"}


@pytest.fixture
def here(s3_address: str, tmp_path: Path) -> S3Store:
    """The store as this machine sees it; it believes no listing."""
    return opened(s3_address, tmp_path / "here")


@pytest.fixture
def there(s3_address: str, tmp_path: Path) -> S3Store:
    """The same as another machine sees it."""
    return opened(s3_address, tmp_path / "there")


@pytest.fixture(autouse=True)
def no_listing_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.s3.LISTING_SECONDS", -1000.0)


def opened(address: str, cache: Path) -> S3Store:
    store = open_store(address, cache)
    assert isinstance(store, S3Store)
    return store


def put(
    store: S3Store, stage: str, name: str, files: dict[str, bytes] | None = None, *inputs: ArtifactRef
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
    return Objects(address).sizes()


def contents(store: S3Store, ref: ArtifactRef) -> dict[str, bytes]:
    """The files of an artefact in the cache."""
    folder = store.folder(ref)
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name not in ("manifest.json", ".etag"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_what_one_machine_makes_another_finds_and_reads(here: S3Store, there: S3Store) -> None:
    ref = put(here, "pages", "a")
    found = there.find(ref.stage, ref.key)
    assert found is not None and found == here.find(ref.stage, ref.key) and found.ref == ref
    assert there.stages() == ["pages"] and there.keys("pages") == [ref.key]
    assert [manifest.ref for manifest in there.manifests("pages")] == [ref]
    assert contents(there, ref) == FILES
    assert there.touch(ref)


def test_only_the_files_that_are_asked_for_are_fetched_and_each_once(
    here: S3Store, s3_address: str, proxy: Proxy, tmp_path: Path
) -> None:
    ref = put(here, "pages", "a")
    there, read = opened(s3_address, tmp_path / "there"), []
    proxy.decide = lambda method, path: read.append(path) or PASS  # type: ignore[func-returns-value]
    folder = there.folder(ref, "one.bin")
    assert (folder / "one.bin").read_bytes() == FILES["one.bin"] and not (folder / "three ä.txt").exists()
    assert contents(there, ref) == FILES
    there.folder(ref)
    assert sum(path.partition("?")[0].endswith("/one.bin") for path in read) == 1


def test_an_artefact_counts_as_absent_until_its_manifest_is_there_and_when_a_file_is_gone_or_cut(
    here: S3Store, there: S3Store, s3_address: str
) -> None:
    ref = put(here, "pages", "a")
    bucket = Objects(s3_address)
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
    here: S3Store, there: S3Store, s3_address: str
) -> None:
    ref = put(here, "pages", "a")
    (name,) = (name for name in objects(s3_address) if name.endswith("one.bin"))
    Objects(s3_address).write(name, b"eno" * 1000)
    with pytest.raises(StoreError, match="is not what its manifest lists: --refresh pages"):
        there.folder(ref)
    assert not list(there.root.rglob("*one.bin*"))
    put(here, "pages", "a")
    assert contents(there, ref) == FILES


def test_a_damaged_copy_of_a_sound_artefact_is_fetched_again(here: S3Store) -> None:
    ref = put(here, "pages", "a")
    (here.folder(ref) / "one.bin").write_bytes(b"eno" * 1000)
    (done,) = repair(here, check_store(here, {}), {})
    assert (done.thing, done.done) == (f"pages/{ref.key}", True)
    assert done.what == "no longer damaged, or downloaded again from S3"
    assert contents(here, ref) == FILES
    assert not [check.problems for check in check_store(here, {}) if check.problems]


def test_what_is_damaged_in_the_bucket_is_taken_out_and_can_be_made_again(
    here: S3Store, there: S3Store, s3_address: str
) -> None:
    ref, sound = put(here, "pages", "a"), put(here, "pages", "b")
    (name,) = (name for name in objects(s3_address) if ref.key in name and name.endswith("one.bin"))
    Objects(s3_address).write(name, b"eno" * 1000)
    (done,) = repair(there, check_store(there, {}), {})
    assert (done.thing, done.done) == (f"pages/{ref.key}", True)
    assert done.what.startswith("removed, because s3://")
    assert "one.bin is not what its manifest lists: the next run" in done.what
    assert here.find("pages", ref.key) is None
    assert contents(here, sound) == FILES
    assert put(there, "pages", "a").digest == ref.digest
    assert not [check.problems for check in check_store(here, {}) if check.problems]


def test_an_artefact_made_anew_replaces_the_cached_one_and_leaves_nothing_behind(
    here: S3Store, there: S3Store, s3_address: str
) -> None:
    ref = put(here, "pages", "a")
    assert contents(there, ref) == FILES
    new = {"one.bin": b"eno" * 1000, "three ä.txt": b"three"}
    put(here, "pages", "a", new)
    assert contents(there, ref) == new
    assert sum(name.startswith("pages/") for name in objects(s3_address)) == 3


def test_what_one_machine_removes_leaves_the_cache_of_another(here: S3Store, there: S3Store) -> None:
    ref = put(here, "pages", "a", {"secret.txt": b"to be forgotten"})
    other = put(here, "pages", "b")
    assert contents(there, ref) and contents(there, other)
    note = there.root / ref.stage / ref.key / ".etag"
    os.utime(note, (0, 0))  # it was fetched a while ago
    here.remove(ref.stage, ref.key, keep_manifest=True)
    assert not there.touch(ref) and there.find(ref.stage, ref.key) is None
    assert not list(there.root.rglob("secret.txt")) and contents(there, other)
    record = there.removed_manifest(ref.stage, ref.key)
    assert record is not None and record.ref == ref and there.removed() == [(ref.stage, ref.key)]


def test_what_another_process_of_the_machine_took_out_of_the_cache_first_is_no_fault(
    here: S3Store, there: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = put(here, "pages", "a")
    assert contents(there, ref) == FILES
    note = there.root / ref.stage / ref.key / ".etag"
    os.utime(note, (0, 0))
    here.remove(ref.stage, ref.key)
    second, stat = [S3Store(there.address, there.root)], Path.stat

    def behind_the_second(path: Path, **options: bool) -> os.stat_result:
        if path == note and second:
            assert second.pop().keys(ref.stage) == []
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", behind_the_second)
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
    here: S3Store, s3_address: str, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So what a commit costs does not grow with what is there."""
    monkeypatch.setattr("storage.s3.LISTING_SECONDS", 1000.0)
    put(here, "pages", "a")
    there, asked = opened(s3_address, tmp_path / "there"), listings(proxy)
    ref = put(there, "pages", "b")
    assert asked and all(f"pages/{ref.key}/" in prefix for prefix in asked)


def test_what_is_made_and_removed_is_known_while_an_older_listing_is_believed(
    here: S3Store, s3_address: str, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.s3.LISTING_SECONDS", 1000.0)
    first = put(here, "pages", "a")
    there, asked = opened(s3_address, tmp_path / "there"), listings(proxy)
    assert there.keys("pages") == [first.key]
    second = put(there, "pages", "b")
    assert there.keys("pages") == sorted([first.key, second.key]) and there.touch(second)
    there.remove(first.stage, first.key)
    assert there.keys("pages") == [second.key] and there.find(first.stage, first.key) is None
    assert [prefix.rpartition("/pages/")[2] for prefix in asked].count("") == 1  # the whole stage


def test_an_artefact_that_another_made_is_found_anew_and_fetched_while_an_older_listing_is_believed(
    here: S3Store, there: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.s3.LISTING_SECONDS", 1000.0)
    assert there.keys("pages") == []
    first, second = put(here, "pages", "a"), put(here, "pages", "b")
    assert there.find(first.stage, first.key) is None
    found = there.find(first.stage, first.key, fresh=True)
    assert found is not None and found.ref == first and there.keys("pages") == [first.key]
    assert contents(there, second) == FILES


def test_names_move_for_all(here: S3Store, there: S3Store) -> None:
    here.write_ref("corpus/a.v1", {"a": 1})
    there.write_ref("corpus/b", {"b": 2})
    assert here.refs("corpus/") == there.refs("") == ["corpus/a.v1", "corpus/b"]
    assert there.read_ref("corpus/a.v1") == {"a": 1}
    there.remove_ref("corpus/a.v1")
    there.remove_ref("corpus/a.v1")
    assert here.read_ref("corpus/a.v1") is None


def test_what_nothing_needs_is_cleared_from_the_bucket_and_what_is_needed_stays(
    here: S3Store, there: S3Store, s3_address: str
) -> None:
    kept = put(here, "pages", "a")
    named = put(here, "texts", "a", None, kept)
    put(here, "texts", "b", None, put(here, "pages", "b"))
    here.write_ref("corpus/a", {"texts": [vars(named)]})
    garbage = find_garbage(there, (), {}, grace=0)
    assert len(garbage.artefacts) == 2
    assert remove_garbage(there, garbage, grace=0) == []
    assert here.keys("pages") == [kept.key] and here.keys("texts") == [named.key]
    assert not any(check.problems for check in check_store(here, {}))
    assert len(objects(s3_address)) == 2 * (len(FILES) + 1) + 1


def test_what_another_machine_made_since_a_listing_keeps_what_it_was_made_from(
    here: S3Store, there: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.s3.LISTING_SECONDS", 1000.0)
    old = put(here, "pages", "a")
    assert there.keys("pages") == [old.key] and there.keys("texts") == []
    here.write_ref("corpus/a", {"texts": [vars(put(here, "texts", "a", None, old))]})
    assert find_garbage(there, (), {}, grace=0).artefacts == []


@pytest.mark.parametrize("status", [500, 503])
def test_a_server_that_fails_now_and_then_is_asked_again(
    status: int, s3_address: str, proxy: Proxy, tmp_path: Path
) -> None:
    asked = itertools.count(1)
    proxy.decide = lambda method, path: PASS if next(asked) % 5 else status
    ref = put(opened(s3_address, tmp_path / "here"), "pages", "a", {"one.bin": b"one"})
    assert contents(opened(s3_address, tmp_path / "there"), ref) == {"one.bin": b"one"}


@pytest.mark.parametrize("answer", [500, 503])
def test_a_server_that_keeps_failing_is_told_in_words_and_nothing_that_was_made_is_lost(
    answer: int, s3_address: str, proxy: Proxy, impatient: None, tmp_path: Path
) -> None:
    here = opened(s3_address, tmp_path / "here")
    proxy.decide = lambda method, path: answer if path.endswith("manifest.json") and method == "PUT" else PASS
    with pytest.raises(Unreachable, match=rf"s3://.*no valid response from S3 in several attempts.*{answer}"):
        put(here, "pages", "a")
    proxy.decide = lambda method, path: PASS
    key = sha256_json(["pages", "a"])
    assert here.find("pages", key) is None
    with here.workspace("pages", key):
        found = here.find("pages", key)
    assert found is not None and contents(opened(s3_address, tmp_path / "there"), found.ref) == FILES


@pytest.mark.parametrize("condition", ["If-None-Match", "If-Match"])
def test_a_server_that_takes_no_notice_of_a_condition_is_refused(
    condition: str, s3_address: str, proxy: Proxy, tmp_path: Path
) -> None:
    proxy.hidden = {condition.lower()}
    here = opened(s3_address, tmp_path)
    with pytest.raises(UserError, match=f"ignores the header {condition},"), here.workspace("pages", "k"):
        pass
    assert objects(s3_address) == {}


@pytest.mark.parametrize("address", ["s3://", "s3:///prefix", "gs://bucket/x"])
def test_an_address_that_cannot_be_served_is_refused_by_name(address: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=address):
        open_store(address, tmp_path)


def test_a_bucket_that_is_not_there_and_keys_that_are_not_set_are_told(
    s3_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="there is no bucket 'nowhere'"):
        opened("s3://nowhere/store", tmp_path).find("pages", "k")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(UserError, match=r"no keys for s3://.*AWS_ACCESS_KEY_ID"):
        opened(s3_address, tmp_path).find("pages", "k")


def test_no_error_tells_anything_of_the_keys(s3_address: str, proxy: Proxy, impatient: None, tmp_path: Path) -> None:
    store = opened(s3_address, tmp_path)
    for answer in (403, 500):
        proxy.decide = lambda method, path, answer=answer: answer  # type: ignore[misc]
        with pytest.raises(UserError) as caught:
            store.find("pages", "k")
        assert "sheepfold-test" not in f"{caught.value} {caught.value.__cause__}"


def test_a_store_goes_to_other_processes_by_its_address(here: S3Store) -> None:
    ref = put(here, "pages", "a")
    assert contents(pickle.loads(pickle.dumps(here)), ref) == FILES  # noqa: S301  # what we dumped ourselves


def test_nothing_of_the_bucket_but_the_store_is_touched(here: S3Store, s3_address: str) -> None:
    client = boto3.session.Session().client("s3")
    client.put_object(Bucket=BUCKET, Key=f"{s3_address.rpartition('/')[2]}-beside/pages/k/manifest.json", Body=b"{}")
    assert here.stages() == []
    put(here, "pages", "a")
    assert here.stages() == ["pages"]


def test_an_object_of_others_among_the_artefacts_of_a_stage_is_no_artefact(here: S3Store, s3_address: str) -> None:
    ref = put(here, "pages", "a")
    Objects(s3_address).write("pages/notes.txt", b"stray")
    assert here.keys("pages") == [ref.key] and contents(here, ref) == FILES


def test_names_of_objects_that_lead_out_of_the_cache_are_passed_over(
    here: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers may list such names."""
    planted = "letters/../manifest.json"
    monkeypatch.setattr(S3Store, "_list", lambda store, prefix: iter([(planted, _Object(7, "", 4e9))]))
    assert here.keys("letters") == []


@pytest.mark.full
def test_two_machines_that_make_the_same_at_once_end_with_the_one_that_was_first(
    here: S3Store, there: S3Store, s3_address: str
) -> None:
    made = Manifest("pages", 1, "k", "d", {}, {}, [])
    with here.workspace("pages", "k") as first, there.workspace("pages", "k") as second:
        (first.out / "a").write_text("the same text")
        (second.out / "a").write_text("the same rows, written otherwise")
        winner = here.commit(first, made)
        assert there.commit(second, made) == winner
    assert contents(there, winner.ref) == contents(here, winner.ref) == {"a": b"the same text"}
    assert len(objects(s3_address)) == 2


def test_the_second_of_two_trainings_of_one_key_is_told_and_replaces_nothing(here: S3Store, there: S3Store) -> None:
    made = Manifest("train", 1, "k", "d", {}, {}, [], created="2026-01-02T03:04:05")
    told = r"another machine made train/k at the same time \(2026-01-02T03:04:05\) with a different result"
    with pytest.raises(StoreError, match=told), there.workspace("train", "k") as second:
        with here.workspace("train", "k") as first:
            here.commit(first, made)
        (second.out / "weights").write_text("others")
        there.commit(second, replace(made, digest="e"))
    found = there.find("train", "k")
    assert found is not None and found.digest == "d" and contents(there, found.ref) == {}


def test_of_two_machines_that_make_an_artefact_again_at_once_the_second_is_told(here: S3Store, there: S3Store) -> None:
    ref = put(here, "pages", "a")
    new = Manifest("pages", 1, ref.key, "new", {}, {}, [])
    with pytest.raises(StoreError, match="another machine made"), there.workspace(ref.stage, ref.key) as second:
        with here.workspace(ref.stage, ref.key) as first:
            here.commit(first, new)
        there.commit(second, replace(new, digest="newer"))
    found = there.find(ref.stage, ref.key)
    assert found is not None and found.digest == "new"


def test_an_upload_of_another_machine_is_no_garbage(here: S3Store, s3_address: str) -> None:
    Objects(s3_address).write("train/k/0123/weights", b"the manifest comes later")
    assert find_garbage(here, (), {}, grace=3600).artefacts == []
    assert find_garbage(here, (), {}, grace=-1).artefacts == [("train", "k")]


def test_a_name_that_another_machine_moved_since_it_was_read_is_not_overwritten(here: S3Store, there: S3Store) -> None:
    here.write_ref("corpus/a", {"n": 1})
    for store, n in ((there, 2), (here, 3)):
        value = store.read_ref("corpus/a")
        assert value is not None
        store.write_ref("corpus/a", {"n": n})
    assert there.refs("") == ["corpus/a"]
    with pytest.raises(
        StoreError, match=r"another machine changed s3://\S+/corpus/a\.json at the same time: run the same command"
    ):
        there.write_ref("corpus/a", {"n": 4})
    assert here.read_ref("corpus/a") == there.read_ref("corpus/a") == {"n": 3}
    there.write_ref("corpus/a", {"n": 5})
    assert here.read_ref("corpus/a") == {"n": 5}


def test_a_file_from_outside_is_added_once(here: S3Store, there: S3Store, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    ref = here.add("tokenizer_file", {path.name: path})
    assert there.add("tokenizer_file", {path.name: path}) == ref and contents(there, ref) == {"tokenizer.json": b"{}"}


def test_of_two_machines_that_record_models_at_once_the_second_is_refused(here: S3Store, there: S3Store) -> None:
    ours, theirs = read_models(here, "default"), read_models(there, "default")
    write_models(there, "default", Models(theirs.models, {"champion": "b"}))
    with pytest.raises(StoreError, match="models/default"):
        write_models(here, "default", Models(ours.models, {"champion": "a"}))
    assert read_models(here, "default").aliases == {"champion": "b"}


def test_the_use_of_an_artefact_is_recorded_once_while_a_listing_is_believed(
    here: S3Store, s3_address: str, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.s3.LISTING_SECONDS", 1000.0)
    monkeypatch.setattr("storage.s3.USE_SECONDS", 0.0)  # any record is old
    ref = put(here, "pages", "a")
    there, put_requests = opened(s3_address, tmp_path / "there"), []
    assert there.keys("pages") == [ref.key]
    monkeypatch.setattr("storage.s3.USE_SECONDS", 3600.0)
    listed = there._listed["pages"][ref.key]["manifest.json"]
    there._listed["pages"][ref.key]["manifest.json"] = replace(listed, modified=0.0)  # it was used long ago
    proxy.decide = lambda method, path: (method == "PUT" and put_requests.append(path)) or PASS  # type: ignore[func-returns-value]
    assert there.touch(ref) and there.touch(ref)
    assert len(put_requests) == 1
