"""Policy: what each preset refuses, with which reason, and what it leaves alone."""

from __future__ import annotations

import random
from dataclasses import fields
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from storage.errors import UserError
from storage.schemas import LEGIBILITY, MEASURES
from tasks.core.settings import load_settings
from tasks.curate.measure import measure_documents
from tasks.curate.policy import PRESETS, RULES, PolicySettings, refusal

WORDS = ["shepherd", "meadow", "wool", "dog", "lamb", "river", "hill", "grass", "winter", "cloud", "stone", "fence"]
WORDS += ["market", "morning", "road", "bread", "tree", "bell", "night", "rain"]


def prose(n: int = 40, seed: int = 0) -> str:
    """Sentences that repeat nothing."""
    source = random.Random(seed)
    glue = ["the", "and", "that", "have", "with", "to", "be", "of"]
    return "\n".join(f"The {' '.join(source.sample(WORDS + glue, 16))}." for _ in range(n))


def measures(text: str, kind: str = "text", **changes: Any) -> dict[str, Any]:
    row = {"doc_id": "d", "kind": kind, "programming_language": "JavaScript" if kind == "code" else None, "text": text}
    return {**measure_documents([row])[0], **changes}


def refusals(row: dict[str, Any], settings: PolicySettings) -> tuple[str, str] | None:
    """Code and reason of the refusal of a document; None if it stays."""
    schema = pa.schema([field for field in MEASURES if field.name != "digest"])
    for name, kind in (("classifier_score", pa.float64()), ("error_rate", pa.float64()), ("date", pa.string())):
        schema = schema.append(pa.field(name, kind))
    found = pa.Table.from_pylist([row], schema=schema)  # noqa: F841 - the query reads it
    ((refused,),) = duckdb.sql(f"select {refusal(settings, [row['licence']])} from found").fetchall()
    return refused and (refused["code"], refused["reason"])


def code_of(text: str, kind: str = "text", **settings: Any) -> str | None:
    refused = refusals(measures(text, kind), PolicySettings(**settings))
    return refused[0] if refused else None


BLOB = "\n".join("".join(random.Random(line).choices("ABCDEFabcdefghijk0123456789+/", k=76)) for line in range(50))
DUMP = "\n".join(
    f"{line * 16:08x}: " + " ".join(f"{random.Random(line * 8 + n).randrange(65536):04x}" for n in range(8))
    for line in range(60)
)
LOREM = (
    "Lorem ipsum dolor sit amet, consetetur sadipscing elitr, sed diam nonumy eirmod tempor invidunt ut labore. " * 3
)
MINIFIED = "".join(f"function a{n}(b,c){{var d=b+c*{n};return d>{n}?d:e(d)}}" for n in range(60))
OWN_DOCUMENTS = {
    "a note": "milk, bread",
    "a letter": prose(5),
    "one word": "Sheep",
    "a shopping list": "- milk\n- bread\n- wool\n" * 2,
    "a poem in German": "Der Mond ist aufgegangen,\ndie goldnen Sternlein prangen\nam Himmel hell und klar.",
    "Chinese": "我们的羊群在山上吃草。今天天气很好！" * 3,
    "numbers": "\n".join(f"{line},{line * 37 % 1000},{line * 91 % 777}" for line in range(300)),
    "a text about dummy text": "The words lorem ipsum stand for text that has yet to come and have been used long.",
    "a table of contents": "\n".join(f"{n} Chapter . . . . . . . {n * 7}" for n in range(40)),
    "with a long address": "see https://sheep.farm/2026/11/" + "wool-and-more-" * 8 + " for the rest of it",
}


@pytest.mark.parametrize("text", OWN_DOCUMENTS.values(), ids=OWN_DOCUMENTS.keys())
def test_gentle_keeps_what_people_write(text: str) -> None:
    assert code_of(text) is None


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [
        ("", "text", "too_short"),
        ("buy now " * 2_000, "text", "repetitive"),
        ("哈" * 5_000, "text", "repetitive"),
        ("x" * 5_000, "text", "repetitive"),
        (BLOB, "text", "encoded_data"),
        (DUMP, "text", "encoded_data"),
        (LOREM, "text", "dummy_text"),
        (MINIFIED, "code", "minified"),
    ],
    ids=["empty", "a phrase", "a character", "a letter", "base64", "hexadecimal", "dummy", "minified"],
)
def test_gentle_refuses_what_is_no_text(text: str, kind: str, code: str) -> None:
    assert code_of(text, kind) == code
    assert code_of(text, kind, preset="off") is None


