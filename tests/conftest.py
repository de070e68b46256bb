"""Fixtures and hooks for all tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# plain `pytest` leaves the project's root out, and the folders tests/model, tests/flows and so on would be taken for it
sys.path.append(str(Path(__file__).parents[1]))
pytest.register_assert_rewrite("golden")

# A disk takes milliseconds to confirm a write, and a commit asks it a dozen times: where memory has room, tests write
# there. A suite leaves about a gigabyte.
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 8 * 2**30 and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# Each of several test processes takes a core for itself and its children: threads of two networks on the same two cores
# wait for each other.
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
if WORKER and hasattr(os, "sched_setaffinity"):
    CORES = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {CORES[int(WORKER.removeprefix("gw")) % len(CORES)]})


def pytest_addoption(parser: pytest.Parser) -> None:
    default = Path(__file__).parent / "golden" / "golden.json"
    parser.addoption("--golden", default=str(default), metavar="FILE", help="worked examples for tests/test_golden.py")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the outcome of each worked example and the number of killed processes, which tests record as properties."""
    kills: Counter[str] = Counter()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            noted = dict(getattr(report, "user_properties", []))
            if "kills" in noted:
                kills[report.nodeid.partition("[")[0]] += noted["kills"]
    if kills:
        terminalreporter.section("processes killed at random moments")
        for name, n in sorted(kills.items()):
            terminalreporter.write_line(f"{n:5d}  {name}")
        terminalreporter.write_line(f"{kills.total():5d}  in all")
    went: Counter[str] = Counter()
    for outcome in ("passed", "skipped", "failed"):
        for report in terminalreporter.getreports(outcome):
            noted = [value for name, value in getattr(report, "user_properties", []) if name == "golden"]
            went.update(f"{value}{', FAILED' if outcome == 'failed' else ''}" for value in noted)
    if went:
        terminalreporter.section("worked examples of the source documents")
        for value, n in sorted(went.items()):
            terminalreporter.write_line(f"{n:5d}  {value}")
        terminalreporter.write_line(f"{went.total():5d}  in all")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A headless browser; not for the whole session, because its event loop would be in the way of Prefect's."""
    from browsing import headless_chromium

    with headless_chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """An S3 server on loopback; its address. Skips where the clients or the server are not installed."""
    from s3 import s3_server

    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def s3_address(s3_endpoint: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Address of an empty store there."""
    from s3 import BUCKET, lead_to

    from storage.digest import sha256_json

    lead_to(monkeypatch, s3_endpoint)
    return f"s3://{BUCKET}/{sha256_json(request.node.nodeid)[:12]}"


@pytest.fixture(scope="session")
def strace(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips where strace is missing or may not trace."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    log = tmp_path_factory.mktemp("strace") / "log"
    probe = subprocess.run(["strace", "-o", str(log), "true"], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"this machine does not let strace trace: {probe.stderr.strip()}")


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prefect server of our own on loopback; its address. Tests that use it are marked `prefect`."""
    from flows.embedded import prefect_api
    from storage.home import Home

    folder = tmp_path_factory.mktemp("prefect")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_PROFILE"):
            patch.delenv(name, raising=False)
        patch.setenv("PREFECT_HOME", str(folder / "profiles"))  # the person's own profiles are not asked
        with prefect_api(Home.from_environment(folder)):
            from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

            url = os.environ["PREFECT_API_URL"]
            # tests that came first may have imported Prefect, which reads the environment only then
            with temporary_settings({PREFECT_API_URL: url, PREFECT_HOME: folder / "client"}):
                yield url
