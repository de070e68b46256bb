"""The wiring over a corpus that changes: only what changed is computed, and a plan says so beforehand."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_run import Ran, hash_share, home_at, plan_of, run_prepare, run_whole, text_of, tiny_settings, write_texts

from storage.catalog import Catalog, read_state
from storage.home import Home
from storage.manifest import RefSet
from storage.schemas import SHARD_FILE
from storage.store import Store, StoreError, open_store
from storage.tables import read_columns, read_rows
from tasks.core.run import StageReport
from tasks.curate.corpus import Corpus, kept_documents, tables_of
from tasks.tokens.index import load_index
from tasks.tokens.tokenizer_kinds import BOS, EOS, load_tokenizer
from tasks.upkeep.verify import check_tokens

IN_TRAINING = 13  # a text whose hash puts it there


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "texts")


@pytest.fixture
def known(tiny: Ran, tmp_path: Path) -> Home:
    """A home that has seen the twelve texts, from files to completions: a copy of the tiny run's."""
    return home_at(Path(shutil.copytree(tiny.run.home.path, tmp_path / "known")))


@pytest.fixture(scope="module")
def in_two_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a home that has prepared seven of the texts and then all twelve; to be copied."""
    folder = tmp_path_factory.mktemp("two-steps")
    home = home_at(folder / "home")
    for count in (7, 12):
        run_prepare(home, write_texts(folder / "texts", range(count)))
    return home.path


@pytest.fixture
def of_two_segments(in_two_steps: Path, tmp_path: Path) -> Home:
    return home_at(Path(shutil.copytree(in_two_steps, tmp_path / "two-segments")))


def files_of(ran: Ran) -> dict[str, dict[str, Any]]:
    rows = read_rows(ran.folder(ran.ingested.snapshot) / "files.parquet")
    return {row["path"]: row for row in rows}


def selection_of(ran: Ran) -> dict[str, dict[str, Any]]:
    rows = read_rows(ran.folder(ran.ingested.curated) / "selection.parquet")
    return {row["doc_id"]: row for row in rows}


def evaluation_texts(ran: Ran) -> list[str]:
    return read_columns(ran.folder(ran.prepared.evalset) / "documents.parquet", ["text"])["text"]


def reports(found: dict[str, StageReport]) -> dict[str, tuple[bool, int, int]]:
    return {name: (report.cached, report.computed, report.reused) for name, report in found.items()}


def digests(ran: Ran) -> dict[str, str]:
    """Of everything between files and sequences that is one artefact."""
    return {
        "snapshot": ran.ingested.snapshot.digest,
        "curate": ran.ingested.curated.digest,
        "evalset": ran.prepared.evalset.digest,
        "tokenizer": ran.prepared.tokenizer.digest,
        "dataset": ran.prepared.dataset.digest,
    }


def test_a_second_run_computes_nothing(tiny: Ran, tiny_source: Path, extracted: list[str]) -> None:
    again = run_whole(tiny.run.home, tiny_source)
    assert extracted == []
    assert again.computed() == {}
    assert all(report.cached for report in again.reports.values())
    assert again.reports.keys() == tiny.reports.keys()
    assert (again.checkpoint, again.evaluation, again.completions) == (
        tiny.checkpoint,
        tiny.evaluation,
        tiny.completions,
    )


def test_one_added_text_is_one_extracted_file(known: Home, source: Path) -> None:
    write_texts(source, [12])
    grown = run_prepare(known, source)
    for stage in ("extract", "normalise", "tokenise"):
        assert (grown.reports[stage].computed, grown.reports[stage].reused) == (1, 12)
    assert grown.reports["tokenizer"].cached
    assert files_of(grown)["text-12.txt"]["status"] == "ok"


def test_a_plan_says_what_the_run_then_does(known: Home, source: Path) -> None:
    write_texts(source, [IN_TRAINING])
    planned = plan_of(known, source)
    done = run_whole(known, source)
    assert {name: report.cached for name, report in planned.items()} == {
        name: report.cached for name, report in done.reports.items()
    }
    # which segments get cuts, and so are refined and tokenised anew, a plan cannot know
    open_ended = {"refine", "tokenise"}
    assert {name: found for name, found in reports(planned).items() if name not in open_ended} == {
        name: found for name, found in reports(done.reports).items() if name not in open_ended
    }
    assert done.computed().keys() >= {"extract", "dataset", "train", "evaluate", "generate"}
    assert all(report.reason for report in planned.values() if not report.cached)


def test_a_plan_of_a_finished_corpus_is_the_run_that_computes_nothing(tiny: Ran, tiny_source: Path) -> None:
    planned = plan_of(tiny.run.home, tiny_source)
    again = run_whole(tiny.run.home, tiny_source)
    assert reports(planned) == reports(again.reports)


def test_a_plan_computes_nothing(home: Home, source: Path) -> None:
    planned = plan_of(home, source)
    assert Store(Path(home.store)).stages() == []
    assert planned["extract"].computed == 12
    assert not any(report.cached for report in planned.values())


@pytest.mark.parametrize(("setting", "first"), [("train.seed=8", "train"), ("model.max_seq_len=16", "dataset")])
def test_a_changed_setting_computes_from_its_own_stage_on(
    tiny: Ran, tiny_source: Path, setting: str, first: str
) -> None:
    planned = plan_of(tiny.run.home, tiny_source, tiny_settings(setting))
    names = list(planned)
    elsewhere = {"prompts", "ngram"} if first == "train" else {"prompts"}  # n-grams are counted in the dataset
    assert [planned[name].cached for name in names] == [
        index < names.index(first) or name in elsewhere for index, name in enumerate(names)
    ]
    assert planned[first].reason.startswith("changed setting")


def test_a_renamed_and_a_moved_file_are_not_read_again(tiny: Ran, known: Home, source: Path) -> None:
    (source / "text-03.txt").rename(source / "renamed.txt")
    (source / "deep").mkdir()
    (source / "text-04.txt").rename(source / "deep" / "text-04.txt")
    after = run_prepare(known, source)
    assert after.computed() == {"snapshot": 1}
    assert digests(after) == digests(tiny)
    assert {"renamed.txt", "deep/text-04.txt"} <= files_of(after).keys()
    assert not {"text-03.txt", "text-04.txt"} & files_of(after).keys()


def test_a_removed_file_leaves_files_and_documents(tiny: Ran, known: Home, source: Path) -> None:
    doc_id = files_of(tiny)["text-03.txt"]["doc_id"]
    (source / "text-03.txt").unlink()
    after = run_prepare(known, source)
    assert "text-03.txt" not in files_of(after)
    assert selection_of(tiny).keys() - selection_of(after).keys() == {doc_id}
    assert not {"extract", "normalise", "tokenise"} & after.computed().keys()
    rows = read_columns(after.folder(after.prepared.dataset) / "sequences.parquet", ["doc_id"])
    assert set(rows["doc_id"]) == selection_of(after).keys()


@pytest.mark.full
def test_a_removed_file_that_comes_back_is_not_read_again(home: Home, source: Path) -> None:
    before = run_prepare(home, source)
    kept = (source / "text-03.txt").rename(source.parent / "elsewhere.txt")
    run_prepare(home, source)
    shutil.copyfile(kept, source / "text-03.txt")
    after = run_prepare(home, source)
    assert after.computed() == {}
    assert digests(after) == digests(before)


def test_the_same_bytes_at_two_paths_are_two_files_and_one_document(tiny: Ran, known: Home, source: Path) -> None:
    shutil.copyfile(source / "text-03.txt", source / "zz-copy.txt")
    after = run_prepare(known, source)
    files = files_of(after)
    assert (files["zz-copy.txt"]["status"], files["zz-copy.txt"]["reason"]) == (
        "duplicate",
        "same bytes as text-03.txt",
    )
    assert files["zz-copy.txt"]["doc_id"] == files["text-03.txt"]["doc_id"]
    assert selection_of(after) == selection_of(tiny)
    assert after.computed() == {"snapshot": 1}


@pytest.mark.full
def test_the_evaluation_set_stays_when_its_documents_are_removed(tiny: Ran, known: Home, source: Path) -> None:
    texts = evaluation_texts(tiny)
    for path in source.iterdir():
        if path.read_text().strip() in texts:
            path.unlink()
    after = run_prepare(known, write_texts(source, range(20, 26)))
    assert evaluation_texts(after) == texts


@pytest.mark.full
def test_another_split_makes_another_evaluation_set(tiny: Ran, known: Home, source: Path) -> None:
    after = run_prepare(known, source, tiny_settings("curate.salt=pepper"))
    assert after.prepared.evalset != tiny.prepared.evalset
    trained = kept_documents(after.run.store, after.ingested.curated, "train")
    rows = read_columns(after.folder(after.prepared.evalset) / "documents.parquet", ["doc_id"])
    assert trained.isdisjoint(rows["doc_id"])


@pytest.mark.full
@pytest.mark.parametrize("stage", ["extract", "tokenizer", "tokenise", "train"])
def test_a_refreshed_stage_is_computed_again_and_the_rest_is_not(
    tiny: Ran, tiny_source: Path, known: Home, stage: str
) -> None:
    again = run_whole(known, tiny_source, refresh=[stage])
    assert again.computed() == {stage: tiny.reports[stage].computed}
    assert digests(again) == digests(tiny)


@pytest.mark.full
def test_growing_in_two_steps_gives_the_same_sequences_under_the_same_tokenizer(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "texts", range(16))
    steps, whole = home_at(tmp_path / "steps"), home_at(tmp_path / "whole")
    at_once = run_prepare(whole, source)
    for pinned in ("tokenizer", ".refs/tokenizer"):
        shutil.copytree(whole.path / "store" / pinned, steps.path / "store" / pinned)
    run_prepare(steps, write_texts(tmp_path / "part", range(7)))
    grown = run_prepare(steps, source)
    assert (len(grown.ingested.segments.refs), len(at_once.ingested.segments.refs)) == (2, 1)
    for name in ("snapshot", "curate", "tokenizer", "dataset"):
        assert digests(grown)[name] == digests(at_once)[name]
    assert all(np.array_equal(one, other) for one, other in zip(sequences(grown), sequences(at_once), strict=True))


def test_the_cut_into_segments_changes_no_digest(
    tiny: Ran, tiny_source: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.ingest.segments.SEGMENT_FILES", 5)
    cut = run_prepare(home, tiny_source)
    assert len(cut.ingested.segments.refs) == 3
    assert digests(cut) == digests(tiny)
    assert all(np.array_equal(one, other) for one, other in zip(sequences(cut), sequences(tiny), strict=True))


def sequences(ran: Ran, split: str = "train") -> list[np.ndarray]:
    """The ids of every sequence of a split, in order."""
    folders = {ref.key: ran.folder(ref) for ref in ran.prepared.shards}
    index = load_index(ran.folder(ran.prepared.dataset), split)
    shards = [np.load(folders[key] / SHARD_FILE, mmap_mode="r") for key in index.shards]
    places = zip(index.shard, index.start, index.length, strict=True)
    return [np.array(shards[shard][start : start + length]) for shard, start, length in places]


def test_sequences_spell_the_training_documents(tiny: Ran) -> None:
    tokenizer = load_tokenizer(tiny.folder(tiny.prepared.tokenizer) / "tokenizer.json")
    texts: list[list[int]] = []
    for ids in sequences(tiny):
        if ids[0] == BOS:
            texts.append([])
        texts[-1] = texts[-1] + ids.tolist() if not texts[-1] else texts[-1] + ids.tolist()[1:]
        if len(ids) == 33:
            texts[-1].pop()
            texts[-1].append(int(ids[-1]))
    assert all(ids[-1] == EOS for ids in texts)
    expected = {text_of(number).strip() for number in range(12)} - set(evaluation_texts(tiny))
    assert {tokenizer.decode(ids) for ids in texts} == expected


@pytest.mark.full
def test_no_character_of_validation_alone_is_in_the_alphabet(home: Home, source: Path, tiny: Ran) -> None:
    held_out = evaluation_texts(tiny)
    # the same split with a strange character in each text: sides are looked up afterwards, not assumed
    for number, path in enumerate(sorted(source.iterdir())):
        path.write_text(f"{path.read_text()}\n{chr(0x4E00 + number)}\n", encoding="utf-8")
    ran = run_prepare(home, source)
    tokenizer = load_tokenizer(ran.folder(ran.prepared.tokenizer) / "tokenizer.json")
    strange = {char for char in tokenizer.record()["alphabet"] if ord(char) >= 0x4E00}
    validation = {text[-1] for text in evaluation_texts(ran)}
    assert held_out
    assert validation
    assert strange == {chr(0x4E00 + number) for number in range(12)} - validation


@pytest.mark.full
def test_a_segment_without_a_document_is_carried_along(known: Home, source: Path) -> None:
    (source / "nothing.bin").write_bytes(bytes(range(256)) * 8)
    ran = run_prepare(known, source)
    assert files_of(ran)["nothing.bin"]["status"] != "ok"
    assert len(ran.prepared.shards) == 2
    assert check_tokens(ran.run.store, read_state(ran.run.store, "default")).problems == []


@pytest.mark.full
@pytest.mark.parametrize("change", ["tokenizer.kind=bpe", "curate.salt=pepper"])
def test_segments_cut_anew_hold_the_documents_that_were_selected(
    of_two_segments: Home, source: Path, change: str
) -> None:
    """Where documents lie is no part of what was selected: the selection is cached, and its documents are found."""
    home = of_two_segments
    run_prepare(home, source, refresh=["extract"])
    cut = run_prepare(home, source, tiny_settings(change), refresh=["extract"])
    fresh = run_prepare(home_at(home.path.parent / "fresh"), source, tiny_settings(change))
    assert digests(cut)["curate"] == digests(fresh)["curate"]
    if change.startswith("tokenizer"):  # else the one that was fitted on the first files stays
        assert digests(cut)["tokenizer"] == digests(fresh)["tokenizer"]
    cut_ids, fresh_ids = (
        set(read_columns(ran.folder(ran.prepared.dataset) / "sequences.parquet", ["doc_id"])["doc_id"])
        for ran in (cut, fresh)
    )
    assert cut_ids == fresh_ids


@pytest.mark.full
@pytest.mark.parametrize("settings", [("tokenizer.kind=bpe",), ("curate.salt=pepper",)])
def test_a_file_renamed_to_another_suffix_keeps_its_document(
    known: Home, source: Path, settings: tuple[str, ...]
) -> None:
    """The new name is read again into a segment of its own, whose normalised text is there already."""
    write_texts(source, [12])
    run_prepare(known, source)
    (source / "text-12.txt").rename(source / "text-12.log")
    run_prepare(known, source)
    grown = run_prepare(known, write_texts(source, [13]), tiny_settings(*settings))
    ids = {row["doc_id"] for row in files_of(grown).values()}
    assert len(ids) == 14
    assert selection_of(grown).keys() == ids
    rows = read_columns(grown.folder(grown.prepared.dataset) / "sequences.parquet", ["doc_id"])
    assert set(rows["doc_id"]) == ids


def test_a_document_that_lies_nowhere_is_an_error_and_not_left_out(tiny: Ran) -> None:
    tables = tables_of(tiny.run.store, RefSet(tuple(tiny.ingested.normalised), ""))
    with Corpus() as corpus:
        corpus.want_kept(tiny.folder(tiny.ingested.curated))
        corpus.sql("insert into wanted by name select 'lost' as doc_id, 'nowhere' as segment")
        with pytest.raises(StoreError, match=r"document lost is in 0 of the 1 segments.*--refresh snapshot"):
            corpus.locate(tables, "documents.parquet")


def test_a_new_document_for_validation_alone_trains_nothing_anew(tiny: Ran, known: Home, source: Path) -> None:
    salt = tiny_settings().curate.salt
    share = tiny_settings().curate.validation_share
    number = next(
        number
        for number in range(100, 1_000)
        if hash_share(hashlib.sha256(text_of(number).strip("\n").encode()).hexdigest(), salt) < share
    )
    after = run_whole(known, write_texts(source, [number]))
    added = selection_of(after).keys() - selection_of(tiny).keys()
    assert [selection_of(after)[doc_id]["split"] for doc_id in added] == ["validation"]
    assert after.checkpoint == tiny.checkpoint
    assert "train" not in after.computed()


@pytest.mark.full
@pytest.mark.parametrize("change", ["refresh", "rename"])
def test_the_catalogue_shows_every_document_wherever_it_lies(of_two_segments: Home, source: Path, change: str) -> None:
    home = of_two_segments
    if change == "refresh":
        refreshed = run_prepare(home, source, refresh=["extract"])
        again = run_prepare(home, source)
        assert again.computed() == {}
        assert set(again.ingested.segments.refs) == set(refreshed.ingested.segments.refs)
    else:
        (source / "text-11.txt").rename(source / "text-11.log")
        run_prepare(home, source)
    store = open_store(home.store)
    for view in ("documents", "tokens", "pages"):
        assert Catalog(store, "default").query(f"select count(distinct doc_id) as n from {view}") == [{"n": 12}]
