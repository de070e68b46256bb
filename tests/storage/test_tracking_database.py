"""MLflow's database in a home: made whole or not at all, whoever is killed and whoever comes at the same time."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from storage.home import Home
from storage.tracking import EXPERIMENT, Tracking

MAKE = """
import sys
from pathlib import Path
from storage.home import Home
from storage.tracking import Tracking
folder = Path(sys.argv[1])
Tracking(Home(folder, str(folder / "store"), f"sqlite:///{folder / 'mlflow.db'}"))
"""

DATABASE = """
import sys
from storage.tracking import create_database
create_database(f"sqlite:///{sys.argv[1]}/mlflow.db")
"""


def start(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", MAKE, str(folder)])


@pytest.mark.full
def test_a_kill_while_the_tables_are_made_leaves_a_home_that_works(tmp_path: Path) -> None:
    process = start(tmp_path)
    deadline = time.monotonic() + 120
    while not any(path.stat().st_size > 100_000 for path in tmp_path.glob(".mlflow.db.unfinished-????????")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert not (tmp_path / "mlflow.db").exists()
    tracking = Tracking(Home(tmp_path, str(tmp_path / "store"), f"sqlite:///{tmp_path / 'mlflow.db'}"))
    assert tracking.client.get_experiment_by_name(EXPERIMENT) is not None
    assert [path.name for path in tmp_path.glob("*mlflow.db*")] == ["mlflow.db"]


@pytest.mark.full
@pytest.mark.parametrize("made", [MAKE, DATABASE], ids=["tracking", "database"])
def test_making_the_database_prints_nothing_and_sends_no_telemetry(tmp_path: Path, made: str) -> None:
    known = "\nfrom mlflow.telemetry import get_telemetry_client\nprint(get_telemetry_client())"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    command = [sys.executable, "-c", made + known, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("None\n", "")


@pytest.mark.full
def test_two_that_begin_at_once_make_one_database(tmp_path: Path) -> None:
    assert [process.wait() for process in [start(tmp_path), start(tmp_path)]] == [0, 0]
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        names = [name for (name,) in database.execute("select name from experiments")]
    assert names.count(EXPERIMENT) == 1


def test_a_server_that_is_away_is_told_in_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound and never listening: whoever asks is refused, and nobody else gets it
        address = f"http://127.0.0.1:{held.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", "rebuild-tracking", "--home", str(tmp_path)],
            env={**os.environ, "MLFLOW_TRACKING_URI": address, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"sheepfold: MLflow does not respond at {address} (")
    assert line.endswith("and run the same command again; finished stages are kept")
