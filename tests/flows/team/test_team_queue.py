"""Deployments on a server that knows them: what Prefect hands out to a worker, and what stays as a person made it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flows.team.api import NoAnswer
from flows.team.deployments import team_deployments
from flows.team.prefect_server import PrefectServer
from flows.team.register import register
from flows.team.services import POOL, RETRAIN_QUEUE
from flows.team.settings import TeamSettings
from storage.home import Home

pytestmark = pytest.mark.prefect
TRIGGER = "sheepfold: on-new-documents"


@pytest.fixture(scope="module")
def api(prefect_server: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Address of a server that was told of the deployments."""
    asyncio.run(register(meant(tmp_path_factory)))
    return prefect_server


def meant(folders: pytest.TempPathFactory, source: str = "/documents") -> list[dict[str, Any]]:
    """The deployments of a team's home."""
    return team_deployments(Home.from_environment(folders.getbasetemp() / "team"), TeamSettings(source=source))


def ask(url: str, body: Any = None, method: str = "") -> Any:
    """Prefect's API, with patience: a server whose database is busy is asked again."""
    address, _, path = url.partition("/api/")
    return PrefectServer(f"{address}/api", seconds=60.0).ask(path, body, method)


def start(api: str, deployment: str) -> str:
    found = ask(f"{api}/deployments/name/{deployment}")
    return str(ask(f"{api}/deployments/{found['id']}/create_flow_run", {"state": {"type": "SCHEDULED"}})["id"])


def handed_out(api: str) -> list[str]:
    """Runs that a worker of the pool is told to begin."""
    return [item["flow_run"]["id"] for item in ask(f"{api}/work_pools/{POOL}/get_scheduled_flow_runs", {})]


def put(api: str, run: str, state: str) -> None:
    ask(f"{api}/flow_runs/{run}/set_state", {"state": {"type": state}, "force": True})


def test_a_second_retraining_begins_when_the_first_has_ended_and_others_do_not_wait(api: str) -> None:
    first, second = start(api, "retrain/weekly"), start(api, "retrain/on-new-documents")
    watch = start(api, "ingest/watch")
    assert set(handed_out(api)) == {first, watch}
    put(api, first, "PENDING")
    put(api, first, "RUNNING")
    assert handed_out(api) == [watch]
    put(api, first, "CRASHED")
    assert set(handed_out(api)) == {second, watch}


def test_the_form_of_a_retraining_has_the_model_to_continue_from(api: str) -> None:
    for name in ("weekly", "on-new-documents"):
        found: dict[str, Any] = ask(f"{api}/deployments/name/retrain/{name}")
        assert found["parameters"]["base"] == ""
        field = found["parameter_openapi_schema"]["properties"]["base"]
        assert (field["type"], field["default"]) == ("string", "")
        assert "continue" in field["description"]


def test_a_shape_that_is_none_is_refused_before_a_run_is_made(api: str) -> None:
    deployment = ask(f"{api}/deployments/name/retrain/weekly")
    runs = {"deployments": {"id": {"any_": [deployment["id"]]}}}
    before = len(ask(f"{api}/flow_runs/filter", runs))
    with pytest.raises(NoAnswer, match="409"):
        ask(f"{api}/deployments/{deployment['id']}/create_flow_run", {"parameters": {"preset": "smal"}})
    assert len(ask(f"{api}/flow_runs/filter", runs)) == before
    ask(f"{api}/deployments/{deployment['id']}/create_flow_run", {"parameters": {"preset": "modern-1m"}})


def test_a_limit_that_a_person_changed_stays(api: str) -> None:
    queue = f"{api}/work_pools/{POOL}/queues/{RETRAIN_QUEUE}"
    assert ask(queue)["concurrency_limit"] == 1
    ask(queue, {"concurrency_limit": 2}, "PATCH")
    asyncio.run(register([]))
    assert ask(queue)["concurrency_limit"] == 2


def trigger(api: str) -> dict[str, Any]:
    """What starts a retraining when documents came; `next` fails where nothing does."""
    return dict(next(item for item in ask(f"{api}/automations/filter", {}) if item["name"] == TRIGGER))


def test_a_trigger_that_is_missing_is_made_though_its_deployment_is_there(
    api: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    wanted = meant(tmp_path_factory)
    assert PrefectServer(api).has(wanted)
    ask(f"{api}/automations/{trigger(api)['id']}", method="DELETE")
    assert not PrefectServer(api).has(wanted)
    assert asyncio.run(register(wanted))["deployments"] == ["on-new-documents"]
    assert trigger(api)["enabled"]
    assert PrefectServer(api).has(wanted)


def test_a_trigger_that_a_person_switched_off_stays_off_when_its_deployment_is_made_anew(
    api: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ask(f"{api}/automations/{trigger(api)['id']}", {"enabled": False}, "PATCH")
    made = asyncio.run(register(meant(tmp_path_factory, source="/elsewhere")))
    assert "on-new-documents" in made["deployments"]
    assert not trigger(api)["enabled"]


def test_a_parameter_that_a_person_set_on_the_page_stays_when_its_deployment_is_made_anew(
    api: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before, after = meant(tmp_path_factory, source="/before"), meant(tmp_path_factory, source="/after")
    asyncio.run(register(before))
    found = ask(f"{api}/deployments/name/retrain/on-new-documents")
    by_hand = {**found["parameters"], "overrides": "train.minutes=60", "preset": "modern-1m", "dropped": 1}
    ask(f"{api}/deployments/{found['id']}", {"parameters": by_hand, "enforce_parameter_schema": False}, "PATCH")
    asyncio.run(register(after, before))
    parameters = ask(f"{api}/deployments/name/retrain/on-new-documents")["parameters"]
    assert parameters == {"source": "/after", "base": "", "overrides": "train.minutes=60", "preset": "modern-1m"}
