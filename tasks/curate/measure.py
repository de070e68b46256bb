"""The stages that look at each document of a segment alone: measures, PII spans and signatures, in one pass.

Nothing is decided here. What depends on thresholds or on other documents comes after, and computes none of this again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from storage.digest import sha256_json
from storage.manifest import ArtifactRef
from storage.schemas import DOCUMENTS_FILE, MEASURES, MEASURES_FILE
from storage.tables import count_rows, stream_rows, union_digest, unpacked_size, write_table
from tasks.core.stage import NoSettings, Work, stage
from tasks.text.batch import bundles
from tasks.text.measures import measure_documents
from tasks.text.minhash import Signatures, join_signatures, signatures

# Enough for array operations to pay, and not so much that a batch of books fills the memory.
BATCH_DOCUMENTS = 256
BATCH_CHARS = 2**21
COLUMNS = ["doc_id", "kind", "title", "programming_language", "text", "text_sha256"]


@stage("measure", version=2, unit="document", tables={MEASURES_FILE: MEASURES})
def measure(work: Work, settings: NoSettings, *, documents: ArtifactRef) -> str:
    """Measure the documents of one segment, find what is private in them, and sign them for deduplication."""
    source = work.folder(documents) / DOCUMENTS_FILE
    size = unpacked_size(source)
    made = work.in_subprocess(measure_segment, size, source=source, out=work.out)
    work.counts["rows"] = work.counts["units"] = made["rows"]
    work.counts["pii_spans"] = made["pii_spans"]
    return str(made["digest"])


def measure_segment(source: Path, out: Path, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Write measures and signatures of a table of documents; returns counts and a digest.

    Args:
        source: the table.
        out: folder for what is written.
    """
    signed: list[Signatures] = []
    spans = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal spans
        done, total = 0, count_rows(source)
        for batch in bundles(stream_rows(source, COLUMNS), lambda row: len(row["text"]), BATCH_CHARS, BATCH_DOCUMENTS):
            signed.append(signatures([row["text"] for row in batch]))
            for row, measured in zip(batch, measure_documents(batch), strict=True):
                spans += len(measured["pii"])
                columns = {name: value for name, value in measured.items() if name != "doc_id"}
                # the signatures are no columns, but follow from the text
                yield {**measured, "digest": sha256_json([row["text_sha256"], sha256_json(columns)])}
            done += len(batch)
            progress(done, total)

    count = write_table(out / MEASURES_FILE, MEASURES, rows())
    join_signatures(signed).save(out)
    return {"rows": count, "pii_spans": spans, "digest": union_digest([out / MEASURES_FILE])}
