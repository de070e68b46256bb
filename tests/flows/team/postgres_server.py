"""A PostgreSQL server of our own on loopback; skips where there is none."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

PASSWORD = "sh%ee:p/ish"
QUOTED = "sh%25ee%3Ap%2Fish"
SERVERS = Path("/usr/lib/postgresql")


def program(name: str) -> str:
    """Path of OpenSSL's program or one of PostgreSQL's; skips where it is missing."""
    found = shutil.which(name) or next((str(path) for path in sorted(SERVERS.glob(f"*/bin/{name}"))), None)
    if found is None:
        pytest.skip(f"no {name}: install PostgreSQL and OpenSSL to test on them (apt install postgresql openssl)")
    return found


class Postgres:
    """A database on loopback; it may be killed, and started again with all it held."""

    def __init__(self, place: Path, port: int) -> None:
        self.place, self.port = place, port
        # it refuses to run as root
        self.as_user: dict[str, str] = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where it is, with its password."""
        return f"postgresql://shepherd:{QUOTED}@127.0.0.1:{self.port}/postgres"

    @property
    def over_tls(self) -> str:
        """The same, with no way in but a connection that is encrypted and of a server whose certificate is known."""
        return f"{self.address}?sslmode=verify-full&sslrootcert={self.place / 'server.crt'}"

    def make(self) -> None:
        """Make an empty database, and a certificate."""
        password = self.place / "password"
        password.write_text(PASSWORD)
        certificate = [self.place / "server.crt", self.place / "server.key"]
        for_itself = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
        out = ["-out", str(certificate[0]), "-keyout", str(certificate[1])]
        made = [program("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", *for_itself, *out]
        subprocess.run(made, check=True, capture_output=True)
        if self.as_user:
            self.place.chmod(0o755)  # whoever connects reads the certificate
            for path in (self.place, password, *certificate):
                shutil.chown(path, "postgres", "postgres")
        options = ["-D", str(self.place / "data"), "-U", "shepherd", "-A", "scram-sha-256", "--pwfile", str(password)]
        subprocess.run([program("initdb"), *options], check=True, capture_output=True, cwd="/", **self.as_user)  # type: ignore[call-overload]

    def start(self) -> None:
        """Start it, and wait until it answers."""
        place = ["-D", str(self.place / "data"), "-h", "127.0.0.1", "-p", str(self.port), "-k", str(self.place)]
        certificate, key = self.place / "server.crt", self.place / "server.key"
        tls = ["-c", "ssl=on", "-c", f"ssl_cert_file={certificate}", "-c", f"ssl_key_file={key}"]
        self.process = subprocess.Popen(
            [program("postgres"), *place, *tls, "-c", "fsync=off"], cwd="/", stderr=subprocess.DEVNULL, **self.as_user
        )
        ready = [program("pg_isready"), "-h", "127.0.0.1", "-p", str(self.port)]
        until = time.monotonic() + 60
        while subprocess.run(ready, capture_output=True).returncode:
            assert time.monotonic() < until, "PostgreSQL does not answer"
            assert self.process.poll() is None, "PostgreSQL ended while it started"
            time.sleep(0.1)

    def kill(self) -> None:
        """As if its power failed: the server and all processes that answer for it."""
        assert self.process is not None
        server = psutil.Process(self.process.pid)
        server.suspend()  # it starts no others meanwhile
        members = [*server.children(recursive=True), server]
        for member in members:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        self.process.wait()
        psutil.wait_procs(members)

    def end(self) -> None:
        """End it in good order."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait()


@contextmanager
def postgres_server(port: int) -> Iterator[Postgres]:
    """A fresh database that is up, for as long as the context lasts."""
    program("postgres")
    with tempfile.TemporaryDirectory(prefix="sheepfold-postgres-") as folder:
        server = Postgres(Path(folder), port)
        server.make()
        try:
            server.start()
            yield server
        finally:
            server.end()
