"""Commands that need no Prefect: looking things up, checking, and continuing a prompt at the keyboard."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flows import pipeline
from flows.actions import (
    UnknownModel,
    champion_entry,
    checkpoint_of,
    completions_path,
    resolve_version,
)
from flows.generation_page import write_generation_page
from storage.catalog import Catalog, read_state
from storage.errors import UserError
from storage.home import Home
from storage.lineage import ancestors, descendants
from storage.manifest import ArtifactRef, Manifest
from storage.registry import ModelVersion, Registry, all_versions
from storage.repair import repair
from storage.store import Store, StoreError, open_store
from storage.tables import read_rows
from storage.tombstones import FORGOTTEN, Tombstone, read_tombstones
from storage.verify import Check, check_store
from tasks.exposure import continued, exposures, told
from tasks.forgetting.targets import find_targets
from tasks.generation.prompts import Prompt, one_prompt, read_prompts
from tasks.generation.stage import COMPLETIONS_FILE, complete
from tasks.resources import Resources
from tasks.session import Session, ThreadSession, artifact
from tasks.settings import load_settings

_DIGITS = re.compile("[0-9a-f]{8,64}")  # an id or a key, or enough of one


@dataclass(frozen=True)
class Asked:
    """What is to be continued: a text, or a file of prompts.

    Attributes:
        template: what a prompt is made of, see `tasks.generation.template`.
    """

    prompt: str = ""
    prompts: str = ""
    template: str = ""

    def read(self) -> list[Prompt]:
        """The prompts.

        Raises:
            UserError: if there is neither or both, or they cannot be read.
        """
        if bool(self.prompt) == bool(self.prompts):
            raise UserError("give either a PROMPT or --prompts FILE")
        if self.prompt:
            return [one_prompt(self.prompt, self.template)]
        return read_prompts(Path(self.prompts).expanduser(), self.template)

    @property
    def text(self) -> str:
        """The one prompt; empty for a file."""
        return one_prompt(self.prompt, self.template).prompt if self.prompt else ""


@dataclass(frozen=True)
class Generated:
    """Completions of a command.

    Attributes:
        rows: of the table.
        path: the table.
        page: the report on a file of prompts; empty for a single one.
        tokens: that were made now.
        seconds: that making them took, without loading the model; 0 if all were found in the store.
    """

    rows: list[dict[str, Any]]
    path: str
    page: str
    tokens: int
    seconds: float


def generate_direct(
    home: str,
    corpus: str,
    asked: Asked,
    model: str,
    assignments: Sequence[str],
    options: Mapping[str, Any],
    workers: int = 1,
    on_text: Callable[[str], None] | None = None,
) -> Generated:
    """Continue one prompt or a file of them.

    Args:
        assignments: settings, `section.name=value`.
        options: settings by their dotted names, None where they were not given.
        workers: shards computed at once.
        on_text: told the continuation of a single prompt piece by piece, while it is made.
    """
    prompts = asked.read()
    settings = load_settings(None, assignments, options)
    place = Home.from_environment(home or None).create()
    with Resources(place, workers, deterministic=settings.generate.deterministic) as resources:
        resources.shards_at_once = workers
        resources.on_text = on_text if asked.prompt else None
        session = (Session if workers == 1 else ThreadSession)(place, resources, corpus=corpus)
        checkpoint = checkpoint_of(session, model)
        made = artifact(pipeline.generate_text(session, settings, checkpoint, prompts))
        pipeline.remember(session, generate=made)
        pipeline.publish(session, corpus)
        page = write_generation_page(session, corpus)[0] if asked.prompts else ""
        path = completions_path(session.store, made)
    report = session.reports[complete.name]
    rows = read_rows(Path(path))
    tokens = sum(row["n_tokens"] for row in rows) if report.computed and not report.reused else 0
    return Generated(rows, path, str(page), tokens, _elapsed(resources.generated_between) if tokens else 0.0)


def _elapsed(between: Sequence[Sequence[float]]) -> float:
    """From the first begin to the last end; what ran side by side counts once."""
    return max(end for _, end in between) - min(begin for begin, _ in between)


def status_of(home: str, corpus: str = "default") -> dict[str, Any]:
    """Return addresses, corpora and the champion of a corpus."""
    from storage.tracking import Tracking

    place = Home.from_environment(home or None)
    store = open_store(place.store, place.cache)
    champion = None
    if place.has_tracking:
        champion = champion_entry(Registry(Tracking(place), corpus))
    return {
        "home": str(place.path),
        "store": place.store,
        # without a server, each command starts one of its own and ends it
        "prefect_api_url": os.environ.get("PREFECT_API_URL"),
        "prefect_file": str(Path(__file__).with_name("prefect.yaml")),
        "mlflow_tracking_uri": place.shown_tracking_uri,
        "corpora": [name.partition("/")[2] for name in store.refs("corpus/")],
        "artifacts": {stage: sum(1 for _ in store.manifests(stage)) for stage in store.stages()},
        "champion": champion,
    }


def verify_home(home: str, corpus: str, mend: bool = False) -> dict[str, Any]:
    """Check everything that can be checked.

    Args:
        mend: set aside what is damaged, so that the next run makes it again.
    """
    from tasks.checks import check_sequences, check_split, check_tokens

    place = Home.from_environment(home or None)
    store = open_store(place.store, place.cache)
    if not store.stages():
        raise StoreError(f"there is nothing to check: no artefacts in {place.store}")
    checks: list[Check] = check_store(store)
    if mend:
        done = repair(store, checks)
        return {
            "ok": all(item.done for item in done) and not any(_left(check) for check in checks),
            "checks": [asdict(check) for check in checks],
            "repaired": [asdict(item) for item in done],
        }
    whole = not any(check.problems for check in checks)  # what is damaged cannot be read for its meaning
    state = read_state(store, corpus) if whole else {}
    whole = "snapshot" in state  # a corpus from which something was forgotten waits for its next run
    if whole and "curate" in state:
        checks.append(check_split(store, state))
    if whole and "tokenise" in state:
        checks.append(check_tokens(store, state))
    if whole and "dataset" in state:
        checks.append(check_sequences(store, state))
    return {"ok": not any(check.problems for check in checks), "checks": [asdict(check) for check in checks]}


def _left(check: Check) -> bool:
    """Whether a check found something that setting things aside does not mend."""
    return len(check.problems) > len(check.damaged)


def explain(home: str, thing: str, corpus: str) -> dict[str, Any]:
    """Lineage of a thing.

    Raises:
        StoreError: if nothing goes by that name.
        UserError: if several completions do.
    """
    place = Home.from_environment(home or None)
    store = open_store(place.store, place.cache)
    found = (
        _by_address(store, thing)
        or _by_key(place, store, thing)
        or _by_document(place, store, corpus, thing)
        or _forgotten(place, store, thing)
        or _by_model(place, store, corpus, thing)
        or _newest_completion(store, thing)
        or _gone_document(place, store, corpus, thing)
    )
    if found is None:
        raise StoreError(
            f"nothing goes by {thing!r}: it is no model (alias, version, models:/ address, run id), no artefact "
            "(STAGE/KEY, or eight digits of the key or digest), no completion (KEY/ID[#SAMPLE], or its ID), and no "
            f"document of corpus {corpus!r} (id, eight digits of it, or path); `sheepfold status` names corpora and "
            'the champion, `sheepfold sql "select path, doc_id from files"` the documents'
        )
    return {"thing": thing, **found}


def _lineage(store: Store, ref: ArtifactRef) -> dict[str, Any]:
    """An artefact, what it was made from, and the files at the end."""
    made_from = []
    files: list[dict[str, Any]] = []
    for depth, manifest in ancestors(store, ref):
        made_from.append(
            {
                "depth": depth,
                "stage": manifest.stage,
                "key": manifest.key,
                "created": manifest.created,
                "counts": manifest.counts,
                "tools": manifest.tools,
            }
        )
        if manifest.stage == "snapshot" and store.find(manifest.stage, manifest.key) is not None:
            rows = read_rows(store.folder(manifest.ref) / "files.parquet", ["path", "sha256", "status", "doc_id"])
            files = [row for row in rows if row["status"] == "ok"]
    return {"artifact": f"{ref.stage}/{ref.key}", "made_from": made_from, "files": files}


def _led_to(place: Home, store: Store, ref: ArtifactRef) -> dict[str, Any]:
    """What was made from an artefact, and the registered models among it."""
    made = sorted(descendants(store, [ref]), key=lambda manifest: (manifest.stage, manifest.key))
    keys = {manifest.key for manifest in made}
    return {
        "led_to": [f"{manifest.stage}/{manifest.key}" for manifest in made],
        "models": [
            {"version": found.version, "aliases": list(found.aliases)}
            for found in registered_versions(place)
            if found.checkpoint.key in keys
        ],
    }


def _by_key(place: Home, store: Store, thing: str) -> dict[str, Any] | None:
    """The artefact named by its key or digest, or eight digits of one, with or without its stage.

    Tags and cards name content by digest; of several artefacts with the same content the newest is taken.
    """
    stage, _, key = thing.rpartition("/")
    if not _DIGITS.fullmatch(key):
        return None
    stages = [stage] if stage else store.stages()
    known = [manifest for name in stages for manifest in store.manifests(name)]
    by_digest = {
        (manifest.stage, manifest.digest): manifest
        for manifest in sorted(known, key=lambda manifest: manifest.created)
        if manifest.digest.startswith(key)
    }
    found = [manifest for manifest in known if manifest.key.startswith(key)] or [*by_digest.values()]
    if len(found) > 1:
        listed = ", ".join(f"{manifest.stage}/{manifest.key}" for manifest in found)
        raise UserError(f"{thing!r} is the beginning of {len(found)} artefacts: give one of {listed}")
    return _lineage(store, found[0].ref) | _led_to(place, store, found[0].ref) if found else None


def _completions(store: Store, name: str, key: str = "") -> list[tuple[Manifest, dict[str, Any]]]:
    """The completions of this name with their generations, the newest first.

    Args:
        name: an id, or an id and the number of a further sample: `7#2` is the third continuation of the prompt `7`.
        key: of the generation, or the beginning of it.
    """
    found = []
    for manifest in sorted(store.manifests("generate"), key=lambda made: (made.created, made.key), reverse=True):
        if manifest.key.startswith(key):
            rows = read_rows(store.folder(manifest.ref) / COMPLETIONS_FILE, ["id", "sample", "prompt", "text", "model"])
            found += [(manifest, row) for row in rows if _name(row) == name]
    return found


def _name(row: Mapping[str, Any]) -> str:
    """What a completion is called within its generation."""
    return f"{row['id']}#{row['sample']}" if row["sample"] else str(row["id"])


def _by_address(store: Store, thing: str) -> dict[str, Any] | None:
    """The completion named by its generation's key, or the beginning of it, and its id."""
    key, _, name = thing.removeprefix("generate/").partition("/")
    if not key or not name:
        return None
    found = _completions(store, name, key)
    if len(found) > 1:
        listed = ", ".join(f"{manifest.key}/{name}" for manifest, _ in found)
        raise UserError(f"{thing!r} is the beginning of {len(found)} completions: give more of one of {listed}")
    return _completion(store, *found[0]) if found else None


