"""The command line, as a person or a script uses it: one home, real documents.

A run, the same again, one that fails, a generation, a plan and a query are processes of their own; what else the
commands say is asked in this one, which spares it the seconds of their imports.
"""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from runs import Command, answer, environment, invoke

from storage.store import Store
from tasks.lineage.training_data import exposures

TRAINING = ["--preset", "tiny", "--max-steps", "30"]


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory, sample_folder: Path) -> Path:
    """A few files of every kind."""
    folder = tmp_path_factory.mktemp("documents")
    for kind, count in (("text", 12), ("code", 12), ("documents", 2), ("images", 1)):
        (folder / kind).mkdir()
        for path in sorted((sample_folder / kind).iterdir())[:count]:
            shutil.copyfile(path, folder / kind / path.name)
    (folder / "empty.txt").write_bytes(b"")
    (folder / "twice.txt").write_bytes((sorted((folder / "text").iterdir())[0]).read_bytes())
    (folder / "broken.pdf").write_bytes(b"%PDF-1.7\nnothing behind it")
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def command(home: Path, documents: Path) -> Command:
    """The first run."""
    return Command(home, ["run", str(documents), *TRAINING])


@pytest.fixture(scope="module")
def first(command: Command) -> dict[str, Any]:
    """Its result."""
    result = command.finish()
    assert isinstance(result, dict)
    return result


