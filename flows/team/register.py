"""Tell Prefect about pools, queues, deployments and automations; done again, it changes nothing.

    python -m flows.team.register FILE      FILE is `prefect.yaml` or a copy; PREFECT_API_URL says which server

`sheepfold up` calls it for its own server, people for theirs. A process of its own, because Prefect reads its addresses
when it is imported. A pool that is there is used, of whatever type it is. What is there with the same version is
left alone; a schedule or a trigger that a person switched on or off stays so when its deployment is made anew, and a
queue's limit stays what a person made it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.embedded import configured_api_url
from flows.team.automations import automations
from flows.team.deployments import full_name, read_deployments, trigger_names
from flows.team.services import GPU_POOL, POOL, RETRAIN_QUEUE
from storage.errors import UserError

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.events.schemas.automations import AutomationCore


async def register(deployments: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Make what is missing or of another version.

    Returns:
        What was made, by kind.
    """
    from prefect.client.orchestration import get_client

    async with get_client() as client:
        return {
            "pools": [name for name in (POOL, GPU_POOL) if await _make_pool(client, name)],
            "queues": [RETRAIN_QUEUE] if await _make_queue(client, POOL, RETRAIN_QUEUE, 1) else [],
            "deployments": [item["name"] for item in deployments if await _deploy(client, item)],
            "automations": [item.name for item in automations() if await _make_automation(client, item)],
        }


async def _make_pool(client: PrefectClient, name: str) -> bool:
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectNotFound
    from prefect.workers.process import ProcessWorker

    try:
        await client.read_work_pool(name)
    except ObjectNotFound:
        template = ProcessWorker.get_default_base_job_template()
        await client.create_work_pool(WorkPoolCreate(name=name, type="process", base_job_template=template))
        return True
    return False


async def _make_queue(client: PrefectClient, pool: str, name: str, limit: int) -> bool:
    """A queue whose runs that were handed out and have not ended are at most so many; the others wait."""
    from prefect.exceptions import ObjectNotFound

    try:
        await client.read_work_queue_by_name(name, work_pool_name=pool)
    except ObjectNotFound:
        await client.create_work_queue(name, work_pool_name=pool, concurrency_limit=limit)
        return True
    return False


async def _deploy(client: PrefectClient, item: dict[str, Any]) -> bool:
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.schedules import CronSchedule
    from prefect.deployments.runner import RunnerDeployment
    from prefect.exceptions import ObjectNotFound

    from flows.team.workplace import Workplace

    # Prefect makes them last and each for itself: a deployment of this version may lack its own
    enabled = {
        automation.name: automation.enabled
        for name in trigger_names(item)
        for automation in await client.read_automations_by_name(name)
    }
    active: dict[str | None, bool] = {}
    try:
        known = await client.read_deployment_by_name(full_name(item))
        if known.version == item["version"] and set(trigger_names(item)) <= set(enabled):
            return False
        active = {schedule.slug: schedule.active for schedule in known.schedules}
    except ObjectNotFound:
        pass
    schedules = [
        DeploymentScheduleCreate(
            schedule=CronSchedule(cron=schedule["cron"], timezone=schedule["timezone"]),
            slug=schedule["slug"],
            active=active.get(schedule["slug"], schedule["active"]),
        )
        for schedule in item.get("schedules", [])
    ]
    made = RunnerDeployment.from_entrypoint(
        item["entrypoint"],
        name=item["name"],
        description=item["description"],
        tags=item["tags"],
        version=item["version"],
        parameters=item["parameters"],
        schedules=schedules,
        triggers=[
            _trigger({**trigger, "name": name, "enabled": enabled.get(name, trigger.get("enabled", True))})
            for name, trigger in zip(trigger_names(item), item.get("triggers", []), strict=True)
        ],
        work_pool_name=item["work_pool"]["name"],
        work_queue_name=item["work_pool"].get("work_queue_name"),
        job_variables=item["work_pool"]["job_variables"],
    )
    made.storage = Workplace(_working_folder(item))
    await made.aapply()
    return True


def _working_folder(item: dict[str, Any]) -> str:
    """The folder that runs work in; this one where the file names none."""
    found = [words["directory"] for step in item.get("pull", []) for words in step.values()]
    return str(found[0] if found else Path.cwd())


def _trigger(fields: dict[str, Any]) -> Any:
    from prefect.events import DeploymentTriggerTypes
    from pydantic import TypeAdapter

    return TypeAdapter(DeploymentTriggerTypes).validate_python(fields)


async def _make_automation(client: PrefectClient, wanted: AutomationCore) -> bool:
    """Make it, or make it as it is now meant; one that a person switched off stays off."""
    found = await client.read_automations_by_name(wanted.name)
    if not found:
        await client.create_automation(wanted)
        return True
    same = {"trigger", "actions", "description"}
    if all(_plain(getattr(found[0], name)) == _plain(getattr(wanted, name)) for name in same):
        return False
    await client.update_automation(found[0].id, wanted.model_copy(update={"enabled": found[0].enabled}))
    return True


def _plain(value: Any) -> Any:
    """As it would be sent, without what the server adds; sets have no order."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items() if name != "id"}
    if isinstance(value, list):
        return sorted((_plain(item) for item in value), key=str)
    return _plain(value.model_dump(mode="json")) if hasattr(value, "model_dump") else value


def main(arguments: list[str]) -> dict[str, list[str]]:
    """Register what a file says with the server of the environment.

    Raises:
        UserError: if no file or no server is named, the file cannot be used, or the server does not answer.
    """
    import httpx

    if len(arguments) != 1:
        raise UserError(f"found {len(arguments)} arguments, expected one: python -m flows.team.register FILE")
    server = configured_api_url()
    if server is None:
        raise UserError("no Prefect server is named: set PREFECT_API_URL, such as http://prefect:4200/api")
    deployments = read_deployments(Path(arguments[0]))
    try:
        return asyncio.run(register(deployments))
    except httpx.TransportError as error:
        raise UserError(f"Prefect at {server} does not answer ({error}): see that it runs and is reached") from None


if __name__ == "__main__":
    try:
        print(json.dumps(main(sys.argv[1:])))
    except UserError as error:
        sys.exit(f"sheepfold: {error}")
