"""Load a model and serve it until the process is told to end."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable
from socket import socket as Socket

import torch
import uvicorn

from storage.errors import UserError
from storage.home import Home
from tasks.core.machine import usable_cores
from tasks.registry.models import UnknownModel
from tasks.serving import API_KEY
from tasks.serving.app import Server, application
from tasks.serving.served import Served, load_served


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
        waits: serve nothing until the model exists.
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

    def newest(current: Served | None) -> Served | None:
        try:
            return load_served(home, model, corpus, current)
        except UnknownModel:
            if not waits or current is not None:
                raise
            return None

    torch.set_num_threads(usable_cores())
    served = newest(None)
    server = Server(served, newest, batch_size, most, key, deterministic, () if key else ("localhost", host))
    config = uvicorn.Config(application(server), host=host, port=port, log_level="warning", access_log=False)
    try:
        socket = config.bind_socket()
    except SystemExit:  # uvicorn has told the reason
        raise UserError(f"port {port} of {host} cannot be used; give another with --port") from None
    address = f"http://{f'[{host}]' if ':' in host else host}:{socket.getsockname()[1]}"
    answers = f"{served.name} answers" if served else f"as soon as there is a model {model!r}, it answers"
    ready = f"{answers} at {address}/v1, and can be tried at {address}; stop it with Ctrl-C"
    Announced(config, lambda: say(ready)).run(sockets=[socket])


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
