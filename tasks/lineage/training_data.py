"""Document attribution by lineage: documents of training sequences, training texts of models, training membership.

Everything is read from manifests and tables, independent of the current state of the corpus; nothing is written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.lineage import ancestors, manifest_of
from storage.manifest import ArtifactRef, Manifest, RefSet
from storage.registry import ModelVersion, registered_versions
from storage.schemas import DOCUMENTS_FILE, EXAMPLES_FILE, FILES_FILE, PAIRS_FILE, SELECTION_FILE, SEQUENCES_FILE
from storage.store import Store
from storage.tables import union_digest
from storage.tombstones import read_tombstones
from tasks.curate.corpus import Corpus, parquet, tables_of

if TYPE_CHECKING:
    from tasks.core.run import Run

NAMED = 5  # documents listed in a message


def rows_of(table: Path, doc_ids: Collection[str], columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of some documents; of a sorted table only the row groups with some of them are read."""
    if not doc_ids:  # an empty list has no type to filter by
        return []
    wanted = [("doc_id", "in", sorted(doc_ids))]
    found: list[dict[str, Any]] = pq.read_table(table, columns=list(columns), filters=wanted).to_pylist()
    return found


# the documents of training sequences


@dataclass(frozen=True)
class AttributedDocument:
    """A document of which some training sequences contain a part.

    Attributes:
        doc_id: Id of the document.
        path: The first of its paths in the snapshot; empty if it has none any more.
        sequences: Numbers of these sequences, ascending.
    """

    doc_id: str
    path: str
    sequences: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.path or 'a document without a path'} (document {self.doc_id[:12]})"


def documents_in(store: Store, dataset: ArtifactRef, sequences: Sequence[int]) -> list[AttributedDocument]:
    """Return the documents of some training sequences, sorted by descending number of sequences, then by sequence.

    Args:
        sequences: Numbers of the sequences in the trainer's index, from 0, in any order.
    """
    table = pq.read_table(store.folder(dataset) / SEQUENCES_FILE, columns=["sequence", "split", "doc_id"])
    table = table.filter(pc.equal(table["split"], "train"))
    number = np.cumsum(np.diff(table["sequence"].to_numpy(), prepend=-1) != 0) - 1  # as in `load_index`
    rows = np.flatnonzero(np.isin(number, np.asarray(sequences, dtype=np.int64)))
    found: dict[str, dict[int, None]] = {}
    for doc_id, sequence in zip(table["doc_id"].take(rows).to_pylist(), number[rows].tolist(), strict=True):
        found.setdefault(doc_id, {})[sequence] = None
    paths = first_paths(store, dataset, found)
    documents = [AttributedDocument(doc_id, paths.get(doc_id, ""), tuple(places)) for doc_id, places in found.items()]
    return sorted(documents, key=lambda one: (-len(one.sequences), one.sequences[0]))


def name_documents(store: Store, dataset: ArtifactRef, sequences: Sequence[int]) -> str:
    """Return a sentence that lists the documents of some training sequences; "" if there are none."""
    found = documents_in(store, dataset, sequences)
    if not found:
        return ""
    named = ", ".join(map(str, found[:NAMED]))
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return f"Documents in these sequences: {named}{more}."


def first_paths(store: Store, ref: ArtifactRef, doc_ids: Collection[str]) -> dict[str, str]:
    """Return the first path of each document in the snapshot that an artefact was made from; {} without a snapshot.

    If that snapshot was removed, the newest other snapshot with the document is used.
    """
    listing = next((manifest for _, manifest in ancestors(store, ref) if manifest.stage == "snapshot"), None)
    if listing is None:
        return {}
    listings = [listing]
    if store.find(listing.stage, listing.key) is None:
        listings = sorted(store.manifests(listing.stage), key=lambda manifest: manifest.created)
    found: dict[str, str] = {}
    for manifest in listings:
        rows = rows_of(store.folder(manifest.ref) / FILES_FILE, doc_ids, ["doc_id", "status", "path"])
        paths = sorted(((row["path"], row["doc_id"]) for row in rows if row["status"] == "ok"), reverse=True)
        found |= {doc_id: path for path, doc_id in paths}
    return found


# the texts that models were trained on


def trainings_of(store: Store, checkpoint: ArtifactRef | None) -> Iterator[Manifest]:
    """Yield the training of a checkpoint and those that it continues; none for an imported model."""
    while checkpoint is not None and checkpoint.stage == "train":
        yield manifest_of(store, checkpoint)
        checkpoint = base_of(store, checkpoint)


def base_of(store: Store, checkpoint: ArtifactRef) -> ArtifactRef | None:
    """Return the model that a training continues, if it continues one."""
    made = manifest_of(store, checkpoint)
    return made.input_refs("base")[0] if "base" in made.inputs else None


