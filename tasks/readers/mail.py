"""Read mails (EML) and mailboxes (MBOX): each message is a document, and so is each attachment.

A message is its subject as a heading and its text, from the plain part if there is one, else from HTML. A quoted line
whose text stood in an earlier message of the mailbox is left out, so that a thread has every text once.
"""

from __future__ import annotations

import email
import email.policy
import re
from collections.abc import Iterator
from email.header import decode_header, make_header
from email.message import Message
from itertools import pairwise
from pathlib import PurePosixPath

from tasks.readers.archives import Budget, Entry
from tasks.readers.decode import LONGEST_TITLE, clean, decode, one_line
from tasks.readers.detect import EML, MBOX
from tasks.readers.markup import read_html
from tasks.readers.records import Detected, ExtractionProblem

LONGEST_NAME = 200
SHORTEST_QUOTE = 20  # characters: shorter lines repeat for other reasons

_ENVELOPE = re.compile(rb"(?:(?<=\n\n)|(?<=\r\n\r\n))From \S[^\n]{0,200}\d{4}[^\n]{0,20}\n")
_QUOTED = re.compile(r"[>|\s]*>\s?")
_WORDS = re.compile(r"\W+")


def read_mail(data: bytes, media_type: str, budget: Budget) -> Iterator[Entry]:
    """Yield the messages and attachments of a mail or mailbox; a message that cannot be read has a problem.

    Args:
        media_type: `MBOX` or `EML`.
        budget: Bytes left for the outermost file.
    """
    seen: set[str] = set()
    ends = [found.start() for found in _ENVELOPE.finditer(data) if found.start()] if media_type == MBOX else []
    for number, (start, end) in enumerate(pairwise([0, *ends, len(data)]), 1):
        name = f"message {number}" if media_type == MBOX else "message"
        try:
            # the older policy keeps headers as they are: the newer one takes quadratic time for long ones
            message = email.message_from_bytes(data[start:end], policy=email.policy.compat32)
            leaves = _leaves(message)
            body = next(filter(_is_body, leaves), None)
            text = _text(message, body, seen)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            reason = f"the message cannot be read: {type(error).__name__}: {error}"
            yield Entry(name, problem=ExtractionProblem("failed", "corrupt", reason[:500]))
            continue
        budget.take(len(text.encode()))
        yield Entry(name, text.encode(), text=text, detected=Detected("text", "text/plain"))
        for place, part in enumerate([part for part in leaves if part is not body], 1):
            content = _content(part)
            budget.take(len(content))
            file = one_line(_header(part.get_filename())).replace("/", "_")[-LONGEST_NAME:].lstrip(".")
            suffix = ".eml" if part.get_content_type() == EML else PurePosixPath(file).suffix.lower()
            yield Entry(f"{name}/{file or f'attachment {place}'}", content, suffix=suffix)


def _leaves(part: Message, without_html: bool = False) -> list[Message]:
    """Return the parts that have content, of alternatives in HTML and plain text the latter; an inner mail is one."""
    inner = part.get_payload()
    if not isinstance(inner, list) or part.get_content_type() == EML:
        return [] if without_html and part.get_content_type() == "text/html" and not part.get_filename() else [part]
    parts = [one for one in inner if isinstance(one, Message)]
    if part.get_content_type() == "multipart/alternative":
        without_html = without_html or any(one.get_content_type() == "text/plain" for one in parts)
    return [leaf for one in parts for leaf in _leaves(one, without_html)]


def _is_body(part: Message) -> bool:
    named = part.get_filename() or part.get_content_disposition() == "attachment"
    return part.get_content_type() in ("text/plain", "text/html") and not named


def _content(part: Message) -> bytes:
    """Return the bytes of a part; of a mail inside the mail, the mail."""
    inner = part.get_payload()
    if isinstance(inner, list):
        return b"".join(one.as_bytes() for one in inner if isinstance(one, Message))
    payload = part.get_payload(decode=True)
    return payload if isinstance(payload, bytes) else b""


def _text(message: Message, body: Message | None, seen: set[str]) -> str:
    """Return subject and text of a message, without quoted lines that were `seen`, to which its own are added."""
    subject = _header(message.get("subject"))
    text = ""
    if body is not None:
        text = _decoded(_content(body), body.get_content_charset())
        text = read_html(text.encode()).text if body.get_content_type() == "text/html" else text
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


def _header(value: object) -> str:
    """Return a header, decoded, as one line."""
    raw = str(value or "")[:LONGEST_TITLE]
    try:
        return one_line(str(make_header(decode_header(raw))))
    except (LookupError, ValueError):  # an unknown encoding, or one that it is not in
        return one_line(raw)


def _decoded(raw: bytes, charset: str | None) -> str:
    try:
        return clean(raw.decode(charset)) if charset else decode(raw).text
    except (LookupError, ValueError):
        return decode(raw).text
