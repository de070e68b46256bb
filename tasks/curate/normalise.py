"""The stage `normalise`: convert the pages of one segment to one normalised text per document."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from storage.digest import sha256_json
from storage.manifest import ArtifactRef
from storage.schemas import DOCUMENTS_FILE, EXTRACTS_FILE, NORMALISED, PAGES_FILE
from storage.tables import read_rows, stream_rows, union_digest, unpacked_size, write_table
from tasks.core.stage import Work, stage
from tasks.readers.records import CONTAINERS, EARLIER_OCR, Block
from tasks.text.cleaning import NormaliseSettings, document_text, normalise_text
from tasks.text.markdown import document_markdown

RECORD_COLUMNS = ["doc_id", "kind", "title", "programming_language", "status"]
PAGE_COLUMNS = ["doc_id", "page", "text", "method", "engine", "confidence", "blocks"]


def document_row(
    record: dict[str, Any], pages: Sequence[dict[str, Any]], settings: NormaliseSettings
) -> dict[str, Any]:
    """Return the row of `normalised` from a document's extraction record and its pages in order."""
    text, roles = normalised_text(pages, record["kind"], settings)
    encoded = text.encode()
    read = [page for page in pages if page["method"] in ("ocr", "both") or page["engine"] in EARLIER_OCR]
    # that of a decoder is how sure the encoding is
    sure = [page["confidence"] for page in read if page["confidence"] is not None and page["method"] != "text"]
    row = {
        **{name: record[name] for name in ("doc_id", "kind", "title", "programming_language")},
        "text": text,
        "text_sha256": hashlib.sha256(encoded).hexdigest(),
        "n_bytes": len(encoded),
        "n_pages": len(pages),
        "ocr_share": round(len(read) / len(pages), 4) if pages else 0.0,
        "ocr_confidence": round(sum(sure) / len(sure), 4) if sure else None,
        "roles": roles,
    }
    content = {name: value for name, value in row.items() if name not in ("text", "doc_id")}
    return {**row, "digest": sha256_json(content)}


def normalised_text(
    pages: Sequence[dict[str, Any]], kind: str, settings: NormaliseSettings
) -> tuple[str, list[dict[str, Any]]]:
    """Return Markdown and the roles of blocks where the layout of a page is known, else plain text."""
    if not any(page["blocks"] for page in pages):
        return document_text(pages, kind, settings), []
    blocks = [(page["page"], [Block(**block) for block in page["blocks"]] or _lines(page["text"])) for page in pages]
    text, roles = document_markdown(blocks)
    return normalise_text(text, "text", repair=settings.repair_mojibake), roles


def _lines(text: str) -> list[Block]:
    return [Block("lines", text.strip("\n"))] if text.strip() else []


@stage("normalise", version=5, unit="document", tables={DOCUMENTS_FILE: NORMALISED})
def normalise(work: Work, settings: NormaliseSettings, *, segment: ArtifactRef) -> str:
    """Convert the pages of one segment to one normalised text per document."""
    folder = work.folder(segment)
    size = unpacked_size(folder / PAGES_FILE)
    made = work.in_subprocess(normalise_segment, size, segment=folder, out=work.out, settings=settings)
    work.counts["rows"] = work.counts["units"] = made["rows"]
    return str(made["digest"])


def normalise_segment(
    segment: Path, out: Path, settings: NormaliseSettings, progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """Write the documents of a segment; return their number and a digest."""
    records = {
        row["doc_id"]: row
        for row in read_rows(segment / EXTRACTS_FILE, RECORD_COLUMNS)
        if row["status"] == "ok" and row["kind"] not in CONTAINERS
    }

    def rows() -> Iterator[dict[str, Any]]:
        # extraction writes the pages of a document consecutively, in order
        pages = stream_rows(segment / PAGES_FILE, PAGE_COLUMNS)
        for done, (doc_id, own) in enumerate(groupby(pages, key=lambda page: str(page["doc_id"])), start=1):
            yield document_row(records.pop(doc_id), list(own), settings)
            progress(done, done + len(records))

    table = out / DOCUMENTS_FILE
    count = write_table(table, NORMALISED, rows())
    if records:
        raise ValueError(f"{segment}: {len(records)} documents have no pages, first {min(records)}")
    return {"rows": count, "digest": union_digest([table])}
