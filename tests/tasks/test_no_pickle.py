"""No pickle is ever read: a process that cannot read any goes from files to a served model, and leaves none behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

UNREADABLE = """
import sys

def refuse(*arguments, **options):
    raise SystemExit("a pickle was about to be read")

import _pickle, pickle

class Refused(_pickle.Unpickler):
    load = refuse

for module in (_pickle, pickle):
    module.load = module.loads = refuse
    module.Unpickler = Refused
pickle._load = pickle._loads = pickle._Unpickler.load = refuse

def heard(event, arguments):  # whoever got hold of a reader before, or has one of its own
    if event == "pickle.find_class":
        refuse()

sys.addaudithook(heard)
import torch
torch.load = torch.serialization.load = refuse
"""

EVERYTHING = """
import json
from pathlib import Path

sys.path[:0] = [sys.argv[1], sys.argv[2]]
import mlflow
import numpy
from tiny_run import copy_of_store, direct_run, home_at, run_whole, train_in, tiny_settings

from flows.promote import promote_model
from flows.stages import stage_facts
from tasks.upkeep.verify import verify_home
from storage.store import open_store
from storage.catalog import Catalog
from tasks.core.progress import StageProgress

home, source = home_at(Path(sys.argv[3])), Path(sys.argv[4])

class Killed(BaseException):
    pass

shown = StageProgress.update
def update(self, done, total, note=""):
    shown(self, done, total, note)
    if self.name == "train" and done == 9:
        raise Killed

StageProgress.update = update
try:
    with direct_run(home) as run:
        train_in(run, source, tiny_settings("execution.checkpoint_minutes=0"))
except Killed:
    pass
StageProgress.update = shown
ran = run_whole(home, source)  # from a checkpoint to completions
with direct_run(home) as run:
    resumed = run.store.find("train", ran.checkpoint.key).counts["resumed_from"]
    promoted, run_id = promote_model(run, ran.checkpoint, ran.evaluation)
    catalog = Catalog(run.store, "default")
    views = [row["name"] for row in catalog.query("select view_name as name from duckdb_views() where not internal")]
    rows = {name: catalog.query(f"select count(*) as n from {name}")[0]["n"] for name in views}
served = mlflow.pyfunc.load_model("models:/sheepfold@champion")
texts = list(served.predict(["the shepherd"], params={"max_new_tokens": 4}))
print(json.dumps({
    "resumed": resumed, "verified": verify_home(home, open_store(home.store), stage_facts(), "default")["ok"],
    "alias": promoted.alias, "rows": rows, "texts": texts, "metrics": ran.metrics,
}))
"""


def _run(script: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "PREFECT_"))}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=kept, check=False)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("unpickled") / "home"


@pytest.fixture(scope="module")
def told(home: Path, tiny_source: Path) -> Any:
    """Return the output of a process in which unpickling raises, over a whole run."""
    here = Path(__file__).resolve()
    done = _run(UNREADABLE + EVERYTHING, here.parent, here.parents[2], home, tiny_source)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


TRIED = """
import io
for read in (lambda: pickle.loads(b"N."), lambda: torch.load("x"), pickle.Unpickler(io.BytesIO(b"N.")).load,
             pickle._Unpickler(io.BytesIO(b"N.")).load):
    try:
        read()
    except SystemExit as refused:
        print(refused)
"""


def test_such_a_process_reads_none() -> None:
    done = _run(UNREADABLE + TRIED)
    assert done.stdout.splitlines() == ["a pickle was about to be read"] * 4, done.stderr


def test_artefacts_and_tables_are_read_without(told: Any) -> None:
    assert told["verified"]
    assert {"files", "documents", "tokens", "dataset", "metrics", "completions"} <= told["rows"].keys()
    assert told["rows"]["completions"] > 0


def test_a_training_goes_on_from_its_checkpoint_without(told: Any) -> None:
    assert told["resumed"] > 0


def test_a_model_is_measured_registered_and_served_without(told: Any) -> None:
    assert told["metrics"]["val/loss"] > 0
    assert told["alias"] == "champion"
    (text,) = told["texts"]
    assert text.strip()


def test_none_lies_in_the_home(home: Path, told: Any) -> None:
    """Under any name: a pickle begins with its protocol, and PyTorch's are archives with one inside."""
    kinds = {path: path.read_bytes()[:2] for path in home.rglob("*") if path.is_file()}
    begins = [path for path, start in kinds.items() if start[:1] == b"\x80" and start[1:] in b"\x02\x03\x04\x05"]
    archives = [path for path, start in kinds.items() if start == b"PK"]
    assert begins == archives == []
    assert len(kinds) > 50
