"""Groups of training documents: by columns and expressions over real corpora, and nothing that is not of a document."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import duckdb
import pytest
from ingest_run import Ingestion, home_at, ingest, prose, write

from storage.catalog import Catalog
from storage.errors import UserError
from storage.home import Home
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import GROUPS_FILE
from storage.tables import read_rows
from tasks.core.machine import Machine
from tasks.core.run import Run
from tasks.curate.view import DocumentView, empty_view
from tasks.tokens import groups
from tasks.tokens.grouping import MOST_NAME_CHARS, check
from tasks.tokens.groups import check_expression, group_documents
from tasks.tokens.mix import MixError, MixSettings

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
        measures=corpus.ingested.measures,
        texts=corpus.ingested.texts,
        scored=corpus.ingested.scored,
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
        ("split_part(path, '/', 1)", {"code", "prose"}),
        ("case when kind = 'code' then 'c' end", {"c", "none"}),
        ("if(kind = 'code', '', 'p')", {"p", "none"}),
        ("n_bytes > 1_000_000", {"false"}),
        ("programming_language -- which", {"Python", "none"}),
        ("if(contains(text, 'os.stat'), 'stats', 'other')", {"stats", "other"}),
        ("coalesce(classifier_score, 0.5)", {"0.5"}),
    ],
)
def test_any_expression_over_the_view_makes_groups(home: Home, corpus: Ingestion, by: str, expected: set[str]) -> None:
    assert set(group(home, corpus, by).by_path.values()) == expected


def test_a_source_is_a_group(home: Home, corpus: Ingestion, source: Path) -> None:
    assert set(group(home, corpus, "source").by_path.values()) == {str(source)}


def test_the_same_question_again_is_answered_from_the_store(home: Home, corpus: Ingestion) -> None:
    first, again = group(home, corpus, "language"), group(home, corpus, " language ")
    assert again.run.reports["groups"].cached
    assert first.found.digest == again.found.digest


def test_expressions_that_give_the_same_groups_have_the_same_digest(home: Home, corpus: Ingestion) -> None:
    assert group(home, corpus, "kind").found.digest == group(home, corpus, "lower(kind)").found.digest
    assert group(home, corpus, "kind").found.digest != group(home, corpus, "language").found.digest


def test_groups_by_path_follow_a_file_that_moved(tmp_path: Path) -> None:
    home, docs = home_at(tmp_path / "home"), write(tmp_path / "docs", files(range(6)))
    corpus = ingest(home, docs)
    before = group(home, corpus, "split_part(path, '/', 1)")
    kinds = group(home, corpus, "kind")
    moved = next(path for path in before.by_path if path.startswith("prose/"))
    write(docs, {f"poems/{Path(moved).name}": (docs / moved).read_bytes()})
    (docs / moved).unlink()
    corpus = ingest(home, docs)
    after = group(home, corpus, "split_part(path, '/', 1)")
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
        MixSettings(by="path"),
        snapshot=missing,
        curated=missing,
        measures=corpus.ingested.measures,
        texts=RefSet((missing,), ""),
        scored=[missing],
    )
    assert not found.made and planner.reports["groups"].computed == 1


def test_too_many_groups_are_refused(home: Home, corpus: Ingestion, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.tokens.groups.MOST_GROUPS", 3)
    with pytest.raises(MixError, match=r"makes more than 3 groups, such as '\w{64}' and .*; expected a short name"):
        group(home, corpus, "doc_id || ''")


def test_a_name_that_is_a_whole_text_is_refused(home: Home, corpus: Ingestion) -> None:
    with pytest.raises(UserError, match=r"that makes a name of [\d,]+ characters, and 4,096 are the most") as told:
        group(home, corpus, f"repeat(text, {MOST_NAME_CHARS})")
    assert len(str(told.value)) < 500


# three thousand million numbers; and 10^10 steps for each document
ENDLESS_VALUE, ENDLESS_WORK = "list_sum(range(0, {} + 3000000000))", "levenshtein(repeat({0}, 90), repeat({0}, 80))"


def test_an_expression_that_wants_all_memory_for_a_document_is_told(home: Home, corpus: Ingestion) -> None:
    with pytest.raises(UserError, match=r"mix\.by .* needs more than 2,048 MiB of memory; expected a short name"):
        group(home, corpus, ENDLESS_VALUE.format("n_chars"))


def test_an_expression_that_wants_all_memory_is_told_before_anything_runs() -> None:
    with pytest.raises(UserError, match=r"mix\.by .* needs more than 2,048 MiB of memory; expected a short name"):
        check_expression(ENDLESS_VALUE.format("1"))


def test_an_expression_that_takes_too_long_is_told(
    home: Home, corpus: Ingestion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "SEGMENT_SECONDS", 0.5)
    with pytest.raises(UserError, match=r"takes more than 0\.5 s on the documents of one segment; expected a short"):
        group(home, corpus, ENDLESS_WORK.format("text"))


def test_an_expression_that_takes_too_long_is_told_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "CHECK_SECONDS", 0.5)
    with pytest.raises(UserError, match=r"takes more than 0\.5 s without any document; expected a short name"):
        check_expression(ENDLESS_WORK.format(f"'{'ab' * 2000}'"))


@pytest.mark.parametrize(
    "by",
    [
        "a" * 10**5,
        "(" * 10**5 + "1" + ")" * 10**5,
        "kind" + " || kind" * 10**4,
        f"unnest(['{'b' * 10**5}'])",
    ],
    ids=["a name", "nested", "many", "a value"],
)
def test_of_a_long_expression_only_the_beginning_is_repeated(by: str) -> None:
    with pytest.raises(UserError, match=r"mix\.by is .* \([\d,]+ characters\): ") as told:
        check_expression(by)
    assert len(str(told.value)) < 2_500


def test_an_expression_that_fails_on_a_value_is_told(home: Home, corpus: Ingestion) -> None:
    with pytest.raises(UserError, match=r"mix\.by .*Could not convert"):
        group(home, corpus, "kind::int")


def test_a_document_in_several_segments_has_one_row(home: Home, corpus: Ingestion) -> None:
    texts, measures = corpus.ingested.texts, corpus.ingested.measures
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
        scored=[],
    )
    assert found.digest == group(home, corpus, "kind").found.digest


@pytest.mark.parametrize(
    ("by", "told"),
    [
        ("nope", r'Referenced column "nope" not found.*columns: doc_id, kind, title'),
        ("", "Parser Error"),
        ("kind, title", "single expression"),
        ("kind; select 1", "Parser Error"),
        ("1) from documents; select (2", "Parser Error"),
        ("$1", "not provided"),
        ("random()", "random cannot be used"),
        ("uuid()", "uuid cannot be used"),
        ("now()", "now cannot be used"),
        ("current_date", "current_date cannot be used"),
        ("current_timestamp::varchar", "current_timestamp cannot be used"),
        ("localtime", "localtime cannot be used"),
        ("max(n_chars)", "max cannot be used"),
        ("row_number() over ()", "window cannot be used"),
        ("(select n_chars from documents)", "subquery cannot be used"),
        ("exists(from read_text('/etc/passwd'))", "subquery cannot be used"),
        ("columns(*)", "star cannot be used"),
        ("documents", "documents as a whole cannot be used"),
        ("documents['source']", "documents as a whole cannot be used"),
        ("struct_extract(main.\"Documents\", 'source')", "documents as a whole cannot be used"),
        ("#2", "positional_reference cannot be used"),
        ("if(kind = 'code', #2, '')", "positional_reference cannot be used"),
        ("unnest([1, 2])", "unnest cannot be used"),
        ("unlist([1, 2])", "unlist cannot be used"),
        ("regexp_split_to_table(kind, 'e')", "regexp_split_to_table cannot be used"),
        ("generate_subscripts([1, 2], 1)", "generate_subscripts cannot be used"),
        ("age(timestamp '2020-01-01')::varchar", "age cannot be used"),
        ("ago(interval 1 day)", "ago cannot be used"),
        ("pg_postmaster_start_time()", "pg_postmaster_start_time cannot be used"),
        ("geomean(n_chars)", "geomean cannot be used"),
        ("format_type(1, 1)", "format_type cannot be used"),
        ("version()", "version cannot be used"),
    ],
)
def test_what_says_more_than_one_thing_of_one_document_is_refused(by: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        check(by)


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("documents.source", {"source"}),
        ("main.documents.path", {"path"}),
        ("if(kind = 'code', \"SOURCE\", title)", {"kind", "source", "title"}),
        ("nullif(split_part(path, '/', 1), 'a')", {"path"}),
        ("list_max([n_chars, n_words])", {"n_chars", "n_words"}),
        ("'documents'", set()),
    ],
)
def test_the_columns_that_an_expression_reads_are_known(by: str, expected: set[str]) -> None:
    assert check(by) == expected


def test_what_is_refused_is_refused_through_the_process_too() -> None:
    assert check_expression("documents.source") == {"source"}
    with pytest.raises(UserError, match="random cannot be used"):
        check_expression("random()")


def test_a_time_is_written_the_same_everywhere() -> None:
    script = (
        "from tasks.curate.view import empty_view; "
        "print(empty_view().execute('select to_timestamp(0)::varchar').fetchall()[0][0])"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TZ": "Asia/Tokyo"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == "1970-01-01 00:00:00+00"


def test_a_view_that_is_let_go_has_closed_its_connection() -> None:
    view = DocumentView([], [], None, {"kind"})
    connection = view.connection
    del view
    gc.collect()
    with pytest.raises(duckdb.ConnectionException, match="closed"):
        connection.execute("select 1")


def test_the_columns_are_those_of_the_catalogue_with_the_place(corpus: Ingestion) -> None:
    view = [row[0] for row in empty_view().execute("describe documents").fetchall()]
    catalogue = Catalog(corpus.store, "default").query("describe documents")
    assert view == [*(row["column_name"] for row in catalogue), "source", "path"]