def _newest_completion(store: Store, name: str) -> dict[str, Any] | None:
    """The completion of this id that was made last."""
    found = _completions(store, name)
    if not found:
        return None
    newest = _completion(store, *found[0])
    if len(found) > 1:
        newest = {"note": f"the newest of {len(found)} completions {name!r}; name the others by KEY/{name}", **newest}
    return newest


def _completion(store: Store, manifest: Manifest, row: dict[str, Any]) -> dict[str, Any]:
    return {"completion": row, "address": f"{manifest.key}/{_name(row)}", **_lineage(store, manifest.ref)}


def _by_model(place: Home, store: Store, corpus: str, thing: str) -> dict[str, Any] | None:
    """The registered version that goes by this name; a home without a registry has none, and gets none."""
    if not place.has_tracking:
        return None
    from storage.tracking import Tracking

    try:
        version = resolve_version(Registry(Tracking(place), corpus), thing)
    except UnknownModel:
        return None
    return {
        "model": {"name": version.name, "version": version.version, "aliases": list(version.aliases)},
        "mlflow_run_id": version.run_id,
        "tags": version.tags,
        **_lineage(store, version.checkpoint),
        "led_to": _led_to(place, store, version.checkpoint)["led_to"],
    }


def registered_versions(place: Home) -> list[ModelVersion]:
    """All versions of a home's registry; a home without one has none, and gets none."""
    if not place.has_tracking:
        return []
    from storage.tracking import Tracking

    return all_versions(Tracking(place))


