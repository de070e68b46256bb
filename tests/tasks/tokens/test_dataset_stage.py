"""The dataset stage over hand-made token shards: what it writes, that it adds up, and what changes its digest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from dataset_samples import VOCAB, Built, Corpus, Document, document

from model import SpanSource
from model.data import IGNORE
from storage.errors import UserError
from storage.schemas import SEQUENCES, TOKEN_COUNTS
from storage.store import StoreError
from tasks.tokens.dataset import DatasetIndexSettings, kept_tokens
from tasks.tokens.index import groups_of
from tasks.tokens.packing import PACKINGS
from tasks.tokens.settings import MixSettings

T = 8

DOCUMENTS = [
    document("a", 30),
    document("b", 3),
    document("c", 11, "validation"),
    document("d", 9, kept=False),
    document("e", 8),
    document("f", 1),
    document("g", 17),
    document("h", 2, "validation"),
]
GROUPS = {"a": "code", "b": "prose", "e": "prose", "f": "prose", "g": "code"}


def index_of(packing: str = "chunk", **more: Any) -> DatasetIndexSettings:
    return DatasetIndexSettings(T, packing, **more)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one store for all: what was made for one test is there for the next."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def corpus(folder: Path) -> Corpus:
    return Corpus(folder, DOCUMENTS, [DOCUMENTS[:3], [], DOCUMENTS[3:]])


def build(folder: Path, documents: Sequence[Document], settings: DatasetIndexSettings, **more: Any) -> Built:
    return Corpus(folder, documents, **more).build(settings)


def batches(built: Built, split: str = "train") -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels of every sequence, as training reads them."""
    index = built.index(split)
    store = built.corpus.folder / "tokenise"
    source = SpanSource(
        [np.load(store / key / "tokens.npy") for key in index.shards],
        index.shard,
        index.start,
        index.length,
        seq_len=T,
        pad_id=255,
        offsets=index.offsets,
        ahead=index.ahead,
        isolated=index.isolated,
    )
    inputs, labels, *_ = source.batch(np.arange(len(index)))
    return inputs, labels


def of(split: str) -> list[Document]:
    return [item for item in DOCUMENTS if item.kept and item.split == split]


# what is written


@pytest.mark.parametrize("packing", PACKINGS)
def test_the_tables_have_their_schemas(corpus: Corpus, packing: str) -> None:
    built = corpus.build(index_of(packing))
    assert pq.read_schema(built.folder / "sequences.parquet").equals(SEQUENCES, check_metadata=True)
    assert pq.read_schema(built.folder / "token_counts.parquet").equals(TOKEN_COUNTS, check_metadata=True)


@pytest.mark.parametrize("packing", PACKINGS)
def test_training_sequences_come_first_and_numbers_rise(corpus: Corpus, packing: str) -> None:
    built = corpus.build(index_of(packing))
    numbers = [row["sequence"] for row in built.rows]
    assert [*dict.fromkeys(numbers)] == list(range(max(numbers) + 1))
    splits = [row["split"] for row in built.rows]
    assert splits == sorted(splits)
    assert numbers[splits.index("validation")] == built.manifest.counts["train_sequences"]


@pytest.mark.parametrize("packing", PACKINGS)
def test_pieces_spell_their_documents(corpus: Corpus, packing: str) -> None:
    built = corpus.build(index_of(packing))
    for item in of("train"):
        own = sorted((row for row in built.rows if row["doc_id"] == item.doc_id), key=lambda row: row["chunk"])
        assert [row["chunk"] for row in own] == list(range(len(own)))
        ids = [value for row in own for value in built.ids_of(row)[: row["length"] - row["ahead"]]]
        assert ids == item.ids.tolist()


# the account


@pytest.mark.parametrize("packing", PACKINGS)
def test_the_account_adds_up_from_documents_to_labels(corpus: Corpus, packing: str) -> None:
    built = corpus.build(index_of(packing))
    for split, found in built.record["splits"].items():
        inputs, labels = batches(built, split)
        assert found["documents"] == len(of(split))
        assert found["ids"] == sum(len(item.ids) for item in of(split)) == found["kept"] + found["cut"]
        assert found["n_bytes"] == 2 * found["ids"]
        assert found["sequences"] * T == found["kept"] + found["repeated"] + found["padded"] == inputs.size
        assert found["padded"] == (inputs == 255).sum()
        assert found["labels"] == (labels != IGNORE).sum()


