"""Registered models read by SQL and over REST are those that MLflow's own client lists."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

from storage.errors import Unreachable, UserError
from storage.home import Home
from storage.manifest import ArtifactRef
from storage.registry import DIGEST_TAG, KEY_TAG, STAGE_TAG, ModelVersion
from storage.tracking import Tracking
from storage.versions import find_version, registered_versions

RUN = "0123456789abcdef" * 2


def tags_of(number: int) -> dict[str, str]:
    return {STAGE_TAG: "train", KEY_TAG: f"key-{number}", DIGEST_TAG: f"digest-{number}", "sheepfold.loss": "1.5"}


def version(name: str, number: int, *aliases: str) -> ModelVersion:
    checkpoint = ArtifactRef("train", f"key-{number}", f"digest-{number}")
    return ModelVersion(name, str(number), RUN, checkpoint, tags_of(number), aliases)


EXPECTED = [
    version("sheepfold", 1, "previous"),
    version("sheepfold", 3, "champion"),
    version("sheepfold-a b", 1, "champion"),
]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Home.from_environment(tmp_path / "home")


def test_a_home_without_a_registry_has_none_and_gets_none(home: Home) -> None:
    assert registered_versions(home) == []
    assert not home.path.exists()


def test_versions_are_read_from_the_database_without_those_that_were_deleted(home: Home) -> None:
    client = Tracking(home).client
    for name, numbers in (("sheepfold", (1, 2, 3)), ("sheepfold-a b", (1,)), ("sheepfolds", (1,)), ("other", (1,))):
        client.create_registered_model(name)
        for number in numbers:
            client.create_model_version(name, source=str(home.path), run_id=RUN, tags=tags_of(number))
    client.set_registered_model_alias("sheepfold", "champion", "3")
    client.set_registered_model_alias("sheepfold", "previous", "1")
    client.set_registered_model_alias("sheepfold-a b", "champion", "1")
    client.delete_model_version("sheepfold", "2")
    assert registered_versions(home) == EXPECTED


@pytest.mark.parametrize(
    ("name", "corpus", "found"),
    [
        ("champion", "default", EXPECTED[1]),
        ("champion", "a b", EXPECTED[2]),
        ("1", "default", EXPECTED[0]),
        ("2", "default", None),
        ("models:/sheepfold@champion", "a b", EXPECTED[1]),
        ("models:/sheepfold-a b/1", "default", EXPECTED[2]),
        ("sheepfold/3", "a b", EXPECTED[1]),
        (RUN, "default", EXPECTED[2]),
        ("champion", "unknown", None),
        ("", "default", None),
    ],
)
def test_a_version_has_the_names_that_mlflow_gives_it(name: str, corpus: str, found: ModelVersion | None) -> None:
    assert find_version(EXPECTED, name, corpus) == found


class Server(BaseHTTPRequestHandler):
    """A tracking server with two pages of versions of `sheepfold`."""

    refuses = False
    asked: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.asked.append(self.headers["Authorization"])
        address = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(address.query).items()}
        body = json.dumps(self._answer(address.path, query)).encode()
        self.send_response(401 if self.refuses else 200)
        self.end_headers()
        self.wfile.write(body)

    def _answer(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        if path.endswith("registered-models/search"):
            aliases = [{"alias": "champion", "version": "3"}, {"alias": "previous", "version": "1"}]
            others = {"name": "sheepfold-a b", "aliases": [{"alias": "champion", "version": "1"}]}
            return {"registered_models": [{"name": "sheepfold", "aliases": aliases}, others, {"name": "sheepfolds"}]}
        name = query["filter"].removeprefix("name = '").removesuffix("'")
        numbers = (1,) if name != "sheepfold" or "page_token" in query else (3,)
        more = {"next_page_token": "2"} if numbers == (3,) else {}
        tags = {number: [{"key": key, "value": value} for key, value in tags_of(number).items()] for number in numbers}
        rows = [{"name": name, "version": str(number), "run_id": RUN, "tags": tags[number]} for number in numbers]
        return {"model_versions": rows, **more}

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing on standard error."""


@pytest.fixture
def server(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Server]]:
    class Own(Server):
        asked: ClassVar[list[str | None]] = []

    with ThreadingHTTPServer(("127.0.0.1", 0), Own) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{running.server_port}")
        yield Own
        running.shutdown()
        thread.join()


def test_versions_are_read_page_by_page_from_a_server_with_the_login_of_the_environment(
    home: Home, server: type[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "shepherd")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    assert registered_versions(Home.from_environment(home.path)) == EXPECTED
    assert set(server.asked) == {"Basic c2hlcGhlcmQ6c2VjcmV0"}


def test_a_server_that_refuses_is_told_from_one_that_does_not_answer(
    home: Home, server: type[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.refuses = True
    with pytest.raises(UserError, match=r"refuses .*401.*MLFLOW_TRACKING_USERNAME"):
        registered_versions(Home.from_environment(home.path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(Unreachable, match=r"does not answer at http://127\.0\.0\.1:9"):
        registered_versions(Home.from_environment(home.path))