def _forgotten(place: Home, store: Store, thing: str) -> dict[str, Any] | None:
    """What is known of a forgotten document."""
    items = read_tombstones(store).named(thing)
    return _tombstone(place, store, thing, items) if items else None


def _tombstone(place: Home, store: Store, thing: str, items: Sequence[Tombstone]) -> dict[str, Any]:
    """The one forgotten document that is meant, and the models that saw it or continue one that did.

    Raises:
        UserError: if there are several.
    """
    if len(items) > 1:
        listed = ", ".join(item.doc_id for item in items)
        raise UserError(f"{thing!r} stands for {len(items)} forgotten documents: give one of {listed}")
    (item,) = items
    versions = registered_versions(place)
    trainings = {**dict.fromkeys(item.seen_by, ""), **continued(store, item.seen_by)}
    seen = [
        {"training": name, "versions": [found.version for found in versions if _is(found, name)], "through": through}
        for name, through in trainings.items()
    ]
    return {"forgotten": {"doc_id": item.doc_id, "since": item.since, "reason": item.reason}, "seen_by": seen}


def _gone_document(place: Home, store: Store, corpus: str, thing: str) -> dict[str, Any] | None:
    """A document that an earlier listing had; its file is not there any more."""
    targets = find_targets(store, corpus, thing)
    if not targets:
        return None
    doc_ids = {target.doc_id for target in targets}
    return {
        "note": f"not in corpus {corpus!r} any more; an earlier run read it",
        "files": [asdict(target) for target in targets],
        "seen_by": told(exposures(store, doc_ids), registered_versions(place)),
    }


