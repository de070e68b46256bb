"""An S3 server on loopback, and a proxy before it that fails, or kills who asks, as a test likes."""

from __future__ import annotations

import http.client
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

BUCKET = "sheepfold"
WRITES = ("PUT", "POST", "DELETE")
PASS, KILL_BEFORE, KILL_AFTER = "pass", "kill before", "kill after"
Answer = str | int  # one of these, or the status to answer with instead of asking the server

_HOP = {"connection", "transfer-encoding", "expect", "content-length"}


@contextmanager
def s3_server() -> Iterator[str]:
    """Serve S3 with one empty bucket; its address."""
    pytest.importorskip("boto3")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    import boto3

    with pytest.MonkeyPatch.context() as patch:
        lead_to(patch, f"http://{host}:{port}")
        boto3.session.Session().client("s3").create_bucket(Bucket=BUCKET)
    yield f"http://{host}:{port}"
    server.stop()


def lead_to(patch: pytest.MonkeyPatch, endpoint: str) -> None:
    """Lead boto3 to an endpoint, with keys of no worth, and away from the person's own settings."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "HTTP_PROXY", "http_proxy"):
        patch.delenv(name, raising=False)
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "sheepfold-test-key",
        "AWS_SECRET_ACCESS_KEY": "sheepfold-test-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_MAX_ATTEMPTS": "3",
    }.items():
        patch.setenv(name, value)


class Proxy:
    """Asks the server for others.

    Attributes:
        decide: told the method and the path of each request, says what becomes of it.
        writes: how many requests came that change something.
    """

    def __init__(self, server: str) -> None:
        self.decide: Callable[[str, str], Answer] = lambda method, path: PASS
        self.writes = 0
        self._lock = threading.Lock()
        proxy, host = self, server.removeprefix("http://")

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def _ask(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                with proxy._lock:
                    answer = proxy.decide(self.command, self.path)
                    proxy.writes += self.command in WRITES
                if isinstance(answer, int):
                    self.send_response(answer)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                if answer == KILL_BEFORE:
                    self._kill()
                    return
                connection = http.client.HTTPConnection(host, timeout=60)
                headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
                connection.request(self.command, self.path, body=body, headers=headers)
                response = connection.getresponse()
                data = response.read()
                connection.close()
                if answer == KILL_AFTER:
                    self._kill()
                    return
                self.send_response_only(response.status)
                for name, value in response.getheaders():
                    if name.lower() not in _HOP:
                        self.send_header(name, value)
                length = response.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
                self.send_header("Content-Length", length or "0")
                self.end_headers()
                self.wfile.write(data)

            def _kill(self) -> None:
                found = re.search(r"app/pid-(\d+)", self.headers["User-Agent"])
                assert found is not None
                os.kill(int(found[1]), signal.SIGKILL)
                self.close_connection = True

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _ask

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def nth_write(self, number: int, answer: Answer) -> None:
        """Give this answer to one write, counted from 0 from now on."""
        first = self.writes
        self.decide = lambda method, path: answer if method in WRITES and self.writes - first == number else PASS

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
