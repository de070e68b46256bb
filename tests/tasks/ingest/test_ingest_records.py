"""The records survive the way through JSON."""

from __future__ import annotations

import json

import pytest

from tasks.ingest.records import Extraction, ExtractOptions, Limits, PageText


@pytest.mark.parametrize(
    "record",
    [
        PageText(3, "Größe", "ocr", "tesseract", 0.9, "half of it"),
        Extraction("failed", "why", "timeout", "pdf", "application/pdf", pages=[PageText(1, "a", "text", "pypdf")]),
        ExtractOptions(ocr=False, ocr_languages="eng+deu"),
        Limits(page_seconds=1.5),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_record_is_equal_after_a_round_trip_through_json(record):
    assert type(record).from_dict(json.loads(json.dumps(record.to_dict()))) == record
