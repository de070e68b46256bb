"""The registered model on its own: loaded by MLflow where nothing of Sheepfold can be imported."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tiny_run import Ran, copy_of_store, direct_run

from flows.promote import promote_model
from storage.home import Home
from tasks.core.settings import GenerateSettings
from tasks.registry.promote import served_parameters

pytestmark = pytest.mark.full

ASK = """
import json, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("flows", "tasks", "model", "storage"):
            raise ModuleNotFoundError(f"{name} is not to be had here")

sys.meta_path.insert(0, Blocker())
import mlflow, pandas, warnings
warnings.simplefilter("ignore")
uri, edited = sys.argv[1:]
mlflow.set_tracking_uri(uri)
mlflow.set_registry_uri(uri)
served = mlflow.pyfunc.load_model("models:/sheepfold@champion")
prompts = ["The sheep", "the stone wa", "a dog watches the ga", "rain comes o", "every lamb finds it", "the old s"]
greedy = {"temperature": 0.0, "max_new_tokens": 20}
other = mlflow.pyfunc.load_model(edited)
BAD = {
    "top_p": {"top_p": 1.5}, "n_samples": {"n_samples": 0}, "overflow": {"overflow": "wrap"},
    "temperature": {"temperature": "hot"}, "logit_bias": {"logit_bias": "5=1"}, "suppress": {"suppress": [99999]},
    "temperature of beams": {"strategy": "beam", "temperature": 0.5},
}

def refused(params):
    try:
        served.predict(["x"], params=params)
    except mlflow.exceptions.MlflowException as error:
        return [error.error_code, error.message]

