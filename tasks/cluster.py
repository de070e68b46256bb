"""Tasks on a Ray cluster: the settings that choose it, and what travels to another machine.

    SHEEPFOLD_TASK_RUNNER   `threads` (of the process that runs the flow), or `ray`
    SHEEPFOLD_RAY_ADDRESS   HOST:PORT (on a node), ray://HOST:PORT (from elsewhere); empty starts Ray here
    SHEEPFOLD_RAY_CPUS      that each task holds, and as many extraction processes it has

Requests to a stage that are carried out side by side (segments of a corpus, shards of prompts) become Ray tasks; what
comes once is done where the flow runs. Each machine reads the sources and the store under the addresses that the flow
has them under, so both lie on a shared folder or on S3.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from storage.errors import UserError

if TYPE_CHECKING:
    from prefect_ray import RayTaskRunner

RUNNERS = ("threads", "ray")


def on_ray() -> bool:
    """Whether tasks run on Ray.

    Raises:
        UserError: if the setting names no runner, or Ray is not installed.
    """
    chosen = os.environ.get("SHEEPFOLD_TASK_RUNNER") or "threads"
    if chosen not in RUNNERS:
        raise UserError(f"SHEEPFOLD_TASK_RUNNER is {chosen!r}: give one of {', '.join(RUNNERS)}")
    if chosen == "ray" and find_spec("prefect_ray") is None:
        raise UserError("SHEEPFOLD_TASK_RUNNER is 'ray', which is not installed: pip install 'sheepfold[ray]'")
    return chosen == "ray"


def cpus_each() -> int:
    """Processors that each task on Ray holds.

    Raises:
        UserError: if the setting is no number of them.
    """
    given = os.environ.get("SHEEPFOLD_RAY_CPUS") or "1"
    if not given.isdecimal() or not int(given):
        raise UserError(f"SHEEPFOLD_RAY_CPUS is {given!r}: give a whole number from 1")
    return int(given)


def ray_runner() -> RayTaskRunner:
    """The runner of flows whose tasks run on Ray."""
    from prefect_ray import RayTaskRunner

    address = os.environ.get("SHEEPFOLD_RAY_ADDRESS") or None
    # what workers print about themselves is not the person's; what they log, Prefect has
    return RayTaskRunner(address=address, init_kwargs={"log_to_driver": False})


@contextmanager
def task_options() -> Iterator[None]:
    """Inside, tasks that are submitted to Ray hold their processors."""
    if not on_ray():
        yield
        return
    from prefect_ray.context import remote_options

    with remote_options(num_cpus=cpus_each()):
        yield


def travels(resources: Any, settings: Any) -> Any:
    """What of the resources goes along with one request: of the files, only those that it is about."""
    if resources is None:
        return None
    contents = getattr(settings, "contents", ())
    return resources.elsewhere(cpus_each(), {content.sha256 for content in contents})