def test_web_keeps_prose() -> None:
    assert refusals(measures(prose()), PolicySettings(preset="web")) is None


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (prose(2), "few_words"),
        (prose() + "\n{", "curly_brackets"),
        ("\n".join(f"- {line}" for line in prose().split("\n")), "bullets"),
        (prose().replace(".\n", " ...\n"), "ellipses"),
        (prose() + "\n" + prose(), "duplicate_lines"),
        (prose().replace(".\n", "\n") + "\nOh. So. Yes.", "no_sentences"),
        (" ".join("supercalifragilistic" for _ in range(100)), "repetitive"),
        (prose().replace(" ", " # "), "word_length"),
        (prose() + " lorem ipsum.", "dummy_text"),
        ("\n".join(WORDS * 5), "stop_words"),
    ],
)
def test_web_refuses_by_the_published_thresholds(text: str, code: str) -> None:
    row = measures(text, language="en")
    strict = PolicySettings(preset="web", min_distinct_share=0.011)
    refused = refusals(row, strict)
    assert refused is not None
    assert refused[0] == code


def test_rules_that_count_words_leave_scripts_without_spaces_alone() -> None:
    text = "".join(
        chr(0x4E00 + random.Random(n).randrange(3_000)) + ("。\n" if n % 20 == 19 else "") for n in range(600)
    )
    assert code_of(text, preset="web") is None


def test_the_stop_words_are_asked_of_english_alone() -> None:
    row = measures(prose(), stop_words=0)
    assert refusals({**row, "language": "de"}, PolicySettings(preset="web")) is None
    assert refusals({**row, "language": "en"}, PolicySettings(preset="web")) == (
        "stop_words",
        "0 of eight English stop words occur, fewer than 2",
    )


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("// Code generated by protoc. DO NOT EDIT.\nlet a = 1;\n", "generated"),
        ("let a = [" + "1234, " * 40 + "]", "long_lines"),
        ("// the comment goes on\n" * 9 + "code()", "many_comments"),
        ("=-+*/()[]{}<>" * 5, "few_letters"),
    ],
)
def test_code_refuses_by_the_rules_for_code(text: str, code: str) -> None:
    assert code_of(text, "code", preset="code") == code
    assert code_of(text, "code", preset="gentle") is None


def test_rules_for_prose_leave_code_alone() -> None:
    assert code_of("let a = { b: 1 };\n", "code", preset="web") is None


def test_a_threshold_of_its_own_takes_the_place_of_the_presets() -> None:
    text = prose(3)[:-20] + "."
    assert code_of(text, preset="web", min_words=10) is None
    assert code_of(text, preset="gentle", min_words=10_000) == "few_words"
    assert code_of(MINIFIED, "code", drop_minified=False) is None


def test_the_reason_holds_the_value_and_the_threshold() -> None:
    row = measures(prose(), bullet_line_share=0.95)
    assert refusals(row, PolicySettings(preset="web")) == (
        "bullets",
        "95.00% of its lines begin with a bullet, more than 90.00%",
    )
    assert refusals(measures(""), PolicySettings()) == ("too_short", "0 characters after normalising, fewer than 1")


@pytest.mark.parametrize(
    ("languages", "language", "kept"),
    [
        ("", "fr", True),
        ("en,de", "de", True),
        ("en, de", "fr", False),
        ("EN", "en", True),
        ("en", "und", False),
        ("en,und", "und", True),
    ],
)
def test_languages_are_those_listed(languages: str, language: str, kept: bool) -> None:
    refused = refusals(measures(prose(), language=language), PolicySettings(languages=languages))
    assert (refused is None) is kept


def test_code_has_no_language_to_refuse() -> None:
    assert code_of("let a = 1", "code", languages="fr") is None