def forgotten_since(store: Store, checkpoint: ArtifactRef) -> int:
    """Return how many documents of a model's training, and of those that it continues, were forgotten since."""
    trainings = {f"{one.stage}/{one.key}" for one in trainings_of(store, checkpoint)}
    return sum(not trainings.isdisjoint(item.seen_by) for item in read_tombstones(store).documents.values())


def datasets_of(store: Store, ref: ArtifactRef) -> list[ArtifactRef]:
    """Return the datasets that an artefact was made from, including those of the models that it continues.

    Datasets with documents that were forgotten since are removed from the store and left out.
    """
    found = (manifest for _, manifest in ancestors(store, ref) if manifest.stage == "dataset")
    return [manifest.ref for manifest in found if store.find(manifest.stage, manifest.key) is not None]


def pairs_of(
    store: Store, datasets: Sequence[ArtifactRef], doc_ids: Collection[str]
) -> dict[str, list[dict[str, Any]]]:
    """Return the conversations in each document that models were trained on; none for trainings on text.

    Each has `number` in its document, `kind`, `start` and `length` in characters, `synthetic`, and its `question`.
    """
    tokens = [ref for dataset in datasets for ref in manifest_of(store, dataset).input_refs("tokens")]
    made = [manifest_of(store, ref) for ref in tokens if ref.stage == "tokenise_pairs"]
    columns = ["doc_id", "number", "kind", "start", "length", "synthetic", "messages"]
    found: dict[str, dict[int, dict[str, Any]]] = {doc_id: {} for doc_id in doc_ids}
    for manifest in made:
        for ref in manifest.input_refs("pairs"):
            if store.find(ref.stage, ref.key) is None:
                continue  # forgotten
            for row in rows_of(store.folder(ref) / PAIRS_FILE, doc_ids, columns):
                if row["kind"] in manifest.settings["kinds"]:
                    question = row.pop("messages")[-2]["content"]
                    found[row.pop("doc_id")][row["number"]] = {**row, "question": question}
    return {doc_id: [*own.values()] for doc_id, own in found.items()}


def trained_texts(run: Run, checkpoint: ArtifactRef) -> RefSet | None:
    """Return the texts that a model was trained on; None for an imported model."""
    if not checkpoint.made:
        return RefSet((checkpoint,), "", live=((),))  # a model that is only planned
    datasets = datasets_of(run.store, checkpoint)
    return training_texts(run.store, datasets) if datasets else None


def training_texts(store: Store, datasets: Sequence[ArtifactRef]) -> RefSet:
    """Return the texts of the training documents of datasets, as the models read them, segment by segment.

    Returns:
        Refined segments; `live` has their training documents, which alone determine the digest.

    Raises:
        StoreError: A document is in none of the segments of its dataset.
    """
    live: dict[ArtifactRef, set[str]] = {}
    for dataset in datasets:
        manifest = manifest_of(store, dataset)
        refs = sorted({manifest_of(store, ref).input_refs("documents")[0] for ref in manifest.input_refs("tokens")})
        read = f"select doc_id from {parquet(store.folder(dataset) / SEQUENCES_FILE)} where split = 'train'"
        with Corpus() as corpus:
            corpus.want_kept(store.folder(manifest.input_refs("curated")[0]), "train")
            corpus.sql(f"delete from wanted where doc_id not in ({read})")  # a mix may leave out selected documents
            corpus.locate(tables_of(store, RefSet(tuple(refs), "")), DOCUMENTS_FILE)
            parts = corpus.sql("select part, list(doc_id) from located group by part order by part").fetchall()
        for part, doc_ids in parts:
            live.setdefault(refs[part], set()).update(doc_ids)
    digest = union_digest([store.folder(ref) / DOCUMENTS_FILE for ref in live], list(live.values()))
    return RefSet(tuple(live), digest, live=tuple(live.values()))


def sources_of(
    store: Store, datasets: Sequence[ArtifactRef], texts: RefSet, doc_ids: Collection[str]
) -> dict[str, dict[str, str]]:
    """Return `path`, `kind`, `licence` and `segment` of documents, "" if unknown, from the first dataset with them."""
    tables = [store.folder(ref) / DOCUMENTS_FILE for ref in texts.refs]
    kinds = {row["doc_id"]: row["kind"] for table in tables for row in rows_of(table, doc_ids, ["doc_id", "kind"])}
    found: dict[str, dict[str, str]] = {}
    for dataset in reversed(datasets):
        curated = manifest_of(store, dataset).input_refs("curated")[0]
        paths = first_paths(store, dataset, doc_ids)
        for row in rows_of(store.folder(curated) / SELECTION_FILE, doc_ids, ["doc_id", "licence", "segment"]):
            name = row["doc_id"]
            own = {"path": paths.get(name, ""), "kind": kinds.get(name) or "", "licence": row["licence"] or ""}
            found[name] = {**own, "segment": row["segment"] or ""}
    return found


