"""The stage `dataset`: an index of training sequences as spans of token shards.

    sequences.parquet     the pieces (spans) of every sequence
    token_counts.parquet  occurrences of each id as a training label
    dataset.json          counts of kept, repeated, padded and cut ids, and the groups of the mix

Token ids are neither copied nor moved, so a new document costs only a new index.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.digest import plain, sha256_json
from storage.errors import UserError
from storage.manifest import ArtifactRef, Manifest, RefSet
from storage.schemas import (
    COUNTS_FILE,
    DATASET_FILE,
    EXAMPLES_FILE,
    GROUPS_FILE,
    LEARNT_FILE,
    SEQUENCES,
    SEQUENCES_FILE,
    SHARD_COUNTS_FILE,
    SHARD_FILE,
    TOKEN_COUNTS,
    TOKENS_FILE,
)
from storage.store import Store, StoreError
from storage.tables import write_columns
from tasks.core.stage import Work, stage
from tasks.curate.corpus import Corpus, parquet, tables_of
from tasks.tokens.groups import plan_reads
from tasks.tokens.packing import (
    Account,
    Pieces,
    account,
    is_isolated,
    piece_numbers,
    pieces_of,
    predicted_spans,
)
from tasks.tokens.settings import DatasetSettings, MixSettings

EVERYTHING = "all"  # the single group without a mix
CONVERSATIONS = "conversations"  # packing of conversations as `pack` packs documents, of which none is cut
ROWS_AT_ONCE = 2**16
IDS_AT_ONCE = 2**21
ZSTD_LEVEL = 1  # higher levels compress the random ids no better and take twice the time
BALANCE = ("kept", "repeated", "padded", "cut")  # fields of `Account` in the manifest's counts


@dataclass(frozen=True)
class DatasetIndexSettings:
    """Settings of the sequences of `seq_len` positions, see `DatasetSettings`.

    Attributes:
        mix: sampling weights of the groups; None without groups.
    """

    seq_len: int
    packing: str = "chunk"
    stride: int = 0
    drop_last: bool = False
    mix: MixSettings | None = None

    def __post_init__(self) -> None:
        if self.seq_len < 1 or not 0 <= self.stride <= self.seq_len:
            raise ValueError(
                f"chunks have length {self.seq_len} and stride {self.stride}; expected a length of at least 1 and a "
                "stride of 1 to the length (0 means the length), so that no id is skipped"
            )

    @classmethod
    def of(
        cls, seq_len: int, dataset: DatasetSettings, mix: MixSettings | None = None, chats: bool = False
    ) -> DatasetIndexSettings:
        """Build the settings from the sections of a run's settings; a mix without `by` becomes None.

        Args:
            chats: the sequences are of conversations.

        Raises:
            UserError: conversations are to be cut.
        """
        wanted = mix if mix is not None and mix.by else None
        if not chats:
            return cls(seq_len, dataset.packing, dataset.stride, dataset.drop_last, wanted)
        for name, usual in asdict(DatasetSettings()).items():
            if (found := getattr(dataset, name)) != usual:
                raise UserError(f"dataset.{name} is {found}, but chat.pairs packs conversations; unset one of them")
        return cls(seq_len, CONVERSATIONS, mix=wanted)

    def pieces(self, lengths: np.ndarray, training: bool) -> Pieces:
        """Cut documents of these lengths; `drop_last` applies to training documents only."""
        packing = "pack" if self.packing == CONVERSATIONS else self.packing
        return pieces_of(lengths, self.seq_len, packing, self.stride, self.drop_last and training)


@dataclass(frozen=True)
class TokenDocuments:
    """Kept documents in the order of their ids.

    Attributes:
        ids, digests: (n,) Arrow strings, document ids and digests of their token ids.
        train: (n,) bool, True for training documents, False for held-out ones.
        shard, offset: (n,) int64, number of the token artefact, and position of the first token id there.
        length, n_bytes: (n,) int64, number of token ids and of UTF-8 bytes.
    """

    ids: pa.Array
    digests: pa.Array
    train: np.ndarray
    shard: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    n_bytes: np.ndarray


def kept_tokens(store: Store, curated: ArtifactRef, tokens: RefSet) -> TokenDocuments:
    """Locate the kept documents in the token shards; of several shards with a document, in the live one.

    Raises:
        StoreError: a document is in no shard, or in several none of which is recorded as live.
    """
    with Corpus() as corpus:
        corpus.want_kept(store.folder(curated))
        corpus.locate(tables_of(store, tokens), TOKENS_FILE, ["offset", "length", "n_bytes", "digest"], tokens.live)
        columns = corpus.arrow(
            "select doc_id, located.digest, split = 'train', part::bigint, \"offset\", length, located.n_bytes "
            "from located join wanted using (doc_id) order by doc_id"
        ).columns
    names, numbers = columns[:2], columns[2:]
    documents = TokenDocuments(
        *(column.combine_chunks() for column in names), *(column.to_numpy() for column in numbers)
    )
    del columns, names, numbers
    pa.default_memory_pool().release_unused()  # the tables that were read are as large as the index
    return documents


def kept_conversations(store: Store, curated: ArtifactRef, tokens: RefSet, seq_len: int) -> tuple[TokenDocuments, int]:
    """Return the conversations of the kept documents as documents of their own, and the number of those left out.

    These have more than `seq_len` ids. A document is named by each of its conversations. A reply to a document that is
    not kept, or on the other side of the split, is none.
    """
    documents = kept_tokens(store, curated, tokens)
    columns = ["offset", "length", "n_bytes"]
    rows, offset, length, n_bytes = [], [], [], []
    for shard, ref in enumerate(tokens.refs):
        examples = pq.read_table(store.folder(ref) / EXAMPLES_FILE, columns=["doc_id", "asked_in", *columns])
        known = [pc.index_in(examples[name], value_set=documents.ids) for name in ("doc_id", "asked_in")]
        answers, questions = (pa.array(documents.train).take(found.combine_chunks()) for found in known)
        examples = examples.filter(pc.fill_null(pc.equal(answers, questions), False))
        begins, lengths, sizes = (examples[name].to_numpy() for name in columns)
        own = np.flatnonzero((documents.shard == shard) & (documents.length > 0))
        first = np.searchsorted(begins, documents.offset[own])
        counts = np.searchsorted(begins, documents.offset[own] + documents.length[own]) - first
        places = np.arange(counts.sum()) + np.repeat(first - (np.cumsum(counts) - counts), counts)
        rows.append(np.repeat(own, counts))
        offset.append(begins[places])
        length.append(lengths[places])
        n_bytes.append(sizes[places])
    place, starts, sizes = np.concatenate(rows), np.concatenate(offset), np.concatenate(length)
    order = np.lexsort((starts, place))
    order = order[sizes[order] <= seq_len]
    chosen = place[order]
    kept = TokenDocuments(
        documents.ids.take(pa.array(chosen)),
        documents.digests.take(pa.array(chosen)),
        documents.train[chosen],
        documents.shard[chosen],
        starts[order],
        sizes[order],
        np.concatenate(n_bytes)[order],
    )
    return kept, len(sizes) - len(order)


@dataclass(frozen=True)
class Group:
    """Training documents with the same number of reads per epoch.

    Attributes:
        rows: numbers of the documents among all kept ones.
        pieces: pieces of these documents; documents and sequences are numbered from 0 within the group.
        reads: sequences of the group that an epoch reads.
    """

    name: str
    rows: np.ndarray
    pieces: Pieces
    account: Account
    reads: int

    @property
    def balance(self) -> Account:
        """The account; all ids count as cut if the mix leaves the group out."""
        return self.account if self.reads else Account(cut=self.account.kept + self.account.cut)


@stage("dataset", version=3, tables={SEQUENCES_FILE: SEQUENCES, COUNTS_FILE: TOKEN_COUNTS})
def dataset(
    work: Work,
    settings: DatasetIndexSettings,
    *,
    curated: ArtifactRef,
    tokens: RefSet,
    tokenizer: ArtifactRef,
    groups: RefSet,
) -> str:
    """Cut the kept documents into sequences, group by group, and count the training labels.

    Args:
        groups: group of each document; an empty set without a mix.
    """
    isolated = is_isolated(settings.packing)
    n_long = 0
    if settings.packing == CONVERSATIONS:
        documents, n_long = kept_conversations(work.store, curated, tokens, settings.seq_len)
    else:
        documents = kept_tokens(work.store, curated, tokens)
    names = _group_names(work, documents, groups) if settings.mix is not None else None
    planned = _plan(settings, documents, names)
    used = [group for group in planned if group.reads]
    held_out = np.flatnonzero(~documents.train)
    validation = settings.pieces(documents.length[held_out], training=False)
    accounts = {
        "train": reduce(Account.__add__, (group.balance for group in planned), Account()),
        "validation": account(validation, documents.length[held_out], settings.seq_len, isolated),
    }
    _check_training(settings, documents, accounts["train"])
    training = _joined([(group.rows, group.pieces) for group in used])
    n_train = training.sequences
    sides = {"train": training, "validation": _joined([(held_out, validation)], first=n_train)}
    _write_pieces(work.out / SEQUENCES_FILE, documents, sides, [ref.key for ref in tokens.refs])
    begin, end = np.zeros((2, len(documents.ids)), dtype=np.int64)
    for group in used:
        begin[group.rows], end[group.rows] = predicted_spans(group.pieces, len(group.rows), isolated)
    folders = [work.folder(ref) for ref in tokens.refs]
    spans = documents.shard, documents.offset + begin, documents.offset + end
    counts = _count_learnt(folders, *spans) if settings.packing == CONVERSATIONS else _count_ids(folders, *spans)
    write_columns(work.out / COUNTS_FILE, TOKEN_COUNTS, {"token": range(len(counts)), "count": counts.tolist()})
    record = _record(settings, documents, planned, accounts)
    if n_long:
        record["notes"].append(f"{n_long:,} conversation(s) of more than {settings.seq_len} tokens are in no sequence")
    (work.out / DATASET_FILE).write_text(json.dumps(record, indent=1, ensure_ascii=False), "utf-8")
    work.counts.update(
        rows=sum(map(len, sides.values())),
        train_sequences=n_train,
        train_tokens=accounts["train"].labels,
        train_reads=sum(group.reads for group in used),
        **{name: value for name, value in asdict(accounts["train"]).items() if name in BALANCE},
    )
    # The validation split is only a sample for the curve of a training, and is left out of the digest: a new validation
    # document does not cause a new training.
    return sha256_json(
        {
            "pieces": _pieces_digest(documents, training),
            "reads": [(group.account.sequences, group.reads) for group in used],
            "seq_len": settings.seq_len,
            "isolated": isolated,
            "tokenizer": tokenizer.digest,
        }
    )


def _group_names(work: Work, documents: TokenDocuments, groups: RefSet) -> pa.Array:
    """Return the group of each training document, in their order."""
    known = pq.read_table([work.folder(ref) / GROUPS_FILE for ref in groups.refs], columns=["doc_id", "group"])
    trained = documents.ids.filter(pa.array(documents.train))
    names = pa.concat_arrays(known["group"].take(pc.index_in(trained, value_set=known["doc_id"])).chunks)
    if names.null_count:
        missing = trained.filter(names.is_null())[0].as_py()
        raise StoreError(f"training document {missing} is in no group: compute the groups again, `--refresh groups`")
    return names


def _plan(settings: DatasetIndexSettings, documents: TokenDocuments, names: pa.Array | None) -> list[Group]:
    """Return the groups in order of their names, with their pieces and their reads per epoch."""
    trained = np.flatnonzero(documents.train)
    if names is None:
        members = {EVERYTHING: trained}
    else:
        encoded = names.dictionary_encode()
        codes = encoded.indices.to_numpy()
        parts = np.split(trained[np.argsort(codes, kind="stable")], np.cumsum(np.bincount(codes))[:-1])
        members = dict(zip(encoded.dictionary.to_pylist(), parts, strict=True))
    groups = []
    for name, rows in sorted(members.items()):
        lengths = documents.length[rows]
        pieces = settings.pieces(lengths, training=True)
        balance = account(pieces, lengths, settings.seq_len, is_isolated(settings.packing))
        groups.append(Group(name, rows, pieces, balance, balance.sequences))
    if settings.mix is None:
        return groups
    reads = plan_reads(
        {group.name: group.account.labels for group in groups},
        {group.name: group.account.sequences for group in groups},
        settings.mix,
    )
    return [replace(group, reads=reads[group.name]) for group in groups]


def _joined(parts: Sequence[tuple[np.ndarray, Pieces]], first: int = 0) -> Pieces:
    """Concatenate (document numbers, pieces) of several sets; sequences are numbered from `first`."""
    shifted = []
    for rows, pieces in parts:
        shifted.append(replace(pieces, document=rows[pieces.document], sequence=pieces.sequence + first))
        first += pieces.sequences
    if len(shifted) == 1:  # no copy of an index of millions of pieces
        return shifted[0]
    return Pieces(*map(np.concatenate, zip(*(vars(pieces).values() for pieces in shifted), strict=True)))


def _check_training(settings: DatasetIndexSettings, documents: TokenDocuments, training: Account) -> None:
    if training.sequences:
        return
    n_ids = int(documents.length[documents.train].sum())
    what = "add documents"
    if settings.packing == CONVERSATIONS:
        raise UserError(
            f"there is no conversation to train on: chat.pairs finds none of up to {settings.seq_len} tokens in the "
            "training documents; ask for more kinds (chat.pairs=all), or add documents with questions and answers"
        )
    if settings.drop_last and n_ids:
        what += ", lower model.max_seq_len or unset dataset.drop_last"
    if settings.mix is not None:
        what += ", or check which groups the mix leaves out"
    raise UserError(
        f"there is no training sequence: the {int(documents.train.sum())} training document(s) have {n_ids} ids, "
        f"and a sequence has {settings.seq_len}: {what}"
    )


def _count_ids(folders: Sequence[Path], shard: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return the occurrences of each id in n spans of token shards that do not overlap, (vocab_size,) int64.

    If most of a shard is in use, the rest is counted and subtracted from the shard's own counts.
    """
    counts = np.zeros_like(np.load(folders[0] / SHARD_COUNTS_FILE, allow_pickle=False))
    rows = np.flatnonzero(begin < end)
    rows = rows[np.lexsort((begin[rows], shard[rows]))]
    bounds = np.searchsorted(shard[rows], np.arange(len(folders) + 1))
    for folder, (first, last) in zip(folders, pairwise(bounds), strict=True):
        own = rows[first:last]
        if not len(own):
            continue
        ids = np.asarray(np.load(folder / SHARD_FILE, mmap_mode="r", allow_pickle=False))
        left_begin, left_end = np.append(0, end[own]), np.append(begin[own], len(ids))
        if (left_end - left_begin).sum() < (end[own] - begin[own]).sum():
            counts += np.load(folder / SHARD_COUNTS_FILE, allow_pickle=False)
            _add_spans(counts, ids, left_begin, left_end, -1)
        else:
            _add_spans(counts, ids, begin[own], end[own], 1)
    return counts


