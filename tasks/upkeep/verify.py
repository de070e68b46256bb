"""Verify a store: files and tables of all artefacts; and of a corpus the split, token round trips and sequences.

The records of a corpus's stages, from documents to sequences, are computed again and compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.catalog import read_state
from storage.home import Home
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, RefSet, StageFacts
from storage.schemas import (
    DOCUMENTS_FILE,
    EXAMPLES_FILE,
    LEARNT_FILE,
    SELECTION_FILE,
    SEQUENCES_FILE,
    SHARD_COUNTS_FILE,
    SHARD_FILE,
    TOKENS_FILE,
)
from storage.store import Store, StoreError
from storage.tables import read_columns, read_places, stream_rows
from storage.verify import Check, check_store, repair
from tasks.chat.tokenise_pairs import tokenise_pairs
from tasks.curate.corpus import Corpus, kept_documents, parquet, tables_of
from tasks.text.minhash import gram_hashes
from tasks.text.overlap import judged_share, shared_grams
from tasks.text.words import I64, Hashes
from tasks.tokens.dataset import CONVERSATIONS, TokenDocuments, kept_conversations, kept_tokens
from tasks.tokens.index import load_index, read_record
from tasks.tokens.packing import Pieces, account, is_isolated
from tasks.tokens.tokenise import TokeniseSettings
from tasks.tokens.tokenizer_kinds import TOKENIZER_FILE, Tokenizer, load_tokenizer, smallest_dtype

State = dict[str, list[ArtifactRef]]
Frame = tuple[list[int], list[int]]  # special ids before and after each document

DOCUMENTS_AT_ONCE = 1_000
DECODED = 500  # documents of a shard that are decoded, those with the lowest hashes
IDS_AT_ONCE = 2**22
CHANGE_TEXT = ("hf",)  # kinds of tokenisers that may normalise text
COUNTED = ("kept", "repeated", "padded", "cut", "labels")


def verify_home(
    home: Home, store: Store, facts: Mapping[str, StageFacts], corpus: str, mend: bool = False
) -> dict[str, Any]:
    """Check a store and a corpus, and return the findings as `sheepfold verify --json` prints them.

    Args:
        facts: Facts of every stage.
        mend: Remove damaged artefacts, so that the next run computes them again.

    Raises:
        StoreError: The store is empty.
    """
    if not store.stages():
        raise StoreError(f"there are no artefacts in {home.store}: check --home, or run `sheepfold run SOURCE` first")
    checks: list[Check] = check_store(store, facts)
    if mend:
        done = repair(store, checks, facts)
        # problems other than damaged artefacts remain
        rest = [check for check in checks if len(check.problems) > len(check.damaged)]
        return {
            "ok": all(item.done for item in done) and not rest,
            "checks": [asdict(check) for check in checks],
            "repaired": [asdict(item) for item in done],
        }
    # damaged artefacts cannot be read; after `forget` the state has no snapshot until the next run
    state = read_state(store, corpus) if not any(check.problems for check in checks) else {}
    if "snapshot" in state:
        by_stage = {"curate": check_split, "tokenise": check_tokens, "dataset": check_sequences}
        checks += [check(store, state) for stage, check in by_stage.items() if stage in state]
    return {"ok": not any(check.problems for check in checks), "checks": [asdict(check) for check in checks]}


def checks_at_a_glance(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the findings for the terminal: a table of checks, then their problems."""
    checks = report["checks"]
    rows = [{"check": one["name"], "checked": one["checked"], "problems": len(one["problems"])} for one in checks]
    return {**report, "checks": rows, "problems": [problem for one in checks for problem in one["problems"]]}


# the split


def check_split(store: Store, state: State) -> Check:
    """Check that clusters are on one side, and that neither evaluation documents nor their text are trained on."""
    check = Check("split")
    curated = state["curate"][0]
    selection = parquet(store.folder(curated) / SELECTION_FILE)
    with Corpus() as corpus:
        ((n_selected,),) = corpus.sql(f"select count(*) from {selection}").fetchall()
        split = corpus.sql(f"select cluster from {selection} group by all having min(split) < max(split) order by all")
        check.problems += [f"text {name[:12]} is on both sides of the split" for (name,) in split.fetchall()]
    trained = kept_documents(store, curated, "train")
    frozen = {
        row["doc_id"]: row["text"]
        for ref in state.get("evalset", [])
        for row in stream_rows(store.folder(ref) / DOCUMENTS_FILE, ["doc_id", "text"])
    }
    check.checked = n_selected + len(frozen)
    check.problems += [f"evaluation document {doc_id} is trained on" for doc_id in frozen if doc_id in trained]
    check.problems += _containment_problems(store, state, frozen)
    return check


