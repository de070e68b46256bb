"""Web archives: pages and files under their addresses, without what is no document."""

from __future__ import annotations

import gzip

import pytest
from extraction import extract_document

from tasks.readers.records import ExtractOptions

OPTIONS = ExtractOptions()
PAGE = "<html><head><title>Wool</title></head><body><article><p>{}</p></article></body></html>"
PROSE = "The cost of a run follows the change and not the size of the corpus. " * 4


def record(kind: str, address: str, content: bytes, media_type: str = "application/http; msgtype=response") -> bytes:
    """A record of a web archive."""
    lines = [
        "WARC/1.0",
        f"WARC-Type: {kind}",
        "WARC-Record-ID: <urn:uuid:0b2e9ed2-1a4c-4d55-8a3f-0d7a4f8f2f10>",
        "WARC-Date: 2024-01-01T10:00:00Z",
        f"WARC-Target-URI: {address}",
        f"Content-Type: {media_type}",
        f"Content-Length: {len(content)}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content + b"\r\n\r\n"


def answer(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    """An answer of a server."""
    lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def page(text: str = PROSE, address: str = "https://example.org/wool") -> bytes:
    return record("response", address, answer(PAGE.format(text).encode(), Content_Type="text/html; charset=utf-8"))


def texts(data: bytes, suffix: str = ".warc") -> dict[str, str]:
    members = extract_document(data, suffix, OPTIONS).members
    return {found.locator: "".join(page.text for page in found.pages) for found in members}


def test_a_page_is_a_document_under_its_address():
    found = texts(record("warcinfo", "", b"software: test\r\n", "application/warc-fields") + page())
    assert list(found) == ["https://example.org/wool"]
    assert found["https://example.org/wool"].strip() == PROSE.strip()


def test_two_captures_of_an_address_are_two_documents():
    found = texts(page() + page(PROSE.upper()))
    assert len(found) == 2 and len(set(found.values())) == 2


def test_requests_redirects_and_missing_pages_are_no_documents():
    request = record("request", "https://example.org/", b"GET / HTTP/1.1\r\n\r\n", "application/http; msgtype=request")
    moved = record("response", "https://example.org/old", answer(b"moved", "301 Moved", Location="/new"))
    missing = record("response", "https://example.org/none", answer(PAGE.format("not found").encode(), "404 Not Found"))
    assert list(texts(request + moved + missing + page())) == ["https://example.org/wool"]


def test_converted_text_and_files_are_read():
    wet = record("conversion", "https://example.org/a", PROSE.encode(), "text/plain")
    script = record("resource", "https://example.org/b.py", b"def f(x):\n    return x + 1\n", "text/x-python")
    found = texts(wet + script)
    assert found["https://example.org/a"].strip() == PROSE.strip()
    assert found["https://example.org/b.py"].startswith("def f(x)")


def test_encoded_answers_are_decoded():
    packed = gzip.compress(PAGE.format(PROSE).encode())
    chunked = f"{len(packed):x}\r\n".encode() + packed + b"\r\n0\r\n\r\n"
    headers = {"Content_Type": "text/html", "Content_Encoding": "gzip", "Transfer_Encoding": "chunked"}
    found = texts(record("response", "https://example.org/", answer(chunked, **headers)))
    assert found["https://example.org/"].strip() == PROSE.strip()


def test_an_archive_of_compressed_records_is_read():
    data = gzip.compress(page()) + gzip.compress(page(address="https://example.org/two"))
    assert [locator.rpartition("//")[2] for locator in texts(data, ".warc.gz")] == [
        "example.org/wool",
        "example.org/two",
    ]


def test_a_member_that_unpacks_to_too_much_is_refused_and_the_next_one_read():
    bomb = gzip.compress(b"a" * 5_000_000)
    large = record("response", "https://example.org/large", answer(bomb, Content_Encoding="gzip"))
    members = extract_document(large + page(), ".warc", ExtractOptions(max_file_bytes=1_000_000)).members
    assert [(found.locator, found.status, found.reason_code) for found in members] == [
        ("https://example.org/large", "rejected", "too_large"),
        ("https://example.org/wool", "ok", ""),
    ]


@pytest.mark.parametrize("cut", [10, 200, 420, 600])
def test_a_cut_archive_loses_only_what_is_missing(cut: int):
    whole = page()
    found = texts(whole + page(address="https://example.org/two")[:cut])
    assert found["https://example.org/wool"].strip() == PROSE.strip()


def test_damage_between_records_does_not_hang_or_lose_those_before():
    found = texts(page() + b"\x00\xffno record\r\n\r\n" * 50 + page(address="https://example.org/two"))
    assert "https://example.org/wool" in found


def test_an_address_leads_nowhere_outside():
    (locator,) = texts(page(address="https://example.org/../../etc/passwd"))
    assert ".." not in locator


def test_a_page_is_html_whatever_program_made_it():
    found = texts(page(address="https://example.org/index.php?id=1") + page(address="https://example.org/b.aspx"))
    assert [text.strip() for text in found.values()] == [PROSE.strip()] * 2


def test_notes_of_the_crawler_are_no_documents():
    notes = record("response", "dns:example.org", b"20240101 example.org. 3600 IN A 192.0.2.1", "text/dns")
    log = record("resource", "metadata://gnu.org/software/wget/warc/wget.log", b"a log " * 50, "text/plain")
    assert list(texts(notes + log + page(address="<https://example.org/wool>"))) == ["https://example.org/wool"]


@pytest.mark.parametrize("address", ["http://[bad]/x", "https://example.org:port/", "http://"])
def test_an_odd_address_loses_nothing(address: str):
    found = texts(page(address=address) + page())
    assert found["https://example.org/wool"].strip() == PROSE.strip()


def test_a_body_that_is_not_encoded_as_it_says_loses_nothing_else():
    wrong = record("response", "https://example.org/wrong", answer(b"plain " * 200, Content_Encoding="gzip"))
    found = texts(wrong + page())
    assert found["https://example.org/wool"].strip() == PROSE.strip()
    assert found["https://example.org/wrong"].startswith("plain plain")