def _count_learnt(folders: Sequence[Path], shard: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return the occurrences of each id that is learnt in n spans of token shards, (vocab_size,) int64."""
    counts = np.zeros_like(np.load(folders[0] / SHARD_COUNTS_FILE, allow_pickle=False))
    for number, folder in enumerate(folders):
        ids, marks = (np.load(folder / name, mmap_mode="r", allow_pickle=False) for name in (SHARD_FILE, LEARNT_FILE))
        own = np.flatnonzero(shard == number)
        for first, last in zip(begin[own].tolist(), end[own].tolist(), strict=True):
            counts += np.bincount(ids[first:last][marks[first:last] > 0], minlength=len(counts))
    return counts


def _add_spans(counts: np.ndarray, ids: np.ndarray, begin: np.ndarray, end: np.ndarray, sign: int) -> None:
    """Add `sign` times the occurrences of each id in spans of a shard to `counts`, `IDS_AT_ONCE` at a time."""
    ends = np.cumsum(end - begin)
    for first in range(0, int(ends[-1]), IDS_AT_ONCE):
        last = min(first + IDS_AT_ONCE, int(ends[-1]))
        rows = slice(np.searchsorted(ends, first, side="right"), np.searchsorted(ends, last) + 1)
        lengths = np.diff(np.minimum(ends[rows], last), prepend=first)
        places = np.arange(first, last) + np.repeat(end[rows] - ends[rows], lengths)
        counts += sign * np.bincount(ids[places], minlength=len(counts))


def _write_pieces(path: Path, documents: TokenDocuments, sides: Mapping[str, Pieces], shards: Sequence[str]) -> None:
    """Write the pieces of each split as spans of the shards with these keys."""
    keys = pa.array(shards, pa.string())
    # dictionary encoding pays only for columns with repeated values
    repeat = ["split", "chunk", "shard", "length", "ahead"]
    options = {"compression": "zstd", "compression_level": ZSTD_LEVEL, "use_dictionary": repeat}
    with pq.ParquetWriter(path, SEQUENCES, **options) as writer:
        for side, pieces in sides.items():
            numbers = piece_numbers(pieces, documents.length)
            for first in range(0, len(pieces), ROWS_AT_ONCE):
                some = pieces.take(slice(first, first + ROWS_AT_ONCE))
                columns = [
                    some.sequence,
                    pa.repeat(side, len(some)),
                    documents.ids.take(pa.array(some.document)),
                    numbers[first : first + ROWS_AT_ONCE],
                    keys.take(pa.array(documents.shard[some.document])),
                    documents.offset[some.document] + some.start,
                    some.length,
                    some.ahead,
                ]
                writer.write_table(pa.table(columns, schema=SEQUENCES))


def _pieces_digest(documents: TokenDocuments, pieces: Pieces) -> str:
    """Return a digest of document ids, token ids and pieces, independent of their positions in shards."""
    used, document = np.unique(pieces.document, return_inverse=True)
    made = hashlib.sha256()
    for strings in (documents.ids, documents.digests):
        chosen = strings.take(pa.array(used)).cast(pa.large_binary())
        made.update(pc.binary_length(chosen).to_numpy().astype("<i8").tobytes())
        made.update(chosen.buffers()[2] or b"")
    for numbers in (document, pieces.start, pieces.length, pieces.ahead, pieces.sequence):
        made.update(np.ascontiguousarray(numbers, dtype="<i8").data)
    return made.hexdigest()


def _record(
    settings: DatasetIndexSettings,
    documents: TokenDocuments,
    groups: Sequence[Group],
    accounts: Mapping[str, Account],
) -> dict[str, Any]:
    """Return the content of `dataset.json`."""

    def sizes(rows: np.ndarray) -> dict[str, int]:
        return {
            "documents": len(rows),
            "ids": int(documents.length[rows].sum()),
            "n_bytes": int(documents.n_bytes[rows].sum()),
        }

    listed, first = [], 0
    for group in groups:
        balance = group.balance
        place = {"first": first, "count": balance.sequences, "reads": group.reads, "tokens": group.account.labels}
        listed.append({"name": group.name, **place, **sizes(group.rows), **asdict(balance)})
        first += balance.sequences
    sides = {"train": np.flatnonzero(documents.train), "validation": np.flatnonzero(~documents.train)}
    return {
        "packing": settings.packing,
        "seq_len": settings.seq_len,
        "stride": settings.stride or settings.seq_len,
        "drop_last": settings.drop_last,
        "splits": {side: {**sizes(rows), **asdict(accounts[side])} for side, rows in sides.items()},
        "groups": listed,
        "mix": plain(settings.mix),
        "notes": list(_notes(settings, documents, groups, accounts)),
    }


def _notes(
    settings: DatasetIndexSettings,
    documents: TokenDocuments,
    groups: Sequence[Group],
    accounts: Mapping[str, Account],
) -> Iterator[str]:
    """Yield warnings about the dataset, for people."""
    empty = int((documents.length == 0).sum())
    if empty:
        yield f"{empty:,} document(s) hold no id, and are in no sequence"
    if not accounts["train"].labels:
        yield "no training sequence holds anything to predict: every document is one id"
    held_out = accounts["validation"]
    if held_out.kept < settings.seq_len:
        yield f"validation has no sequence of full length: it holds {held_out.kept:,} ids in all"
    for group in groups:
        of_group = f" of group {group.name!r}" if settings.mix is not None else ""
        if group.account.cut:
            yield f"the last {group.account.cut:,} ids{of_group} are in no sequence (dataset.drop_last)"
        if group.account.kept and not group.reads:
            n_documents, n_ids = len(group.rows), group.account.kept + group.account.cut
            yield f"the mix leaves out group {group.name!r}: {n_documents:,} document(s), {n_ids:,} ids"


def settings_without(store: Store, data: Manifest, selection: ArtifactRef) -> DatasetIndexSettings:
    """Return the settings of a dataset for another selection, without groups of the mix that have become empty."""
    settings = DatasetIndexSettings(**data.settings)
    if settings.mix is None:
        return settings
    emptied = set()
    with Corpus() as corpus:
        corpus.want_kept(store.folder(selection), "train")
        for ref in data.input_refs("groups"):  # one at most
            left = (
                f'select "group" from {parquet(store.folder(ref) / GROUPS_FILE)} left join wanted using (doc_id) '
                'group by "group" having count(split) = 0'
            )
            emptied |= {name for (name,) in corpus.rows(left)}
    return replace(settings, mix=MixSettings(**data.settings["mix"]).without(emptied))
