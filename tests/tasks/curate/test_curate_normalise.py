"""Normalising: one canonical text per document, and digests that follow content and nothing else."""

from __future__ import annotations

import random
import unicodedata
from typing import Any

import pytest

from tasks.curate import normalise
from tasks.readers.records import Block
from tasks.text.cleaning import NormaliseSettings, normalise_text

KINDS = ["pdf", "image", "text", "code"]
PROSE = ["pdf", "image", "text"]


def record(kind: str = "text", **changes: Any) -> dict[str, Any]:
    return {"doc_id": "d" * 64, "kind": kind, "title": None, "programming_language": None, **changes}


def pages(
    *texts: str, method: str = "text", confidence: float | None = None, engine: str = "pypdfium2"
) -> list[dict[str, Any]]:
    read = {"method": method, "engine": engine, "confidence": confidence}
    return [
        {"doc_id": "d" * 64, "page": number, "text": text, **read, "blocks": []} for number, text in enumerate(texts, 1)
    ]


def document_row(record: dict[str, Any], pages: list[dict[str, Any]], **settings: bool) -> dict[str, Any]:
    return normalise.document_row(record, pages, NormaliseSettings(**settings))


def noise(seed: int) -> str:
    """A text of everything that has ever hurt a pipeline."""
    parts = [
        "-\n",
        "- \n",
        "\r\n",
        *"e\u0301\u0300\x00\u00ad\ufeff\r\n\f-aZﬁﬅ\u00a0\t \ud800\udfff😀\ufffe\x85\x9f\u2028가ᄀ\u1161",
    ]
    return "".join(random.Random(seed).choices(parts, k=60))


@pytest.mark.parametrize("kind", KINDS)
def test_text_is_composed_to_nfc(kind: str) -> None:
    assert normalise_text("cafe\u0301 \u1100\u1161", kind) == "café 가"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ends", ["\r\n", "\r", "\n"])
def test_all_line_ends_become_line_feeds(kind: str, ends: str) -> None:
    assert normalise_text(f"one{ends}two{ends}", kind) == "one\ntwo"


@pytest.mark.parametrize("kind", KINDS)
def test_control_characters_go_and_tabs_stay(kind: str) -> None:
    assert normalise_text("a\x00b\x07c\x1b[0m\td\x7f", kind) == "abc[0m\td"


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_keeps_a_control_character_or_a_surrogate(kind: str) -> None:
    for seed in range(200):
        text = normalise_text(noise(seed), kind)
        assert not [char for char in text if unicodedata.category(char) in ("Cc", "Cs") and char not in "\n\t"]
        text.encode("utf-8")


@pytest.mark.parametrize("kind", PROSE)
def test_prose_loses_ligatures_and_soft_hyphens(kind: str) -> None:
    assert normalise_text("eﬃcient ﬁnding of ﬂames, diﬀerent oﬀ\u00adice", kind) == (
        "efficient finding of flames, different office"
    )


@pytest.mark.parametrize("kind", ["pdf", "image"])
def test_a_space_behind_the_hyphen_does_not_save_it(kind: str) -> None:
    assert normalise_text("the exam- \nple", kind) == "the example"


def test_code_keeps_what_prose_would_lose() -> None:
    code = 'x = "ﬁ\u00ad"\n\n\n\nif a -\\\n    b: pass\nname-\nvalue'
    assert normalise_text(code, "code") == code


@pytest.mark.parametrize("kind", KINDS)
def test_spaces_at_line_ends_go_and_indentation_stays(kind: str) -> None:
    assert normalise_text("a  \n\tb \t\n    c\u00a0\n", kind) == "a\n\tb\n    c"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["pdf", "code"])
@pytest.mark.parametrize("filling", [" ", "\t", "\u00a0", " \t", "\r", "\n", "-\n", "a-\n", "\u00ad"])
def test_long_runs_of_one_character_take_no_longer_than_other_text(kind: str, filling: str) -> None:
    """A quadratic pattern would take hours for these."""
    text = normalise_text("a" + filling * 200_000 + "b", kind)
    assert (text[0], text[-1]) == ("a", "b")