def _containment_problems(store: Store, state: State, frozen: dict[str, str]) -> Iterator[str]:
    """Yield held-out documents contained in training text, and training documents contained in held-out text.

    As in the stage `curate`, the limit is on the share of a document's 13-grams, of normalised texts. Held out are the
    validation documents and the evaluation set, which may have documents that the corpus has no longer.

    Args:
        frozen: Refined texts of the evaluation set.
    """
    limit = float(manifest_of(store, state["curate"][0]).settings["curate"]["max_containment"])
    held_out = dict(_texts(store, state, "validation"))
    gone = {doc_id: text for doc_id, text in frozen.items() if doc_id not in held_out}
    for ref in state["normalise"] if gone else ():
        for row in stream_rows(store.folder(ref) / DOCUMENTS_FILE, ["doc_id", "text"]):
            if row["doc_id"] in gone:
                gone[row["doc_id"]] = row["text"]
    held_out |= gone
    own = gram_hashes(list(held_out.values()))
    trained: list[str] = []
    sizes: list[I64] = []

    def blocks() -> Iterator[Hashes]:
        documents = _texts(store, state, "train")
        while block := list(islice(documents, DOCUMENTS_AT_ONCE)):
            trained.extend(doc_id for doc_id, _ in block)
            grams = gram_hashes([text for _, text in block])
            sizes.append(grams.counts)
            yield grams

    shared, trained_shared = shared_grams(own, blocks())
    trained_shares = list(map(judged_share, trained_shared, sizes))
    sides = (
        ("held out", "training", list(held_out), judged_share(shared, own.counts)),
        ("trained on", "held-out", trained, np.concatenate([np.zeros(0), *trained_shares])),
    )
    for role, other, names, found in sides:
        for place in np.flatnonzero(found > limit):
            yield (
                f"document {names[place]} is {role}, but {found[place]:.1%} of its 13-grams are in {other} text "
                f"(curate.max_containment is {limit})"
            )


def _texts(store: Store, state: State, split: str) -> Iterator[tuple[str, str]]:
    """Yield id and normalised text of the documents of one side of the split."""
    refs = state["normalise"]
    with Corpus() as corpus:
        corpus.want_kept(store.folder(state["curate"][0]), split)
        corpus.locate(tables_of(store, RefSet(tuple(refs), "")), DOCUMENTS_FILE)
        part, doc_id = corpus.columns("select part, doc_id from located")
    for number, ref in enumerate(refs):
        wanted = set(doc_id[part == number].tolist())
        rows = stream_rows(store.folder(ref) / DOCUMENTS_FILE, ["doc_id", "text"]) if wanted else ()
        yield from ((row["doc_id"], row["text"]) for row in rows if row["doc_id"] in wanted)


# token shards


def check_tokens(store: Store, state: State) -> Check:
    """Check ids against vocabulary and counts, the order of documents, and that a sample decodes to its text."""
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
        yield f"its documents are not contiguous or do not cover its {len(shard)} ids"
        return
    last = int(shard.max()) if len(shard) else 0
    if last >= tokenizer.vocab_size:
        yield f"id {last} is outside the vocabulary of {tokenizer.vocab_size}"
        return
    counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    for first in range(0, len(shard), IDS_AT_ONCE):
        counts += np.bincount(shard[first : first + IDS_AT_ONCE], minlength=len(counts))
    if not np.array_equal(counts, np.load(folder / SHARD_COUNTS_FILE, allow_pickle=False)):
        yield f"{SHARD_COUNTS_FILE} differs from the counts of its ids"
    if manifest.stage == tokenise_pairs.name:
        yield from _example_problems(folder, len(shard))
        return
    frame = TokeniseSettings(**manifest.settings).frame(tokenizer)
    yield from _framing_problems(frame, shard, offsets, lengths, counts, tokenizer.unk_id)
    order = sorted(range(len(lengths)), key=lambda place: hashlib.sha256(columns["doc_id"][place].encode()).digest())
    # documents with lost bytes cannot be compared
    sample = sorted(place for place in order[:DECODED] if not columns["lost_bytes"][place])
    before, behind = frame
    ids = {
        columns["doc_id"][place]: shard[offsets[place] :][len(before) : lengths[place] - len(behind)]
        for place in sample
    }
    source = store.folder(manifest.input_refs("documents")[0]) / DOCUMENTS_FILE
    yield from _decoding_problems(tokenizer, ids, source)


