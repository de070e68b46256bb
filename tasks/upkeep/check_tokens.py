"""Whether token shards hold what they say: the right ids, all of them, and the texts that they stand for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from storage.schemas import DOCUMENTS_FILE, SHARD_COUNTS_FILE, SHARD_FILE, TOKENS_FILE
from storage.store import Store
from storage.tables import read_columns, read_places
from storage.verify import Check
from tasks.tokens.tokenise import TokeniseSettings
from tasks.tokens.tokenizers import TOKENIZER_FILE, Tokenizer, load_tokenizer, smallest_dtype
from tasks.upkeep.check_split import State

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
    """How often each id occurs."""
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