@pytest.mark.parametrize("kind", PROSE)
def test_prose_has_at_most_one_blank_line_in_a_row(kind: str) -> None:
    assert normalise_text("a\n\n\n \n\nb", kind) == "a\n\nb"


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_but_white_space_is_an_empty_text(kind: str) -> None:
    assert normalise_text(" \r\n\t\f \u00a0", kind) == ""


def test_pages_are_joined_by_a_blank_line_in_order_and_empty_ones_leave_none() -> None:
    row = document_row(record("pdf"), pages("first", "", "second"))
    assert row["text"] == "first\n\nsecond"


def test_pages_of_known_layout_become_markdown_and_others_keep_their_lines() -> None:
    read = pages("Wool\nis ﬁne\nyarn", "a scan\nof wool", method="text")
    blocks = [Block("paragraph", "Wool", size=18), Block("paragraph", "is ﬁne\nyarn" * 10, size=10)]
    read[0]["blocks"] = [vars(block) for block in blocks]
    text = document_row(record("pdf"), read)["text"]
    assert text.startswith("# Wool\n\nis fine yarn")
    assert text.endswith("\n\na scan\nof wool")


def test_sizes_describe_the_normalised_text() -> None:
    row = document_row(record(), pages("né 1\r\nx"))
    assert (row["n_bytes"], row["n_pages"], row["text"]) == (7, 1, "né 1\nx")


def test_a_document_without_pages_has_an_empty_text() -> None:
    row = document_row(record(), [])
    assert (row["text"], row["n_bytes"], row["n_pages"], row["ocr_share"], row["ocr_confidence"]) == (
        "",
        0,
        0,
        0.0,
        None,
    )


def test_the_share_of_pages_that_were_read_by_ocr_counts_those_read_in_part() -> None:
    found = [*pages("a", "b"), *pages("c", method="ocr", confidence=90.0), *pages("d", method="both", confidence=60.0)]
    row = document_row(record("pdf"), found)
    assert (row["ocr_share"], row["ocr_confidence"]) == (0.5, 75.0)


def test_the_invisible_text_of_a_scan_counts_as_read_by_ocr() -> None:
    row = document_row(record("pdf"), [*pages("a"), *pages("b", engine="pypdfium2 (invisible layer)")])
    assert (row["ocr_share"], row["ocr_confidence"]) == (0.5, None)


def test_a_page_read_by_ocr_that_does_not_know_how_sure_it_is_counts_for_no_mean() -> None:
    found = [*pages("c", method="ocr", confidence=80.0), *pages("d", method="ocr"), *pages("e", confidence=10.0)]
    assert document_row(record("pdf"), found)["ocr_confidence"] == 80.0


def test_mojibake_is_repaired_unless_that_is_switched_off() -> None:
    broken = pages("the café".encode().decode("cp1252"))
    assert document_row(record(), broken)["text"] == "the café"
    assert document_row(record(), broken, repair_mojibake=False)["text"] != "the café"


@pytest.mark.parametrize(
    "changed",
    [
        document_row(record(), pages("another text")),
        document_row(record(title="A title"), pages("a text")),
        document_row(record("code"), pages("a text")),
        document_row(record(programming_language="Python"), pages("a text")),
        document_row(record(), pages("a text", method="ocr")),
    ],
    ids=["text", "title", "kind", "language", "method"],
)
def test_the_digest_changes_with_the_content(changed: dict[str, Any]) -> None:
    assert document_row(record(), pages("a text"))["digest"] != changed["digest"]


@pytest.mark.parametrize(
    "same",
    [
        document_row(record(), pages("a text\r\n")),
        document_row(record(doc_id="e" * 64), pages("a text")),
    ],
    ids=["line-ends", "doc-id"],
)
def test_the_digest_stays_with_the_content(same: dict[str, Any]) -> None:
    assert document_row(record(), pages("a text"))["digest"] == same["digest"]
