"""A proxy on loopback that fails, loses answers, or kills who asks, as a test likes."""

from __future__ import annotations

import http.client
import os
import re
import signal
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WRITES = ("PUT", "POST", "PATCH", "DELETE")
PASS, KILL_BEFORE, KILL_AFTER = "pass", "kill before", "kill after"
LOSE, CUT = "lose the answer", "break off in the middle of the answer"
Answer = str | int  # one of these, or the status to answer with instead of asking the server

_HOP = {"connection", "transfer-encoding", "expect", "content-length"}


class Proxy:
    """Asks the server for others.

    Attributes:
        decide: told the method and the path of each request, says what becomes of it.
        writes: how many requests came that change something.
        hidden: headers, in small letters, that the server does not get to see.
    """

    def __init__(self, server: str) -> None:
        self.decide: Callable[[str, str], Answer] = lambda method, path: PASS
        self.writes = 0
        self.hidden: set[str] = set()
        self._lock = threading.Lock()
        proxy, host = self, server.removeprefix("http://")

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def _ask(self) -> None:
                chunked = self.headers.get("Transfer-Encoding") == "chunked"
                body = self._chunks() if chunked else self.rfile.read(int(self.headers.get("Content-Length") or 0))
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
                headers = {
                    name: value for name, value in self.headers.items() if name.lower() not in _HOP | proxy.hidden
                }
                connection.request(self.command, self.path, body=body, headers=headers)
                response = connection.getresponse()
                data = response.read()
                connection.close()
                if answer == KILL_AFTER:
                    self._kill()
                    return
                if answer == LOSE:
                    self.close_connection = True
                    return
                self.send_response_only(response.status)
                for name, value in response.getheaders():
                    if name.lower() not in _HOP:
                        self.send_header(name, value)
                length = response.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
                self.send_header("Content-Length", length or "0")
                self.end_headers()
                if answer == CUT:
                    self.close_connection = True
                    data = data[: len(data) // 2]
                self.wfile.write(data)

            def _chunks(self) -> bytes:
                body = b""
                while length := int(self.rfile.readline().partition(b";")[0], 16):
                    body += self.rfile.read(length)
                    self.rfile.readline()
                self.rfile.readline()
                return body

            def _kill(self) -> None:
                found = re.search(r"app/pid-(\d+)", self.headers["User-Agent"])
                assert found is not None
                os.kill(int(found[1]), signal.SIGKILL)
                self.close_connection = True

            do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = do_HEAD = _ask

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
