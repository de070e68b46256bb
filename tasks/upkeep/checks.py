"""Checks of a corpus from documents to sequences, for `verify`: what stages recorded is computed again and compared."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import DOCUMENTS_FILE, SELECTION_FILE, SEQUENCES_FILE, SHARD_COUNTS_FILE, SHARD_FILE, TOKENS_FILE
from storage.store import Store
from storage.tables import read_columns, read_places, read_rows, stream_rows
from storage.verify import Check
from tasks.curate.corpus import kept_documents, kept_rows
from tasks.text import Hashes, containment, gram_hashes
from tasks.tokens.documents import TokenDocuments, kept_tokens
from tasks.tokens.index import load_index, read_record
from tasks.tokens.packing import Pieces, account, is_isolated
from tasks.tokens.tokenise import TokeniseSettings
from tasks.tokens.tokenizers import TOKENIZER_FILE, Tokenizer, load_tokenizer, smallest_dtype

State = dict[str, list[ArtifactRef]]

DOCUMENTS_AT_ONCE = 1_000


def check_split(store: Store, state: State) -> Check:
    """Every cluster lies on one side; no evaluation document is trained on, nor does its text stand in what is."""
    check = Check("split")
    curated = state["curate"][0]
    sides: dict[str, set[str]] = defaultdict(set)
    for row in read_rows(store.folder(curated) / SELECTION_FILE, ["cluster", "split"]):
        sides[row["cluster"]].add(row["split"])
        check.checked += 1
    check.problems += [
        f"text {name[:12]} is on both sides of the split" for name, found in sides.items() if len(found) > 1
    ]
    trained = kept_documents(store, curated, "train")
    for ref in state.get("evalset", []):
        for row in read_rows(store.folder(ref) / DOCUMENTS_FILE, ["doc_id"]):
            check.checked += 1
            if row["doc_id"] in trained:
                check.problems.append(f"evaluation document {row['doc_id']} is trained on")
    check.problems += _containment_problems(store, state)
    return check


def _containment_problems(store: Store, state: State) -> Iterator[str]:
    """Held-out documents that stand in training text, and training documents that stand in held-out text.

    What counts is the share of a document's runs of thirteen words, on the normalised texts: that is what the split
    promises. Held out are the validation documents and the evaluation set, which may hold some that are gone since.
    """
    limit = float(manifest_of(store, state["curate"][0]).settings["curate"]["max_containment"])
    held_out = dict(_texts(store, state, "validation"))
    for ref in state.get("evalset", []):
        documents = stream_rows(store.folder(ref) / DOCUMENTS_FILE, ["doc_id", "text"])
        missing = [row["doc_id"] for row in documents if row["doc_id"] not in held_out]
        held_out |= _as_normalised(store, state, ref, missing)
    names = list(held_out)
    trained: list[str] = []

    def blocks() -> Iterator[Hashes]:
        block: list[str] = []
        for doc_id, text in _texts(store, state, "train"):
            trained.append(doc_id)
            block.append(text)
            if len(block) == DOCUMENTS_AT_ONCE:
                yield gram_hashes(block)
                block = []
        yield gram_hashes(block)

    shares, trained_shares = containment(gram_hashes([held_out[name] for name in names]), blocks())
    yield from _leaks(names, shares.tolist(), "held out", "training", limit)
    yield from _leaks(trained, np.concatenate(trained_shares).tolist(), "trained on", "held-out", limit)


def _leaks(names: Sequence[str], shares: Sequence[float], role: str, other: str, limit: float) -> Iterator[str]:
    for name, share in zip(names, shares, strict=True):
        if share >= limit:
            yield (
                f"document {name} is {role}, but {share:.1%} of its runs of thirteen words stand in {other} text "
                f"(curate.max_containment is {limit})"
            )


def _texts(store: Store, state: State, split: str) -> Iterator[tuple[str, str]]:
    """The normalised texts of one side."""
    tables = RefSet(tuple(state["normalise"]), "")
    kept = kept_documents(store, state["curate"][0], split)
    for row in kept_rows(store, kept, tables, DOCUMENTS_FILE, ["doc_id", "text"]):
        yield row["doc_id"], row["text"]


def _as_normalised(store: Store, state: State, evalset: ArtifactRef, wanted: Container[str]) -> dict[str, str]:
    """Texts of evaluation documents that are in no split now: normalised where they still lie, else as they froze."""
    refined = stream_rows(store.folder(evalset) / DOCUMENTS_FILE, ["doc_id", "text"])
    texts = {row["doc_id"]: row["text"] for row in refined if row["doc_id"] in wanted}
    for ref in state["normalise"]:
        for row in stream_rows(store.folder(ref) / DOCUMENTS_FILE, ["doc_id", "text"]):
            if row["doc_id"] in texts:
                texts[row["doc_id"]] = row["text"]
    return texts


DECODED = 500  # documents of a shard whose ids are turned into text again, those of lowest hash
IDS_AT_ONCE = 2**22
CHANGE_TEXT = ("hf",)  # kinds of tokenisers


def check_tokens(store: Store, state: State) -> Check:
    """Ids lie in the vocabulary and are counted right, documents follow one another, a sample gives its text back."""
    check = Check("token round trip")
    tokenizer = load_tokenizer(store.folder(state["tokenizer"][0]) / TOKENIZER_FILE)
    for ref in state["tokenise"]:
        for problem in _shard_problems(store, ref, tokenizer, check):
            check.problems.append(f"token shard {ref.key[:12]}: {problem}")
    return check


def _shard_problems(store: Store, ref: ArtifactRef, tokenizer: Tokenizer, check: Check) -> Iterator[str]:
    folder = store.folder(ref)
    manifest = manifest_of(store, ref)
    columns = read_columns(folder / TOKENS_FILE, ["doc_id", "offset", "length", "lost_bytes"])
    offsets, lengths = (np.array(columns[name], dtype=np.int64) for name in ("offset", "length"))
    check.checked += len(lengths)
    shard = np.load(folder / SHARD_FILE, mmap_mode="r", allow_pickle=False)
    if shard.dtype != smallest_dtype(tokenizer.vocab_size):
        yield f"its ids are {shard.dtype}, expected {smallest_dtype(tokenizer.vocab_size)}"
    if not np.array_equal(offsets, np.cumsum(lengths) - lengths) or int(lengths.sum()) != len(shard):
        yield f"its documents do not follow one another up to its {len(shard)} ids"
        return
    counts = _counts(shard)
    if len(counts) > tokenizer.vocab_size:
        yield f"id {len(counts) - 1} is outside the vocabulary of {tokenizer.vocab_size}"
        return
    counts = np.pad(counts, (0, tokenizer.vocab_size - len(counts)))
    if not np.array_equal(counts, np.load(folder / SHARD_COUNTS_FILE, allow_pickle=False)):
        yield f"{SHARD_COUNTS_FILE} is not how often its ids occur"
    framing = TokeniseSettings(**manifest.settings).frame(tokenizer)
    yield from _framing_problems(tokenizer, framing, shard, offsets, lengths, counts)
    source = store.folder(manifest.input_refs("documents")[0]) / DOCUMENTS_FILE
    yield from _decoding_problems(tokenizer, framing, source, columns["doc_id"], columns["lost_bytes"], shard, offsets)


def _counts(shard: np.ndarray) -> np.ndarray:
    """Count the occurrences of each id."""
    counts = np.zeros(0, dtype=np.int64)
    for first in range(0, len(shard), IDS_AT_ONCE):
        block = np.bincount(shard[first : first + IDS_AT_ONCE])
        size = max(len(counts), len(block))
        counts = np.pad(counts, (0, size - len(counts))) + np.pad(block, (0, size - len(block)))
    return counts


def _framing_problems(
    tokenizer: Tokenizer,
    framing: tuple[list[int], list[int]],
    shard: np.ndarray,
    offsets: np.ndarray,
    lengths: np.ndarray,
    counts: np.ndarray,
) -> Iterator[str]:
    """Every document begins and ends as it was asked to, and special ids stand nowhere else."""
    before, behind = framing
    if not len(lengths):
        return
    if lengths.min() < len(before) + len(behind):
        yield f"a document has {lengths.min()} ids, expected its {len(before) + len(behind)} special ones at least"
        return
    for place, ids in ((offsets, before), (offsets + lengths - 1, behind)):
        for number in np.flatnonzero(shard[place] != ids[0])[:1] if ids else ():
            yield f"document {number} has id {shard[place[number]]} where {ids[0]} is expected"
    for special in sorted({*before, *behind}):
        expected = len(lengths) * [*before, *behind].count(special)
        # a file from elsewhere may give the unknown in a text the id that ends it
        extra = int(counts[special]) - expected
        if extra < 0 or (extra > 0 and special != tokenizer.unk_id):
            yield f"special id {special} occurs {counts[special]} times, expected {expected}: once for every document"


def _decoding_problems(
    tokenizer: Tokenizer,
    framing: tuple[list[int], list[int]],
    source: Path,
    doc_ids: list[str],
    lost_bytes: list[int],
    shard: np.ndarray,
    offsets: np.ndarray,
) -> Iterator[str]:
    """A sample of the documents, decoded; those that lost something cannot be compared."""
    before, behind = framing
    order = sorted(range(len(doc_ids)), key=lambda place: hashlib.sha256(doc_ids[place].encode()).digest())
    chosen = sorted(place for place in order[:DECODED] if not lost_bytes[place])
    ends = np.append(offsets[1:], len(shard))
    names = read_columns(source, ["doc_id"])["doc_id"]
    rows = {name: row for row, name in enumerate(names)}
    texts = read_places(source, "text", sorted(rows[doc_ids[place]] for place in chosen))
    for place in chosen:
        ids = shard[offsets[place] + len(before) : ends[place] - len(behind)]
        text = texts[rows[doc_ids[place]]]
        # some change a text on purpose (case, accents, white space): then its ids are what can be compared
        if tokenizer.decode(ids.tolist()) != text and not (
            tokenizer.kind in CHANGE_TEXT and np.array_equal(tokenizer.encode([text])[0], ids)
        ):
            yield f"document {doc_ids[place]}: the ids do not give its text back"


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
    """Yield the problems of one split."""
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
