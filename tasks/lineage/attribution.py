"""Document attribution: from the numbers of the sequences that a training stopped at to documents and paths.

Goes in: a dataset and the numbers under which its training sequences are read. Comes out: the documents whose pieces
they are made of, with the paths that the snapshot has them at, and a sentence that names the first few. It is asked
only when something went wrong, so it reads the tables as they are and keeps nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.lineage import ancestor
from storage.manifest import ArtifactRef
from storage.schemas import FILES_FILE, SEQUENCES_FILE
from storage.store import Store

NAMED = 5  # documents that a sentence names


@dataclass(frozen=True)
class AttributedDocument:
    """A document with a piece in one of the sequences.

    Attributes:
        doc_id: of the document.
        path: the first of the paths that the snapshot has it at; empty if it has none any more.
        sequences: numbers of those of the sequences that it stands in, rising.
    """

    doc_id: str
    path: str
    sequences: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.path or 'a document without a path'} (document {self.doc_id[:12]})"


def documents_in(
    store: Store, dataset: ArtifactRef, sequences: Sequence[int], split: str = "train"
) -> list[AttributedDocument]:
    """The documents of some sequences; of those with the most sequences first, then in the order of the sequences.

    Args:
        dataset: an artefact of the stage `dataset`.
        sequences: as the trainer numbers them, from 0 on within the split, in any order.
        split: `train` or `validation`.

    Raises:
        IndexError: if a number is none of a sequence.
    """
    folder = store.folder(dataset)
    table = pq.read_table(folder / SEQUENCES_FILE, columns=["sequence", "split", "doc_id"], read_dictionary=["split"])
    table = table.filter(pc.equal(table["split"], split))
    number = np.cumsum(np.diff(table["sequence"].to_numpy(), prepend=-1) != 0) - 1  # as `load_index` counts them
    wanted = np.unique(np.asarray(sequences, dtype=np.int64))
    n_sequences = int(number[-1]) + 1 if len(number) else 0
    for outside in wanted[(wanted < 0) | (wanted >= n_sequences)][:1]:
        raise IndexError(f"sequence {outside} is asked for, but the dataset has {n_sequences} in its {split} split")
    rows = np.flatnonzero(np.isin(number, wanted))
    found: dict[str, list[int]] = {}
    for doc_id, sequence in zip(table["doc_id"].take(rows).to_pylist(), number[rows].tolist(), strict=True):
        places = found.setdefault(doc_id, [])
        if not places or places[-1] != sequence:
            places.append(sequence)
    paths = first_paths(store, dataset, list(found))
    culprits = [AttributedDocument(doc_id, paths.get(doc_id, ""), tuple(places)) for doc_id, places in found.items()]
    return sorted(culprits, key=lambda one: (-len(one.sequences), one.sequences[0]))


def first_paths(store: Store, dataset: ArtifactRef, doc_ids: list[str]) -> dict[str, str]:
    """The first path of each document in the snapshot that the dataset was made from.

    Where that one was cleared away others name what they have, the newest what several do.
    """
    listing = ancestor(store, dataset, "snapshot")
    listings = [listing]
    if store.find(listing.stage, listing.key) is None:
        listings = sorted(store.manifests(listing.stage), key=lambda manifest: manifest.created)
    found: dict[str, str] = {}
    for manifest in listings:
        files = pq.read_table(store.folder(manifest.ref) / FILES_FILE, columns=["doc_id", "status", "path"])
        wanted = pc.and_(
            pc.equal(files["status"], "ok"), pc.is_in(files["doc_id"], value_set=pa.array(doc_ids, pa.string()))
        )
        files = files.filter(wanted).sort_by([("path", "descending")])
        found |= zip(files["doc_id"].to_pylist(), files["path"].to_pylist(), strict=True)
    return found


def name_documents(store: Store, dataset: ArtifactRef, sequences: Sequence[int]) -> str:
    """A sentence that names the documents of some training sequences; empty where there are none.

    Args:
        dataset: an artefact of the stage `dataset`.
        sequences: as the trainer numbers them.
    """
    culprits = documents_in(store, dataset, sequences)
    if not culprits:
        return ""
    named = ", ".join(map(str, culprits[:NAMED]))
    more = f" and {len(culprits) - NAMED} more" if len(culprits) > NAMED else ""
    return f"Documents in these sequences: {named}{more}."
