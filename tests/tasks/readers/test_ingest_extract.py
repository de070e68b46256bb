"""The dispatcher: every file ends in a status, and in a reason where it is not ok."""

from __future__ import annotations

import pytest
from extraction import extract_document

from tasks.readers.records import ExtractOptions

OPTIONS = ExtractOptions()


def test_code_is_read_with_its_language():
    found = extract_document(b"print('Gr\xc3\xb6\xc3\x9fe')\r\n", ".py", OPTIONS)
    assert (found.status, found.kind, found.programming_language) == ("ok", "code", "Python")
    assert (found.encoding, found.encoding_confidence) == ("utf-8", 1.0)
    assert found.pages[0].text == "print('Größe')\n"


@pytest.mark.parametrize(
    ("data", "suffix", "status", "code"),
    [
        (b"", ".txt", "skipped", "empty"),
        (b" \n\t\r\n ", ".txt", "rejected", "no_text"),
        (b"\x7fELF" + bytes(99), ".txt", "skipped", "unsupported"),
    ],
)
def test_what_is_not_read_says_why(data, suffix, status, code):
    found = extract_document(data, suffix, ExtractOptions())
    assert (found.status, found.reason_code) == (status, code)
    assert found.reason


@pytest.mark.full
def test_every_text_and_image_of_the_corpus_has_an_outcome(corpus, tesseract):
    expected = {
        "binary-named.txt": ("skipped", "unsupported"),
        "empty.txt": ("skipped", "empty"),
        "only-spaces.txt": ("rejected", "no_text"),
    }
    files = sorted([*(corpus / "text").iterdir(), *(corpus / "images").iterdir()])
    for file in files:
        found = extract_document(file.read_bytes(), file.suffix, OPTIONS)
        assert (found.status, found.reason_code) == expected.get(file.name, ("ok", "")), file.name
        assert bool(found.reason) == (found.status != "ok")
        "".join(page.text for page in found.pages).encode("utf-8")
