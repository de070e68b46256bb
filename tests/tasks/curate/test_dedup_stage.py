"""Deduplication over a whole corpus, through the pipeline: what is found wherever it lies, and what is not redone."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from dedup_samples import all_pairs
from ingest_run import Ingestion, edited, home_at, ingest, prose, write

from storage.home import Home
from tasks.curate import dedup


@pytest.fixture
def files() -> dict[str, str]:
    """Ten texts; of three of them a near-duplicate, of two an exact one in other bytes."""
    return planted()


def planted() -> dict[str, str]:
    texts = {f"{number:02}.txt": prose(number, 150) for number in range(10)}
    for number in range(3):
        texts[f"near-{number:02}.txt"] = edited(prose(number, 150), number, 2)
    for number in range(5, 7):
        texts[f"exact-{number:02}.txt"] = prose(number, 150).replace("\n", "\r\n") + "\n\n"
    return texts


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Ingestion:
    """All of them, ingested at once."""
    folder = tmp_path_factory.mktemp("whole")
    return ingest(home_at(folder / "home"), write(folder / "in", planted()))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Digests of the texts that were read to compare them."""
    seen: list[str] = []
    original = dedup._read_texts

    def note(*arguments: Any) -> list[str]:
        texts = original(*arguments)
        seen.extend(hashlib.sha256(text.encode()).hexdigest() for text in texts)
        return texts

    monkeypatch.setattr(dedup, "_read_texts", note)
    return seen


def pairs(ran: Ingestion) -> dict[tuple[str, str], float]:
    """Near-duplicates by path."""
    path = ran.path_of()
    rows = ran.rows(ran.ingested.duplicates, "pairs.parquet")
    return {
        (min(names), max(names)): row["similarity"]
        for row in rows
        for names in [(path[row["doc_id"]], path[row["other_id"]])]
    }


def clusters(ran: Ingestion) -> set[frozenset[str]]:
    """Clusters of more than one document, by path."""
    found: dict[str, set[str]] = {}
    path = ran.path_of()
    for row in ran.rows(ran.ingested.duplicates, "clusters.parquet"):
        found.setdefault(row["cluster"], set()).add(path[row["doc_id"]])
    return {frozenset(members) for members in found.values() if len(members) > 1}


def digest(ran: Ingestion) -> str:
    return ran.ingested.duplicates.digest


EXPECTED = {
    *(frozenset([f"{number:02}.txt", f"near-{number:02}.txt"]) for number in range(3)),
    *(frozenset([f"{number:02}.txt", f"exact-{number:02}.txt"]) for number in range(5, 7)),
}


def test_planted_duplicates_are_found_with_their_exact_similarities(whole: Ingestion) -> None:
    found = whole.texts("normalise")
    names = sorted(found)
    texts = [found[name] for name in names]
    expected = {
        (names[one], names[other]): similarity
        for (one, other), similarity in all_pairs(texts, 0.8).items()
        if texts[one] != texts[other]
    }
    assert len(expected) == 3
    assert pairs(whole) == pytest.approx(expected)
    assert clusters(whole) == EXPECTED


@pytest.mark.full
def test_the_cut_into_segments_and_the_way_of_growing_change_no_result(
    whole: Ingestion, tmp_path: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "in", files)
    with monkeypatch.context() as patch:
        patch.setattr("tasks.ingest.segments.SEGMENT_FILES", 2)
        cut = ingest(home_at(tmp_path / "cut"), source)
    assert len(cut.ingested.segments.refs) == 8
    part = write(tmp_path / "part", dict(list(files.items())[::2]))
    ingest(home_at(tmp_path / "grown"), part)
    grown = ingest(home_at(tmp_path / "grown"), source)
    for ran in (cut, grown):
        assert digest(ran) == digest(whole)
        assert ran.rows(ran.ingested.duplicates, "pairs.parquet") == whole.rows(
            whole.ingested.duplicates, "pairs.parquet"
        )
        assert ran.codes() == whole.codes()
        assert ran.sides() == whole.sides()


