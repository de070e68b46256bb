"""What reading a document of text with a structure gives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parsed:
    """A document that was read.

    Attributes:
        text: The whole text, cleaned.
        encoding: Python's name of the file's encoding; None where the format fixes it.
        confidence: How sure the encoding is, 0 to 1.
        title: The title that the document states, or None.
        programming_language: Of a notebook, or None.
        media_type: Set where reading showed the document to be something else than it looked like.
        note: What was left out, or not found, for the document's reason.
    """

    text: str
    encoding: str | None
    confidence: float
    title: str | None = None
    programming_language: str | None = None
    media_type: str = ""
    note: str = ""
