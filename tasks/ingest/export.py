"""Export a corpus as Parquet for other programs: documents or their tokens.

The views of the catalogue become a folder of Parquet files of some hundred MB each, with a JSON record of the export
and, for token ids, the tokeniser. Memory holds one batch at a time; sorting spills to disk.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.catalog import Catalog, quoted, read_ids, read_state
from storage.errors import UserError
from storage.store import Store
from tasks.readers.records import Limits
from tasks.tokens.tokenizer_kinds import TOKENIZER_FILE

FILE_BYTES = 512 * 2**20  # before compression
BATCH_IDS = 4 * 2**20
BATCH_ROWS = 1_000
RECORD_FILE = "export.json"
TOKENS = pa.schema(
    [("doc_id", pa.string()), ("split", pa.string()), ("input_ids", pa.list_(pa.uint32())), ("n_bytes", pa.int64())]
)


@dataclass(frozen=True)
class Exported:
    """Result of an export.

    Attributes:
        files: Names of the Parquet files, in order.
        rows: Number of rows in all files.
        tokens: Number of token ids in all files; 0 for documents.
    """

    folder: str
    what: str
    split: str
    files: list[str]
    rows: int
    tokens: int


def export_corpus(store: Store, corpus: str, folder: Path, what: str, split: str = "") -> Exported:
    """Write the last completed run of a corpus as Parquet.

    Args:
        folder: Target folder, new or empty; it is replaced atomically by the complete export.
        what: `documents`: the kept documents, with all columns of the catalogue's view and their paths; `tokens`: the
            token ids of each.
        split: `train` or `validation`; "" for both.

    Raises:
        UserError: The folder is not empty, or the stages of the corpus that the export needs have not run.
    """
    if what not in _BATCHES:
        raise UserError(f"--what {what}: expected {', '.join(_BATCHES)}")
    if split not in ("", "train", "validation"):
        raise UserError(f"--split {split}: expected train or validation, or leave it out for both")
    stages, batches = _BATCHES[what]
    state = read_state(store, corpus)
    missing = [stage for stage in stages if not state.get(stage)]
    if missing:
        command = "ingest" if what == "documents" else "prepare"
        raise UserError(
            f"the corpus has no {what} yet (no artefact of stage {', '.join(missing)}): run `sheepfold {command} "
            "SOURCE` first"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not an empty folder; name a new folder to write to")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        work = Path(temporary, "export")
        work.mkdir()
        catalog = Catalog(store, corpus)
        catalog.connection.execute(f"set temp_directory = {quoted(temporary)}")
        catalog.connection.execute(f"set memory_limit = '{Limits().query_memory_bytes}B'")
        files, rows, tokens = _write_files(work, what, batches(catalog, f"split = '{split}'" if split else "true"))
        exported = Exported(str(folder), what, split, files, rows, tokens)
        if what != "documents":
            shutil.copyfile(store.folder(state["tokenizer"][0]) / TOKENIZER_FILE, work / TOKENIZER_FILE)
        record = asdict(exported) | {"made_from": [asdict(ref) for stage in stages for ref in state[stage]]}
        del record["folder"]
        (work / RECORD_FILE).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        work.replace(folder)  # replaces an empty folder
    return exported


def _write_files(folder: Path, what: str, batches: Iterator[pa.RecordBatch]) -> tuple[list[str], int, int]:
    """Write one or more batches of one schema to files; return their names and the numbers of rows and token ids."""
    files: list[str] = []
    rows = tokens = size = 0
    writer: pq.ParquetWriter | None = None
    try:
        for batch in batches:
            if writer is None or size >= FILE_BYTES:
                if writer is not None:
                    writer.close()
                files.append(f"{what}-{len(files):05}.parquet")
                writer, size = pq.ParquetWriter(folder / files[-1], batch.schema, compression="zstd"), 0
            if batch.num_rows:  # no empty row groups
                writer.write_batch(batch)
            size += batch.nbytes
            rows += batch.num_rows
            if "input_ids" in batch.schema.names:
                tokens += pc.sum(pc.list_value_length(batch.column("input_ids"))).as_py() or 0
    finally:
        if writer is not None:
            writer.close()
    return files, rows, tokens


def _documents(catalog: Catalog, condition: str) -> Iterator[pa.RecordBatch]:
    query = (
        "select documents.*, source, path from documents "
        f"join (from files where status = 'ok') using (doc_id) where {condition} order by doc_id"
    )
    reader = catalog.connection.sql(query).to_arrow_reader(BATCH_ROWS)
    yield pa.RecordBatch.from_pylist([], reader.schema)
    yield from reader


def _tokens(catalog: Catalog, condition: str) -> Iterator[pa.RecordBatch]:
    # in the order of the shards, so that each is read sequentially
    query = (
        f'select doc_id, split, n_bytes, filename, "offset", length from token_spans where {condition} '
        'order by filename, "offset"'
    )
    yield pa.RecordBatch.from_pylist([], TOKENS)
    for rows in catalog.connection.sql(query).to_arrow_reader(BATCH_ROWS):
        for start, stop in _runs(rows["length"].to_numpy()):
            part = rows.slice(start, stop - start)
            ids = read_ids(part["filename"], part["offset"], part["length"])
            yield pa.record_batch([part["doc_id"], part["split"], ids, part["n_bytes"]], TOKENS)


def _runs(sizes: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows with at most `BATCH_IDS` token ids, but at least one row."""
    ends = np.cumsum(sizes, dtype=np.int64)
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, before + BATCH_IDS, "right")), start + 1)
        yield start, stop
        start = stop


_Batches = Callable[[Catalog, str], Iterator[pa.RecordBatch]]
# the stages that each export needs, and the function that yields its batches for an SQL condition
_BATCHES: dict[str, tuple[tuple[str, ...], _Batches]] = {
    "tokens": (("curate", "tokenizer", "tokenise"), _tokens),
    "documents": (("snapshot", "measure", "curate", "refine"), _documents),
}
