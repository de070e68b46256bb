"""A PostgreSQL server of our own on loopback; skips where there is none."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PASSWORD = "sh%ee:p/ish"
QUOTED = "sh%25ee%3Ap%2Fish"
SERVERS = Path("/usr/lib/postgresql")


def program(name: str) -> str:
    """Path of one of PostgreSQL's programs; skips where it is missing."""
    found = shutil.which(name) or next((str(path) for path in sorted(SERVERS.glob(f"*/bin/{name}"))), None)
    if found is None:
        pytest.skip("no PostgreSQL: install it to test on it (apt install postgresql)")
    return found


@contextmanager
def postgres_server(port: int) -> Iterator[str]:
    """Address of a fresh database, for as long as the context lasts."""
    initdb, server = program("initdb"), program("postgres")
    as_user = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}  # it refuses to run as root
    with tempfile.TemporaryDirectory(prefix="sheepfold-postgres-") as folder:
        place = Path(folder)
        (place / "password").write_text(PASSWORD)
        data = place / "data"
        if as_user:
            for path in (place, place / "password"):
                shutil.chown(path, "postgres", "postgres")
        make = [initdb, "-D", str(data), "-U", "shepherd", "-A", "scram-sha-256", "--pwfile", str(place / "password")]
        subprocess.run(make, check=True, capture_output=True, cwd="/", **as_user)  # type: ignore[call-overload]
        options = ["-D", str(data), "-h", "127.0.0.1", "-p", str(port), "-k", str(place), "-c", "fsync=off"]
        process = subprocess.Popen([server, *options], cwd="/", stderr=subprocess.DEVNULL, **as_user)  # type: ignore[call-overload]
        try:
            ready = [program("pg_isready"), "-h", "127.0.0.1", "-p", str(port)]
            while subprocess.run(ready, capture_output=True).returncode:
                assert process.poll() is None, "PostgreSQL ended while it started"
            yield f"postgresql://shepherd:{QUOTED}@127.0.0.1:{port}/postgres"
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()
