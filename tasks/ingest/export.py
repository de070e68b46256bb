"""Export of a corpus as Parquet that other programs read: documents or their tokens.

The artefacts of a corpus's last completed run become a folder of Parquet files of some hundred MB each, with a record
of what they hold and, where there are ids in them, the tokeniser. Memory holds a batch at a time.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.errors import UserError
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import DOCUMENTS_FILE, SHARD_FILE, TOKENS_FILE
from storage.store import Store
from tasks.curate.view import DocumentView, kept_by_segment, paths_of, segment_tables
from tasks.tokens.tokenizer_kinds import TOKENIZER_FILE

State = Mapping[str, Sequence[ArtifactRef]]

FILE_BYTES = 512 * 2**20  # of data in memory; files are smaller by compression
BATCH_IDS = 4 * 2**20
BATCH_ROWS = 10_000
BATCH_DOCUMENTS = 1_000
RECORD_FILE = "export.json"

TOKENS = pa.schema(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("input_ids", pa.list_(pa.field("item", pa.uint32(), nullable=False)), nullable=False),
        pa.field("n_bytes", pa.int64(), nullable=False),
    ]
)


@dataclass(frozen=True)
class Exported:
    """Result of an export.

    Attributes:
        files: Names of the Parquet files, in order.
        rows: In all of them.
        tokens: Ids in all of them; 0 where there are none.
    """

    folder: str
    what: str
    split: str
    files: list[str]
    rows: int
    tokens: int


def export_corpus(store: Store, state: State, folder: Path, what: str, split: str = "") -> Exported:
    """Write a corpus as Parquet.

    Args:
        state: Artefacts of the corpus's last completed run, by stage.
        folder: Where to; it must not exist, or be empty. Only a whole export appears in it.
        what: `documents`: the kept documents, with all columns of the catalogue's view and their paths; `tokens`: the
            ids of each.
        split: `train` or `validation`; "" for both.

    Raises:
        UserError: The folder is not free, or the corpus was not prepared that far.
    """
    if what not in _BATCHES:
        raise UserError(f"--what {what}: expected {', '.join(_BATCHES)}")
    if split not in ("", "train", "validation"):
        raise UserError(f"--split {split}: expected train or validation, or leave it out for both")
    stages, batches = _BATCHES[what]
    missing = [stage for stage in stages if not state.get(stage)]
    if missing:
        command = "ingest" if what == "documents" else "prepare"
        raise UserError(
            f"the corpus has no {what} yet (nothing of stage {', '.join(missing)}): run `sheepfold {command} SOURCE` "
            "first"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there and not empty; name a new folder to write to")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        work = Path(temporary, "export")
        work.mkdir()
        files, rows, tokens = _write_files(work, what, batches(store, state, split))
        exported = Exported(str(folder), what, split, files, rows, tokens)
        if what != "documents":
            shutil.copyfile(store.folder(state["tokenizer"][0]) / TOKENIZER_FILE, work / TOKENIZER_FILE)
        record = asdict(exported) | {"made_from": [asdict(ref) for stage in stages for ref in state[stage]]}
        del record["folder"]
        (work / RECORD_FILE).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        work.replace(folder)  # takes the place of an empty folder
    return exported


def _write_files(folder: Path, what: str, tables: Iterator[pa.Table]) -> tuple[list[str], int, int]:
    """Write tables of one schema to files; returns their names, the rows and the ids."""
    files: list[str] = []
    rows = tokens = size = 0
    writer: pq.ParquetWriter | None = None
    try:
        for table in tables:
            if writer is None or size >= FILE_BYTES:
                if writer is not None:
                    writer.close()
                files.append(f"{what}-{len(files):05}.parquet")
                writer, size = pq.ParquetWriter(folder / files[-1], table.schema, compression="zstd"), 0
            if table.num_rows:  # a row group of no rows is noise in every reader's metadata
                writer.write_table(table)
            size += table.nbytes
            rows += table.num_rows
            if "input_ids" in table.column_names:
                tokens += pc.sum(pc.list_value_length(table.column("input_ids"))).as_py() or 0
    finally:
        if writer is not None:
            writer.close()
    return files, rows, tokens


def _per_segment(state: State, stage: str) -> RefSet:
    """The artefacts of a stage that has one for each segment; where a document lies is told by the segments."""
    refs, segments = tuple(state.get(stage, ())), tuple(ref.key for ref in state["extract"])
    return RefSet(refs, "", segments if len(segments) == len(refs) else ())


def _document_batches(store: Store, state: State, split: str) -> Iterator[pa.Table]:
    texts = _per_segment(state, "refine")
    kept = kept_by_segment(store, state["curate"][0], texts, DOCUMENTS_FILE, split)
    tables = segment_tables(store, _per_segment(state, "measure"), texts, _per_segment(state, "score"))
    view = DocumentView(tables, kept, paths_of(store.folder(state["snapshot"][0])))
    yield view.empty()
    for _ in view:
        found = view.connection.sql("select * from documents order by doc_id")
        yield from map(pa.Table.from_batches, ([batch] for batch in found.to_arrow_reader(BATCH_DOCUMENTS)))


def _token_batches(store: Store, state: State, split: str) -> Iterator[pa.Table]:
    shards = _per_segment(state, "tokenise")
    yield TOKENS.empty_table()
    kept = kept_by_segment(store, state["curate"][0], shards, TOKENS_FILE, split)
    for ref, selected in zip(shards.refs, kept, strict=True):
        folder = store.folder(ref)
        columns = ["doc_id", "offset", "length", "n_bytes"]
        rows = pq.read_table(folder / TOKENS_FILE, columns=columns)
        # in the order of the shard, which is then read from front to back
        place = pc.index_in(rows.column("doc_id"), value_set=selected.column("doc_id").combine_chunks())
        rows = rows.append_column("place", place).filter(pc.is_valid(place)).sort_by("offset")
        split_of = selected.column("split").take(rows.column("place"))
        ids = np.load(folder / SHARD_FILE, mmap_mode="r", allow_pickle=False)
        lengths = rows.column("length").to_numpy()
        for start, stop in _batches(lengths):
            offsets = rows.column("offset").to_numpy()[start:stop]
            values = _gather(ids, offsets, lengths[start:stop])
            lists = _lists(values.astype(np.uint32), lengths[start:stop])
            yield pa.table(
                [rows.column("doc_id")[start:stop], split_of[start:stop], lists, rows.column("n_bytes")[start:stop]],
                schema=TOKENS,
            )


def _batches(sizes: np.ndarray) -> Iterator[tuple[int, int]]:
    """Runs of rows that hold about as many ids as a batch may."""
    ends = np.cumsum(sizes, dtype=np.int64)
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + BATCH_IDS, "right"))
        stop = min(max(stop, start + 1), start + BATCH_ROWS)
        yield start, stop
        start = stop


def _gather(ids: np.ndarray, offsets: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    if len(offsets) and offsets[-1] + lengths[-1] - offsets[0] == lengths.sum():
        found: np.ndarray = ids[offsets[0] : offsets[-1] + lengths[-1]]
        return found
    return np.concatenate([ids[start : start + n] for start, n in zip(offsets.tolist(), lengths.tolist(), strict=True)])


def _lists(values: np.ndarray, lengths: np.ndarray) -> pa.ListArray:
    offsets = np.append(0, np.cumsum(lengths, dtype=np.int64))
    if offsets[-1] > np.iinfo(np.int32).max:
        raise UserError(f"a document of {offsets[-1]} ids is longer than a list of a Parquet table may be")
    item = pa.field("item", pa.from_numpy_dtype(values.dtype), nullable=False)
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values), type=pa.list_(item))


_Batches = Callable[[Store, State, str], Iterator[pa.Table]]
# what each needs, and what makes it
_BATCHES: dict[str, tuple[tuple[str, ...], _Batches]] = {
    "tokens": (("curate", "tokenizer", "tokenise"), _token_batches),
    "documents": (("snapshot", "measure", "curate", "refine"), _document_batches),
}
