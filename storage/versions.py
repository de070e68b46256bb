"""Registered models, read without MLflow, whose import takes seconds.

A database is asked by SQL (SQLite through the standard library, others through SQLAlchemy), a server by MLflow's REST
interface. Nothing is written: a home without a registry gets none.
"""

from __future__ import annotations

import base64
import json
import os
import sqlite3
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from storage.errors import Unreachable, UserError
from storage.home import Home
from storage.registry import MODEL_NAME, ModelVersion, model_name

ANSWER_SECONDS = 5.0
PAUSE_SECONDS = 1.0
RUN_PATIENCE = 120.0  # of flow runs, which outlive a restart of the server
_DELETED = "Deleted_Internal"  # MLflow keeps the rows of deleted versions under this stage

Query = Callable[[str], Sequence[Sequence[Any]]]


def registered_versions(home: Home, patience: float = 0.0) -> list[ModelVersion]:
    """Return all versions of all models of a home, by name, the oldest first.

    Args:
        patience: Seconds to wait for a server that does not answer, as one that is started again.

    Raises:
        Unreachable: if the MLflow server does not answer.
        UserError: if it refuses the request.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            ours = [item for item in _all_versions(home) if f"{item.name}-".startswith(f"{MODEL_NAME}-")]
            return sorted(ours, key=lambda item: (item.name, int(item.version)))
        except Unreachable:
            if time.monotonic() >= deadline:
                raise
            time.sleep(PAUSE_SECONDS)


def _all_versions(home: Home) -> list[ModelVersion]:
    address = home.tracking_uri
    if address.startswith(("http://", "https://")):
        return _from_server(address, home.login())
    if address.startswith("sqlite:"):
        return _from_sqlite(Path(address.removeprefix("sqlite:///").partition("?")[0]).resolve())
    return _from_database(address)


def find_version(versions: Iterable[ModelVersion], model: str, corpus: str) -> ModelVersion | None:
    """Return the version behind an alias, a number, a `models:/` address or a run id; None if there is none.

    Args:
        corpus: whose model an alias or a number belongs to that names none.
    """
    name, separator, rest = model.removeprefix("models:/").partition("@" if "@" in model else "/")
    if not separator:
        name, rest = model_name(corpus), model
    known = list(versions)
    own = [item for item in known if item.name == name and (item.version == rest or rest in item.aliases)]
    by_run = [item for item in known if model and item.run_id == model]
    found = own or by_run
    return found[-1] if found else None


def _from_sqlite(path: Path) -> list[ModelVersion]:
    if not path.is_file():
        return []
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        tables = connection.execute("select name from sqlite_master where name = 'model_versions'").fetchall()
        return _from_tables(lambda query: connection.execute(query).fetchall()) if tables else []


def _from_database(address: str) -> list[ModelVersion]:
    from sqlalchemy import create_engine, inspect

    engine = create_engine(address)
    try:
        with engine.connect() as connection:
            if not inspect(connection).has_table("model_versions"):
                return []
            return _from_tables(lambda query: [tuple(row) for row in connection.exec_driver_sql(query)])
    finally:
        engine.dispose()


def _from_tables(query: Query) -> list[ModelVersion]:
    aliases: dict[tuple[str, str], list[str]] = defaultdict(list)
    tags: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for name, version, alias in query("select name, version, alias from registered_model_aliases"):
        aliases[name, str(version)].append(alias)
    for name, version, key, value in query("select name, version, key, value from model_version_tags"):
        tags[name, str(version)][key] = value
    rows = query("select name, version, run_id, source, current_stage from model_versions")
    return [
        ModelVersion.of(name, str(version), run_id, source, tags[name, str(version)], aliases[name, str(version)])
        for name, version, run_id, source, stage in rows
        if stage != _DELETED
    ]


def _from_server(address: str, login: Mapping[str, str]) -> list[ModelVersion]:
    found = []
    for model in _pages(address, login, "registered-models", f"name LIKE '{MODEL_NAME}%'"):
        aliases: dict[str, list[str]] = defaultdict(list)
        for entry in model.get("aliases", []):
            aliases[str(entry["version"])].append(entry["alias"])
        for item in _pages(address, login, "model-versions", f"name = '{model['name']}'"):
            tags = {tag["key"]: tag.get("value", "") for tag in item.get("tags", [])}
            version = str(item["version"])
            run_id, source = item.get("run_id"), item.get("source")
            found.append(ModelVersion.of(model["name"], version, run_id, source, tags, aliases[version]))
    return found


def _pages(address: str, login: Mapping[str, str], what: str, wanted: str) -> Iterable[dict[str, Any]]:
    page = ""
    while True:
        query = {"filter": wanted, **({"page_token": page} if page else {})}
        answer = _ask(f"{address.rstrip('/')}/api/2.0/mlflow/{what}/search?{urlencode(query)}", address, login)
        yield from answer.get(what.replace("-", "_"), [])
        page = answer.get("next_page_token", "")
        if not page:
            return


def _ask(url: str, address: str, login: Mapping[str, str]) -> dict[str, Any]:
    request = urllib.request.Request(url)
    known = {**login, **os.environ}
    if token := known.get("MLFLOW_TRACKING_TOKEN"):
        request.add_header("Authorization", f"Bearer {token}")
    elif user := known.get("MLFLOW_TRACKING_USERNAME"):
        secret = f"{user}:{known.get('MLFLOW_TRACKING_PASSWORD', '')}".encode()
        request.add_header("Authorization", f"Basic {base64.b64encode(secret).decode()}")
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except urllib.error.HTTPError as error:
        raise UserError(
            f"MLflow at {address} refuses ({error}): check MLFLOW_TRACKING_URI, MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD"
        ) from error
    except (OSError, ValueError) as error:
        raise Unreachable(
            f"MLflow does not answer at {address} ({error}): start it, or correct MLFLOW_TRACKING_URI"
        ) from error
