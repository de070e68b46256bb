"""Read web archives (WARC): each page or file that was fetched is a document, under its address.

Requests, metadata, and answers other than success (redirects, missing pages) are not documents. Compressed archives are
unpacked before, as every GZIP file.
"""

from __future__ import annotations

import io
import posixpath
from collections.abc import Iterator
from functools import partial
from urllib.parse import urlsplit

from tasks.readers.archives import CHUNK_BYTES, LONGEST_LOCATOR, Budget, Entry
from tasks.readers.decode import one_line
from tasks.readers.records import ExtractionProblem

SUCCESS = range(200, 300)
LONGEST_SUFFIX = 10


def read_warc(data: bytes, budget: Budget) -> Iterator[Entry]:
    """Yield the documents of a web archive; one that cannot be read has a problem.

    Args:
        budget: Bytes left for the outermost file.
    """
    from fastwarc.warc import ArchiveIterator, WarcRecordType  # only here: few files are web archives

    # a capture with its HTTP headers, a file, and the text that another program made of a page (WET)
    wanted = WarcRecordType.response | WarcRecordType.resource | WarcRecordType.conversion
    for number, record in enumerate(ArchiveIterator(io.BytesIO(data), record_types=wanted, auto_decode="all"), 1):
        if record.is_http_parsed and (record.http_headers.status_code or 0) not in SUCCESS:
            continue
        address = one_line(record.headers.get("WARC-Target-URI") or "")[:LONGEST_LOCATOR] or f"record {number}"
        address = address.replace("..", "%2E%2E")  # a locator leads nowhere outside
        suffix = posixpath.splitext(urlsplit(address).path)[1].lower() if "://" in address else ""
        try:
            content = budget.read(partial(record.reader.read, CHUNK_BYTES))
        except ExtractionProblem as problem:
            yield Entry(address, problem=problem)
            continue
        yield Entry(address, content, suffix=suffix if len(suffix) <= LONGEST_SUFFIX else "")
