"""What Prefect is told to do about runs that are lost, and about documents that came.

A run reports that it lives every half minute. One that began or lived and is not heard of for three times as long is
marked as lost, and one that was handed to a worker and never began likewise; whoever is lost or crashed, or failed
because a server was away, Prefect's own or MLflow's, is queued again, as the same run. Nothing is computed twice,
because the store knows what is done; a run that was begun too often is ended by `flows.context`. Marking and queueing
are two steps, because Prefect refuses to mark a run that has ended as lost, so a last sign of life that overtakes the
end of its run does no harm.

That documents came is a trigger of `retrain/on-new-documents`, which stands with it in `prefect.yaml`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prefect.events.schemas.automations import AutomationCore

HEARTBEAT_SECONDS = 30  # the least that Prefect takes; every deployment's variables carry it to its runs
MISSED = 3  # signs of life after which a run counts as lost
BEGIN_SECONDS = 300  # a run that was handed to a worker and has not begun by then is lost
REPEATED_SECONDS = 15  # an event that is handed on twice, as a busy server does, queues a run once
LOST = "Lost"  # name of the state
ENDS = ("Completed", "Failed", "Cancelled", "Crashed", "Cached", "Cancelling", "Suspended", "Paused", LOST)
TAG = "sheepfold"  # of the runs that are watched
QUEUED_AGAIN = {"type": "SCHEDULED", "name": "AwaitingRetry", "message": "Queued again after it was lost."}
STOPPED, NEVER_BEGAN, QUEUE_AGAIN, SERVER_AWAY = NAMES = (
    "sheepfold: find runs that stopped",
    "sheepfold: find runs that never began",
    "sheepfold: queue lost runs again",
    "sheepfold: queue runs again that a server was away for",
)
# How the message of a run begins that failed because a server was away: Prefect's, by httpx's names for it, or
# MLflow's. Clients try some of it again for a while; Prefect's no connection that is refused, MLflow's no cut answer.
AWAY = tuple(
    f"Flow run encountered an exception: {error}"
    for error in (
        *("ConnectError:", "ConnectTimeout:", "ReadError:", "ReadTimeout:", "RemoteProtocolError:", "WriteError:"),
        "MlflowException: API request to http",  # one that it answered and refused is one "to endpoint"
        "Unreachable: MLflow does not answer ",
    )
)


def automations() -> list[AutomationCore]:
    """What finds lost runs and queues them again."""
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    ours: Any = {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{TAG}"}
    run: Any = {"prefect.resource.id": "prefect.flow-run.*"}
    each = {"prefect.resource.id"}
    ended = {f"prefect.flow-run.{name}" for name in ENDS}
    lost = ChangeFlowRunState(
        state=StateType.CRASHED, name=LOST, message="Nothing was heard of this run any more; it is queued again."
    )
    again = ChangeFlowRunState(
        state=StateType(QUEUED_AGAIN["type"]), name=QUEUED_AGAIN["name"], message=QUEUED_AGAIN["message"]
    )
    running = EventTrigger(
        match=run,
        match_related=ours,
        for_each=each,
        posture=Posture.Proactive,
        after={"prefect.flow-run.Running", "prefect.flow-run.heartbeat"},
        expect={"prefect.flow-run.heartbeat", "prefect.flow-run.AwaitingRetry", "prefect.flow-run.Pending", *ended},
        within=timedelta(seconds=MISSED * HEARTBEAT_SECONDS),
    )
    pending = EventTrigger(
        match=run,
        match_related=ours,
        for_each=each,
        posture=Posture.Proactive,
        after={"prefect.flow-run.Pending"},
        expect={"prefect.flow-run.Running", "prefect.flow-run.heartbeat", "prefect.flow-run.AwaitingRetry", *ended},
        within=timedelta(seconds=BEGIN_SECONDS),
    )
    crashed = EventTrigger(
        match=run,
        match_related=ours,
        for_each=each,
        posture=Posture.Reactive,
        expect={f"prefect.flow-run.{LOST}", "prefect.flow-run.Crashed"},
        within=timedelta(seconds=REPEATED_SECONDS),
    )
    away = EventTrigger(
        match={**run, "prefect.state-message": [f"{words}*" for words in AWAY]},
        match_related=ours,
        for_each=each,
        posture=Posture.Reactive,
        expect={"prefect.flow-run.Failed"},
        within=timedelta(seconds=REPEATED_SECONDS),
    )
    return [
        AutomationCore(
            name=STOPPED,
            description="A running run that is not heard of any more is lost.",
            trigger=running,
            actions=[lost],
        ),
        AutomationCore(
            name=NEVER_BEGAN,
            description="A run that a worker took and never began is lost.",
            trigger=pending,
            actions=[lost],
        ),
        AutomationCore(
            name=QUEUE_AGAIN,
            description="The same run once more; the store knows what is done already.",
            trigger=crashed,
            actions=[again],
        ),
        AutomationCore(
            name=SERVER_AWAY,
            description="A run that failed because Prefect's server or MLflow's was away, once more.",
            trigger=away,
            actions=[again],
        ),
    ]