def test_the_manifest_counts_the_training_side(corpus: Corpus) -> None:
    built = corpus.build(index_of(stride=3))
    train = built.record["splits"]["train"]
    counts = built.manifest.counts
    assert counts["rows"] == len(built.rows)
    assert counts["train_sequences"] == counts["train_reads"] == train["sequences"]
    assert counts["train_tokens"] == train["labels"]
    assert all(counts[name] == train[name] for name in ("kept", "repeated", "padded", "cut"))
    assert counts["repeated"] > 0


def test_the_record_says_how_it_was_made(corpus: Corpus) -> None:
    record = corpus.build(index_of(stride=3)).record
    assert (record["packing"], record["seq_len"], record["stride"], record["drop_last"]) == ("chunk", T, 3, False)
    (group,) = record["groups"]
    assert (group["name"], group["first"], group["count"], group["reads"]) == ("all", 0, *2 * [group["sequences"]])
    assert group["tokens"] == record["splits"]["train"]["labels"]
    assert record["mix"] is None


def test_dropping_the_last_cuts_training_and_no_validation(corpus: Corpus) -> None:
    built = corpus.build(index_of("concat", drop_last=True))
    train, validation = built.record["splits"]["train"], built.record["splits"]["validation"]
    n_ids = sum(len(item.ids) for item in of("train"))
    assert (train["cut"], train["padded"]) == (n_ids % T, 0)
    assert validation["cut"] == 0
    assert any(f"the last {n_ids % T} ids are in no sequence" in note for note in built.record["notes"])


def test_validation_shorter_than_a_sequence_is_noted(folder: Path) -> None:
    documents = [document("a", 30), document("b", 3, "validation")]
    notes = build(folder, documents, index_of()).record["notes"]
    assert notes == ["validation has no sequence of full length: it holds 3 ids in all"]


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_document_without_an_id_is_noted_and_in_no_sequence(folder: Path, packing: str) -> None:
    built = build(folder, [*DOCUMENTS, document("empty", 0)], index_of(packing))
    assert "empty" not in {row["doc_id"] for row in built.rows}
    assert built.record["splits"]["train"]["documents"] == len(of("train")) + 1
    assert any("1 document(s) hold no id" in note for note in built.record["notes"])


