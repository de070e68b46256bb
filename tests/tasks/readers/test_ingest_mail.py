"""Mails and mailboxes: a document per message and attachment, and each text of a thread once."""

from __future__ import annotations

from email.message import EmailMessage

import pytest
from extraction import extract_document

from tasks.readers.detect import identify
from tasks.readers.records import ExtractOptions

OPTIONS = ExtractOptions()


def mail(text: str, subject: str = "Wool", **more: str) -> EmailMessage:
    message = EmailMessage()
    message["From"], message["Date"], message["Subject"] = "a@example.org", "Mon, 1 Jan 2024 10:00:00 +0000", subject
    for name, value in more.items():
        message[name.replace("_", "-")] = value
    message.set_content(text)
    return message


def mailbox(*messages: EmailMessage) -> bytes:
    envelope = b"From a@example.org Mon Jan  1 10:00:00 2024\n"
    return b"\n".join(envelope + message.as_bytes() for message in messages)


def texts(data: bytes, suffix: str = ".eml") -> dict[str, str]:
    members = extract_document(data, suffix, OPTIONS).members
    return {found.locator: "".join(page.text for page in found.pages) for found in members}


def test_a_mail_is_its_subject_and_text():
    assert texts(mail("It is fine.\n\nYours").as_bytes()) == {"message": "# Wool\n\nIt is fine.\n\nYours"}


def test_an_attachment_is_a_document_of_its_own():
    message = mail("See below.")
    message.add_attachment("the attached\ntext", filename="notes/one.txt")
    found = texts(message.as_bytes())
    assert found == {"message": "# Wool\n\nSee below.", "message/notes_one.txt": "the attached\ntext\n"}


def test_a_mail_inside_a_mail_is_read():
    outer = mail("Forwarded.", subject="Fwd")
    outer.add_attachment(mail("The inner one."))
    found = texts(outer.as_bytes())
    assert found["message"] == "# Fwd\n\nForwarded."
    assert found["message/attachment 1/message"] == "# Wool\n\nThe inner one."


def test_the_plain_text_of_two_is_read():
    message = mail("plain")
    message.add_alternative("<p>html</p>", subtype="html")
    assert texts(message.as_bytes()) == {"message": "# Wool\n\nplain"}


def test_a_mail_of_html_alone_is_read_as_html():
    message = mail("")
    message.set_content("<html><body><p>It is <b>fine</b> &amp; warm</p></body></html>", subtype="html")
    assert texts(message.as_bytes()) == {"message": "# Wool\n\nIt is fine & warm"}


@pytest.mark.parametrize("charset", ["utf-8", "latin-1", "x-unknown"])
def test_a_text_is_decoded_by_what_it_says_or_else_by_what_it_is(charset):
    body = "Größe".encode("latin-1" if charset == "latin-1" else "utf-8")
    head = f"From: a@example.org\nSubject: x\nContent-Type: text/plain; charset={charset}\n"
    head += "Content-Transfer-Encoding: 8bit\n\n"
    assert texts(head.encode() + body) == {"message": "# x\n\nGröße"}


def test_messages_of_a_mailbox_are_documents_and_a_thread_has_each_text_once():
    first = mail("The cost of a run follows the change.\nOK")
    second = mail(
        "I see.\n\n> The cost of a run follows the change.\n> OK\n> But this line is nowhere else.", "Re: Wool"
    )
    found = texts(mailbox(first, second), ".mbox")
    assert found["message 1"] == "# Wool\n\nThe cost of a run follows the change.\nOK"
    assert found["message 2"] == "# Re: Wool\n\nI see.\n\n> OK\n> But this line is nowhere else."


def test_a_line_that_begins_with_from_does_not_end_a_message():
    found = texts(mailbox(mail("It came\nFrom here to there in 2024.\nThen on.")), ".mbox")
    assert list(found) == ["message 1"]
    assert "Then on." in found["message 1"]


@pytest.mark.parametrize(
    ("text", "suffix", "kind"),
    [
        ("From: a\nSubject: b\n\ntext", ".eml", "archive"),
        ("From: a\nSubject: b\n\ntext", ".txt", "text"),
        ("Received: x\n by y\nFrom: a\n\ntext", "", "archive"),
        ("From a@b Mon Jan 1 2024\nFrom: a\nDate: b\n\ntext", "", "archive"),
        ("From here to eternity in 1953\n\nA film", "", "text"),
        ("just prose", ".eml", "text"),
    ],
)
def test_only_what_has_the_headers_of_a_mail_is_one(text, suffix, kind):
    assert identify(text.encode(), suffix, OPTIONS).kind == kind


def test_the_parts_of_a_mail_with_a_list_footer_are_all_read():
    parts = "".join(
        f"--b\nContent-Type: text/{kind}\n\n{text}\n" for kind, text in (("html", "<p>body</p>"), ("plain", "foot"))
    )
    head = "From: a@example.org\nSubject: x\nContent-Type: multipart/mixed; boundary=b\n\n"
    found = texts((head + parts + "--b--\n").encode())
    assert found == {"message": "# x\n\nbody", "message/attachment 1": "foot"}


def test_a_pdf_beside_html_inside_an_alternative_is_read():
    inner = "--c\nContent-Type: text/html\n\n<p>rich</p>\n--c\nContent-Type: text/x-notes; name=n.txt\n\nnotes\n--c--\n"
    parts = (
        f"--b\nContent-Type: text/plain\n\nplain\n--b\nContent-Type: multipart/mixed; boundary=c\n\n{inner}\n--b--\n"
    )
    head = "From: a@example.org\nSubject: x\nContent-Type: multipart/alternative; boundary=b\n\n"
    assert texts((head + parts).encode()) == {"message": "# x\n\nplain", "message/n.txt": "notes"}


def test_a_bad_message_of_a_mailbox_does_not_cost_the_others():
    bad = b"From a@b Mon Jan  1 10:00:00 2024\nFrom: a\nDate: b\nContent-Type: text/plain; charset=undefined\n\nodd\n\n"
    found = texts(bad + mailbox(mail("good")), ".mbox")
    assert found["message 2"] == "# Wool\n\ngood"


def test_messages_are_texts():
    (member,) = extract_document(mail("words").as_bytes(), ".eml", OPTIONS).members
    assert (member.kind, member.media_type) == ("text", "text/plain")


def test_damaged_mails_are_read_as_far_as_they_go():
    message = mail("text")
    message.add_attachment(b"\x89PNG" * 100, maintype="image", subtype="png", filename="a.png")
    data = message.as_bytes()
    for end in range(150, len(data), 97):
        members = extract_document(data[:end], ".eml", OPTIONS).members
        assert members[0].status == "ok"
        assert all(member.reason_code != "crashed" for member in members)


def test_mails_nested_without_end_are_refused_at_a_depth():
    message = mail("innermost")
    for _ in range(20):
        outer = mail("outer")
        outer.add_attachment(message)
        message = outer
    found = extract_document(message.as_bytes(), ".eml", OPTIONS)
    assert found.members[-1].reason_code == "too_deep"
