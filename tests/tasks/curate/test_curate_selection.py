"""Selection: a split that depends on text alone, duplicates refused with a reason, never an empty side."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import pyarrow as pa
import pytest
from tiny_run import hash_share

from storage.schemas import NEAR_PAIRS
from tasks.curate.corpus import Corpus
from tasks.curate.curate import (
    ENOUGH_BYTES,
    ENOUGH_SHARE,
    RANK,
    begin_selection,
    begin_split,
    hold_out,
    refuse_duplicates,
)
from tasks.curate.settings import CurateSettings

SETTINGS = CurateSettings(validation_share=0.2)
Pair = tuple[str, str, float]


@dataclass
class Candidate:
    """A live document as selection sees it, and why it is not used."""

    doc_id: str
    text_sha256: str
    cluster: str
    n_bytes: int
    ocr_share: float
    refusal: str | None = None
    kind: str = "text"
    language: str = "en"


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def candidate(text: str, doc_id: str = "", cluster: str = "", n_bytes: int = 0, ocr_share: float = 0.0) -> Candidate:
    return Candidate(
        doc_id=doc_id or sha256("id" + text),
        text_sha256=sha256(text),
        cluster=cluster or sha256(text),
        n_bytes=n_bytes or len(text.encode()),
        ocr_share=ocr_share,
    )


def candidates(count: int, start: int = 0) -> list[Candidate]:
    return [candidate(f"document number {number}") for number in range(start, start + count)]


def listed(corpus: Corpus, items: Sequence[Candidate]) -> None:
    """Make the tables that the stage makes of the measures."""
    schema = pa.table({name: [value] for name, value in asdict(replace(items[0], refusal="")).items()}).schema
    corpus.insert("items", pa.Table.from_pylist(list(map(asdict, items)), schema=schema))
    corpus.sql(
        f"create table candidates as select row_number() over (order by {RANK}) as number, *, "
        "count(*) over (partition by cluster) + count(*) over (partition by text_sha256) - 1 as cluster_size from items"
    )
    begin_selection(corpus)
    corpus.sql("insert into refused select number, refusal, '' from candidates where refusal is not null")


def split(
    items: Sequence[Candidate], settings: CurateSettings = SETTINGS, barred: Sequence[str] = ()
) -> dict[str, str]:
    """The side of each cluster that has a document in use."""
    with Corpus() as corpus:
        listed(corpus, items)
        begin_split(corpus, settings)
        corpus.insert("barred", pa.table({"cluster": pa.array(barred, pa.string())}))
        hold_out(corpus, settings)
        found = corpus.sql("select cluster, cluster in (from held_out) from clusters").fetchall()
    return {cluster: "validation" if held_out else "train" for cluster, held_out in found}


def sides(items: Sequence[Candidate], settings: CurateSettings = SETTINGS) -> dict[str, str]:
    """The side of each document."""
    found = split(items, settings)
    return {item.doc_id: found[item.cluster] for item in items if item.cluster in found}


def refusals(
    items: Sequence[Candidate], near: Sequence[Pair] = (), drop_near: bool = True
) -> dict[str, tuple[str, str]]:
    """Code and reason of all refused documents, with those that duplicates cost."""
    with Corpus() as corpus:
        listed(corpus, items)
        corpus.insert(
            "pairs", pa.Table.from_pylist([dict(zip(NEAR_PAIRS.names, pair, strict=True)) for pair in near], NEAR_PAIRS)
        )
        refuse_duplicates(corpus, "pairs", drop_near)
        rows = corpus.sql("select doc_id, code, reason from refused join candidates using (number)").fetchall()
    return {doc_id: (code, reason) for doc_id, code, reason in rows}


def refused(items: Sequence[Candidate], near: Sequence[Pair] = (), drop_near: bool = True) -> dict[str, str]:
    return {doc_id: code for doc_id, (code, _) in refusals(items, near, drop_near).items()}


def share_of(item: Candidate) -> float:
    return hash_share(item.text_sha256, SETTINGS.salt)


def test_a_document_is_in_validation_if_the_hash_of_its_text_says_so() -> None:
    items = candidates(200)
    assert sides(items) == {item.doc_id: "validation" if share_of(item) < 0.2 else "train" for item in items}


def test_a_cluster_is_held_out_only_if_the_hash_of_every_text_in_it_says_so() -> None:
    held_out = [item for item in candidates(300) if share_of(item) < 0.2]
    trained = next(item for item in candidates(300) if share_of(item) >= 0.2)
    together = [replace(item, cluster="c") for item in held_out[:3]]
    others = held_out[3:13]  # else it were more than a third of the corpus
    assert split([*together, *others])["c"] == "validation"
    assert split([*together, *others, replace(trained, cluster="c")])["c"] == "train"


def test_of_documents_with_the_same_text_the_lowest_id_is_kept() -> None:
    items = [candidate("same", "c"), candidate("same", "a"), candidate("same", "b"), *candidates(5)]
    assert refusals(items) == {
        "b": ("duplicate_text", "same text as document a"),
        "c": ("duplicate_text", "same text as document a"),
    }


def test_of_documents_with_the_same_text_one_that_was_typed_is_kept_before_one_that_was_read_by_ocr() -> None:
    assert refused([candidate("same", "a", ocr_share=0.5), candidate("same", "b")]) == {"a": "duplicate_text"}


def test_of_near_duplicates_the_typed_one_is_kept_then_the_longest_then_the_lowest_id() -> None:
    scan, short, long = (
        candidate("scan", "a", "c", n_bytes=900, ocr_share=1.0),
        candidate("short", "b", "c", n_bytes=100),
        candidate("long", "d", "c", n_bytes=101),
    )
    all_pairs = [("a", "b", 0.9), ("a", "d", 0.9), ("b", "d", 0.9)]
    items = [scan, short, long]
    assert refused(items, all_pairs) == {"a": "near_duplicate", "b": "near_duplicate"}
    equal = [candidate("one", "x", "c", n_bytes=7), candidate("two", "y", "c", n_bytes=7)]
    assert refused(equal, [("y", "x", 0.9)]) == {"y": "near_duplicate"}


def test_a_near_duplicate_is_refused_with_the_document_that_stands_for_it_and_how_like_it_is() -> None:
    items = [candidate("short", "a", "c", n_bytes=10), candidate("long", "b", "c", n_bytes=20)]
    assert refusals(items, [("a", "b", 0.87654)]) == {
        "a": ("near_duplicate", "nearly the same text as document b (Jaccard similarity 0.877)")
    }


def test_near_duplicates_stay_where_they_are_to_be_kept_and_exact_ones_do_not() -> None:
    items = [candidate("one", "a", "c"), candidate("two", "b", "c"), candidate("two", "d", "c")]
    assert refused(items, [("a", "b", 0.9)], drop_near=False) == {"d": "duplicate_text"}


def test_a_document_like_one_that_is_itself_refused_is_kept() -> None:
    """In a chain only neighbours resemble each other: with the middle gone the ends have nothing in common."""
    chain = [
        candidate("best", "a", "c", n_bytes=30),
        candidate("middle", "b", "c", n_bytes=20),
        candidate("far", "d", "c", n_bytes=10),
    ]
    assert refused(chain, [("a", "b", 0.9), ("b", "d", 0.9)]) == {"b": "near_duplicate"}


def test_a_refused_document_takes_no_like_one_with_it() -> None:
    long = replace(candidate("long", "a", "c", n_bytes=30), refusal="minified")
    items = [long, candidate("short", "b", "c", n_bytes=20)]
    assert refused(items, [("a", "b", 0.95)]) == {"a": "minified"}


def test_a_pair_of_texts_holds_for_every_document_that_has_them() -> None:
    """The pair names the lowest document of each text; it may be refused for other reasons."""
    first = replace(candidate("x", "a", "c", n_bytes=30), refusal="licence")
    items = [first, candidate("x", "b", "c", n_bytes=30), candidate("y", "d", "c", n_bytes=20)]
    assert refused(items, [("a", "d", 0.95)]) == {"a": "licence", "d": "near_duplicate"}


def test_the_cluster_of_lowest_hash_is_validation_where_no_other_is() -> None:
    items = candidates(20)
    chosen = sides(items, CurateSettings(validation_share=1e-9))
    lowest = min(items, key=share_of)
    assert [doc_id for doc_id, side in chosen.items() if side == "validation"] == [lowest.doc_id]


def test_growth_from_the_fallback_moves_documents_out_of_validation_only() -> None:
    settings = CurateSettings(validation_share=0.02)
    before = sides(candidates(5), settings)
    for count in range(6, 120, 28):
        after = sides(candidates(count), settings)
        assert not [name for name, side in before.items() if side == "train" and after[name] == "validation"]


def test_training_is_never_empty_either() -> None:
    chosen = sides(candidates(20), CurateSettings(validation_share=1 - 1e-9))
    assert list(chosen.values()).count("train") == 1


def test_barred_clusters_are_trained_on_and_the_next_lowest_hash_is_held_out() -> None:
    items = candidates(20)
    order = [item.cluster for item in sorted(items, key=share_of)]
    found = split(items, CurateSettings(validation_share=1e-9), barred=order[:3])
    assert [cluster for cluster, side in found.items() if side == "validation"] == [order[3]]


def test_where_all_clusters_are_barred_none_is_held_out() -> None:
    items = [candidate("one", cluster="a"), candidate("two", cluster="b")]
    assert split(items, barred=["a", "b"]) == {"a": "train", "b": "train"}


# enough text in validation


def skewed(count: int, seed: int, **labels: str) -> list[Candidate]:
    """Documents above the threshold of `SETTINGS`; most are short and a few are long."""
    rng = random.Random(seed)
    trained = [item for item in candidates(3 * count, start=10_000 * seed) if share_of(item) >= 0.2][:count]
    return [replace(item, n_bytes=int(rng.lognormvariate(9.2, 1.2)), **labels) for item in trained]


def held_bytes(items: Sequence[Candidate], settings: CurateSettings = SETTINGS) -> int:
    chosen = sides(items, settings)
    return sum(item.n_bytes for item in items if chosen[item.doc_id] == "validation")


@pytest.mark.parametrize("seed", range(5))
def test_a_small_corpus_holds_out_a_share_of_its_bytes_in_whole_documents(seed: int) -> None:
    items = skewed(65, seed)
    target = ENOUGH_SHARE * sum(item.n_bytes for item in items)
    assert held_bytes(items) == pytest.approx(target, rel=0.5)
    assert held_bytes([replace(item, n_bytes=100 * item.n_bytes) for item in items]) < 2 * ENOUGH_BYTES


def test_what_is_held_out_for_its_bytes_is_in_proportion_to_kinds_and_languages() -> None:
    parts = {
        ("text", "en"): skewed(60, 1),
        ("text", "ar"): skewed(40, 2, language="ar"),
        ("code", "en"): skewed(50, 3, kind="code"),
        ("text", "hu"): skewed(1, 4, language="hu"),
    }
    chosen = sides([item for own in parts.values() for item in own])
    for labels, own in parts.items():
        whole = sum(item.n_bytes for item in own)
        held = sum(item.n_bytes for item in own if chosen[item.doc_id] == "validation")
        assert held == (0 if labels[1] == "hu" else pytest.approx(ENOUGH_SHARE * whole, rel=0.5))


def test_a_corpus_of_small_groups_holds_out_as_much_as_another() -> None:
    items = [replace(item, kind=f"kind {number // 3}") for number, item in enumerate(skewed(65, 1))]
    assert held_bytes(items) == pytest.approx(ENOUGH_SHARE * sum(item.n_bytes for item in items), rel=0.5)


def test_the_only_document_of_a_language_is_not_held_out_for_its_bytes() -> None:
    alone = [replace(item, language=f"language {number}") for number, item in enumerate(skewed(30, 2))]
    chosen = sides([*skewed(6, 1), *alone])
    assert [chosen[item.doc_id] for item in alone].count("validation") == 0


def test_a_document_of_more_than_a_third_of_the_corpus_is_trained_on() -> None:
    items = skewed(20, 1)
    giant = replace(next(item for item in candidates(300) if share_of(item) < 0.2), n_bytes=10**7)
    assert sides([*items, giant])[giant.doc_id] == "train"
    assert held_bytes([*items, giant]) > 0
    assert sides([giant, replace(items[0], n_bytes=10**7)])[giant.doc_id] == "validation", "one of both has to be"


def test_documents_held_out_for_their_bytes_are_trained_on_once_the_threshold_gives_enough() -> None:
    small, more = skewed(30, 1), candidates(400, start=90_000)
    added = [replace(item, n_bytes=20_000) for item in more]
    assert held_bytes(small) > 0
    after = sides([*small, *added])
    assert {doc_id for doc_id, side in after.items() if side == "validation"} == {
        item.doc_id for item in added if share_of(item) < 0.2
    }
