"""What is asked of Prefect's server while a box is brought up or looked at."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from flows.team.api import ANSWER_SECONDS, Busy, NoAnswer, ask
from flows.team.automations import AWAY, BEGIN_SECONDS, HEARTBEAT_SECONDS, MISSED, NAMES, QUEUED_AGAIN, TAG
from flows.team.deployments import full_name, trigger_names
from flows.team.settings import TeamFolder, TeamSettings

BUSY_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)  # between two tries
# Of a run that did not end: the event that lets the automations wait for its next sign of life, and for how long.
WAITED_FOR = {"RUNNING": ("heartbeat", MISSED * HEARTBEAT_SECONDS), "PENDING": ("Pending", BEGIN_SECONDS)}


@dataclass(frozen=True)
class PrefectServer:
    """The Prefect server of a team.

    Attributes:
        api: its address.
        user: `name:password`; empty where it asks for none.
        seconds: that an answer may take.
    """

    api: str
    user: str = ""
    seconds: float = ANSWER_SECONDS

    @classmethod
    def of(cls, folder: TeamFolder, settings: TeamSettings) -> PrefectServer:
        """That of a team's home."""
        return cls(settings.prefect_api, folder.secrets().prefect if settings.auth else "")

    def ask(self, path: str, body: Any = None, method: str = "") -> Any:
        """What it answers, asked again for a while if it is busy, as Prefect's own client does.

        Raises:
            NoAnswer: if it does not, or refuses.
        """
        for pause in BUSY_SECONDS:
            try:
                return ask(f"{self.api}/{path}", body, method, self.user, self.seconds)
            except Busy:
                time.sleep(pause)
        return ask(f"{self.api}/{path}", body, method, self.user, self.seconds)

    def deployments(self) -> list[dict[str, Any]]:
        """What is deployed: full name, version, pool, and whether a schedule of it is on.

        Raises:
            NoAnswer: if Prefect does not answer.
        """
        flows = {item["id"]: item["name"] for item in self.ask("flows/filter", {})}
        listed = (
            {
                "name": f"{flows.get(item['flow_id'], '?')}/{item['name']}",
                "version": item["version"],
                "pool": item["work_pool_name"],
                "scheduled": any(schedule["active"] for schedule in item["schedules"]) and not item["paused"],
            }
            for item in self.ask("deployments/filter", {})
        )
        return sorted(listed, key=lambda item: str(item["name"]))

    def has(self, wanted: list[dict[str, Any]]) -> bool:
        """Whether it has all deployments, in these versions, and the automations."""
        versions = {full_name(item): item["version"] for item in wanted}
        names = {*NAMES, *(name for item in wanted for name in trigger_names(item))}
        try:
            deployed = {item["name"]: item["version"] for item in self.deployments()}
            automations = {item["name"] for item in self.ask("automations/filter", {})}
        except NoAnswer:
            return False
        return versions.items() <= deployed.items() and names <= automations

    def worker_reported(self, pool: str, name: str, since: datetime) -> bool:
        """Whether a worker has since said that it lives."""
        try:
            found = self.ask(f"work_pools/{pool}/workers/filter", {})
        except NoAnswer:
            return False
        seen = [worker["last_heartbeat_time"] for worker in found if worker["name"] == name]
        return any(datetime.fromisoformat(moment) > since for moment in seen)

    def worker_online(self, pool: str, name: str) -> bool:
        """Whether Prefect takes a worker to be alive."""
        try:
            found = self.ask(f"work_pools/{pool}/workers/filter", {})
        except NoAnswer:
            return False
        return any(worker["name"] == name and worker["status"] == "ONLINE" for worker in found)

    def switch_schedules(self, active: bool) -> None:
        """Let every schedule of the deployments run, or none."""
        for item in self.ask("deployments/filter", {}):
            for schedule in item["schedules"]:
                self.ask(f"deployments/{item['id']}/schedules/{schedule['id']}", {"active": active}, "PATCH")

    def queue_lost_again(self) -> list[str]:
        """Queue runs that were lost while nobody listened: a server that just started may miss its own first events."""
        query = {"flow_runs": {"tags": {"all_": [TAG]}, "state": {"type": {"any_": ["CRASHED", "FAILED"]}}}}
        found = [
            run
            for run in self.ask("flow_runs/filter", query)
            if run["deployment_id"]
            and (run["state_type"] == "CRASHED" or str(run["state"]["message"]).startswith(AWAY))
        ]
        for run in found:
            self.ask(f"flow_runs/{run['id']}/set_state", {"state": QUEUED_AGAIN})
        return [str(run["name"]) for run in found]

    def await_silent_runs(self) -> list[str]:
        """Let the automations wait anew for runs that nothing was heard of, and that they should have found lost.

        A server that was away for some minutes forgets, when it starts, what it had waited for. A run that vanished
        meanwhile would never be lost, and would keep its place in its queue; one that lives answers by itself.
        """
        query = {"flow_runs": {"tags": {"all_": [TAG]}, "state": {"type": {"any_": list(WAITED_FOR)}}}}
        silent = [run for run in self.ask("flow_runs/filter", query) if not self._heard_of(run)]
        self.ask("events", [_sign_of_life(run) for run in silent])
        return [str(run["name"]) for run in silent]

    def _heard_of(self, run: dict[str, Any]) -> bool:
        """Whether anything was, within the time that a run may be silent."""
        _, seconds = WAITED_FOR[run["state_type"]]
        since = datetime.now(UTC) - timedelta(seconds=seconds)
        if datetime.fromisoformat(run["state"]["timestamp"]) > since:
            return True  # its event may not be kept yet
        wanted = {"occurred": {"since": since.isoformat()}, "resource": {"id": [f"prefect.flow-run.{run['id']}"]}}
        return bool(self.ask("events/filter", {"filter": wanted, "limit": 1})["events"])


def _sign_of_life(run: dict[str, Any]) -> dict[str, Any]:
    """The event that the automations count from, as the run itself or Prefect would send it."""
    name, _ = WAITED_FOR[run["state_type"]]
    return {
        "id": str(uuid.uuid4()),
        "occurred": datetime.now(UTC).isoformat(),
        "event": f"prefect.flow-run.{name}",
        "resource": {"prefect.resource.id": f"prefect.flow-run.{run['id']}", "prefect.resource.name": run["name"]},
        "related": [{"prefect.resource.id": f"prefect.tag.{TAG}", "prefect.resource.role": "tag"}],
    }