def sql(home: Path, query: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = answer(home, "sql", query)
    return rows


@pytest.mark.full
def test_one_command_ends_with_a_champion_its_figures_and_completions(first: dict[str, Any]) -> None:
    assert first["model"]["name"] == "sheepfold"
    assert first["model"]["alias"] == "champion"
    assert first["metrics"]["val/bits_per_byte"] > 0
    assert first["metrics"]["val/perplexity"] > 1
    assert Path(first["completions"]).is_file()
    assert first["mlflow_run_id"]


@pytest.mark.full
def test_prefect_keeps_the_log_of_a_run_and_the_terminal_stays_quiet(
    first: dict[str, Any], command: Command, home: Path
) -> None:
    with closing(sqlite3.connect(home / "prefect" / "prefect.db")) as database:
        kept = database.execute("select name, message from log").fetchall()
    assert {"prefect.flow_runs", "prefect.task_runs", "sheepfold"} <= {name for name, _ in kept}
    quiet = [message for name, message in kept if name.startswith("prefect.")]
    assert [message for message in quiet if message in command.said] == []
    assert any("train: " in message for name, message in kept if name == "sheepfold")
    # samples begin like documents, of which Prefect's database gets no words; a pipe gets no information at all
    assert not any(" writes: " in message for _, message in kept) and " writes: " not in command.said


@pytest.mark.full
def test_a_run_ends_with_a_page_of_its_evaluation(first: dict[str, Any], home: Path) -> None:
    page = (home / "reports" / "default" / "evaluation.html").read_text(encoding="utf-8")
    assert f"{first['metrics']['val/bits_per_byte']:.4f}" in page
    assert {"memorised", "contamination"} <= {stage["stage"] for stage in first["stages"]}


@pytest.mark.full
def test_sql_reads_every_table(first: dict[str, Any], home: Path) -> None:
    views = ("files", "pages", "documents", "measures", "clusters", "quarantine", "tokens", "dataset", "completions")
    for view in (*views, "metrics"):
        assert sql(home, f"select count(*) as n from {view}")[0]["n"] > 0, view


@pytest.mark.full
def test_the_lineage_of_the_champion_ends_at_files(first: dict[str, Any], home: Path) -> None:
    tree = answer(home, "why", "models:/sheepfold@champion")
    stages = {entry["stage"] for entry in tree["made_from"]}
    ingestion = {"extract", "snapshot", "normalise", "measure", "dedup", "evaluation_sets", "curate", "refine"}
    assert ingestion | {"train", "dataset", "tokenise"} <= stages
    assert any(row["path"].startswith("text/") for row in tree["files"])


@pytest.mark.full
def test_a_dataset_is_found_by_the_digest_that_the_version_s_tags_name(first: dict[str, Any], home: Path) -> None:
    tags = answer(home, "why", "champion")["tags"]
    tree = answer(home, "why", tags["sheepfold.dataset"][:8])
    assert tree["artifact"].startswith("dataset/")
    assert [found["version"] for found in tree["models"]] == [first["model"]["version"]]


@pytest.mark.full
def test_the_lineage_of_a_document_names_its_pages_and_its_side(first: dict[str, Any], home: Path) -> None:
    path = sql(home, "select path from files where status = 'ok' order by path")[0]["path"]
    tree = answer(home, "why", path)
    assert tree["pages"][0]["pages"] >= 1
    assert tree["documents"][0]["split"] in ("train", "validation")


@pytest.mark.full
def test_a_file_without_a_document_is_told_with_the_reason_and_was_seen_by_no_model(
    first: dict[str, Any], home: Path
) -> None:
    row = sql(home, "select path, reason_code from files where status not in ('ok', 'duplicate') order by path")[0]
    tree = answer(home, "why", row["path"])
    assert tree["files"][0]["reason_code"] == row["reason_code"]
    assert tree["seen_by"] == []
    assert list(exposures(Store(home / "store"), [])) == []  # some files never got an id


@pytest.mark.full
def test_a_completion_is_traced_to_the_training_text_of_its_model(first: dict[str, Any], home: Path) -> None:
    row = pq.read_table(first["completions"]).to_pylist()[0]
    key = Path(first["completions"]).parent.name
    tree = answer(home, "why", f"{key}/{row['id']}")
    assert tree["completion"]["text"] == row["text"]
    assert tree["memorised"]["characters"] == len(row["text"])


@pytest.mark.full
def test_a_prompt_at_the_keyboard_commits_nothing(first: dict[str, Any], home: Path) -> None:
    before = sorted((home / "store").glob("*/*"))
    made = answer(home, "generate", "The import statement", "--max-new-tokens", "8", "--seed", "3")
    assert made["completions"] is None and made["page"] == ""
    assert sorted((home / "store").glob("*/*")) == before


@pytest.mark.full
@pytest.mark.prefect
@pytest.mark.usefixtures("prefect_server")
def test_a_model_is_measured_on_a_folder_of_texts_beside_the_frozen_set(
    first: dict[str, Any], home: Path, tmp_path: Path
) -> None:
    reports = home / "reports" / "default"
    frozen, view = (reports / "evaluation.html").read_text(), sql(home, "select * from metrics order by all")
    folder = tmp_path / "letters"
    folder.mkdir()
    for number in range(2):
        (folder / f"{number}.txt").write_text(f"Letter {number} is about the shepherd and the fold.\n" * 9)
    before = set(reports.iterdir())
    found = answer(home, "evaluate", "--on", str(folder))
    assert found["metrics"]["val/documents"] == 2
    assert found["notes"] == []
    (page,) = {path for path in set(reports.iterdir()) - before if path.suffix == ".html"}
    assert "2 documents of letters (" in page.read_text()
    assert (reports / "evaluation.html").read_text() == frozen
    assert sql(home, "select * from metrics order by all") == view


@pytest.mark.full
def test_status_names_the_champion_and_the_addresses(first: dict[str, Any], home: Path) -> None:
    status = answer(home, "status")
    assert status["champion"]["version"] == first["model"]["version"]
    assert status["mlflow_tracking_uri"] == f"sqlite:///{home / 'mlflow.db'}"
    assert Path(status["prefect_file"]).is_file()


@pytest.mark.full
def test_every_continuation_of_a_prompt_is_printed_also_where_settings_ask_for_several(
    first: dict[str, Any], home: Path
) -> None:
    asked = ["generate", "The import statement", "--max-new-tokens", "8", "--seed", "3"]
    texts = [row["text"] for row in answer(home, *asked, "--set", "generate.n_samples=2")["rows"]]
    shown = invoke(home, *asked, "--set", "generate.n_samples=2").stdout
    assert len(texts) == 2 and all(text in shown for text in texts)


@pytest.mark.full
def test_prompts_of_which_none_is_continued_end_in_an_error_also_for_machines(
    first: dict[str, Any], home: Path
) -> None:
    asked = ["generate", "word", "--max-new-tokens", "1000000", "--set", "generate.overflow=refuse"]
    for more in ([], ["--json"]):
        done = invoke(home, *asked, *more)
        assert done.exit_code == 1 and "no prompt could be continued" in done.stderr


@pytest.mark.full
@pytest.mark.prefect
@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize("name", ["evaluate", "promote"])
def test_the_view_of_metrics_follows_an_evaluation_of_the_latest_training(
    first: dict[str, Any], home: Path, name: str
) -> None:
    store = Store(home / "store")
    state = store.read_ref("corpus/default")
    assert state is not None
    store.write_ref("corpus/default", {stage: refs for stage, refs in state.items() if stage != "evaluate"})
    assert sql(home, "select * from metrics") == []
    answer(home, name)
    assert len(sql(home, "select * from metrics")) > 0


@pytest.mark.full
@pytest.mark.prefect
def test_a_folder_without_enough_text_is_refused_in_a_sentence(tmp_path: Path, prefect_server: str) -> None:
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "only.txt").write_text("one document alone")
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", "run", str(tmp_path / "documents"), *TRAINING],
        env={**environment(tmp_path / "home"), "PREFECT_API_URL": prefect_server},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "1 training and 0 validation document(s), and needs at least one of each" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"]])
def test_help_imports_no_heavy_library(arguments: list[str]) -> None:
    script = (
        "import sys, flows.cli\n"
        f"sys.argv = ['sheepfold', *{arguments!r}]\n"
        "try:\n    flows.cli.main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'prefect', 'mlflow', 'pandas', 'pyarrow', 'duckdb'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


@pytest.mark.full
def test_a_plan_imports_neither_torch_nor_prefect_nor_mlflow(
    first: dict[str, Any], home: Path, documents: Path
) -> None:
    script = (
        "import sys, flows.cli\n"
        f"sys.argv = ['sheepfold', 'plan', {str(documents)!r}, *{TRAINING!r}, '--json']\n"
        "try:\n    flows.cli.main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "heavy = {'torch', 'prefect', 'mlflow'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, env=environment(home))


@pytest.mark.full
def test_a_prompt_imports_at_most_sixty_files_of_the_project(first: dict[str, Any], home: Path) -> None:
    script = (
        "import sys, flows.cli\n"
        "sys.argv = ['sheepfold', 'generate', 'The', '--max-new-tokens', '2', '--json']\n"
        "try:\n    flows.cli.main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "own = [name for name in sys.modules if name.split('.')[0] in ('flows', 'tasks', 'model', 'storage')]\n"
        "assert len(own) <= 60, own\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, env=environment(home))
