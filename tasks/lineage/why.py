"""Return the lineage of a registered model, an artefact, a completion or a document, including forgotten ones.

Everything is read from manifests and tables of the store; nothing is computed or written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from storage.catalog import Catalog, read_state, waits_for_run
from storage.errors import UserError
from storage.lineage import ancestors, descendants
from storage.manifest import ArtifactRef
from storage.registry import find_version, registered_versions
from storage.schemas import COMPLETIONS_FILE, FILES_FILE
from storage.store import Store, StoreError
from storage.tables import read_rows
from storage.tombstones import FORGOTTEN, Tombstone, read_tombstones
from tasks.generation.completions import given_id
from tasks.lineage.documents import ID_PREFIX, file_condition, find_forgotten, find_targets
from tasks.lineage.training_data import continued, datasets_of, exposures, shown_version, versions_by_training

COLUMNS = ["id", "sample", "prompt", "text", "model", "fields"]


def explain(store: Store, thing: str, corpus: str) -> dict[str, Any]:
    """Return the lineage of a thing, as `sheepfold why --json` prints it.

    Args:
        thing: Model (alias, version, `models:/` address, run id), artefact (STAGE/KEY, or eight digits of a key or
            digest), completion (KEY/ID[#SAMPLE], or ID), or document (id, eight digits of it, or path).
        corpus: Corpus in which paths, aliases and version numbers are looked up.

    Raises:
        StoreError: No thing has that name.
        UserError: Several things have it.
    """
    found = (
        _completion(store, corpus, thing, by_key=True)
        or _artifact(store, thing)
        or _document(store, corpus, thing)
        or _forgotten(store, thing)
        or _model(store, corpus, thing)
        or _completion(store, corpus, thing, by_key=False)
        or _document(store, corpus, thing, below=True)
        or _removed_document(store, corpus, thing)
    )
    if found is None:
        raise StoreError(
            f"{thing!r} is not found: it is not a model (alias, version, models:/ address, run id), an artefact "
            "(STAGE/KEY, or eight digits of the key or digest), a completion (KEY/ID[#SAMPLE], or its ID), or a "
            f"document of corpus {corpus!r} (id, eight digits of it, or path); `sheepfold status` lists corpora and "
            'the champion, `sheepfold sql "select path, doc_id from files"` the documents'
        )
    return {"thing": thing, **found}


def _lineage(store: Store, ref: ArtifactRef) -> dict[str, Any]:
    made_from = [
        {"depth": depth} | {name: getattr(manifest, name) for name in ("stage", "key", "created", "counts", "tools")}
        for depth, manifest in ancestors(store, ref)
    ]
    return {"artifact": f"{ref.stage}/{ref.key}", "made_from": made_from, "files": _files(store, ref)}


def _files(store: Store, ref: ArtifactRef) -> list[dict[str, Any]]:
    """Return the files of the datasets that an artefact was made from, or of the artefact itself without a dataset.

    The nearest snapshot is used, because a tokeniser fitted on an earlier state of the corpus leads to an earlier one.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for made in datasets_of(store, ref) or [ref]:
        listing = next((manifest for _, manifest in ancestors(store, made) if manifest.stage == "snapshot"), None)
        if listing is not None and store.find(listing.stage, listing.key) is not None:
            rows = read_rows(store.folder(listing.ref) / FILES_FILE, ["path", "sha256", "status", "doc_id"])
            found |= {(row["path"], row["sha256"]): row for row in rows if row["status"] == "ok"}
    return list(found.values())


def _led_to(store: Store, ref: ArtifactRef) -> list[str]:
    made = sorted(descendants(store, [ref]), key=lambda manifest: (manifest.stage, manifest.key))
    return [f"{manifest.stage}/{manifest.key}" for manifest in made]


def _artifact(store: Store, thing: str) -> dict[str, Any] | None:
    """Explain the artefact with a key, digest or prefix of one; of several with one digest, the newest."""
    stage, _, beginning = thing.rpartition("/")
    if not ID_PREFIX.fullmatch(beginning):
        return None
    stages = [stage] if stage else store.stages()
    keys = [(name, key) for name in stages for key in store.keys(name) if key.startswith(beginning)]
    found = [manifest for name, key in keys if (manifest := store.find(name, key)) is not None]
    if not found:
        known = [manifest for name in stages for manifest in store.manifests(name)]
        known = [manifest for manifest in known if manifest.digest.startswith(beginning)]
        by_digest = {(item.stage, item.digest): item for item in sorted(known, key=lambda item: item.created)}
        found = [*by_digest.values()]
    if len(found) > 1:
        listed = ", ".join(f"{manifest.stage}/{manifest.key}" for manifest in found)
        raise UserError(f"{thing!r} is a prefix of {len(found)} artefacts: give one of {listed}")
    if not found:
        return None
    led_to = _led_to(store, found[0].ref)
    keys_made = {name.rpartition("/")[2] for name in led_to}
    models = [shown_version(item) for item in registered_versions(store) if item.checkpoint.key in keys_made]
    return {**_lineage(store, found[0].ref), "led_to": led_to, "models": models}


def _completion(store: Store, corpus: str, thing: str, by_key: bool) -> dict[str, Any] | None:
    """Explain a completion by KEY/ID, where KEY may be a prefix, or by its ID: that of the last run, else the newest.

    `7#2` is the ID of the third completion of the prompt `7`. An answer to a question of an evaluation document is a
    completion too.
    """
    key, _, name = re.sub(r"^(?:generate|answers)/", "", thing).partition("/") if by_key else ("", "", thing)
    if by_key and not (key and name):
        return None
    found = []
    made = [*store.manifests("generate"), *store.manifests("answers")]
    latest = read_state(store, corpus).get("generate", [])
    for manifest in sorted(made, key=lambda made: (made.ref in latest, made.created, made.key), reverse=True):
        if manifest.key.startswith(key):
            rows = read_rows(store.folder(manifest.ref) / COMPLETIONS_FILE, COLUMNS)
            found += [(manifest, row) for row in rows if _name(row) == name]
    if not found:
        return None
    note = {}
    if len(found) > 1 and by_key:
        listed = ", ".join(f"{manifest.key}/{name}" for manifest, _ in found)
        raise UserError(f"{thing!r} matches {len(found)} completions: give a longer prefix of one of {listed}")
    if len(found) > 1:
        which = f"that of the last run, else the newest, of {len(found)} completions {name!r}"
        note = {"note": f"{which}; name the others by KEY/{name}"}
    newest, row = found[0]
    shown = {**{column: row[column] for column in COLUMNS[:-1]}, "id": given_id(row)}
    asked = {"asked_from": json.loads(row["fields"])} if newest.stage == "answers" else {}
    return {**note, "completion": shown, **asked, "address": f"{newest.key}/{name}", **_lineage(store, newest.ref)}


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['id']}#{row['sample']}" if row["sample"] else str(row["id"])


def _model(store: Store, corpus: str, thing: str) -> dict[str, Any] | None:
    version = find_version(registered_versions(store), thing, corpus)
    if version is None:
        return None
    return {
        "model": shown_version(version),
        "mlflow_run_id": version.run_id,
        "tags": version.tags,
        **_lineage(store, version.checkpoint),
        "led_to": _led_to(store, version.checkpoint),
    }


def _document(store: Store, corpus: str, thing: str, below: bool = False) -> dict[str, Any] | None:
    if not read_state(store, corpus):
        return None
    catalog = Catalog(store, corpus)
    files = catalog.query(f"select * from files where {file_condition(thing, below)} order by path")
    if not files:
        return None
    if all(row["reason_code"] == FORGOTTEN for row in files):  # the files are still at their source
        known, contents = read_tombstones(store), {row["sha256"] for row in files}
        same = [item for item in known.documents.values() if item.sha256 in contents]
        if items := find_forgotten(known, thing) or same[:1]:
            return {"files": files, **_tombstones(store, items)}
    doc_ids = {row["doc_id"] for row in files if row["doc_id"]}
    ids = ", ".join(f"'{doc_id}'" for doc_id in sorted(doc_ids)) or "''"
    return {
        "files": files,
        "pages": catalog.query(
            "select method, engine, count(*) as pages, avg(confidence) as confidence "
            f"from pages where doc_id in ({ids}) group by all order by pages desc"
        ),
        "documents": catalog.query(f"select * exclude (text) from documents where doc_id in ({ids})"),
        "sequences": catalog.query(
            f"select split, count(*) as sequences from dataset where doc_id in ({ids}) group by all order by all"
        ),
        "quarantine": catalog.query(f"select * from quarantine where doc_id in ({ids})"),
        "seen_by": exposures(store, doc_ids),
    }


def _forgotten(store: Store, thing: str) -> dict[str, Any] | None:
    items = find_forgotten(read_tombstones(store), thing)
    return _tombstones(store, items) if items else None


def _tombstones(store: Store, items: Sequence[Tombstone]) -> dict[str, Any]:
    """Explain forgotten documents: time, reason, the models trained on them, and those that continue one of these."""
    versions = versions_by_training(store)
    saw = list(dict.fromkeys(name for item in items for name in item.seen_by))
    seen = [
        {"training": name, "versions": [one["version"] for one in versions.get(name, [])], "through": through}
        for name, through in {**dict.fromkeys(saw, ""), **continued(store, saw)}.items()
    ]
    forgotten = [{"doc_id": item.doc_id, "since": item.since, "reason": item.reason} for item in items]
    return {"forgotten": forgotten, "seen_by": seen}


def _removed_document(store: Store, corpus: str, thing: str) -> dict[str, Any] | None:
    targets = find_targets(store, corpus, thing)
    if not targets:
        return None
    return {
        "note": waits_for_run(store, corpus) or f"not in corpus {corpus!r} any more; an earlier run read it",
        "files": [asdict(target) for target in targets],
        "seen_by": exposures(store, {target.doc_id for target in targets}),
    }