def _example_problems(folder: Path, n_ids: int) -> Iterator[str]:
    """Check that the conversations of a shard cover its ids, and that in each something is learnt."""
    columns = read_columns(folder / EXAMPLES_FILE, ["offset", "length", "learnt"])
    offsets, lengths, learnt = (np.array(column, dtype=np.int64) for column in columns.values())
    if not np.array_equal(offsets, np.cumsum(lengths) - lengths) or int(lengths.sum()) != n_ids:
        yield f"its conversations are not contiguous or do not cover its {n_ids} ids"
        return
    marks = np.load(folder / LEARNT_FILE, mmap_mode="r", allow_pickle=False)
    if len(marks) != n_ids:
        yield f"{LEARNT_FILE} has {len(marks)} marks, expected one for each of its {n_ids} ids"
        return
    sums = np.add.reduceat(marks, offsets, dtype=np.int64) if len(offsets) else learnt
    for row in np.flatnonzero((sums != learnt) | (learnt == 0))[:1]:
        yield f"conversation {row} has {sums[row]} marked ids, expected {learnt[row]}, and more than none"


def _framing_problems(
    frame: Frame, shard: np.ndarray, offsets: np.ndarray, lengths: np.ndarray, counts: np.ndarray, unk_id: int | None
) -> Iterator[str]:
    """Check that every document begins and ends with its special ids, and that they occur nowhere else."""
    before, behind = frame
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
        # an imported tokeniser may use one id for unknown tokens and for the end of a document
        extra = int(counts[special]) - expected
        if extra < 0 or (extra > 0 and special != unk_id):
            yield f"special id {special} occurs {counts[special]} times, expected {expected}: once for every document"


def _decoding_problems(tokenizer: Tokenizer, ids: Mapping[str, np.ndarray], source: Path) -> Iterator[str]:
    """Decode the ids of some documents and compare them with the texts in a table."""
    names = read_columns(source, ["doc_id"])["doc_id"]
    texts = read_places(source, "text", [row for row, name in enumerate(names) if name in ids])
    by_name = {names[row]: text for row, text in texts.items()}
    for name, own in ids.items():
        # a tokeniser that normalises text (case, accents, white space) is checked by encoding the text again
        if tokenizer.decode(own.tolist()) != by_name[name] and not (
            tokenizer.kind in CHANGE_TEXT and np.array_equal(tokenizer.encode([by_name[name]])[0], own)
        ):
            yield f"document {name}: the ids do not decode to its text"


# training sequences


def check_sequences(store: Store, state: State) -> Check:
    """Check that pieces are within their documents, documents on one side, and that the totals agree."""
    check = Check("sequences")
    ref = state["dataset"][0]
    folder = store.folder(ref)
    manifest = manifest_of(store, ref)
    shards = manifest.input_refs("tokens")
    record = read_record(folder)
    tokens = RefSet(tuple(shards), "")
    if record["packing"] == CONVERSATIONS:
        documents, _ = kept_conversations(store, state["curate"][0], tokens, record["seq_len"])
    else:
        documents = kept_tokens(store, state["curate"][0], tokens)
    table = pq.read_table(folder / SEQUENCES_FILE)
    for split in ("train", "validation"):
        rows = table.filter(pc.equal(table["split"], split))
        check.checked += len(rows)
        n_sequences = len(load_index(folder, split))
        found = _problems(documents, rows, [shard.key for shard in shards], record, split, n_sequences)
        check.problems += [f"dataset {ref.key[:12]}, {split}: {problem}" for problem in found]
    found = _group_problems(record, load_index(folder, "train").labels, manifest.counts)
    check.problems += [f"dataset {ref.key[:12]}: {problem}" for problem in found]
    return check


