"""Groups of training documents: every one is in a group, by properties of real corpora."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
from ingest_run import Ingestion, home_at, ingest, prose, write

from storage.errors import UserError
from storage.home import Home
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import GROUPS_FILE
from storage.tables import read_rows
from tasks.core.machine import Machine
from tasks.core.run import Run
from tasks.core.settings import load_settings
from tasks.tokens.groups import group_documents
from tasks.tokens.settings import MixError, MixSettings

CODE = "import os\n\n\ndef size_of_{0}(path: str) -> int:\n    return os.stat(path).st_size * {0} + len('{1}')\n"


@dataclass
class Grouped:
    """The groups of a corpus, and how they came about."""

    run: Run
    found: RefSet
    by_path: dict[str, str] = field(default_factory=dict)


def files(numbers: range) -> dict[str, str | bytes]:
    texts: dict[str, str | bytes] = {f"prose/{n}.txt": prose(n) for n in numbers}
    code = {f"code/{n}.py": CODE.format(n, prose(n + 1000, 30).replace("\n", " ")) for n in numbers}
    return {**texts, **code, "code/LICENSE": ""}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return home_at(tmp_path_factory.mktemp("groups") / "home")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("groups") / "docs", files(range(12)))


@pytest.fixture(scope="module")
def corpus(home: Home, source: Path) -> Ingestion:
    return ingest(home, source)


@cache
def machine() -> Machine:
    """One for all tests, so that the process that tries expressions is started once."""
    return Machine(workers=1)


def group(home: Home, corpus: Ingestion, by: str) -> Grouped:
    run = Run(home, machine())
    found = group_documents(
        run,
        MixSettings(by=by),
        snapshot=corpus.ingested.snapshot,
        curated=corpus.ingested.curated,
        measures=corpus.ingested.all_measures,
        texts=corpus.ingested.all_refined,
    )
    paths = corpus.path_of()
    rows = [row for ref in found.refs for row in read_rows(run.store.folder(ref) / GROUPS_FILE)]
    return Grouped(run, found, {paths[row["doc_id"]]: row["group"] for row in rows})


def trained(corpus: Ingestion) -> set[str]:
    return {path for path, side in corpus.sides().items() if side == "train"}


def test_every_training_document_and_no_other_has_a_group(home: Home, corpus: Ingestion) -> None:
    found = group(home, corpus, "kind").by_path
    assert found.keys() == trained(corpus)
    assert "validation" in corpus.sides().values()
    assert {path: path.partition("/")[0] for path in found} == {
        path: {"code": "code", "text": "prose"}[kind] for path, kind in found.items()
    }


def test_the_rows_are_sorted_by_document(home: Home, corpus: Ingestion) -> None:
    found = group(home, corpus, "kind")
    (ref,) = found.found.refs
    ids = [row["doc_id"] for row in read_rows(found.run.store.folder(ref) / GROUPS_FILE)]
    assert ids == sorted(ids)


def test_without_a_mix_nothing_is_computed(home: Home, corpus: Ingestion) -> None:
    found = group(home, corpus, "")
    assert (found.found.refs, found.run.reports) == ((), {})


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("folder", {"code", "prose"}),
        ("programming_language", {"Python", "none"}),
        ("licence", {"none"}),
    ],
)
def test_a_property_makes_groups(home: Home, corpus: Ingestion, by: str, expected: set[str]) -> None:
    assert set(group(home, corpus, by).by_path.values()) == expected


def test_a_source_is_a_group(home: Home, corpus: Ingestion, source: Path) -> None:
    assert set(group(home, corpus, "source").by_path.values()) == {str(source)}


def test_a_folder_is_one_below_its_source_also_where_there_are_several(tmp_path: Path) -> None:
    home = home_at(tmp_path / "home")
    first = write(tmp_path / "first", {"x/1.txt": prose(1), "x/deep/2.txt": prose(2), "3.txt": prose(3)})
    second = write(tmp_path / "second", {"y/4.txt": prose(4), "x/5.txt": prose(5)})
    single = write(tmp_path / "third", {"6.txt": prose(6)}) / "6.txt"
    corpus = ingest(home, "\n".join(map(str, (first, second, single))))
    expected = {
        "first/x/1.txt": "x",
        "first/x/deep/2.txt": "x",
        "first/3.txt": "none",
        "second/y/4.txt": "y",
        "second/x/5.txt": "x",
        "6.txt": "none",
    }
    found = group(home, corpus, "folder").by_path
    assert found == {path: expected[path] for path in trained(corpus)}
    assert set(found.values()) == {"x", "y", "none"}


def test_the_same_question_again_is_answered_from_the_store(home: Home, corpus: Ingestion) -> None:
    first, again = group(home, corpus, "language"), group(home, corpus, "language")
    assert again.run.reports["groups"].cached
    assert first.found.digest == again.found.digest


def test_groups_by_path_follow_a_file_that_moved(tmp_path: Path) -> None:
    home, docs = home_at(tmp_path / "home"), write(tmp_path / "docs", files(range(6)))
    corpus = ingest(home, docs)
    before = group(home, corpus, "folder")
    kinds = group(home, corpus, "kind")
    moved = next(path for path in before.by_path if path.startswith("prose/"))
    write(docs, {f"poems/{Path(moved).name}": (docs / moved).read_bytes()})
    (docs / moved).unlink()
    corpus = ingest(home, docs)
    after = group(home, corpus, "folder")
    assert after.by_path[f"poems/{Path(moved).name}"] == "poems"
    assert after.found.digest != before.found.digest
    # what looks at no path is not asked again
    again = group(home, corpus, "kind")
    assert again.run.reports["groups"].cached
    assert again.found == kinds.found


def test_a_plan_waits_for_what_is_not_there(home: Home, corpus: Ingestion) -> None:
    missing = ArtifactRef("curate", "", "")
    planner = Run(home, plan=True)
    found = group_documents(
        planner,
        MixSettings(by="folder"),
        snapshot=missing,
        curated=missing,
        measures=corpus.ingested.all_measures,
        texts=RefSet((missing,), ""),
    )
    assert not found.made and planner.reports["groups"].computed == 1


def test_too_many_groups_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = home_at(tmp_path / "home")
    monkeypatch.setattr("tasks.tokens.groups.MOST_GROUPS", 1)
    with pytest.raises(MixError, match="gives 2 groups, such as 'Python' and 'none'; expected at most 1"):
        group(home, ingest(home, write(tmp_path / "docs", files(range(6)))), "programming_language")


def test_a_document_in_several_segments_has_one_row(home: Home, corpus: Ingestion) -> None:
    texts, measures = corpus.ingested.all_refined, corpus.ingested.all_measures
    assert texts.live is not None
    doubled = [
        RefSet(item.refs * 2, "doubled", item.segments * 2, (*texts.live, *(set() for _ in texts.live)))
        for item in (measures, texts)
    ]
    run = Run(home, machine())
    found = group_documents(
        run,
        MixSettings(by="kind"),
        snapshot=corpus.ingested.snapshot,
        curated=corpus.ingested.curated,
        measures=doubled[0],
        texts=doubled[1],
    )
    assert found.digest == group(home, corpus, "kind").found.digest


def test_any_other_property_is_refused_with_those_there_are() -> None:
    with pytest.raises(UserError, match=r"mix\.by is 'lower\(kind\)', expected .*kind.*folder"):
        load_settings(None, {"mix": {"by": "lower(kind)"}})
