"""`prefect.yaml`: Prefect ignores keys it does not know, so a typing mistake would pass in silence. Not here."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.context import flow_settings
from flows.team.automations import HEARTBEAT_SECONDS
from flows.team.deployments import HEARTBEAT, read_deployments
from flows.team.services import GPU_POOL, POOL, RETRAIN_QUEUE
from storage.errors import UserError
from tasks.settings import load_settings, parse_assignments

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "flows" / "prefect.yaml"
CLUSTER = ROOT / "docs" / "cluster.md"
EXPECTED = {
    "ingest/watch",
    "retrain/weekly",
    "retrain/on-new-documents",
    "train/gpu",
    "evaluate/champion",
    "generate/batch",
    "cleanup/nightly",
}


def deployments() -> list[dict[str, Any]]:
    return list(yaml.safe_load(FILE.read_text())["deployments"])


def flow_of(deployment: dict[str, Any]) -> Any:
    module, _, name = deployment["entrypoint"].rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_the_file_in_the_root_is_the_file_in_the_wheel() -> None:
    assert (ROOT / "prefect.yaml").read_text() == FILE.read_text()


def test_the_promised_deployments_are_there() -> None:
    names = {f"{flow_of(deployment).name}/{deployment['name']}" for deployment in deployments()}
    assert names == EXPECTED


@pytest.mark.parametrize("deployment", deployments(), ids=lambda item: item["name"])
def test_every_key_is_one_that_prefect_reads(deployment: dict[str, Any]) -> None:
    from prefect.cli.deploy._models import DeploymentConfig, RawScheduleConfig, WorkPoolConfig

    assert set(deployment) <= set(DeploymentConfig.model_fields)
    assert set(deployment["work_pool"]) <= set(WorkPoolConfig.model_fields)
    for schedule in deployment.get("schedules", []):
        assert set(schedule) <= set(RawScheduleConfig.model_fields)


@pytest.mark.parametrize("deployment", deployments(), ids=lambda item: item["name"])
def test_every_parameter_is_one_of_the_flow_and_valid(deployment: dict[str, Any]) -> None:
    flow_of(deployment).validate_parameters(deployment["parameters"])
    assert set(deployment["parameters"]) <= set(flow_of(deployment).parameters.properties)


@pytest.mark.parametrize("deployment", deployments(), ids=lambda item: item["name"])
def test_every_parameter_of_the_flow_is_a_described_scalar(deployment: dict[str, Any]) -> None:
    for name, schema in flow_of(deployment).parameters.properties.items():
        assert schema["type"] in ("string", "integer", "number", "boolean"), name
        assert schema["description"], name


@pytest.mark.parametrize("deployment", deployments(), ids=lambda item: item["name"])
def test_every_trigger_is_one_that_prefect_reads(deployment: dict[str, Any]) -> None:
    from prefect.events import DeploymentEventTrigger

    for trigger in deployment.get("triggers", []):
        assert set(trigger) <= set(DeploymentEventTrigger.model_fields)
        DeploymentEventTrigger.model_validate({"name": deployment["name"], **trigger})
        assert set(trigger["parameters"]) <= set(flow_of(deployment).parameters.properties)


def test_trainings_for_the_gpu_have_a_pool_of_their_own() -> None:
    pools = {deployment["name"]: deployment["work_pool"]["name"] for deployment in deployments()}
    assert pools.pop("gpu") == GPU_POOL
    assert set(pools.values()) == {POOL}


def test_retrainings_and_nothing_else_wait_in_a_queue_of_their_own() -> None:
    queues = {deployment["name"]: deployment["work_pool"].get("work_queue_name") for deployment in deployments()}
    assert {name for name, queue in queues.items() if queue} == {"weekly", "on-new-documents"}
    assert queues["weekly"] == queues["on-new-documents"] == RETRAIN_QUEUE


def test_no_schedule_starts_by_itself() -> None:
    schedules = [schedule for deployment in deployments() for schedule in deployment.get("schedules", [])]
    assert schedules
    assert all(schedule["active"] is False and schedule["slug"] for schedule in schedules)


@pytest.mark.parametrize("budget", ["minutes", "max_steps", "max_tokens"])
@pytest.mark.parametrize("deployment", deployments(), ids=lambda item: item["name"])
def test_the_person_may_ask_for_another_budget_than_the_deployments(deployment: dict[str, Any], budget: str) -> None:
    if budget not in flow_of(deployment).parameters.properties:
        return
    given = {**deployment["parameters"], budget: 20}
    asked = {f"train__{name}": given.get(name, 0) for name in ("minutes", "max_steps", "max_tokens")}
    train = flow_settings("", given.get("overrides", ""), **asked).train
    assert train == load_settings(None, parse_assignments([f"train.{budget}=20"])).train


@pytest.mark.parametrize("deployment", deployments(), ids=lambda item: item["name"])
def test_every_run_says_that_it_lives_as_often_as_is_listened_for(deployment: dict[str, Any]) -> None:
    assert deployment["work_pool"]["job_variables"]["env"][HEARTBEAT] == str(HEARTBEAT_SECONDS)


def template_of(kind: str) -> dict[str, Any]:
    """The job variables that pools of a type know, as Prefect's server lists them without the type's own package."""
    import prefect.server.api

    listed = Path(prefect.server.api.__file__).parent / "collections_data" / "views" / "aggregate-worker-metadata.json"
    (found,) = (types[kind] for types in json.loads(listed.read_text()).values() if kind in types)
    variables: dict[str, Any] = found["default_base_job_configuration"]["variables"]["properties"]
    return variables


def test_the_job_variables_shown_for_docker_are_ones_that_its_pools_know() -> None:
    (shown,) = re.findall(r"^```yaml\n(.*?)^```$", CLUSTER.read_text(), re.MULTILINE | re.DOTALL)
    variables = yaml.safe_load(shown)["work_pool"]["job_variables"]
    known = template_of("docker")
    assert set(variables) <= set(known)
    assert variables["image_pull_policy"] in known["image_pull_policy"]["enum"]
    assert variables["env"][HEARTBEAT] == str(HEARTBEAT_SECONDS)


def test_the_job_variables_named_for_kubernetes_are_ones_that_its_pools_know() -> None:
    (listed,) = re.findall(r"For Kubernetes the variables are(.*?)\.", CLUSTER.read_text(), re.DOTALL)
    named = re.findall(r"`(\w+)`", listed)
    assert len(named) > 4 and set(named) <= set(template_of("kubernetes"))


def a_copy(folder: Path, *changes: tuple[str, str]) -> Path:
    text = FILE.read_text()
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    (folder / "copy.yaml").write_text(text)
    return folder / "copy.yaml"


def test_a_copy_carries_what_the_environment_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEEPFOLD_HOME", "/srv/sheepfold")
    found = read_deployments(a_copy(tmp_path))
    assert {item["work_pool"]["job_variables"]["env"]["SHEEPFOLD_HOME"] for item in found} == {"/srv/sheepfold"}
    triggers = [trigger for item in found for trigger in item.get("triggers", [])]
    assert triggers[0]["parameters"]["corpus"] == "{{ event.payload.corpus }}"  # for Prefect to fill in


def test_a_copy_with_variables_of_its_own_says_as_often_that_it_lives(tmp_path: Path) -> None:
    own = "name: sheepfold\ndeployments:\n- entrypoint: flows.train.train\n  name: gpu\n  work_pool:\n    name: gpus\n"
    for more in ("", "    job_variables:\n      env: {MLFLOW_TRACKING_URI: 'http://mlflow:5000'}\n"):
        (tmp_path / "copy.yaml").write_text(own + more)
        (found,) = read_deployments(tmp_path / "copy.yaml")
        assert found["work_pool"]["job_variables"]["env"][HEARTBEAT] == str(HEARTBEAT_SECONDS)


def test_a_variable_that_is_not_set_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHEEPFOLD_HOME", raising=False)
    with pytest.raises(UserError, match=r"copy\.yaml takes \$SHEEPFOLD_HOME from the environment, where it is not set"):
        read_deployments(a_copy(tmp_path))


def test_a_change_in_a_copy_is_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEEPFOLD_HOME", "/srv/sheepfold")
    before = {item["name"]: item["version"] for item in read_deployments(a_copy(tmp_path))}
    after = {
        item["name"]: item["version"] for item in read_deployments(a_copy(tmp_path, ("grace_days: 7", "grace_days: 8")))
    }
    assert {name for name in before if before[name] != after[name]} == {"nightly"}


@pytest.mark.parametrize(
    ("text", "said"),
    [("a: [", "is no YAML"), ("name: sheepfold", "has no list of `deployments`"), (None, "cannot be read")],
)
def test_a_file_that_is_no_list_of_deployments_is_named(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "copy.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=rf"copy\.yaml {said}"):
        read_deployments(path)
