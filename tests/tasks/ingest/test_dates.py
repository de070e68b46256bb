"""Dates of documents: from their paths, from a table, and what they keep out of training."""

from __future__ import annotations

from pathlib import Path

import pytest
from ingest_run import Ingestion, ingest, plan, write

from storage.errors import UserError
from storage.home import Home

PROSE = "The cost of a run follows the change and not the size of the corpus, so one more document of {} is cheap. "
FILES = {f"{year}/{name}.txt": PROSE.format(f"{name} {year}") * 3 for year in (1890, 1905, 1920) for name in "abc"}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write(tmp_path / "corpus", {**FILES, "undated.txt": PROSE.format("no year") * 3})


def dates_of(found: Ingestion) -> dict[str, str | None]:
    return {row["path"]: row["date"] for row in found.query("select path, date from files")}


def test_the_path_has_the_date(home: Home, corpus: Path) -> None:
    found = ingest(home, corpus, r"sources.date_pattern=(\d{4})/", "policy.before=1914")
    assert dates_of(found)["1905/a.txt"] == "1905" and dates_of(found)["undated.txt"] is None
    assert set(found.codes()) == {*(f"1920/{name}.txt" for name in "abc"), "undated.txt"}
    assert found.codes()["undated.txt"] == "undated"


def test_a_table_goes_before_the_path(home: Home, corpus: Path, tmp_path: Path) -> None:
    table = tmp_path / "dates.csv"
    table.write_text("\ufefftitle,path,date\nA,1920/a.txt,1899-05\nB,undated.txt,1850\nC,1890/a.txt,\n", "utf-8")
    found = ingest(home, corpus, r"sources.date_pattern=(\d{4})/", f"sources.metadata={table}")
    dates = dates_of(found)
    assert [dates[path] for path in ("1920/a.txt", "undated.txt", "1890/a.txt", "1920/b.txt")] == [
        "1899-05", "1850", "1890", "1920",
    ]  # fmt: skip


def test_a_date_and_a_title_tell_where_they_are_from(home: Home, corpus: Path, tmp_path: Path) -> None:
    web = f"<html><title>Its own</title><p>{PROSE.format('a page') * 4}</p>"
    write(corpus, {"1890/one.html": web, "1890/two.html": web.replace("a page", "another page")})
    table = tmp_path / "metadata.csv"
    table.write_text(
        'path,title,date\n1890/two.html,"A better\x00\none",1891\n1890/two.html,,\n1890/a.txt, ,\n', "utf-8"
    )
    found = ingest(home, corpus, r"sources.date_pattern=(\d{4})/", f"sources.metadata={table}")
    rows = found.query("select path, date, date_from, title, title_from from files")
    told = {row.pop("path"): tuple(row.values()) for row in rows}
    assert told["1890/one.html"] == ("1890", "path", "Its own", "document")
    assert told["1890/two.html"] == ("1891", "table", "A better one", "table")
    assert told["1890/a.txt"] == ("1890", "path", None, None)
    assert told["undated.txt"] == (None, None, None, None)


def test_members_have_the_date_of_their_container(home: Home, corpus: Path, tmp_path: Path) -> None:
    write(corpus, {"rows.jsonl": "".join(f'{{"text": "{PROSE.format(n) * 2}"}}\n' for n in range(3))})
    table = tmp_path / "dates.csv"
    table.write_text("path,date\nrows.jsonl,1870\n", "utf-8")
    dates = dates_of(ingest(home, corpus, f"sources.metadata={table}"))
    assert {date for path, date in dates.items() if path.startswith("rows.jsonl/")} == {"1870"}


def test_another_table_selects_anew_and_reads_nothing_again(home: Home, corpus: Path, tmp_path: Path) -> None:
    table = tmp_path / "dates.csv"
    table.write_text("path,date\nundated.txt,1850\n", "utf-8")
    settings = (r"sources.date_pattern=(\d{4})/", "policy.before=1914", f"sources.metadata={table}")
    assert "undated.txt" in ingest(home, corpus, *settings).sides()
    assert {name for name, line in plan(home, corpus, *settings).items() if line.computed} == set()
    table.write_text("path,date\nundated.txt,1950\n", "utf-8")
    found = ingest(home, corpus, *settings)
    assert found.codes()["undated.txt"] == "date"
    assert not any(found.reports[name].computed for name in ("extract", "normalise", "measure"))


def test_what_the_pattern_finds_is_no_date(home: Home, corpus: Path) -> None:
    write(corpus, {"99/x.txt": PROSE.format("x") * 3})
    assert dates_of(ingest(home, corpus, r"sources.date_pattern=(\d+)/"))["99/x.txt"] is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("path,year\na.txt,1890\n", "expected path, and date or title"),
        ("path,date\na.txt,circa 1890\n", "line 2: 'circa 1890' is no date"),
        (None, "cannot be read"),
    ],
)
def test_a_table_that_cannot_be_used_is_an_error(
    home: Home, corpus: Path, tmp_path: Path, text: str | None, told: str
) -> None:
    table = tmp_path / "dates.csv"
    if text is not None:
        table.write_text(text, "utf-8")
    with pytest.raises(UserError, match=told):
        ingest(home, corpus, f"sources.metadata={table}")


@pytest.mark.parametrize(("pattern", "told"), [("(", "is no regular expression"), (r"\d{4}", "has no group")])
def test_a_pattern_that_cannot_be_used_is_an_error(pattern: str, told: str) -> None:
    from ingest_run import settings_of

    with pytest.raises(UserError, match=told):
        settings_of(f"sources.date_pattern={pattern}")
