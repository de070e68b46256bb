"""A run of a deployment waits for Prefect's server where it is away for a moment, instead of failing.

Prefect's client tries a connection that is refused four times, which takes 1.5 seconds; a server that is started again
takes ten or more. The client has no setting for it, so its method that sends is wrapped. Nothing was received where no
connection came about, so every request may be sent again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from functools import wraps
from typing import Any

import httpx
from prefect.client.base import PrefectHttpxAsyncClient, PrefectHttpxSyncClient

logger = logging.getLogger("sheepfold")

PATIENCE_SECONDS = 180.0
PAUSE_SECONDS = 1.0
STARTED_BY_WORKER = "PREFECT__FLOW_RUN_ID"  # Prefect's variable: the id of the run that a process was started for


class _Patience:
    """How long one request has waited."""

    def __init__(self, request: Any) -> None:
        self._began = time.monotonic()
        self._told = False
        self._request = request

    def bears(self) -> bool:
        """Whether to wait on."""
        if not self._told:
            logger.warning("Prefect's server does not answer at %s; waiting for it", self._request.url)
            self._told = True
        return time.monotonic() - self._began < PATIENCE_SECONDS


def wait_for_server() -> None:
    """Make Prefect's clients of this process wait for their server, if a worker started it for a run.

    A command that a person typed is told at once that an address is wrong.
    """
    if STARTED_BY_WORKER not in os.environ:
        return
    send, send_async = PrefectHttpxSyncClient.send, PrefectHttpxAsyncClient.send

    @wraps(send)
    def patient(self: PrefectHttpxSyncClient, request: Any, *args: Any, **kwargs: Any) -> Any:
        patience = _Patience(request)
        while True:
            try:
                return send(self, request, *args, **kwargs)
            except httpx.ConnectError:
                if not patience.bears():
                    raise
            time.sleep(PAUSE_SECONDS)

    @wraps(send_async)
    async def patient_async(self: PrefectHttpxAsyncClient, request: Any, *args: Any, **kwargs: Any) -> Any:
        patience = _Patience(request)
        while True:
            try:
                return await send_async(self, request, *args, **kwargs)
            except httpx.ConnectError:
                if not patience.bears():
                    raise
            await asyncio.sleep(PAUSE_SECONDS)

    PrefectHttpxSyncClient.send = patient
    PrefectHttpxAsyncClient.send = patient_async