written = other.predict(["The sheep"], params=greedy)[0]
answers = {
    "alone": served.predict(["The sheep"], params={"max_new_tokens": 20}),
    "twenty": served.predict(prompts, params={"max_new_tokens": 20}),
    "twenty_again": served.predict(prompts, params={"max_new_tokens": 20}),
    "one": served.predict(prompts, params={"max_new_tokens": 1}),
    "default": served.predict(prompts),
    "seeds": [served.predict(prompts, params={"seed": seed}) for seed in range(3)],
    "greedy": [served.predict(["The sheep"], params={**greedy, "seed": seed})[0] for seed in (1, 2)],
    "list": served.predict(["The sheep", "", "a dog"], params=greedy),
    "frame": served.predict(pandas.DataFrame({"prompt": ["The sheep", "", "a dog"]}), params=greedy),
    "top_k": served.predict(["The sheep"], params={"top_k": 1, "max_new_tokens": 20}),
    "edited": other.predict(["The sheep"], params=greedy),
    "after": served.predict(["The sheep"], params=greedy),
    "stream": list(served.predict_stream("The sheep", params={"max_new_tokens": 20})),
    "text": served.predict("The sheep", params={"max_new_tokens": 20}),
    "samples": served.predict(["The sheep", "a dog"], params={"n_samples": 3, "temperature": 2.0, "details": True}),
    "stopped": served.predict(["The sheep"], params={**greedy, "stop": [written[8:10]]}),
    "biased": served.predict(["The sheep"], params={**greedy, "logit_bias": '{"5": 1000}'}),
    "beams": served.predict(
        ["The sheep"],
        params={"strategy": "beam", "n_beams": 3, "n_samples": 2, "max_new_tokens": 20, "details": True},
    ),
    "one_beam": served.predict(["The sheep"], params={"strategy": "beam", "n_beams": 1, "max_new_tokens": 20}),
    "no_contrast": list(served.predict_stream(
        "The sheep", params={"strategy": "contrastive", "alpha": 0.0, "max_new_tokens": 20, "echo": True}
    )),
    "echo": served.predict(["The sheep", "a dog"], params={"temperature": 0.0, "max_length": 12, "echo": True}),
    "refused": {name: refused(params) for name, params in BAD.items()},
    "imported": sorted(n for n in sys.modules if n.partition(".")[0] in ("flows", "tasks", "model", "storage")),
    "packages": sorted(n for n in sys.modules if n.startswith("sheepfold_code_") and "." not in n),
}
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def served_home(tiny: Ran, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with the tiny model as champion."""
    home = copy_of_store(tiny, tmp_path_factory.mktemp("serving") / "home")
    assert tiny.checkpoint is not None
    with direct_run(home) as run:
        promote_model(run, tiny.checkpoint, tiny.evaluation)
    return home


@pytest.fixture(scope="module")
def model_folder(served_home: Home) -> Path:
    """The logged model as MLflow keeps it."""
    found = list(served_home.mlflow_artifacts.rglob("MLmodel"))
    assert len(found) == 1
    return found[0].parent


@pytest.fixture(scope="module")
def answers(served_home: Home, model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the answers of the model and of a second one with other code, in one process outside of the project."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    edited = shutil.copytree(model_folder, elsewhere / "edited")
    code = edited / "artifacts" / "bundle" / "code" / "tasks" / "tokens" / "tokenizer_kinds.py"
    text = code.read_text()
    assert '        return "".join(self._entries' in text
    code.write_text(
        text.replace('        return "".join(self._entries', '        return "EDITED" + "".join(self._entries')
    )
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    done = subprocess.run(
        [sys.executable, "-I", "-c", ASK, served_home.tracking_uri, str(edited)],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_prompt_gets_one_text(answers: dict[str, Any]) -> None:
    assert [type(text) for text in answers["alone"]] == [str]
    assert len(answers["alone"][0]) <= 20


def test_nothing_of_sheepfold_is_imported(answers: dict[str, Any]) -> None:
    assert answers["imported"] == []


def test_the_number_of_new_tokens_is_obeyed(answers: dict[str, Any]) -> None:
    """Characters are tokens here; a text may end before its limit, but not all of them do."""
    for name, limit in (("one", 1), ("twenty", 20), ("default", 64)):
        assert max(len(text) for text in answers[name]) <= limit
    assert sum(map(len, answers["one"])) < sum(map(len, answers["twenty"])) < sum(map(len, answers["default"]))
    assert all(long.startswith(short) for short, long in zip(answers["one"], answers["twenty"], strict=True))


def test_the_same_request_gets_the_same_text(answers: dict[str, Any]) -> None:
    assert answers["twenty"] == answers["twenty_again"]


def test_seeds_draw_different_texts(answers: dict[str, Any]) -> None:
    first, second, third = answers["seeds"]
    assert first != second != third != first


def test_temperature_zero_draws_nothing(answers: dict[str, Any]) -> None:
    assert answers["greedy"][0] == answers["greedy"][1]


def test_the_likeliest_token_alone_is_greedy(answers: dict[str, Any]) -> None:
    assert answers["top_k"][0] == answers["greedy"][0]


def test_a_table_is_answered_like_a_list(answers: dict[str, Any]) -> None:
    assert answers["frame"] == answers["list"]
    assert len(answers["list"]) == 3


def test_a_stream_is_the_text_in_pieces(answers: dict[str, Any]) -> None:
    assert len(answers["stream"]) > 5
    assert "".join(answers["stream"]) == answers["alone"][0]
    assert answers["text"] == answers["alone"]


def test_several_samples_come_with_their_details(answers: dict[str, Any]) -> None:
    found = answers["samples"]
    assert [item["sample"] for item in found] == [0, 1, 2] * 2
    assert all(len(item["logprobs"]) == len(item["ids"]) == item["n_tokens"] for item in found)
    assert len({item["text"] for item in found}) > 3


def test_a_stop_string_and_a_bias_are_obeyed(answers: dict[str, Any]) -> None:
    stop = answers["edited"][0][8:10]
    assert answers["stopped"][0] == answers["greedy"][0].partition(stop)[0] != answers["greedy"][0]
    assert len(set(answers["biased"][0])) == 1


def test_a_request_may_ask_for_beam_and_contrastive_search(answers: dict[str, Any]) -> None:
    assert answers["one_beam"][0] == answers["greedy"][0]
    assert "".join(answers["no_contrast"]) == "The sheep" + answers["greedy"][0]
    assert len({tuple(item["ids"]) for item in answers["beams"]}) == 2
    assert all(len(item["logprobs"]) == len(item["ids"]) for item in answers["beams"])


def test_a_text_may_begin_with_its_prompt_and_be_bounded_with_it(answers: dict[str, Any]) -> None:
    """A character is a token; the model's first token begins the text."""
    assert [text[:5] for text in answers["echo"]] == ["The s", "a dog"]
    assert [len(text) for text in answers["echo"]] == [11, 11]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("top_p", "top_p=1.5; expected"),
        ("n_samples", "n_samples=0; expected"),
        ("overflow", "overflow='wrap'; expected"),
        ("temperature", "temperature"),
        ("temperature of beams", "temperature=0.5 has no effect: strategy='beam' does not use it"),
        ("logit_bias", "logit_bias is '5=1', expected a JSON object of token ids and numbers"),
        ("suppress", "the settings name token 99999; the model's tokens are 0 to"),
    ],
)
def test_a_bad_parameter_is_refused_by_its_name(answers: dict[str, Any], name: str, message: str) -> None:
    code, said = answers["refused"][name]
    assert code == "INVALID_PARAMETER_VALUE"
    assert message in said


