"""`prefect.yaml`: Prefect ignores keys it does not know, so a typing mistake would pass in silence. Not here."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.options import RetrainOptions
from flows.team.programs import AUTOMATIONS_FILE, GPU_POOL, POOL, PREFECT_FILE, RETRAIN_QUEUE, register
from storage.errors import UserError
from tasks.core.settings import load_settings, parse_assignments

ROOT = Path(__file__).resolve().parents[2]
HEARTBEAT = "PREFECT_FLOWS_HEARTBEAT_FREQUENCY"
CLUSTER = ROOT / "docs" / "guides" / "cluster.md"
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
    return list(yaml.safe_load(PREFECT_FILE.read_text())["deployments"])


def flow_of(deployment: dict[str, Any]) -> Any:
    module, _, name = deployment["entrypoint"].rpartition(".")
    return getattr(importlib.import_module(module), name)


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


@pytest.mark.parametrize(
    "deployment", [item for item in deployments() if "triggers" in item], ids=lambda item: item["name"]
)
def test_every_trigger_is_one_that_prefect_reads(deployment: dict[str, Any]) -> None:
    from prefect.events import DeploymentEventTrigger

    for trigger in deployment["triggers"]:
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
@pytest.mark.parametrize(
    "deployment",
    [item for item in deployments() if "max_steps" in flow_of(item).parameters.properties],
    ids=lambda item: item["name"],
)
def test_the_person_may_ask_for_another_budget_than_the_deployments(deployment: dict[str, Any], budget: str) -> None:
    given = {**deployment["parameters"], budget: 20}
    asked = {name: value for name, value in given.items() if name in RetrainOptions.model_fields}
    train = RetrainOptions(**asked).load().train
    assert train == load_settings(None, parse_assignments([f"train.{budget}=20"])).train


@pytest.mark.parametrize("deployment", deployments(), ids=lambda item: item["name"])
def test_every_run_has_the_variables_that_all_runs_need(deployment: dict[str, Any]) -> None:
    variables = deployment["work_pool"]["job_variables"]["env"]
    assert float(variables[HEARTBEAT]) * 3 <= silent_seconds()
    assert variables["PREFECT_CLIENT_MAX_RETRIES"] == "7"
    assert variables["PREFECT_CLIENT_RETRY_EXTRA_CODES"] == "500"
    assert variables["PREFECT_LOGGING_EXTRA_LOGGERS"] == "sheepfold"
    assert variables["SHEEPFOLD_HOME"] == "{{ $SHEEPFOLD_HOME }}"


def automations() -> list[dict[str, Any]]:
    return list(yaml.safe_load(AUTOMATIONS_FILE.read_text())["automations"])


def silent_seconds() -> float:
    return float(automations()[0]["trigger"]["within"])


def test_every_automation_is_one_that_prefect_reads_and_watches_runs_of_the_deployments() -> None:
    from prefect.events.schemas.automations import AutomationCore

    for item in automations():
        assert set(item) <= set(AutomationCore.model_fields)
        made = AutomationCore.model_validate(item)
        assert set(item["trigger"]) <= set(type(made.trigger).model_fields)
        assert made.trigger.match_related.root["prefect.resource.id"] == "prefect.tag.sheepfold"


def test_one_watch_runs_at_a_time_and_the_next_is_cancelled() -> None:
    (watch,) = (deployment for deployment in deployments() if deployment["name"] == "watch")
    assert watch["concurrency_limit"] == {"limit": 1, "collision_strategy": "CANCEL_NEW"}


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
    assert float(variables["env"][HEARTBEAT]) * 3 <= silent_seconds()


def test_the_job_variables_named_for_kubernetes_are_ones_that_its_pools_know() -> None:
    (listed,) = re.findall(r"### Kubernetes\n\n- Job variables:(.*?)\.", CLUSTER.read_text(), re.DOTALL)
    named = re.findall(r"`(\w+)`", listed)
    assert len(named) > 4 and set(named) <= set(template_of("kubernetes"))


def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text()))


def test_the_compose_file_starts_every_server_after_what_it_needs() -> None:
    services = compose()["services"]
    assert set(services) == {"postgres", "prefect", "mlflow", "deploy", "worker", "gpu-worker", "serve"}
    for service in services.values():
        assert {"image", "build"} & set(service)
        for name, condition in service.get("depends_on", {}).items():
            assert condition == {"condition": "service_healthy"}
            assert "healthcheck" in services[name]
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            assert source in compose()["volumes"] or source.startswith("${DOCUMENTS")


def test_the_compose_file_publishes_on_loopback_and_holds_no_password() -> None:
    services = compose()["services"]
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)
    for service in services.values():
        for name, value in service.get("environment", {}).items():
            assert "PASSWORD" not in name or value.startswith("${")
            assert "@" not in value or "${POSTGRES_PASSWORD}@" in value


def test_the_compose_file_has_pinned_images() -> None:
    images = {service["image"] for service in compose()["services"].values()}
    assert all(re.fullmatch(r"\w+:\d+\.\d+(\.\d+)?", image) for image in images)


def test_deployments_are_not_registered_without_the_variables_that_their_file_reads() -> None:
    with pytest.raises(UserError, match="reads SHEEPFOLD_PROMPTS, which is not set: export it"):
        register(PREFECT_FILE, {"SHEEPFOLD_HOME": "/home", "SHEEPFOLD_SOURCE": "/documents"})
