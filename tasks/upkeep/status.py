"""Status of a home: addresses, corpora, their champions, and the number of artefacts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from storage.catalog import corpora
from storage.home import Home
from storage.registry import CHAMPION, ModelVersion, find_version, registered_versions
from storage.store import Store

_TAGS = "sheepfold."  # prefix of the tags that hold a version's figures and inputs


def status_of(home: Home, store: Store, corpus: str = "default") -> dict[str, Any]:
    """Return the status, as `sheepfold status --json` prints it.

    Args:
        corpus: Corpus whose champion is `champion`.
    """
    known = corpora(store)
    versions = registered_versions(store)
    champions = {name: _champion(versions, name) for name in known}
    return {
        "home": str(home.path),
        "store": home.store,
        # None: each command starts its own server
        "prefect_api_url": os.environ.get("PREFECT_API_URL"),
        "mlflow_tracking_uri": home.shown_tracking_uri,
        "corpora": known,
        "artifacts": {stage: len(store.keys(stage)) for stage in store.stages()},
        CHAMPION: champions[corpus] if corpus in champions else _champion(versions, corpus),
        "champions": champions,
    }


def _champion(versions: list[ModelVersion], corpus: str) -> dict[str, Any] | None:
    found = find_version(versions, CHAMPION, corpus)
    if found is None:
        return None
    return {
        "name": found.name,
        "version": found.version,
        "uri": f"models:/{found.name}@{CHAMPION}",
        "run_id": found.run_id,
        "checkpoint": asdict(found.checkpoint),
        "tags": {name.removeprefix(_TAGS): value for name, value in found.tags.items() if name.startswith(_TAGS)},
    }


def status_at_a_glance(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status for the terminal: full details only of the chosen champion, versions of the others."""
    champions = {
        corpus: "none" if found is None else f"{found['name']} version {found['version']}"
        for corpus, found in document["champions"].items()
    }
    return {**document, "champions": champions}
