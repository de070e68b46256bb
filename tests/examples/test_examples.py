"""The examples do what they say: a stage and a deployment of one's own, and the notebook, whose cells run as Python."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import pytest

from flows.options import IngestOptions

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
NOTEBOOK = json.loads((EXAMPLES / "documents_to_registry.ipynb").read_text(encoding="utf-8"))
CELLS = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
TEXT = "the shepherd counts the sheep at dusk and closes the fold before the rain comes over the hill tonight"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number, rest in enumerate(("once", "and once more", "and a last time")):
        (folder / f"{number}.txt").write_text(f"{TEXT} {rest}\n", encoding="utf-8")
    return folder


def line_of(result: dict[str, Any], stage: str) -> dict[str, Any]:
    return next(line for line in result["stages"] if line["stage"] == stage)


def test_a_stage_of_ones_own_counts_words_once_and_finds_them_afterwards(source: Path, tmp_path: Path) -> None:
    count_words = example("own_stage").count_words
    options = IngestOptions(source=str(source), home=str(tmp_path / "home"))
    first, second = count_words.function(options), count_words.function(options)  # without a server
    counted = duckdb.execute(
        "select n_words from read_parquet($files) order by 1", {"files": first["words"]}
    ).fetchall()
    assert counted == [(20,), (22,), (22,)]  # words of two letters or more
    assert (line_of(first, "own_word_counts")["computed"], line_of(second, "own_word_counts")["reused"]) == (3, 3)
    assert second["words"] == first["words"]


@pytest.mark.full
@pytest.mark.prefect
@pytest.mark.usefixtures("prefect_server")
def test_a_stage_of_ones_own_is_a_task_that_ends_as_cached_the_second_time(source: Path, tmp_path: Path) -> None:
    from prefect.client.orchestration import get_client

    count_words = example("own_stage").count_words
    options = IngestOptions(source=str(source), home=str(tmp_path / "home"))
    count_words(options)
    count_words(options)
    with get_client(sync_client=True) as client:
        for _ in range(200):  # the server writes states down a little later
            runs = [run for run in client.read_task_runs() if run.name.startswith("own_word_counts")]
            if len(runs) == 2 and all(run.state is not None and run.state.is_final() for run in runs):
                break
    assert sorted(run.state.name for run in runs if run.state) == ["Cached", "Completed"]


@pytest.mark.prefect
@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize(("share", "told"), [(0.0, []), (0.02, ["models:/sheepfold/3 is champion: better"])])
def test_a_flow_of_ones_own_trains_and_tells_only_if_enough_documents_changed(
    share: float, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = example("own_deployment")
    seen: list[str] = []
    model = {"name": "sheepfold", "version": "3", "alias": "champion", "reason": "better"}
    monkeypatch.setattr(own, "ingest", lambda options: seen.append(f"ingest {options.source}"))
    monkeypatch.setattr(own, "changed_share", lambda home, corpus: share)
    monkeypatch.setattr(own, "retrain", lambda options: {"model": model})
    monkeypatch.setattr(own, "notify", seen.append)
    own.nightly(source="texts")
    assert seen == ["ingest texts", *told]


@pytest.mark.full
@pytest.mark.prefect
@pytest.mark.usefixtures("prefect_server")
def test_a_flow_of_ones_own_ingests_trains_and_finds_nothing_new_the_second_time(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = example("own_deployment")
    told: list[str] = []
    monkeypatch.setattr(own, "notify", told.append)
    network = {"model.preset": "tiny", "model.n_layer": 1, "model.max_seq_len": 16, "generate.max_new_tokens": 4}
    asked = {"source": str(source), "home": str(tmp_path / "home"), "settings": {**network, "train.max_steps": 3}}
    own.nightly(**asked)
    own.nightly(**asked)
    assert [text.partition(":/")[0] for text in told] == ["models"]


def test_the_notebook_has_plain_cells_without_stored_output() -> None:
    for cell in CELLS:
        compile(cell, "cell", "exec")  # no magics
    assert not [cell for cell in NOTEBOOK["cells"] if cell.get("outputs") or cell.get("execution_count")]


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_cells_of_the_notebook_lead_from_documents_to_the_registry(tmp_path: Path) -> None:
    script = tmp_path / "notebook.py"
    script.write_text("\n".join(CELLS), encoding="utf-8")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    variables |= {"SHEEPFOLD_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "0 computed" in done.stdout.splitlines()
    assert "sheepfold 1 champion" in done.stdout.splitlines()
