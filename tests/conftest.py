"""What tests of several parts share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prefect server of our own on loopback; its address. Tests that use it are marked `prefect`."""
    import os

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
