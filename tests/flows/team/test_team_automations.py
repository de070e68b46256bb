"""Lost runs: what finds them, and where queueing them again ends."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from prefect.events.schemas.events import Resource
from prefect.states import exception_to_failed_state

from flows.context import MOST_BEGINNINGS, flow_run_begins
from flows.team.automations import BEGIN_SECONDS, MISSED, NAMES, automations
from flows.team.register import _plain
from flows.team.services import HEARTBEAT_SECONDS
from storage.errors import UserError


def test_every_automation_is_one_that_the_server_is_asked_for() -> None:
    assert tuple(item.name for item in automations()) == NAMES


def test_a_run_is_given_time_before_it_counts_as_lost() -> None:
    stopped, never_began, *_ = automations()
    assert stopped.trigger.within.total_seconds() == MISSED * HEARTBEAT_SECONDS >= 3 * 30
    assert never_began.trigger.within.total_seconds() == BEGIN_SECONDS


def test_only_runs_of_the_deployments_are_watched() -> None:
    for item in automations():
        assert item.trigger.match_related.root["prefect.resource.id"] == "prefect.tag.sheepfold"


def test_a_run_that_failed_without_the_server_is_queued_again_and_one_that_failed_by_itself_is_not() -> None:
    async def message(error: Exception) -> str:
        return str((await exception_to_failed_state(error, message="Flow run encountered an exception:")).message)

    trigger = automations()[-1].trigger
    for error, queued in (
        (httpx.ConnectError("All connection attempts failed"), True),
        (httpx.ReadError("gone"), True),
        (UserError("no such file"), False),
    ):
        told = {"prefect.resource.id": "prefect.flow-run.1", "prefect.state-message": asyncio.run(message(error))}
        assert trigger.match.matches(Resource(told)) == queued


def test_an_automation_that_comes_back_from_the_server_is_the_same() -> None:
    for item in automations():
        document = item.model_dump(mode="json")
        document["trigger"]["expect"] = document["trigger"]["expect"][::-1]  # sets have no order
        assert _plain(type(item).model_validate(document)) == _plain(item)


def test_a_run_that_was_begun_too_often_is_ended_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__RUN_COUNT", str(MOST_BEGINNINGS))
    flow_run_begins()
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__RUN_COUNT", str(MOST_BEGINNINGS + 1))
    with pytest.raises(UserError, match="this run was begun 6 times and never came to its end"):
        flow_run_begins()