@pytest.mark.full
def test_pairs_that_one_run_verified_are_not_compared_by_the_next(
    home: Home, tmp_path: Path, files: dict[str, str], read: list[str]
) -> None:
    source = write(tmp_path / "in", files)
    before = ingest(home, source)
    assert len(set(read)) >= 6
    known = set(read)
    read.clear()
    near = edited(prose(7, 150), 7, 2)
    after = ingest(home, write(source, {"new.txt": near}))
    assert pairs(after).keys() == pairs(before).keys() | {("07.txt", "new.txt")}
    new = {
        row["text_sha256"] for row in after.rows(after.ingested.normalised, "documents.parquet") if row["text"] == near
    }
    assert new <= set(read)
    assert not (set(read) - new) & known


def test_a_looser_threshold_compares_only_pairs_that_were_never_compared(
    home: Home, tmp_path: Path, files: dict[str, str], read: list[str]
) -> None:
    files["far.txt"] = edited(prose(8, 150), 8, 6)
    source = write(tmp_path / "in", files)
    ingest(home, source, "dedup.threshold=0.9")
    read.clear()
    ran = ingest(home, source, "dedup.threshold=0.5")
    assert ("08.txt", "far.txt") in pairs(ran)
    fresh = ingest(home_at(tmp_path / "fresh"), source, "dedup.threshold=0.5")
    assert pairs(ran) == pairs(fresh)


def test_a_stricter_threshold_compares_nothing(
    home: Home, tmp_path: Path, files: dict[str, str], read: list[str]
) -> None:
    source = write(tmp_path / "in", files)
    ingest(home, source, "dedup.threshold=0.5")
    read.clear()
    ran = ingest(home, source, "dedup.threshold=0.95")
    assert read == []
    assert ran.computed() == {"dedup": 1, "curate": 1}


@pytest.mark.full
def test_similarities_of_another_corpus_are_used_too_and_change_nothing(
    home: Home, tmp_path: Path, files: dict[str, str], read: list[str]
) -> None:
    ingest(home, write(tmp_path / "one", files))
    read.clear()
    others = {f"other-{name}": text for name, text in files.items()} | {"more.txt": prose(50)}
    ran = ingest(home, write(tmp_path / "other", others))
    assert read == []
    assert len(pairs(ran)) == 3


def test_members_of_archives_are_compared_with_files(home: Home, tmp_path: Path) -> None:
    import io
    import zipfile

    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo("near.txt"), edited(prose(1, 150), 1, 2))
        archive.writestr(zipfile.ZipInfo("same.txt"), prose(2, 150))
    source = write(tmp_path / "in", {"box.zip": file.getvalue(), **{f"{n}.txt": prose(n, 150) for n in range(4)}})
    assert clusters(ingest(home, source)) == {
        frozenset(["box.zip/near.txt", "1.txt"]),
        frozenset(["box.zip/same.txt", "2.txt"]),
    }


def test_counts_say_what_was_found(whole: Ingestion) -> None:
    found = whole.store.find("dedup", whole.ingested.duplicates.key)
    assert found is not None
    assert {name: found.counts[name] for name in ("rows", "texts", "exact_duplicates", "near_pairs")} == {
        "rows": 15,
        "texts": 13,
        "exact_duplicates": 2,
        "near_pairs": 3,
    }


@pytest.mark.full
def test_in_a_process_of_its_own_the_stage_finds_the_same(
    whole: Ingestion, home: Home, tmp_path: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.core.subprocesses.WORTH_A_PROCESS", 0)
    apart = ingest(home, write(tmp_path / "in", files))
    assert apart.ingested.all_refined == whole.ingested.all_refined
    assert digest(apart) == digest(whole)
    assert apart.ingested.curated.digest == whole.ingested.curated.digest


def test_a_corpus_without_a_document_has_no_pairs_and_no_clusters(home: Home, tmp_path: Path) -> None:
    ran = ingest(home, write(tmp_path / "in", {"noise.bin": bytes(range(256)) * 9}))
    assert (pairs(ran), clusters(ran)) == ({}, set())
    assert ran.rows(ran.ingested.curated, "selection.parquet") == []


def test_an_empty_folder_goes_through_all_of_ingestion(home: Home, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    ran = ingest(home, tmp_path / "in")
    assert ran.files() == {}
    assert ran.query("select * from documents") == []
