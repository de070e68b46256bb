"""The commands that decide what a home keeps, as a person types them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from runs import answer, invoke

sys.path.append(str(Path(__file__).parents[1] / "tasks"))
from ingest_run import home_at, ingest, prose, write


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with eight ingested texts."""
    folder = tmp_path_factory.mktemp("keep")
    source = write(folder / "in", {f"notes/{number}.txt": prose(number) for number in range(8)})
    ingest(home_at(folder / "home"), source)
    return folder / "home"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "no-such-folder"], "does not exist"),
        (["plan", ".", "--set", "train.learning=1"], "unknown setting 'train.learning'"),
        (["plan", ".", "--set", "train.precision=fp8"], "expected auto, fp32, bf16 or fp16"),
        (["plan", ".", "--refresh", "tranform"], "no such stage"),
        (["sql", "selec 1"], "syntax error"),
        (["why", "nothing-of-that-name"], "is not found"),
        (["generate", "x", "--model", "nobody"], "no model 'nobody'"),
        (["generate"], "give either a PROMPT or --prompts FILE"),
        (["ingest", ".", "--corpus", "team/x"], "'team/x' is not a valid name of a corpus"),
        (["plan", ".", "--corpus", ".."], "'..' is not a valid name of a corpus"),
        (["sql", "select 1", "--corpus", ""], "'' is not a valid name of a corpus"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(arguments: list[str], sentence: str, home: Path) -> None:
    done = invoke(home, *arguments)
    assert done.exit_code == 1
    assert sentence in done.stderr
    assert done.stdout == ""


@pytest.mark.prefect
@pytest.mark.usefixtures("prefect_server")
def test_ablate_refuses_a_source_that_is_not_there(home: Path) -> None:
    done = invoke(home, "ablate", "--without", "pdf")
    assert done.exit_code == 1
    assert "'pdf' is not a kind of document" in done.stderr


def test_forget_says_what_it_would_do_does_it_and_why_knows_of_it(home: Path) -> None:
    said = invoke(home, "forget", "notes/3.txt", "--dry-run")
    assert said.exit_code == 0, said.stderr
    assert "dry_run: yes" in said.stdout and "path: notes/3.txt" in said.stdout
    (document,) = answer(home, "forget", "notes/3.txt", "--reason", "asked for")["documents"]
    assert document["path"] == "notes/3.txt"
    assert answer(home, "why", document["doc_id"])["forgotten"][0]["reason"] == "asked for"
    assert answer(home, "verify")["ok"]


@pytest.mark.prefect
@pytest.mark.usefixtures("prefect_server")
def test_after_a_forgetting_it_is_said_that_the_corpus_waits_for_its_next_run(home: Path) -> None:
    waits = "documents of corpus 'default' were forgotten since its last run"
    done = invoke(home, "ablate", "--without", "text")
    assert done.exit_code == 1 and waits in done.stderr
    asked = invoke(home, "sql", "select count(*) as n from files", "--json")
    assert asked.exit_code == 0 and '"n": 0' in asked.stdout and waits in asked.stderr


def test_forget_refuses_what_it_does_not_know_in_one_sentence(home: Path) -> None:
    done = invoke(home, "forget", "elsewhere.txt")
    assert done.exit_code == 1
    assert done.stderr.startswith("sheepfold: corpus 'default' has no document 'elsewhere.txt'")


def test_gc_and_status_say_how_much_there_is_of_each_stage(home: Path) -> None:
    said = invoke(home, "gc", "--dry-run")
    assert said.exit_code == 0, said.stderr
    assert "dry_run: yes\nartefacts: 0\nremoved: none\nwork: 0\nbytes: 0\n" in said.stdout
    assert answer(home, "status", "--sizes")["sizes"]["extract"]["artefacts"] == 1


def test_compact_says_what_it_would_join(home: Path) -> None:
    said = invoke(home, "compact", "--dry-run")
    assert said.exit_code == 0, said.stderr
    assert "joined: none" in said.stdout
    assert answer(home, "compact")["joined"] == {}


def test_verify_refuses_a_corpus_that_does_not_exist(home: Path) -> None:
    done = invoke(home, "verify", "--corpus", "nosuch")
    assert done.exit_code == 1 and done.stdout == ""
    assert "corpus 'nosuch' has no completed run in this store (corpora with one: default)" in done.stderr


def test_verify_removes_what_is_damaged_and_is_content_with_the_rest(home: Path) -> None:
    assert "problems: none" in invoke(home, "verify", "--repair").stdout
    (path,) = (home / "store" / "extract").glob("*/extracts.parquet")
    path.write_bytes(b"not what was written")
    assert invoke(home, "verify").exit_code == 1
    said = invoke(home, "verify", "--repair")
    assert said.exit_code == 0, said.stderr
    assert f"thing: extract/{path.parent.name}" in said.stdout
    assert "done: yes" in said.stdout and "what: removed, because" in said.stdout
    assert not path.exists()