def _is(version: ModelVersion, training: str) -> bool:
    return f"{version.checkpoint.stage}/{version.checkpoint.key}" == training


def _by_document(place: Home, store: Store, corpus: str, thing: str) -> dict[str, Any] | None:
    if not read_state(store, corpus):
        return None
    catalog = Catalog(store, corpus)
    quoted = thing.removeprefix("./").replace("'", "''")
    absolute = str(Path(thing).expanduser().absolute()).replace("'", "''")
    beginning = f"or starts_with(doc_id, '{quoted}')" if _DIGITS.fullmatch(thing) else ""
    files = catalog.query(
        f"select * from files where path = '{quoted}' or doc_id = '{quoted}' or concat(rtrim(source, '/'), '/', path) "
        f"= '{absolute}' {beginning} order by path"
    )
    if not files:
        return None
    if all(row["reason_code"] == FORGOTTEN for row in files):  # the files are still at their source
        known, contents = read_tombstones(store), {row["sha256"] for row in files}
        same = [item for item in known.documents.values() if item.sha256 in contents]
        if items := known.named(thing) or same[:1]:
            return {"files": files, **_tombstone(place, store, thing, items)}
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
            f"select split, count(*) as sequences from dataset where doc_id in ({ids}) group by all"
        ),
        "quarantine": catalog.query(f"select * from quarantine where doc_id in ({ids})"),
        "seen_by": told(exposures(store, doc_ids), registered_versions(place)),
    }