# training membership of documents


@dataclass(frozen=True)
class _Seen:
    """Documents found in a dataset; `pieces` of its training sequences are from them, None if it was removed."""

    trained: frozenset[str] = frozenset()
    held_out: frozenset[str] = frozenset()
    pieces: int | None = None


def exposures(store: Store, doc_ids: Collection[str]) -> list[dict[str, Any]]:
    """Return the trainings that read some documents, as `sheepfold why --json` prints them, oldest first."""
    return [exposure for exposure, _ in exposed_documents(store, doc_ids)]


def exposed_documents(store: Store, doc_ids: Collection[str]) -> list[tuple[dict[str, Any], frozenset[str]]]:
    """Return the trainings that read some documents, oldest first, each with the ids of those documents.

    Returns:
        For each training its registered `versions`; `documents_trained_on`, by itself or by trainings that it
        continues; `documents_held_out`, its own validation documents; `training_pieces`, None if a dataset was removed;
        and `through`, the key of the nearest continued training that read documents which it did not read itself, else
        "".
    """
    seen_in = cache(lambda dataset: _seen(store, dataset, doc_ids))  # several trainings may share a dataset
    found = []
    versions = versions_by_training(store)
    for training in _trainings(store):
        levels = [(one.key, seen_in(one.input_refs("dataset")[0])) for one in trainings_of(store, training.ref)]
        own = levels[0][1]
        trained = frozenset[str]().union(*(seen.trained for _, seen in levels))
        if not trained and not own.held_out:
            continue
        pieces = [seen.pieces for _, seen in levels if seen.trained]
        there = [number for number in pieces if number is not None]
        name = f"{training.stage}/{training.key}"
        exposure = {
            "training": name,
            "versions": versions.get(name, []),
            "documents_trained_on": len(trained),
            "documents_held_out": len(own.held_out),
            "training_pieces": sum(there) if there and len(there) == len(pieces) else None,
            "through": next((key for key, seen in levels[1:] if seen.trained - own.trained), ""),
        }
        found.append((exposure, trained | own.held_out))
    return found


def continued(store: Store, trainings: Collection[str]) -> dict[str, str]:
    """Return the trainings (STAGE/KEY) that continue some of the given ones, each with the key of the nearest."""
    found = {}
    for training in _trainings(store):
        name, *bases = (f"{one.stage}/{one.key}" for one in trainings_of(store, training.ref))
        through = next((base for base in bases if base in trainings), None)
        if through is not None and name not in trainings:
            found[name] = through.rpartition("/")[2]
    return found


def versions_by_training(store: Store) -> Mapping[str, list[dict[str, Any]]]:
    """Return name, number and aliases of the registered versions of each checkpoint, by its STAGE/KEY."""
    found: dict[str, list[dict[str, Any]]] = {}
    for item in registered_versions(store):
        found.setdefault(f"{item.checkpoint.stage}/{item.checkpoint.key}", []).append(shown_version(item))
    return found


def shown_version(item: ModelVersion) -> dict[str, Any]:
    """Return name, number and aliases of a registered version."""
    return {"name": item.name, "version": item.version, "aliases": list(item.aliases)}


def _trainings(store: Store) -> list[Manifest]:
    return sorted(store.manifests("train"), key=lambda found: (found.created, found.key))


def _asks(store: Store, dataset: ArtifactRef, doc_id: str) -> bool:
    """Return True if a reply in another document answers a document in a dataset of conversations."""
    for ref in manifest_of(store, dataset).input_refs("tokens"):
        table = store.folder(ref) / EXAMPLES_FILE
        if table.is_file() and pq.read_table(table, columns=[], filters=[("asked_in", "=", doc_id)]).num_rows:
            return True
    return False


def _seen(store: Store, dataset: ArtifactRef, doc_ids: Collection[str]) -> _Seen:
    (curated,) = manifest_of(store, dataset).input_refs("curated")
    if store.find(curated.stage, curated.key) is None:
        return _Seen()
    rows = rows_of(store.folder(curated) / SELECTION_FILE, doc_ids, ["doc_id", "split", "kept"])
    selected = frozenset(row["doc_id"] for row in rows if row["kept"] and row["split"] == "train")
    held_out = frozenset(row["doc_id"] for row in rows if row["kept"] and row["split"] == "validation")
    if selected and store.find(dataset.stage, dataset.key) is not None:
        read = rows_of(store.folder(dataset) / SEQUENCES_FILE, doc_ids, ["doc_id", "split"])
        trained = [row["doc_id"] for row in read if row["split"] == "train"]
        asked = {doc_id for doc_id in selected if doc_id not in trained and _asks(store, dataset, doc_id)}
        return _Seen(frozenset(trained) | asked, held_out, len(trained))  # a mix may leave out selected documents
    return _Seen(selected, held_out)
