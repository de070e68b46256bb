"""The data card: what is in a dataset, what is not and why, and how to make it again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from corpus_report_samples import CORPUS
from dataset_report_samples import Prepared, rich
from rows import row

from storage import schemas
from storage.catalog import Catalog
from tasks.report.corpus import collect
from tasks.report.dataset import collect_dataset, data_card, provenance

HEADINGS = [
    "Summary", "Sources", "Licences", "Kinds and languages", "From files to documents", "Duplicates", "Split",
    "Evaluation sets", "Personal data and secrets", "Tokeniser", "Known limits", "Reproduction",
]  # fmt: skip


def card_of(catalog: Catalog) -> str:
    return data_card(collect_dataset(catalog, CORPUS), collect(catalog), provenance(catalog), CORPUS)


def section_of(card: str, heading: str) -> str:
    return re.split(r"^## ", card, flags=re.M)[HEADINGS.index(heading) + 1]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return rich(tmp_path_factory.mktemp("card")).catalog()


@pytest.fixture(scope="module")
def card(catalog: Catalog) -> str:
    return card_of(catalog)


def test_every_section_is_there_in_order(card: str) -> None:
    assert re.findall(r"^## (.*)$", card, flags=re.M) == HEADINGS


def test_what_was_left_out_is_counted_by_its_reason(card: str, catalog: Catalog) -> None:
    filters = section_of(card, "From files to documents")
    for counted in catalog.query("select stage, reason_code, count(*) as n from quarantine group by all"):
        assert re.search(rf"\| `{counted['reason_code']}` \| {counted['n']} \|", filters)
    assert "`duplicate_bytes`" in filters or "`duplicate`" in filters


def test_licences_are_counted_and_none_found_is_a_known_limit(card: str) -> None:
    licences = section_of(card, "Licences")
    assert re.search(r"\| MIT \| 1 \|", licences) and re.search(r"\| unknown \| 4 \|", licences)
    assert "No licence was found for 4 documents" in section_of(card, "Known limits")


def test_counts_equal_those_of_the_tables(card: str, catalog: Catalog) -> None:
    (found,) = catalog.query("select count(*) as documents, sum(length)::bigint as tokens from tokens")
    glance = section_of(card, "Summary")
    assert re.search(rf"\| documents \| 4 \| 1 \| {found['documents']} \|", glance)
    assert f" {found['tokens']:,} |" in glance


def test_the_card_holds_no_time(card: str) -> None:
    assert not re.search(r"\d{4}-\d\d-\d\d|\d\d:\d\d", card)


def test_no_word_of_a_file_is_markup(card: str) -> None:
    prose = re.sub(r"`[0-9a-z_]+`|```json.*?```", "", card, flags=re.S)
    prose = prose.replace("`quarantine`", "").replace("`curate.evaluation_sets`", "")
    assert "onerror" in prose
    assert not re.search(r"(?<!\\)[<\[*]", prose)
    assert "\u202e" not in card and "\x00" not in card


def test_every_row_of_a_table_has_as_many_cells_as_its_head(card: str) -> None:
    tables = re.findall(r"(?:^\|.*\n)+", card, flags=re.M)
    assert len(tables) > 8
    for table in tables:
        cells = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(cells) == 1, table


def test_settings_keys_and_digests_say_how_to_make_it_again(card: str, catalog: Catalog) -> None:
    again = section_of(card, "Reproduction")
    for stage in ("extract", "curate", "tokenizer", "tokenise", "dataset"):
        (ref,) = catalog.state[stage]
        assert f"| {stage} | 1 | 1 | `{ref.key}` | `{ref.digest}` |" in again
    (block,) = re.findall(r"```json\n(.*?)\n```", again, flags=re.S)
    assert json.loads(block)["tokenise"] == {"bos": True, "eos": True}
    assert "engine tokenizers" in again


def known_limits(sample: Prepared) -> str:
    return section_of(card_of(sample.catalog()), "Known limits")


def test_ocr_and_unknown_languages_are_known_limits(tmp_path: Path) -> None:
    made = Prepared(tmp_path)
    read = [{"method": "ocr", "engine": "tesseract", "confidence": value} for value in (0.5, 0.9)]
    made.text("scan", "read by machine", pages=[*read, {"method": "none", "engine": "x", "error": "broken"}])
    made.text("odd", "what is this", language="und")
    found = known_limits(made)
    assert "2 of 4 pages (50 %) were read by OCR, with a mean confidence of 70 %; 1 of them, with" in found
    assert "1 page with errors" in found
    assert "The language of 1 document of prose" in found


def test_personal_data_that_was_replaced_and_that_was_left_are_told_apart(tmp_path: Path) -> None:
    made = Prepared(tmp_path)
    spans = [{"kind": kind, "start": n, "length": 1} for n, kind in enumerate(("email", "phone"))]
    made.text("a", "write or call", pii=spans)
    private = section_of(card_of(made.catalog()), "Personal data and secrets")
    assert "| email | 1 | 1 | replaced |" in private and "| phone | 1 | 1 | left |" in private


def test_evaluation_sets_that_were_looked_for_are_said(tmp_path: Path) -> None:
    made = Prepared(tmp_path)
    made.text("a", "a text with a piece of a test in it")
    made.cuts.append(row(schemas.CUTS, doc_id="a", start=1, length=5, reason_code="evaluation_set"))
    assert "No external evaluation set was compared" in section_of(card_of(made.catalog()), "Evaluation sets")
