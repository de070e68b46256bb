"""From a folder to a served champion, from outside: Prefect's command line, both servers' HTTP APIs and a browser.

Documents come, the watch tells it, a challenger is trained, gated and promoted; one that was trained for longer takes
its place; then the folder is filled with noise, and the gate holds.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
from team_box import Box, new_box, waited
from test_servers import free_port
from test_team_servers import told

from tests.browsing import headless_chromium

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]

SHORT = {"preset": "tiny", "max_steps": 20}
LONGER = {"preset": "tiny", "max_steps": 400}


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """A box that is up; nobody has put a document into its folder yet."""
    for made in new_box(tmp_path_factory.mktemp("team")):
        (made.folder / "documents").mkdir()
        made.run("up", "--prefect-port", str(free_port()), "--mlflow-port", str(free_port()))
        yield made


def variables(box: Box) -> dict[str, str]:
    """Return the variables of a shell in the activated environment after `. environment`."""
    found = box.run("status")
    return {
        **box.variables,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{box.variables['PATH']}",
        "PREFECT_API_URL": found["prefect_api_url"],
        "MLFLOW_TRACKING_URI": found["mlflow_tracking_uri"],
    }


def deployment_run(box: Box, name: str) -> None:
    """`prefect deployment run`, until the run has ended well."""
    command = [str(Path(sys.executable).with_name("prefect")), "deployment", "run", name, "--watch"]
    done = subprocess.run(command, env=variables(box), cwd=box.folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def settle_for(box: Box, **parameters: Any) -> None:
    """Change what the deployment trains, as a person does at its page."""
    found = box.ask("deployments/name/retrain/on-new-documents")
    address = f"{box.run('status')['prefect_api_url']}/deployments/{found['id']}"
    body = json.dumps({"parameters": {**found["parameters"], "settings": {}, **parameters}}).encode()
    urlopen(Request(address, body, {"Content-Type": "application/json"}, method="PATCH"), timeout=60).close()


def retrained(box: Box, count: int) -> None:
    """Wait until the arrivals have started so many runs, and the last one has ended well."""
    waited(lambda: len(told(box)) >= count, f"run {count} of retrain/on-new-documents")
    newest = max(told(box), key=lambda run: run["created"])
    box.wait(newest["id"], "Completed")


def registry(box: Box, call: str, **query: str) -> dict[str, Any]:
    """MLflow's HTTP API."""
    address = f"{box.run('status')['mlflow_tracking_uri']}/api/2.0/mlflow/{call}?{urlencode(query)}"
    with urlopen(address, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def version_of(box: Box, alias: str) -> dict[str, Any]:
    """The model version that a name stands for."""
    found: dict[str, Any] = registry(box, "registered-models/alias", name="sheepfold", alias=alias)["model_version"]
    return found


def tags_of(box: Box, version: str) -> dict[str, str]:
    found = registry(box, "model-versions/get", name="sheepfold", version=version)["model_version"]
    return {item["key"]: item["value"] for item in found["tags"]}


def served_answer(box: Box, prompt: str) -> list[Any]:
    """Return the response of `mlflow models serve` with the champion."""
    port = str(free_port())
    program = str(Path(sys.executable).with_name("mlflow"))
    command = [program, "models", "serve", "-m", "models:/sheepfold@champion", "--env-manager", "local", "-p", port]
    with (box.folder / "serve.log").open("wb") as log:
        server = subprocess.Popen(command, env=variables(box), cwd=box.folder, stdout=log, stderr=log)
    body = json.dumps({"inputs": [prompt], "params": {"max_new_tokens": 8, "temperature": 0.0}}).encode()
    ask = Request(f"http://127.0.0.1:{port}/invocations", body, {"Content-Type": "application/json"})
    try:

        def answer() -> list[Any] | None:
            assert server.poll() is None, (box.folder / "serve.log").read_text()[-3000:]
            try:
                with urlopen(ask, timeout=120) as answer:
                    found: list[Any] = json.load(answer)["predictions"]
                return found
            except URLError as error:
                assert isinstance(error.reason, ConnectionRefusedError), error
                return None

        return waited(answer, "the served model")
    finally:
        server.terminate()
        server.wait(60)


def generated(box: Box, prompt: str) -> str:
    """Return the completion of the command line with the champion."""
    found = box.run("generate", prompt, "--max-new-tokens", "8", "--temperature", "0")
    return str(found["rows"][0]["text"])


def test_documents_that_come_become_a_champion_with_a_page_of_its_own(box: Box, sample_folder: Path) -> None:
    settle_for(box, **SHORT)
    shutil.copytree(sample_folder / "text", box.folder / "documents" / "text")
    deployment_run(box, "ingest/watch")
    retrained(box, 1)
    assert version_of(box, "champion")["version"] == "1"
    assert tags_of(box, "1")["sheepfold.gates"] == "passed"
    with headless_chromium() as browser:
        page = browser.new_page()
        page.goto(f"{box.run('status')['mlflow_tracking_uri']}/#/models/sheepfold/versions/1")
        page.get_by_text("champion").first.wait_for()
        page.get_by_text("bits per byte").first.wait_for()  # of the card


def test_a_better_model_takes_its_place_and_is_served(box: Box, sample_folder: Path) -> None:
    settle_for(box, **LONGER)
    shutil.copytree(sample_folder / "code", box.folder / "documents" / "code")
    deployment_run(box, "ingest/watch")
    retrained(box, 2)
    assert version_of(box, "champion")["version"] == "2"
    assert version_of(box, "previous")["version"] == "1"
    assert served_answer(box, "The ") == [generated(box, "The ")]


def test_worse_data_train_a_model_that_the_gates_hold_back(box: Box) -> None:
    noise = random.Random(0)
    words = ["".join(noise.choices("bcdfghjklmnpqrstvwxz", k=noise.randint(2, 9))) for _ in range(4000)]
    shutil.rmtree(box.folder / "documents")
    (box.folder / "documents").mkdir()
    for number in range(60):
        text = "\n\n".join(" ".join(noise.choices(words, k=80)) + "." for _ in range(8))
        (box.folder / "documents" / f"{number}.txt").write_text(text)
    deployment_run(box, "ingest/watch")
    retrained(box, 3)
    assert version_of(box, "champion")["version"] == "2"
    assert version_of(box, "challenger")["version"] == "3"
    assert tags_of(box, "3")["sheepfold.gates"] != "passed"
    assert "bits" in tags_of(box, "3")["sheepfold.verdict"]
    with headless_chromium() as browser:
        page = browser.new_page()
        page.goto(f"{box.run('status')['mlflow_tracking_uri']}/#/models/sheepfold")
        for name in ("champion", "previous", "challenger"):
            page.get_by_text(name).first.wait_for()
