"""Training membership: the models that saw a document, by the datasets and trainings made from selections.

A selection has a row for each document, sorted by its id, so of each one a row group is read; the table of a dataset is
read only where its selection has the document. Memory holds the rows of the documents asked for, never a whole corpus.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, Manifest
from storage.registry import ModelVersion
from storage.schemas import SELECTION_FILE, SEQUENCES_FILE
from storage.store import Store


@dataclass(frozen=True)
class Exposure:
    """Documents that a training saw.

    Attributes:
        checkpoint: the training.
        trained: how many of the documents it was trained on, itself or through those that it continues.
        held_out: how many it was itself measured on while it was trained.
        pieces: of training sequences that are from the documents; None where a dataset is not there any more.
        through: of those that it continues, the nearest that was trained on some that it did not read itself; else
            empty.
    """

    checkpoint: ArtifactRef
    trained: int
    held_out: int
    pieces: int | None = None
    through: str = ""


@dataclass(frozen=True)
class _Seen:
    trained: frozenset[str] = frozenset()
    held_out: int = 0
    pieces: int | None = None


def exposures(store: Store, doc_ids: Collection[str]) -> list[Exposure]:
    """The trainings of a store that saw some documents, the oldest first."""
    trainings = sorted(store.manifests("train"), key=lambda found: (found.created, found.key))
    known: dict[str, _Seen] = {}  # by dataset; several trainings may have one
    found = []
    for training in trainings:
        levels = []
        for one in _chain(store, training):
            (dataset,) = one.input_refs("dataset")
            if dataset.key not in known:
                known[dataset.key] = _seen(store, dataset, doc_ids)
            levels.append((one.key, known[dataset.key]))
        exposure = _exposure(training.ref, levels)
        if exposure.trained or exposure.held_out:
            found.append(exposure)
    return found


def _exposure(training: ArtifactRef, levels: Sequence[tuple[str, _Seen]]) -> Exposure:
    """Combine what a training and those that it continues saw themselves, each with its key."""
    own = levels[0][1]
    trained = frozenset[str]().union(*(seen.trained for _, seen in levels))
    pieces = [seen.pieces for _, seen in levels if seen.trained]
    known = [number for number in pieces if number is not None]
    return Exposure(
        training,
        trained=len(trained),
        held_out=own.held_out,
        pieces=sum(known) if known and len(known) == len(pieces) else None,
        through=next((key for key, seen in levels[1:] if seen.trained - own.trained), ""),
    )


def continued(store: Store, trainings: Collection[str]) -> dict[str, str]:
    """Those that continue some trainings, directly or not, and the key of the one through which, the oldest first.

    Args:
        trainings: STAGE/KEY of each.
    """
    found = {}
    for training in sorted(store.manifests("train"), key=lambda item: (item.created, item.key)):
        bases = [base for base in _chain(store, training) if base.key != training.key]
        through = next((base.key for base in bases if f"{base.stage}/{base.key}" in trainings), None)
        name = f"{training.stage}/{training.key}"
        if through is not None and name not in trainings:
            found[name] = through
    return found


def _chain(store: Store, training: Manifest) -> Iterator[Manifest]:
    """A training and those that it continues."""
    current: Manifest | None = training
    while current is not None and current.stage == "train":
        yield current
        base = current.input_refs("base") if "base" in current.inputs else []
        current = manifest_of(store, base[0]) if base else None


def _seen(store: Store, dataset: ArtifactRef, doc_ids: Collection[str]) -> _Seen:
    """Count the documents that a dataset has of some, by its inputs."""
    (curated,) = manifest_of(store, dataset).input_refs("curated")
    if store.find(curated.stage, curated.key) is None:
        return _Seen()
    rows = _rows(store, curated, SELECTION_FILE, doc_ids, ["doc_id", "split", "kept"])
    selected = frozenset(row["doc_id"] for row in rows if row["kept"] and row["split"] == "train")
    held_out = sum(row["kept"] and row["split"] == "validation" for row in rows)
    if selected and store.find(dataset.stage, dataset.key) is not None:
        read = _rows(store, dataset, SEQUENCES_FILE, doc_ids, ["doc_id", "split"])
        trained = [row["doc_id"] for row in read if row["split"] == "train"]
        return _Seen(frozenset(trained), held_out, len(trained))  # a mix may leave out what was selected
    return _Seen(selected, held_out)


def _rows(
    store: Store, ref: ArtifactRef, name: str, doc_ids: Collection[str], columns: list[str]
) -> list[dict[str, Any]]:
    if not doc_ids:  # files without a document; an empty list has no type to filter by
        return []
    wanted = [("doc_id", "in", sorted(doc_ids))]
    found: list[dict[str, Any]] = pq.read_table(store.folder(ref) / name, columns=columns, filters=wanted).to_pylist()
    return found


def exposure_report(found: Collection[Exposure], versions: Collection[ModelVersion]) -> list[dict[str, object]]:
    """Return exposures with the registered versions of the models, as JSON."""
    return [
        {
            "training": f"{item.checkpoint.stage}/{item.checkpoint.key}",
            "versions": [
                {"name": version.name, "version": version.version, "aliases": list(version.aliases)}
                for version in versions
                if (version.checkpoint.stage, version.checkpoint.key) == (item.checkpoint.stage, item.checkpoint.key)
            ],
            "documents_trained_on": item.trained,
            "documents_held_out": item.held_out,
            "training_pieces": item.pieces,
            "through": item.through,
        }
        for item in found
    ]
