"""The stage `pairs`: the conversations in the refined texts of one segment, each with its document and passage."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from storage.digest import rows_digest, sha256_json
from storage.manifest import ArtifactRef
from storage.schemas import CHAT_PAIRS, DOCUMENTS_FILE, EXTRACTS_FILE, PAIRS_FILE
from storage.tables import read_columns, stream_rows, unpacked_size, write_table
from tasks.core.stage import NoSettings, Work, stage
from tasks.text.conversations import Conversation, Mail, answered, find_conversations, mail_of

_MESSAGE = re.compile(r"(?:(.*)/)?message \d+")  # the place of a mail in its mailbox, in an archive perhaps


@stage("pairs", version=1, unit="document", tables={PAIRS_FILE: CHAT_PAIRS})
def pairs(work: Work, settings: NoSettings, *, segment: ArtifactRef, documents: ArtifactRef) -> str:
    """Find the conversations in the documents of one segment."""
    source = work.folder(documents) / DOCUMENTS_FILE
    mailboxes = mailboxes_of(work.folder(segment) / EXTRACTS_FILE)
    made = work.in_subprocess(find_pairs, unpacked_size(source), source=source, mailboxes=mailboxes, out=work.out)
    work.counts.update(rows=made["rows"], units=made["documents"])
    return str(made["digest"])


def mailboxes_of(extracts: Path) -> dict[str, tuple[str, str]]:
    """Return the mailbox of each document that is a message of one: its file, and its place in that."""
    rows = read_columns(extracts, ["doc_id", "file_sha256", "locator"])
    found = zip(*rows.values(), strict=True)
    return {doc_id: (file, place[1] or "") for doc_id, file, locator in found if (place := _MESSAGE.fullmatch(locator))}


def find_pairs(
    source: Path, mailboxes: Mapping[str, tuple[str, str]], out: Path, progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """Write the conversations in the texts of a table; return counts and a digest.

    Args:
        mailboxes: mailbox of each document that is a message of one.
    """
    digests: list[tuple[str, str]] = []
    n_documents = 0
    threads: dict[str, tuple[str, Mail]] = {}  # of one mailbox: latest message of each subject, with its document
    mailbox: tuple[str, str] | None = None

    def conversations(row: Mapping[str, Any]) -> Iterator[tuple[str, Conversation]]:
        """Yield the conversations of a document, each with the document of its question."""
        nonlocal mailbox
        doc_id, own = row["doc_id"], find_conversations(row["text"], row["kind"])
        yield from ((doc_id, found) for found in own)
        if mailboxes.get(doc_id) != mailbox:
            mailbox = mailboxes.get(doc_id)
            threads.clear()
        mail = None if mailbox is None else mail_of(row["text"])
        if mail is None:
            return
        # the messages are in order, without the quotes that stand in earlier ones
        if mail.is_reply and mail.subject in threads and not any(found.kind == "mail" for found in own):
            asked_in, question = threads[mail.subject]
            yield asked_in, answered(question, mail)
        threads[mail.subject] = doc_id, mail

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal n_documents
        for row in stream_rows(source, ["doc_id", "kind", "text"]):
            n_documents += 1
            for number, (asked_in, found) in enumerate(conversations(row)):
                messages = [message._asdict() for message in found.messages]
                content = {**asdict(found), "messages": messages, "asked_in": asked_in}
                digest = sha256_json(content)
                digests.append((f"{row['doc_id']}:{number}", digest))
                yield {"doc_id": row["doc_id"], "number": number, **content, "digest": digest}
            progress(n_documents, n_documents)

    n_rows = write_table(out / PAIRS_FILE, CHAT_PAIRS, rows())
    return {"rows": n_rows, "documents": n_documents, "digest": rows_digest(digests)}
