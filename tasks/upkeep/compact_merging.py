"""Artefacts of several segments as one: what computing them from the joined segment would give, by copying alone.

Rows come in the order of the joined segment, which is that of its contents, so that tables which are read side by side
(texts and their measures) still agree row for row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage.digest import rows_digest
from storage.manifest import Input, Manifest, RefSet, describe_inputs
from storage.schemas import (
    DOCUMENTS_FILE,
    EVALSET_OVERLAP,
    EXTRACTS,
    EXTRACTS_FILE,
    MEASURES,
    MEASURES_FILE,
    NORMALISED,
    OVERLAP_FILE,
    PAGES,
    PAGES_FILE,
    REFINED,
    RUNS_FILE,
    SCORES,
    SCORES_FILE,
    SHARD_COUNTS_FILE,
    SHARD_FILE,
    TOKENS_FILE,
)
from storage.store import Store
from storage.tables import ROW_GROUP_ROWS, TableWriter, read_columns, union_digest
from tasks.text import join_signatures, load_signatures
from tasks.tokens.tokenise import write_placements

SEGMENTS = "segments"  # the input under which a joined segment names those that it replaces

Order = Mapping[str, int]  # the place of each document


def merge_segments(store: Store, parts: Sequence[Manifest]) -> Manifest:
    """One segment with the contents of several, which must share none; made unless it is there."""
    contents = [entry for part in parts for entry in part.settings["contents"]]
    contents.sort(key=lambda entry: (entry["sha256"], entry["suffix"], entry["attempt"]))
    refs = tuple(part.ref for part in parts)
    inputs = {SEGMENTS: RefSet(refs, rows_digest((ref.key, ref.digest) for ref in refs))}
    return _merge(store, parts, inputs, {**parts[0].settings, "contents": contents}, {})


def merge_stage(
    store: Store, parts: Sequence[Manifest], inputs: Mapping[str, Input], settings: Mapping[str, Any], order: Order
) -> Manifest:
    """What a stage made of several segments, as it would make it of all of them; made unless it is there.

    Args:
        parts: of one stage and version.
        inputs: what it would be made from.
        settings: with which it would be made.
        order: of the joined segment, see `order_of`.
    """
    return _merge(store, parts, inputs, settings, order)


def order_of(store: Store, segment: Manifest) -> dict[str, int]:
    """The documents of a segment in their order."""
    names = read_columns(store.folder(segment.ref) / EXTRACTS_FILE, ["doc_id"])["doc_id"]
    return {doc_id: place for place, doc_id in enumerate(names)}


def _merge(
    store: Store, parts: Sequence[Manifest], inputs: Mapping[str, Input], settings: Mapping[str, Any], order: Order
) -> Manifest:
    first = parts[0]
    described = replace(first, inputs=describe_inputs(inputs), settings=dict(settings))
    key = described.content_key
    found = store.find(first.stage, key)
    if found is not None:
        return found
    with store.workspace(first.stage, key) as workspace:
        store.note_inputs(workspace, (ref for part in parts for ref in (part.ref, *part.input_refs())))
        digest = MERGES[first.stage]([store.folder(part.ref) for part in parts], workspace.out, order)
        counts: Counter[str] = Counter()
        for part in parts:
            counts.update(part.counts)
        made = replace(
            described,
            key=key,
            digest=digest,
            files=[],
            counts=dict(counts),
            created=datetime.now(UTC).isoformat(timespec="microseconds"),
            seconds=round(sum(part.seconds for part in parts), 3),  # what making it anew would take, for plans
        )
        return store.commit(workspace, made)


def _read(folders: Sequence[Path], name: str, schema: pa.Schema) -> pa.Table:
    return pa.concat_tables([schema.empty_table(), *(pq.read_table(folder / name) for folder in folders)])


def _write(path: Path, table: pa.Table, places: np.ndarray) -> None:
    """Write rows in an order, as a stage writes them."""
    with TableWriter(path, table.schema) as writer:
        for first in range(0, len(places), ROW_GROUP_ROWS):
            writer.write(table.take(pa.array(places[first : first + ROW_GROUP_ROWS])).to_pylist())


def _places(names: pa.ChunkedArray, order: Order) -> np.ndarray:
    """(n,) numbers of the rows in the order of their documents; rows of one document stay as they are."""
    return np.argsort(np.array([order[name] for name in names.to_pylist()], np.int64), kind="stable")


def _merge_extracts(folders: Sequence[Path], out: Path, order: Order) -> str:
    """Records by content, the members of each behind it; pages as their documents."""
    del order  # this is where it comes from
    extracts = _read(folders, EXTRACTS_FILE, EXTRACTS)
    places = np.argsort(extracts["file_sha256"].to_numpy(zero_copy_only=False).astype(str), kind="stable")
    _write(out / EXTRACTS_FILE, extracts, places)
    ordered = extracts["doc_id"].take(pa.array(places)).to_pylist()
    pages = _read(folders, PAGES_FILE, PAGES)
    _write(out / PAGES_FILE, pages, _places(pages["doc_id"], {name: place for place, name in enumerate(ordered)}))
    return union_digest([out / EXTRACTS_FILE])


def _merge_table(name: str, schema: pa.Schema) -> Callable[[Sequence[Path], Path, Order], str]:
    """For stages that give a table with a row for each document."""

    def merge(folders: Sequence[Path], out: Path, order: Order) -> str:
        rows = _read(folders, name, schema)
        _write(out / name, rows, _places(rows["doc_id"], order))
        return union_digest([out / name])

    return merge


def _merge_measures(folders: Sequence[Path], out: Path, order: Order) -> str:
    rows = _read(folders, MEASURES_FILE, MEASURES)
    places = _places(rows["doc_id"], order)
    _write(out / MEASURES_FILE, rows, places)
    join_signatures([load_signatures(folder) for folder in folders]).take(places).save(out)
    return union_digest([out / MEASURES_FILE])


def _merge_shards(folders: Sequence[Path], out: Path, order: Order) -> str:
    """Token shards: the ids of each document as they lie in its shard, one document after the other."""
    tables = [pq.read_table(folder / TOKENS_FILE) for folder in folders]
    rows = pa.concat_tables(tables)
    shard = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    places = _places(rows["doc_id"], order)
    lengths = rows["length"].to_numpy()[places]
    ends = np.cumsum(lengths)
    shards = [np.load(folder / SHARD_FILE, mmap_mode="r", allow_pickle=False) for folder in folders]
    (kind,) = {part.dtype for part in shards}
    whole = np.lib.format.open_memmap(out / SHARD_FILE, "w+", kind, (int(lengths.sum()),), version=(1, 0))
    offsets = rows["offset"].to_numpy()[places]
    for number, begin, end, length in zip(shard[places], offsets, ends, lengths, strict=True):
        whole[end - length : end] = shards[number][begin : begin + length]
    whole.flush()
    moved = rows.take(pa.array(places))
    column = moved.schema.get_field_index("offset")
    moved = moved.set_column(column, moved.schema.field(column), pa.array(ends - lengths))
    write_placements(out / TOKENS_FILE, moved)
    counts = [np.load(folder / SHARD_COUNTS_FILE, allow_pickle=False) for folder in folders]
    np.save(out / SHARD_COUNTS_FILE, np.sum(counts, axis=0), allow_pickle=False)
    return union_digest([out / TOKENS_FILE])


def _merge_overlaps(folders: Sequence[Path], out: Path, order: Order) -> str:
    """What documents share with an evaluation set, and the runs of each."""
    rows = _read(folders, OVERLAP_FILE, EVALSET_OVERLAP)
    places = _places(rows["doc_id"], order)
    _write(out / OVERLAP_FILE, rows, places)
    runs = np.concatenate([np.load(folder / RUNS_FILE, allow_pickle=False) for folder in folders])
    ends = np.cumsum(rows["shared"].to_numpy())
    spans = list(_spans(runs, ends))
    np.save(out / RUNS_FILE, np.concatenate([runs[:0], *(spans[place] for place in places)]), allow_pickle=False)
    return union_digest([out / OVERLAP_FILE])


def _spans(values: np.ndarray, ends: np.ndarray) -> Iterator[np.ndarray]:
    begin = 0
    for end in ends.tolist():
        yield values[begin:end]
        begin = end


MERGES: Mapping[str, Callable[[Sequence[Path], Path, Order], str]] = {
    "extract": _merge_extracts,
    "normalise": _merge_table(DOCUMENTS_FILE, NORMALISED),
    "measure": _merge_measures,
    "score": _merge_table(SCORES_FILE, SCORES),
    "refine": _merge_table(DOCUMENTS_FILE, REFINED),
    "tokenise": _merge_shards,
    "evalset_overlap": _merge_overlaps,
}
