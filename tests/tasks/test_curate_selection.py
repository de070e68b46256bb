"""Selection: a split that depends on text alone, duplicates dropped with a reason, never an empty side."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import pytest

from tasks.curate.selection import EmptyCorpus, hash_share, select, split_clusters
from tasks.settings import CurateSettings

SETTINGS = CurateSettings(validation_share=0.2)


def document(text: str, doc_id: str = "", distinct_share: float = 0.4) -> dict[str, Any]:
    return {
        "doc_id": doc_id or hashlib.sha256(b"id" + text.encode()).hexdigest(),
        "segment": "s",
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "n_chars": len(text),
        "n_bytes": len(text.encode()),
        "distinct_share": distinct_share,
    }


def documents(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [document(f"document number {number}") for number in range(start, start + count)]


def sides(rows: list[dict[str, Any]]) -> dict[str, str]:
    return {row["doc_id"]: row["split"] for row in rows}


def share_of(row: dict[str, Any]) -> float:
    return hash_share(row["text_sha256"], SETTINGS.salt)


def test_a_document_is_in_validation_if_the_hash_of_its_text_says_so() -> None:
    rows = documents(200)
    chosen = sides(select(rows, SETTINGS)[0])
    assert chosen == {row["doc_id"]: "validation" if share_of(row) < 0.2 else "train" for row in rows}


def test_about_the_share_asked_for_is_held_out() -> None:
    chosen = sides(select(documents(2_000), SETTINGS)[0])
    assert 0.17 < list(chosen.values()).count("validation") / 2_000 < 0.23


def test_added_documents_move_no_other_between_the_sides() -> None:
    before = sides(select(documents(100), SETTINGS)[0])
    after = sides(select(documents(400), SETTINGS)[0])
    assert before.items() <= after.items()


def test_removed_documents_move_no_other_between_the_sides() -> None:
    rows = documents(100)
    whole = sides(select(rows, SETTINGS)[0])
    assert sides(select(rows[::2], SETTINGS)[0]).items() <= whole.items()


def test_the_order_of_documents_changes_nothing() -> None:
    rows = [*documents(30), document("x", "1"), document("x", "2"), document("")]
    shuffled = random.Random(3).sample(rows, len(rows))
    assert select(shuffled, SETTINGS) == select(rows, SETTINGS)


def test_identity_and_segment_of_a_document_do_not_enter_its_side() -> None:
    renamed = [{**row, "doc_id": row["doc_id"][::-1], "segment": "t"} for row in documents(100)]
    expected = {row["doc_id"]: side for row, side in zip(renamed, _ordered_sides(documents(100)), strict=True)}
    assert sides(select(renamed, SETTINGS)[0]) == expected


def _ordered_sides(rows: list[dict[str, Any]]) -> list[str]:
    chosen = sides(select(rows, SETTINGS)[0])
    return [chosen[row["doc_id"]] for row in rows]


def test_another_salt_holds_out_other_documents() -> None:
    other = CurateSettings(validation_share=0.2, salt="another")
    assert sides(select(documents(100), SETTINGS)[0]) != sides(select(documents(100), other)[0])


def test_of_documents_with_the_same_text_the_lowest_id_is_kept() -> None:
    rows = [document("same", "c"), document("same", "a"), document("same", "b"), *documents(5)]
    selection, dropped = select(rows, SETTINGS)
    kept = {row["doc_id"]: row["kept"] for row in selection}
    assert (kept["a"], kept["b"], kept["c"]) == (True, False, False)
    assert [(row["doc_id"], row["reason_code"], row["reason"]) for row in dropped] == [
        ("b", "duplicate_text", "same text as document a"),
        ("c", "duplicate_text", "same text as document a"),
    ]


def test_documents_with_the_same_text_are_on_the_same_side() -> None:
    rows = [document(f"text {number % 20}", f"{number:03}") for number in range(60)]
    found: dict[str, set[str]] = {}
    for row in select(rows, SETTINGS)[0]:
        found.setdefault(row["cluster"], set()).add(row["split"])
    assert len(found) == 20
    assert all(len(side) == 1 for side in found.values())


def test_too_short_documents_are_dropped_with_their_length() -> None:
    settings = CurateSettings(min_chars=5)
    selection, dropped = select([document("1234", "short"), *documents(4)], settings)
    assert "short" not in sides(selection)
    assert dropped == [
        {
            "doc_id": "short",
            "reason_code": "too_short",
            "reason": "4 characters after normalising, fewer than 5",
        }
    ]


def test_a_document_is_long_enough_at_exactly_the_limit() -> None:
    selection, dropped = select([document("12345", "fits"), *documents(4)], CurateSettings(min_chars=5))
    assert "fits" in sides(selection)
    assert dropped == []


def test_repetition_is_dropped_with_the_share_of_distinct_phrases() -> None:
    settings = CurateSettings(min_distinct_share=0.05)
    rows = [document("spam " * 99, "spam", 0.0123), document("poem " * 99, "poem", 0.05), *documents(4)]
    selection, dropped = select(rows, settings)
    assert "poem" in sides(selection)
    assert "spam" not in sides(selection)
    assert [(row["doc_id"], row["reason_code"]) for row in dropped] == [("spam", "repetitive")]
    assert "1.23%" in dropped[0]["reason"]
    assert "5%" in dropped[0]["reason"]


def test_every_document_is_selected_or_dropped() -> None:
    rows = [document(""), document("spam", "spam", 0.0), document("x", "1"), document("x", "2"), *documents(20)]
    selection, dropped = select(rows, SETTINGS)
    kept = {row["doc_id"] for row in selection if row["kept"]}
    gone = {row["doc_id"] for row in dropped}
    assert kept | gone == {row["doc_id"] for row in rows}
    assert not kept & gone


def test_the_cluster_of_lowest_hash_is_validation_where_no_other_is() -> None:
    settings = CurateSettings(validation_share=1e-9)
    rows = documents(20)
    lowest = min(rows, key=share_of)
    chosen = sides(select(rows, settings)[0])
    assert [doc_id for doc_id, side in chosen.items() if side == "validation"] == [lowest["doc_id"]]


def test_growth_from_the_fallback_moves_documents_out_of_validation_only() -> None:
    settings = CurateSettings(validation_share=0.02)
    before = sides(select(documents(5), settings)[0])
    for count in range(6, 120, 7):
        after = sides(select(documents(count), settings)[0])
        assert not [name for name, side in before.items() if side == "train" and after[name] == "validation"]


def test_training_is_never_empty_either() -> None:
    settings = CurateSettings(validation_share=1 - 1e-9)
    assert list(sides(select(documents(20), settings)[0]).values()).count("train") == 1


@pytest.mark.parametrize("rows", [[], documents(1), [document("same", "a"), document("same", "b")], [document("")] * 3])
def test_fewer_than_two_texts_are_refused_with_what_to_do(rows: list[dict[str, Any]]) -> None:
    with pytest.raises(EmptyCorpus, match=r"[01] distinct document.*at least two.*add documents.*sheepfold sql"):
        select(rows, SETTINGS)


def test_two_texts_are_enough_and_part() -> None:
    chosen = split_clusters(["a", "b"], SETTINGS)
    assert sorted(chosen.values()) == ["train", "validation"]