def _problems(
    documents: TokenDocuments, rows: pa.Table, shards: list[str], record: dict[str, Any], split: str, n_sequences: int
) -> Iterator[str]:
    """Yield the problems of one split.

    Args:
        rows: Pieces; `start` is relative to the shard.
        shards: Keys of the token shards, in the order of `documents.shard`.
    """
    noted = record["splits"][split]
    own = documents.train if split == "train" else ~documents.train
    if record["packing"] == CONVERSATIONS:  # several have one document
        document = _conversations_of(rows, documents, shards)
    else:
        document = _index_in(rows["doc_id"], documents.ids)
    for row in np.flatnonzero(document < 0)[:1]:
        yield f"piece {row} is of a document that is not kept"
        return
    for row in np.flatnonzero(~own[document])[:1]:
        yield f"document {documents.ids[document[row]]} is in it, but on the other side of the split"
    sequence, start, length, ahead = (rows[name].to_numpy() for name in ("sequence", "start", "length", "ahead"))
    begin = documents.offset[document]
    outside = (start < begin) | (start + length > begin + documents.length[document])
    elsewhere = _index_in(rows["shard"], pa.array(shards, pa.string())) != documents.shard[document]
    for row in np.flatnonzero(outside | elsewhere)[:1]:
        yield f"piece {row} is not within its document {documents.ids[document[row]]}"
        return
    n_ids = int(documents.length[own].sum())
    yield from _differences({"documents": int(own.sum()), "ids": n_ids}, noted)
    number = np.cumsum(own) - 1  # index of each document on its side
    first = int(sequence[0]) if len(sequence) else 0
    pieces = Pieces(number[document], start - begin, length, ahead, sequence.astype(np.int64) - first)
    found = account(pieces, documents.length[own], record["seq_len"], is_isolated(record["packing"]))
    yield from _differences({name: value for name, value in asdict(found).items() if name in COUNTED}, noted)
    places = found.sequences * record["seq_len"]
    if found.sequences != n_sequences or places != found.kept + found.repeated + found.padded:
        yield f"{found.sequences} sequences of {record['seq_len']} tokens are not the sum of kept, repeated and padded"
    if found.kept + found.cut != n_ids:
        yield f"{found.kept} kept and {found.cut} cut ids differ from the {n_ids} of the documents"


def _conversations_of(rows: pa.Table, documents: TokenDocuments, shards: list[str]) -> np.ndarray:
    """Return (n,) the index of the conversation that each piece is, or -1."""
    shard = _index_in(rows["shard"], pa.array(shards, pa.string()))
    known = {
        place: row for row, place in enumerate(zip(documents.shard.tolist(), documents.offset.tolist(), strict=True))
    }
    places = zip(shard.tolist(), rows["start"].to_pylist(), strict=True)
    return np.array([known.get(place, -1) for place in places], dtype=np.int64)


def _index_in(names: pa.ChunkedArray, known: pa.Array) -> np.ndarray:
    """Return (n,) the index of each name among the known ones, or -1."""
    found: np.ndarray = pc.fill_null(pc.index_in(names, value_set=known), -1).to_numpy().astype(np.int64)
    return found


def _group_problems(record: dict[str, Any], labels: np.ndarray, counts: Mapping[str, int]) -> Iterator[str]:
    """Check that the groups cover all training sequences in order, with the recorded tokens and reads."""
    first = 0
    for group in record["groups"]:
        expected = {"first": first, "count": group["sequences"]}
        if group["reads"]:  # a group without reads is not in the index
            expected["tokens"] = int(labels[first : first + group["sequences"]].sum())
        if record["mix"] is None:
            expected["reads"] = group["sequences"]
        for problem in _differences(expected, group):
            yield f"group {group['name']!r}: {problem}"
        if bool(group["reads"]) != bool(group["sequences"]) or group["reads"] < 0:
            yield f"group {group['name']!r}: {group['reads']} reads of {group['sequences']} sequences"
        first += group["sequences"]
    if first != len(labels):
        yield f"the groups have {first} training sequences, but the index has {len(labels)}"
    reads = sum(group["reads"] for group in record["groups"])
    if reads != counts["train_reads"]:
        yield f"the groups have {reads} reads, but the manifest counts {counts['train_reads']}"


def _differences(found: dict[str, int], noted: dict[str, int]) -> Iterator[str]:
    for name, value in found.items():
        if value != noted[name]:
            yield f"{name} is {value}, but {noted[name]} in dataset.json"
