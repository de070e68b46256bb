"""Load a model and serve it until the process is told to end."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable
from socket import socket as Socket
from time import sleep

import torch
import uvicorn

from model.randomness import seed_everything
from storage.errors import UserError
from storage.home import Home
from tasks.core.machine import usable_cores
from tasks.registry.models import UnknownModel
from tasks.serving import API_KEY
from tasks.serving.app import Server, application
from tasks.serving.served import Served, load_served

WAIT_SECONDS = 2.0


def serve_model(
    home: Home,
    model: str,
    corpus: str,
    host: str,
    port: int,
    batch_size: int,
    most: int,
    deterministic: bool,
    waits: bool,
    say: Callable[[str], None],
) -> None:
    """Serve a model until the process is told to end.

    Args:
        port: 0 for a free one.
        most: completions that may run or wait.
        waits: wait for a model that does not exist yet.
        say: called with the address once requests are answered.

    Raises:
        UserError: there is no such model, the port is taken, or other machines could reach the server without a key.
    """
    key = os.environ.get(API_KEY, "")
    if not key and not _is_loopback(host):
        raise UserError(
            f"--host {host} lets other machines in: set {API_KEY} to a secret that requests have to give, or listen "
            "at 127.0.0.1"
        )
    torch.set_num_threads(usable_cores())
    seed_everything(0, deterministic=deterministic)
    served = _first(home, model, corpus, waits, say)

    def newest(current: Served) -> Served | None:
        return load_served(home, model, corpus, current)

    server = Server(served, newest, batch_size, most, key, deterministic, () if key else ("localhost", host))
    config = uvicorn.Config(application(server), host=host, port=port, log_level="warning", access_log=False)
    try:
        socket = config.bind_socket()
    except SystemExit:  # uvicorn has told the reason
        raise UserError(f"port {port} of {host} cannot be used; give another with --port") from None
    address = f"http://{f'[{host}]' if ':' in host else host}:{socket.getsockname()[1]}"
    ready = f"{served.name} answers at {address}/v1, and can be tried at {address}; stop it with Ctrl-C"
    Announced(config, lambda: say(ready)).run(sockets=[socket])


def _first(home: Home, model: str, corpus: str, waits: bool, say: Callable[[str], None]) -> Served:
    is_told = False
    while True:
        try:
            served = load_served(home, model, corpus)
        except UnknownModel as error:
            if not waits:
                raise
            if not is_told:
                say(f"{error}; waiting for it")
            is_told = True
            sleep(WAIT_SECONDS)
        else:
            assert served is not None
            return served


class Announced(uvicorn.Server):
    """A server that calls a function once it listens."""

    def __init__(self, config: uvicorn.Config, tell: Callable[[], None]) -> None:
        super().__init__(config)
        self.tell = tell

    async def startup(self, sockets: list[Socket] | None = None) -> None:
        await super().startup(sockets)
        self.tell()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
