"""Whether a dataset accounts for every id: from the documents in the shards to the sequences that training reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.lineage import manifest_of
from storage.manifest import RefSet
from storage.schemas import SEQUENCES_FILE
from storage.store import Store
from storage.verify import Check
from tasks.tokens.documents import TokenDocuments, kept_tokens
from tasks.tokens.index import load_index, read_record
from tasks.tokens.packing import Pieces, account, is_isolated
from tasks.upkeep.check_split import State


@dataclass(frozen=True)
class _Read:
    """Pieces as the table has them; `start` counts from the beginning of the shard, -1 is what is not there."""

    document: np.ndarray
    shard: np.ndarray
    sequence: np.ndarray
    start: np.ndarray
    length: np.ndarray
    ahead: np.ndarray

    def __len__(self) -> int:
        return len(self.document)


COUNTED = ("kept", "repeated", "padded", "cut", "labels")


def check_sequences(store: Store, state: State) -> Check:
    """Every piece lies in its document, every document on one side, and the account adds up."""
    check = Check("sequences")
    ref = state["dataset"][0]
    folder = store.folder(ref)
    shards = manifest_of(store, ref).input_refs("tokens")
    documents = kept_tokens(store, state["curate"][0], RefSet(tuple(shards), ""))
    record = read_record(folder)
    for split in ("train", "validation"):
        pieces = _pieces(folder / SEQUENCES_FILE, documents, split, [shard.key for shard in shards])
        check.checked += len(pieces)
        for problem in _problems(documents, pieces, record, split, len(load_index(folder, split))):
            check.problems.append(f"dataset {ref.key[:12]}, {split}: {problem}")
    for problem in _group_problems(record, load_index(folder, "train").labels, manifest_of(store, ref).counts):
        check.problems.append(f"dataset {ref.key[:12]}: {problem}")
    return check


def _group_problems(record: dict[str, Any], labels: np.ndarray, counts: Mapping[str, int]) -> Iterator[str]:
    """The groups follow one another over all training sequences, with the tokens and the reads that are noted."""
    first = 0
    for group in record["groups"]:
        expected = {"first": first, "count": group["sequences"]}
        if group["reads"]:  # of one that is left out nothing lies in the index
            expected["tokens"] = int(labels[first : first + group["sequences"]].sum())
        if record["mix"] is None:
            expected["reads"] = group["sequences"]
        for problem in _differences(expected, group):
            yield f"group {group['name']!r}: {problem}"
        if bool(group["reads"]) != bool(group["sequences"]) or group["reads"] < 0:
            yield f"group {group['name']!r}: {group['reads']} reads of {group['sequences']} sequences"
        first += group["sequences"]
    if first != len(labels):
        yield f"the groups are {first} training sequences, but the index has {len(labels)}"
    reads = sum(group["reads"] for group in record["groups"])
    if reads != counts["train_reads"]:
        yield f"the groups have {reads} reads, but the manifest counts {counts['train_reads']}"


def _pieces(table: Path, documents: TokenDocuments, split: str, keys: list[str]) -> _Read:
    """The pieces of one split, with the documents that they are said to be of."""
    rows = pq.read_table(table)
    rows = rows.filter(pc.equal(rows["split"], split))
    shards = pa.array(keys, pa.string())
    numbers = {name: rows[name].to_numpy() for name in ("sequence", "start", "length", "ahead")}
    return _Read(
        document=pc.fill_null(pc.index_in(rows["doc_id"], value_set=documents.ids), -1).to_numpy().astype(np.int64),
        shard=pc.fill_null(pc.index_in(rows["shard"], value_set=shards), -1).to_numpy().astype(np.int64),
        **numbers,
    )


def _problems(
    documents: TokenDocuments, read: _Read, record: dict[str, Any], split: str, n_sequences: int
) -> Iterator[str]:
    """What is wrong with one split."""
    noted = record["splits"][split]
    own = documents.train if split == "train" else ~documents.train
    for row in np.flatnonzero(read.document < 0)[:1]:
        yield f"piece {row} is of a document that is not kept"
        return
    for row in np.flatnonzero(~own[read.document])[:1]:
        yield f"document {documents.ids[read.document[row]]} stands in it, but is on the other side of the split"
    begin = documents.offset[read.document]
    outside = (read.start < begin) | (read.start + read.length > begin + documents.length[read.document])
    for row in np.flatnonzero(outside | (read.shard != documents.shard[read.document]))[:1]:
        yield f"piece {row} does not lie in its document {documents.ids[read.document[row]]}"
        return
    expected = {"documents": int(own.sum()), "ids": int(documents.length[own].sum())}
    yield from _differences(expected, noted)
    number = np.cumsum(own) - 1  # of each document among those of its side
    first = int(read.sequence[0]) if len(read.sequence) else 0
    pieces = Pieces(
        number[read.document], read.start - begin, read.length, read.ahead, read.sequence.astype(np.int64) - first
    )
    found = account(pieces, documents.length[own], record["seq_len"], is_isolated(record["packing"]))
    yield from _differences({name: value for name, value in asdict(found).items() if name in COUNTED}, noted)
    if (
        found.sequences != n_sequences
        or found.sequences * record["seq_len"] != found.kept + found.repeated + found.padded
    ):
        yield f"{found.sequences} sequences of {record['seq_len']} places do not add up to what stands in them"
    if found.kept + found.cut != expected["ids"]:
        yield f"{found.kept} ids kept and {found.cut} cut are not the {expected['ids']} of the documents"


def _differences(found: dict[str, int], noted: dict[str, int]) -> Iterator[str]:
    for name, value in found.items():
        if value != noted[name]:
            yield f"{name} is {value}, but dataset.json says {noted[name]}"
