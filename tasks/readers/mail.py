"""Read mails (EML) and mailboxes (MBOX): each message is a document, and so is each attachment.

A message is its subject as a heading and its text, from the plain part if there is one, else from HTML. A quoted line
whose text stood in an earlier message of the mailbox is left out, so that a thread has every text once.
"""

from __future__ import annotations

import email
import email.policy
import re
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import PurePosixPath
from typing import cast

from tasks.readers.archives import Budget, Entry
from tasks.readers.decode import clean, decode, one_line
from tasks.readers.detect import EML, MBOX
from tasks.readers.markup import read_html

LONGEST_SUBJECT = 1000
SHORTEST_QUOTE = 20  # characters: shorter lines repeat for other reasons

_MESSAGE = re.compile(rb"(?:\A|(?<=\n\n)|(?<=\r\n\r\n))From \S[^\n]{0,200}\d{4}[^\n]{0,20}\n")
_QUOTED = re.compile(r"[>|\s]*>\s?")
_WORDS = re.compile(r"\W+")


def read_mail(data: bytes, media_type: str, budget: Budget) -> Iterator[Entry]:
    """Yield the messages and attachments of a mail or mailbox.

    Args:
        media_type: `MBOX` or `EML`.
        budget: Bytes left for the outermost file.
    """
    seen: set[str] = set()
    starts = [found.end() for found in _MESSAGE.finditer(data)] if media_type == MBOX else [0]
    ends = [found.start() for found in _MESSAGE.finditer(data)][1:] if media_type == MBOX else []
    for number, (start, end) in enumerate(zip(starts, [*ends, len(data)], strict=True), 1):
        name = f"message {number}" if media_type == MBOX else "message"
        message = cast(EmailMessage, email.message_from_bytes(data[start:end], policy=email.policy.default))
        text = _text(message, seen)
        budget.take(len(text.encode()))
        yield Entry(name, text.encode(), text=text)
        for place, part in enumerate(message.iter_attachments() if message.is_multipart() else (), 1):
            content = _content(part)
            budget.take(len(content))
            file = one_line(part.get_filename() or "").replace("/", "_") or f"attachment {place}"
            suffix = ".eml" if part.get_content_type() == EML else PurePosixPath(file).suffix.lower()
            yield Entry(f"{name}/{file}", content, suffix=suffix)


def _content(part: EmailMessage) -> bytes:
    """Return the bytes of an attachment; of a forwarded message, the message."""
    if part.get_content_type() == EML:
        inner = part.get_payload()
        return b"".join(one.as_bytes() for one in inner) if isinstance(inner, list) else b""
    payload = part.get_payload(decode=True)
    return payload if isinstance(payload, bytes) else b""


def _text(message: EmailMessage, seen: set[str]) -> str:
    """Return subject and text of a message, without quoted lines that were `seen`, to which its own are added."""
    subject = one_line(message.get("subject", ""))[:LONGEST_SUBJECT]
    body = message.get_body(("plain", "html"))
    payload = body.get_payload(decode=True) if body is not None else b""
    raw = payload if isinstance(payload, bytes) else b""
    if body is not None and body.get_content_type() == "text/html":
        text = read_html(raw).text
    else:
        text = _decoded(raw, body.get_content_charset() if body is not None else None)
    kept = []
    for line in text.split("\n"):
        bare = _QUOTED.sub("", line, count=1) if _QUOTED.match(line) else line
        key = _WORDS.sub(" ", bare).strip()
        if line != bare and key in seen:
            continue
        if len(key) >= SHORTEST_QUOTE:
            seen.add(key)
        kept.append(line.rstrip())
    return "\n\n".join(filter(None, (f"# {subject}" if subject else "", clean("\n".join(kept)).strip("\n"))))


def _decoded(raw: bytes, charset: str | None) -> str:
    try:
        return clean(raw.decode(charset)) if charset else decode(raw).text
    except (LookupError, UnicodeDecodeError):
        return decode(raw).text
