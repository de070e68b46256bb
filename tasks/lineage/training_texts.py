"""The texts that a model was trained on, found through lineage: as the model read them, whatever the corpus is now."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.lineage import ancestors, manifest_of
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import DOCUMENTS_FILE, SELECTION_FILE, SEQUENCES_FILE
from storage.store import Store
from storage.tables import union_digest
from tasks.curate.corpus import by_table, kept_documents
from tasks.lineage.attribution import first_paths

if TYPE_CHECKING:
    from tasks.core.run import Run


@dataclass(frozen=True)
class Source:
    """Origin of a document; unknown parts are empty.

    Attributes:
        path: the first of its paths.
    """

    path: str = ""
    kind: str = ""
    licence: str = ""


def datasets_of(store: Store, ref: ArtifactRef) -> list[ArtifactRef]:
    """The datasets that something was made from: those of a model, and of the models that it continues from.

    One with a document that was forgotten since is not there any more.
    """
    found = (manifest for _, manifest in ancestors(store, ref) if manifest.stage == "dataset")
    return [manifest.ref for manifest in found if store.find(manifest.stage, manifest.key) is not None]


def training_texts(store: Store, datasets: Sequence[ArtifactRef]) -> RefSet:
    """The texts of the training documents of datasets, segment by segment.

    Returns:
        Refined segments; `live` says which of their documents are trained on, and the digest covers those alone.

    Raises:
        StoreError: if a document lies in none of the segments behind its dataset.
    """
    live: dict[ArtifactRef, set[str]] = {}
    for dataset in datasets:
        manifest = manifest_of(store, dataset)
        refs = [manifest_of(store, ref).input_refs("documents")[0] for ref in manifest.input_refs("tokens")]
        refs = sorted(set(refs))
        kept = kept_documents(store, manifest.input_refs("curated")[0], "train")
        read = _trained(store.folder(dataset))
        noted = {doc_id: segment for doc_id, segment in kept.items() if doc_id in read}
        for ref, doc_ids in zip(refs, by_table(store, noted, RefSet(tuple(refs), ""), DOCUMENTS_FILE), strict=True):
            live.setdefault(ref, set()).update(doc_ids)
    used = [(ref, doc_ids) for ref, doc_ids in live.items() if doc_ids]
    digest = union_digest([store.folder(ref) / DOCUMENTS_FILE for ref, _ in used], [doc_ids for _, doc_ids in used])
    return RefSet(tuple(ref for ref, _ in used), digest, live=tuple(doc_ids for _, doc_ids in used))


def _trained(dataset: Path) -> set[str]:
    """Ids of the documents in the training sequences of a dataset."""
    table = pq.read_table(dataset / SEQUENCES_FILE, columns=["split", "doc_id"], read_dictionary=["split", "doc_id"])
    return set(pc.unique(table.filter(pc.equal(table["split"], "train"))["doc_id"]).to_pylist())


def sources_of(
    store: Store, datasets: Sequence[ArtifactRef], texts: RefSet, doc_ids: Collection[str]
) -> dict[str, Source]:
    """Return the origin of documents of datasets; one that the first has is looked up there.

    Args:
        texts: the training texts of the datasets.
    """
    kinds: dict[str, str] = {}
    for ref in texts.refs:
        rows = _rows(store.folder(ref) / DOCUMENTS_FILE, ["doc_id", "kind"], sorted(doc_ids))
        kinds |= {doc_id: row["kind"] or "" for doc_id, row in rows.items()}
    found: dict[str, Source] = {}
    for dataset in datasets:
        left = sorted(set(doc_ids) - found.keys())
        if not left:
            break
        curated = manifest_of(store, dataset).input_refs("curated")[0]
        selection = _rows(store.folder(curated) / SELECTION_FILE, ["doc_id", "licence"], left)
        paths = first_paths(store, dataset, left)
        for doc_id, row in selection.items():
            found[doc_id] = Source(paths.get(doc_id, ""), kinds.get(doc_id, ""), row["licence"] or "")
    return found


def _rows(table: Path, columns: list[str], doc_ids: list[str]) -> dict[str, dict[str, str | None]]:
    """Rows of a table by document."""
    read = pq.read_table(table, columns=columns)
    read = read.filter(pc.is_in(read["doc_id"], value_set=pa.array(doc_ids, pa.string())))
    return {row["doc_id"]: row for row in read.to_pylist()}


def trained_texts(run: Run, checkpoint: ArtifactRef) -> RefSet | None:
    """Return the texts that a model was trained on; None for a model from elsewhere."""
    if not checkpoint.made:
        return RefSet((checkpoint,), "", live=((),))  # of a model that a plan would train
    datasets = datasets_of(run.store, checkpoint)
    return training_texts(run.store, datasets) if datasets else None
