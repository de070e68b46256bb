"""The stage `pairs`: the conversations in the refined texts of one segment, each with its document and passage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from storage.digest import rows_digest, sha256_json
from storage.manifest import ArtifactRef
from storage.schemas import CHAT_PAIRS, DOCUMENTS_FILE, PAIRS_FILE
from storage.tables import stream_rows, unpacked_size, write_table
from tasks.core.stage import NoSettings, Work, stage
from tasks.text.conversations import find_conversations


@stage("pairs", version=1, unit="document", tables={PAIRS_FILE: CHAT_PAIRS})
def pairs(work: Work, settings: NoSettings, *, documents: ArtifactRef) -> str:
    """Find the conversations in the documents of one segment."""
    source = work.folder(documents) / DOCUMENTS_FILE
    made = work.in_subprocess(find_pairs, unpacked_size(source), source=source, out=work.out)
    work.counts.update(rows=made["rows"], units=made["documents"])
    return str(made["digest"])


def find_pairs(source: Path, out: Path, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Write the conversations in the texts of a table; return counts and a digest."""
    digests: list[tuple[str, str]] = []
    n_documents = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal n_documents
        for row in stream_rows(source, ["doc_id", "kind", "text"]):
            n_documents += 1
            for number, found in enumerate(find_conversations(row["text"], row["kind"])):
                messages = [message._asdict() for message in found.messages]
                content = {**asdict(found), "messages": messages}
                digest = sha256_json(content)
                digests.append((f"{row['doc_id']}:{number}", digest))
                yield {"doc_id": row["doc_id"], "number": number, **content, "digest": digest}
            progress(n_documents, n_documents)

    n_rows = write_table(out / PAIRS_FILE, CHAT_PAIRS, rows())
    return {"rows": n_rows, "documents": n_documents, "digest": rows_digest(digests)}
