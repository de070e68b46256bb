"""Read web archives (WARC): each page or file that was fetched is a document, under its address.

Requests, metadata, and answers other than success (redirects, missing pages) are not documents. Compressed archives are
unpacked before, as every GZIP file.
"""

from __future__ import annotations

import io
import posixpath
import re
import zlib
from collections.abc import Iterator
from functools import partial

from tasks.readers.archives import CHUNK_BYTES, LONGEST_LOCATOR, Budget, Entry
from tasks.readers.decode import one_line
from tasks.readers.records import ExtractionProblem

SUCCESS = range(200, 300)
DEFLATED = ("gzip", "x-gzip", "deflate")
FETCHED = ("http", "https", "ftp", "file")  # others are notes of the crawler, such as dns: and metadata:
LONGEST_SUFFIX = 10


def read_warc(data: bytes, budget: Budget) -> Iterator[Entry]:
    """Yield the documents of a web archive; one that cannot be read has a problem.

    Args:
        budget: Bytes left for the outermost file.
    """
    from fastwarc.warc import ArchiveIterator, WarcRecordType  # only here: few files are web archives

    # a capture with its HTTP headers, a file, and the text that another program made of a page (WET)
    wanted = WarcRecordType.response | WarcRecordType.resource | WarcRecordType.conversion
    for record in ArchiveIterator(io.BytesIO(data), record_types=wanted, auto_decode="transfer"):
        # one of version 1.0 may stand in angle brackets
        address = one_line(record.headers.get("WARC-Target-URI") or "").strip("<>")[:LONGEST_LOCATOR]
        scheme, _, rest = address.partition("://")
        answered = not record.is_http_parsed or (record.http_headers.status_code or 0) in SUCCESS
        if scheme.lower() not in FETCHED or not answered:
            continue
        locator = address.replace("..", "%2E%2E")  # it leads nowhere outside
        try:
            content = budget.read(partial(record.reader.read, CHUNK_BYTES))
            if record.is_http_parsed and (record.http_headers.get("Content-Encoding") or "").lower() in DEFLATED:
                content = _inflated(content, budget)
        except ExtractionProblem as problem:
            yield Entry(locator, problem=problem)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - a body that is not sent as it says; the next record may be sound
            reason = f"the record cannot be read: {type(error).__name__}: {error}"
            yield Entry(locator, problem=ExtractionProblem("failed", "corrupt", reason))
        else:
            media_type = (record.http_content_type or "") if record.is_http_parsed else ""
            is_text = record.record_type == WarcRecordType.conversion
            yield Entry(locator, content, suffix=".txt" if is_text else _suffix(rest, media_type))


def _inflated(content: bytes, budget: Budget) -> bytes:
    """Return a body unpacked from GZIP or zlib, or as it is: crawlers also store what they unpacked themselves."""
    inflate, rest = zlib.decompressobj(wbits=32 + zlib.MAX_WBITS), content

    def next_chunk() -> bytes:
        nonlocal rest
        found = inflate.decompress(rest, CHUNK_BYTES)
        rest = inflate.unconsumed_tail
        return found

    try:
        return budget.read(next_chunk)
    except zlib.error:
        return content


def _suffix(path: str, media_type: str) -> str:
    """Return the suffix by which the type is told: a page is HTML, whatever program made it."""
    if media_type in ("text/html", "application/xhtml+xml"):
        return ".html"
    suffix = posixpath.splitext(re.split("[?#]", path, maxsplit=1)[0])[1].lower()
    return suffix if len(suffix) <= LONGEST_SUFFIX else ""
