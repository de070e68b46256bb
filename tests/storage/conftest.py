"""A store for each test, a way to put small artefacts into it, and one tracking database for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from proxy import Proxy
from s3 import lead_to

from storage import s3
from storage.digest import sha256_json
from storage.home import Home
from storage.manifest import ArtifactRef, Input, Manifest, describe_inputs
from storage.store import Store
from storage.tables import write_table

if TYPE_CHECKING:
    from storage.tracking import Tracking

Put = Callable[..., ArtifactRef]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def put(store: Store) -> Put:
    """Commits an artefact with some files and tables; its digest is that of its name unless given."""

    def commit(
        stage: str,
        name: str,
        files: Mapping[str, bytes] | None = None,
        tables: Mapping[str, tuple[pa.Schema, Sequence[Mapping[str, Any]]]] | None = None,
        inputs: Mapping[str, Input] | None = None,
        digest: str = "",
        scratch: str = "",
    ) -> ArtifactRef:
        key = sha256_json([stage, name])
        with store.workspace(stage, key) as workspace:
            if scratch:
                (workspace.scratch / "note").write_text(scratch)
            for file, data in (files or {}).items():
                (workspace.out / file).write_bytes(data)
            for file, (schema, rows) in (tables or {}).items():
                write_table(workspace.out / file, schema, rows)
            manifest = Manifest(
                stage, 1, key, digest or sha256_json(name), describe_inputs(inputs or {}), {"name": name}, files=[]
            )
            return store.commit(workspace, manifest).ref

    return commit


@pytest.fixture(scope="session")
def tracking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracking]:
    """Tracking and registry on a SQLite home; making its tables costs seconds, so all tests share it."""
    from storage.tracking import Tracking

    home = tmp_path_factory.mktemp("tracking")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield Tracking(Home.from_environment(home))


@pytest.fixture
def proxy(s3_endpoint: str, s3_address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    proxy = Proxy(s3_endpoint)
    lead_to(monkeypatch, proxy.endpoint)
    yield proxy
    proxy.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that fails is not tried again."""
    monkeypatch.setitem(s3.RETRY, "max_retries", 0)
