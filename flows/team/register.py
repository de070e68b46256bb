"""Tell Prefect about pools, queues, deployments and automations; done again, it changes nothing.

    python -m flows.team.register FILE [BEFORE]

FILE is `prefect.yaml` or a copy; PREFECT_API_URL says which server; BEFORE is the file that it was told of last, from
which it is known what parameters people changed on the pages since: those stay.

`sheepfold up` calls it for its own server, people for theirs. A process of its own, because Prefect reads its addresses
when it is imported. A pool that is there is used, of whatever type it is. What is there with the same version is
left alone; a schedule or a trigger that a person switched on or off stays so when its deployment is made anew, and a
queue's limit stays what a person made it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.embedded import configured_api_url
from flows.team.automations import automations
from flows.team.deployments import ADDRESSES, full_name, read_deployments, trigger_names
from flows.team.services import GPU_POOL, POOL, RETRAIN_QUEUE
from storage.errors import UserError

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.events.schemas.automations import AutomationCore

USAGE = "python -m flows.team.register FILE [BEFORE]"


async def register(deployments: list[dict[str, Any]], before: Sequence[dict[str, Any]] = ()) -> dict[str, list[str]]:
    """Make what is missing or of another version.

    Args:
        before: the deployments as they were made last; with them, parameters that a person changed since stay.

    Returns:
        What was made, by kind.
    """
    from prefect.client.orchestration import get_client

    made_with = {full_name(item): item["parameters"] for item in before}
    async with get_client() as client:
        return {
            "pools": [name for name in (POOL, GPU_POOL) if await _make_pool(client, name)],
            "queues": [RETRAIN_QUEUE] if await _make_queue(client, POOL, RETRAIN_QUEUE, 1) else [],
            "deployments": [item["name"] for item in deployments if await _deploy(client, item, made_with)],
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


async def _deploy(client: PrefectClient, item: dict[str, Any], made_with: dict[str, dict[str, Any]]) -> bool:
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
    changed: dict[str, Any] = {}
    try:
        known = await client.read_deployment_by_name(full_name(item))
        if known.version == item["version"] and set(trigger_names(item)) <= set(enabled):
            return False
        active = {schedule.slug: schedule.active for schedule in known.schedules}
        was = item["parameters"] if known.version == item["version"] else made_with.get(full_name(item))
        changed = {} if was is None else _changed(was, known.parameters)
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
    taken = made._parameter_openapi_schema.properties  # a flow of another version may have lost one
    made.parameters.update({name: value for name, value in changed.items() if name in taken})
    made.storage = Workplace(_working_folder(item))
    await made.aapply()
    return True


def _changed(was: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Parameters that a person gave a deployment, or gave another value, since it was made."""
    return {
        name: value
        for name, value in found.items()
        if name not in ADDRESSES and (name not in was or was[name] != value)
    }


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

    if len(arguments) not in (1, 2):
        raise UserError(f"found {len(arguments)} arguments, expected one or two: {USAGE}")
    server = configured_api_url()
    if server is None:
        raise UserError("no Prefect server is named: set PREFECT_API_URL, such as http://prefect:4200/api")
    deployments, *before = (read_deployments(Path(argument)) for argument in arguments)
    try:
        return asyncio.run(register(deployments, *before))
    except httpx.TransportError as error:
        raise UserError(f"Prefect at {server} does not answer ({error}): see that it runs and is reached") from None


if __name__ == "__main__":
    try:
        print(json.dumps(main(sys.argv[1:])))
    except UserError as error:
        sys.exit(f"sheepfold: {error}")