def test_documents_of_one_id_are_noted(folder: Path) -> None:
    built = build(folder, [document("a", 1), document("v", 20, "validation")], index_of())
    assert built.manifest.counts["train_tokens"] == 0
    assert any("nothing to predict" in note or "anything to predict" in note for note in built.record["notes"])


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([], "the 0 training document.s. have 0 ids, .*: add documents$"),
        ([document("v", 30, "validation")], "the 0 training document.s. have 0 ids"),
        ([document("a", 5)], "the 1 training document.s. have 5 ids, .* unset dataset.drop_last"),
    ],
)
def test_no_training_sequence_is_an_error(folder: Path, documents: list[Document], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(folder, documents, index_of("concat", drop_last=True))


# counts of ids


def directly(built: Built) -> list[int]:
    """Every predicted place of a training document counted once, one by one."""
    seen = set()
    by_sequence: dict[int, list[dict[str, Any]]] = {}
    for row in built.rows:
        if row["split"] == "train":
            by_sequence.setdefault(row["sequence"], []).append(row)
    for rows in by_sequence.values():
        for number, row in enumerate(rows):
            first = 0 if number and built.settings.packing == "concat" else 1
            ids = built.ids_of(row)
            seen |= {(row["shard"], row["start"] + place, ids[place]) for place in range(first, row["length"])}
    counts = np.bincount([token for _, _, token in seen], minlength=VOCAB)
    return counts.tolist()


SETTINGS = [
    index_of(),
    index_of(stride=3),
    index_of("pack"),
    index_of("concat"),
    index_of("concat", drop_last=True),
    index_of("pack", mix=MixSettings(by="kind", weights="code=1,prose=0")),
    index_of("concat", drop_last=True, mix=MixSettings(by="kind", epochs="code=2")),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_token_counts_are_those_of_a_direct_count(folder: Path, settings: DatasetIndexSettings) -> None:
    built = build(folder, DOCUMENTS, settings, shelves=[DOCUMENTS[:3], DOCUMENTS[3:]], groups=GROUPS)
    assert built.counts == directly(built)
    assert sum(built.counts) > 0


def test_long_spans_are_counted_in_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.tokens.dataset.IDS_AT_ONCE", 7)
    built = build(folder, DOCUMENTS, DatasetIndexSettings(T + 3))
    assert built.counts == directly(built)


# the digest


@pytest.mark.parametrize("packing", PACKINGS)
def test_the_digest_does_not_depend_on_where_documents_lie(folder: Path, packing: str) -> None:
    one = build(folder, DOCUMENTS, index_of(packing))
    other = build(folder, DOCUMENTS, index_of(packing), shelves=[DOCUMENTS[5:], DOCUMENTS[4::-1]])
    assert one.digest == other.digest
    assert one.record == other.record
    assert batches(one)[0].tolist() == batches(other)[0].tolist()


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_new_validation_document_leaves_the_digest(folder: Path, packing: str) -> None:
    one = build(folder, DOCUMENTS, index_of(packing))
    more = [*DOCUMENTS, document("bb", 20, "validation")]
    assert build(folder, more, index_of(packing)).digest == one.digest


def changed() -> Iterator[tuple[str, list[Document], DatasetIndexSettings]]:
    yield "a document more", [*DOCUMENTS, document("bb", 5)], index_of("pack")
    yield "a document less", DOCUMENTS[1:], index_of("pack")
    yield "another id", [replace(DOCUMENTS[0], ids=DOCUMENTS[0].ids[::-1]), *DOCUMENTS[1:]], index_of("pack")
    yield "another name", [replace(DOCUMENTS[0], doc_id="aa"), *DOCUMENTS[1:]], index_of("pack")
    yield "another length", DOCUMENTS, DatasetIndexSettings(T + 1, "pack")
    yield "another way", DOCUMENTS, index_of("chunk")
    yield "seen by each other", DOCUMENTS, index_of("concat")
    yield "read twice", DOCUMENTS, index_of("pack", mix=MixSettings(by="kind", epochs="*=2"))


@pytest.mark.parametrize(("documents", "settings"), [pytest.param(*case, id=name) for name, *case in changed()])
def test_another_training_gives_another_digest(
    folder: Path, documents: list[Document], settings: DatasetIndexSettings
) -> None:
    groups = {item.doc_id: "all" for item in documents}
    before = build(folder, DOCUMENTS, index_of("pack"))
    assert build(folder, documents, settings, groups=groups).digest != before.digest


def test_pieces_that_see_each_other_are_another_training_than_those_that_do_not(folder: Path) -> None:
    """The same spans in the same sequences, and yet other labels."""
    documents = [document("a", T - 3), document("b", 3), document("v", 9, "validation")]
    packed, stream = (build(folder, documents, index_of(way)) for way in ("pack", "concat"))
    assert [row["length"] for row in packed.rows] == [row["length"] for row in stream.rows]
    assert packed.digest != stream.digest


def test_reading_another_document_twice_is_another_training(folder: Path) -> None:
    documents = [document("a", 20), document("b", 20), document("v", 9, "validation")]
    settings = index_of(mix=MixSettings(by="kind", epochs="twice=2,once=1"))
    one = build(folder, documents, settings, groups={"a": "twice", "b": "once"})
    other = build(folder, documents, settings, groups={"a": "once", "b": "twice"})
    assert one.digest != other.digest


# mixing


def test_groups_lie_side_by_side_in_the_order_of_their_names(folder: Path) -> None:
    mix = MixSettings(by="kind", epochs="code=2,prose=0.5")
    built = build(folder, DOCUMENTS, index_of("pack", mix=mix), groups=GROUPS)
    groups, recorded = groups_of(built.folder), built.record["groups"]
    assert [(group["name"], group["first"]) for group in recorded] == [("code", 0), ("prose", groups[0].count)]
    assert groups[0].reads == 2 * groups[0].count
    assert sum(group.count for group in groups) == built.manifest.counts["train_sequences"]
    assert sum(group.reads for group in groups) == built.manifest.counts["train_reads"]
    for group, known in zip(groups, recorded, strict=True):
        own = [row for row in built.rows if group.first <= row["sequence"] < group.first + group.count]
        assert {GROUPS[row["doc_id"]] for row in own} == {known["name"]}
        assert built.index().labels[group.first :][: group.count].sum() == known["tokens"]


@pytest.mark.parametrize("packing", PACKINGS)
def test_the_accounts_of_the_groups_add_up_to_that_of_the_split(folder: Path, packing: str) -> None:
    mix = MixSettings(by="kind", weights="code=0,prose=1")
    built = build(folder, DOCUMENTS, index_of(packing, mix=mix), groups=GROUPS)
    names = ("documents", "ids", "n_bytes", "sequences", "kept", "repeated", "padded", "cut", "labels")
    train = built.record["splits"]["train"]
    assert {name: sum(group[name] for group in built.record["groups"]) for name in names} == {
        name: train[name] for name in names
    }
    assert train["ids"] == train["kept"] + train["cut"]


def test_a_group_that_is_left_out_is_cut_and_noted(folder: Path) -> None:
    mix = MixSettings(by="kind", weights="code=0,prose=1")
    built = build(folder, DOCUMENTS, index_of(mix=mix), groups=GROUPS)
    code = built.record["groups"][0]
    assert (code["name"], code["count"], code["reads"], code["cut"]) == ("code", 0, 0, 47)
    assert [group.first for group in groups_of(built.folder)] == [built.record["groups"][1]["first"]]
    assert {row["doc_id"] for row in built.rows if row["split"] == "train"} == {"b", "e", "f"}
    assert "the mix leaves out group 'code': 2 document(s), 47 ids" in built.record["notes"]


def test_a_group_too_small_for_a_sequence_is_cut_and_noted(folder: Path) -> None:
    groups = {**GROUPS, "b": "tiny"}
    settings = index_of("concat", drop_last=True, mix=MixSettings(by="kind"))
    built = build(folder, DOCUMENTS, settings, groups=groups)
    tiny = built.record["groups"][-1]
    assert (tiny["name"], tiny["count"], tiny["cut"]) == ("tiny", 0, 3)
    assert "the last 3 ids of group 'tiny' are in no sequence (dataset.drop_last)" in built.record["notes"]


def test_validation_is_not_mixed(folder: Path) -> None:
    mix = MixSettings(by="kind", weights="code=0,prose=1")
    built = build(folder, DOCUMENTS, index_of(mix=mix), groups=GROUPS)
    plain = build(folder, DOCUMENTS, index_of())
    assert built.record["splits"]["validation"] == plain.record["splits"]["validation"]


def test_a_training_document_in_no_group_is_an_error(folder: Path) -> None:
    groups = {name: group for name, group in GROUPS.items() if name != "e"}
    with pytest.raises(StoreError, match=r"training document e is in no group.*--refresh groups"):
        build(folder, DOCUMENTS, index_of(mix=MixSettings(by="kind")), groups=groups)


# settings


@pytest.mark.parametrize(("seq_len", "stride"), [(0, 0), (4, 5), (4, -1)])
def test_a_stride_that_would_skip_ids_is_refused(seq_len: int, stride: int) -> None:
    with pytest.raises(ValueError, match="no id is skipped"):
        DatasetIndexSettings(seq_len, stride=stride)


# documents in several shards


def test_a_document_is_read_where_it_is_live(folder: Path) -> None:
    documents = [document("a", 9), document("b", 12), document("v", 9, "validation")]
    old = replace(documents[0], ids=documents[0].ids[::-1])
    corpus = Corpus(folder, documents, [[old, documents[1]], [documents[0], documents[2]]], live=[{"b"}, {"a", "v"}])
    found = kept_tokens(corpus.store, corpus.curated, corpus.tokens)
    assert (found.ids.to_pylist(), found.shard.tolist()) == (["a", "b", "v"], [1, 0, 1])
    assert found.digests.to_pylist() == [item.digest for item in documents]


def test_the_segment_that_was_noted_decides_between_several(folder: Path) -> None:
    documents = [document("a", 9, segment="new"), document("b", 4, segment="gone"), document("c", 4, segment="old")]
    shelves = [documents[:1], [*documents[:1], documents[2]], [*documents[1:2], documents[2]]]
    corpus = Corpus(folder, documents, shelves, segments=["other", "new", "old"])
    found = kept_tokens(corpus.store, corpus.curated, corpus.tokens)
    assert found.shard.tolist() == [1, 2, 2]


@pytest.mark.parametrize("live", [None, [{"a"}, {"a"}]])
def test_a_document_that_lies_nowhere_is_an_error(folder: Path, live: list[set[str]] | None) -> None:
    corpus = Corpus(folder, [document("a", 9), document("lost", 4)], [[document("a", 9)], []], live=live)
    with pytest.raises(StoreError, match=r"document lost is in 0 of the 2 .*--refresh snapshot"):
        kept_tokens(corpus.store, corpus.curated, corpus.tokens)


def test_a_document_in_two_shards_neither_of_which_was_noted_is_an_error(folder: Path) -> None:
    item = document("a", 9, segment="third")
    corpus = Corpus(folder, [item], [[item], [item]])
    with pytest.raises(StoreError, match="document a is in 2 of the 2"):
        kept_tokens(corpus.store, corpus.curated, corpus.tokens)