@pytest.mark.parametrize(
    ("allowed", "licence", "kept"),
    [
        ("", None, True),
        ("MIT", "MIT", True),
        ("MIT", None, False),
        ("MIT,unknown", None, True),
        ("mit, Apache-2.0", "Apache-2.0", True),
        ("MIT", "GPL-3.0-only", False),
        ("MIT", "GPL-2.0-only OR MIT", True),
        ("MIT", "GPL-2.0-only AND MIT", False),
        ("MIT,GPL-2.0-only", "GPL-2.0-only AND MIT", True),
        ("Apache-2.0", "Apache-2.0 WITH LLVM-exception", True),
        ("MIT,ISC", "(MIT OR Apache-2.0) AND ISC", True),
        ("MIT,ISC", "MIT OR Apache-2.0 AND GPL-3.0-only", True),
        ("Apache-2.0,ISC", "(MIT OR GPL-3.0-only) AND ISC", False),
        ("MIT", "see the file (", False),
    ],
)
def test_licences_are_those_listed(allowed: str, licence: str | None, kept: bool) -> None:
    refused = refusals(measures(prose(), licence=licence), PolicySettings(licences=allowed))
    assert (refused is None) is kept


def test_a_low_score_of_the_classifier_refuses_a_document_that_has_one() -> None:
    settings = PolicySettings(min_classifier_score=0.5)
    assert refusals(measures(prose()), settings) is None
    assert refusals(measures(prose(), classifier_score=0.6), settings) is None
    assert refusals(measures(prose(), classifier_score=0.25), settings) == (
        "low_score",
        "the classifier gives it 25.00%, less than 50.00%",
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"preset": "harsh"}, "policy.preset is 'harsh', expected off, gentle, web or code"),
        ({"max_blob_share": -0.1}, "policy.max_blob_share is -0.1, expected 0 or more"),
        ({"min_classifier_score": 2.0}, "policy.min_classifier_score is 2.0, expected 0 to 1"),
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_settings(None, {"policy": wrong})


def test_every_rule_has_a_setting_a_measure_and_a_source() -> None:
    names = {item.name for item in fields(PolicySettings)}
    for rule in RULES:
        assert rule.name in names
        assert rule.name == "max_lorem_ratio" or rule.measure in (*MEASURES.names, *LEGIBILITY.names)
        assert rule.source
    assert all(set(preset) <= {rule.name for rule in RULES} for preset in PRESETS.values())


@pytest.mark.parametrize(
    ("date", "settings", "code"),
    [
        ("1913-12-31", {"before": "1914"}, None),
        ("1914", {"before": "1914"}, "date"),
        ("1914-07", {"before": "1914-08-04"}, None),
        ("1914-08-04", {"before": "1914-08-04"}, "date"),
        ("1914", {"before": "1914-08-04"}, "date"),  # it may be of December
        ("1914-08", {"before": "1914-08-04"}, "date"),
        ("1913", {"before": "1914-08-04"}, None),
        (None, {"before": "1914"}, "undated"),
        ("1914", {"after": "1914"}, None),
        ("1913-12", {"after": "1914"}, "date"),
        (None, {"after": "1914"}, "undated"),
        (None, {}, None),
        ("1890", {"after": "1850", "before": "1900"}, None),
    ],
)
def test_documents_are_kept_by_date(date: str | None, settings: dict[str, str], code: str | None) -> None:
    refused = refusals(measures(prose(), date=date), PolicySettings(**settings))
    assert (refused and refused[0]) == code


def test_a_date_is_named_in_the_reason() -> None:
    refused = refusals(measures(prose(), date="1920-01"), PolicySettings(before="1914"))
    assert refused == ("date", "its date is 1920-01, expected one before 1914")
    refused = refusals(measures(prose(), date=None), PolicySettings(before="1914"))
    assert refused == ("undated", "it has no date, expected one before 1914")


@pytest.mark.parametrize("value", ["19", "1914-8", "August 1914"])
def test_what_is_no_date_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"policy.before is .*, expected a date such as 1914, 1914-08 or 1914-08-04"):
        PolicySettings(before=value)