def test_a_request_may_set_all_that_a_generation_has(tiny: Ran) -> None:
    sampling = json.loads(json.dumps(GenerateSettings().sampling()))
    offered = {name: default for name, (_, default) in served_parameters({}).items() if name not in ("details", "echo")}
    assert offered == {**sampling, "logit_bias": ""}


def test_what_a_model_records_of_its_sampling_is_the_default_of_a_request() -> None:
    offered, usual = (served_parameters(recorded) for recorded in ({"temperature": 1.0, "top_p": 1.0}, {}))
    assert {name: offered[name][1] for name in offered if offered[name] != usual[name]} == {
        "temperature": 1.0,
        "top_p": 1.0,
    }


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_server_of_mlflow_answers_over_http(served_home: Home, answers: dict[str, Any], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        "MLFLOW_TRACKING_URI": served_home.tracking_uri,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    command = [str(Path(sys.executable).parent / "mlflow"), "models", "serve", "-m", "models:/sheepfold@champion"]
    command += ["--env-manager", "local", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            command, env=environment, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True
        )
    try:
        while not responds(f"http://127.0.0.1:{port}/ping"):
            assert server.poll() is None, (tmp_path / "log").read_text()
        greedy = {"temperature": 0.0, "max_new_tokens": 20}
        status, found = asked(port, {"inputs": ["The sheep", "", "a dog"], "params": greedy})
        assert (status, found) == (200, {"predictions": answers["list"]})
        frame = {"columns": ["prompt"], "data": [["The sheep"], [""], ["a dog"]]}
        assert asked(port, {"dataframe_split": frame, "params": greedy}) == (200, {"predictions": answers["list"]})
        status, found = asked(port, {"inputs": ["The sheep"], "params": {"top_p": 1.5}})
        assert status == 400
        assert "top_p=1.5; expected" in found["message"]
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


def responds(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def asked(port: int, request: dict[str, Any]) -> tuple[int, Any]:
    """Status and answer of a request to the server."""
    sent = urllib.request.Request(
        f"http://127.0.0.1:{port}/invocations", json.dumps(request).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(sent, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_two_versions_with_other_code_live_in_one_process(answers: dict[str, Any]) -> None:
    assert answers["edited"] == ["EDITED" + answers["greedy"][0]]
    assert answers["after"] == [answers["greedy"][0]]
    assert len(answers["packages"]) == 2


def test_served_text_is_that_of_the_bundle_in_the_store(answers: dict[str, Any], tiny: Ran) -> None:
    from tasks.training.bundle import Bundle

    assert tiny.checkpoint is not None
    bundle = Bundle(tiny.folder(tiny.checkpoint))
    found = bundle.complete(["The sheep", "", "a dog"], max_new_tokens=20, temperature=0.0, top_p=0.95)
    assert [item.text for item in found] == answers["list"]


def test_the_logged_model_holds_no_pickle(model_folder: Path) -> None:
    names = [path.name for path in model_folder.rglob("*") if path.is_file()]
    assert not [name for name in names if name.endswith((".pkl", ".pickle", ".pt", ".pth", ".bin", ".joblib"))]
    for path in model_folder.rglob("*"):
        assert not path.is_file() or not path.read_bytes().startswith(b"\x80\x04")
    assert "python_model: null" not in (model_folder / "MLmodel").read_text()


def test_a_version_that_outlived_its_store_is_taken_in_again(served_home: Home, tiny: Ran, tmp_path: Path) -> None:
    from tasks.evaluation.evaluate import EvaluateSettings, evaluate
    from tasks.evaluation.tables import read_metrics
    from tasks.registry.models import checkpoint_of

    empty = Home(tmp_path, str(tmp_path / "store"), served_home.tracking_uri).create()
    evalset = tiny.prepared.evalset
    shutil.copytree(Path(served_home.store) / "evalset", tmp_path / "store" / "evalset")
    with direct_run(empty) as run:
        checkpoint = checkpoint_of(run, "champion")
        assert checkpoint.stage == "bundle"
        found = evaluate(run, EvaluateSettings(), checkpoint=checkpoint, evalset=evalset)
        known = {name: value for name, value in (tiny.metrics or {}).items() if "ngram" not in name}  # its text is gone
        assert read_metrics(run.store, found) == pytest.approx(known, rel=1e-6)
