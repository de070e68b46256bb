"""Settings of corpora that are imported: which column holds what."""

from __future__ import annotations

from dataclasses import dataclass

KINDS = ("text", "code", "pdf", "image")
MOST_BYTES = 2**62  # what a file's size is counted in has 64 bits


@dataclass(frozen=True)
class DocumentsSettings:
    """How the rows of a `documents:` source become documents.

    Columns of JSON Lines are the names in each line's object. A column other than the text's may be missing or null in
    some rows, but not in all.

    Attributes:
        text_column: Column that holds the text.
        id_column: Column of a name that a row goes by; it becomes part of the row's path, behind its number.
        title_column: Column of the title.
        kind_column: Column of the kind of document: text, code, pdf or image (what OCR read). It decides how the text
            is normalised and measured. Null stands for `kind`.
        kind: Kind of the rows where no column says it.
        language_column: Column of the programming language of code.
        max_row_bytes: A row of more bytes is refused.
        max_unpacked_bytes: Bytes that one compressed file may unpack to; what is beyond is refused.
    """

    text_column: str = "text"
    id_column: str = ""
    title_column: str = ""
    kind_column: str = ""
    kind: str = "text"
    language_column: str = ""
    max_row_bytes: int = 256 * 2**20
    max_unpacked_bytes: int = 64 * 2**30

    def __post_init__(self) -> None:
        if not self.text_column:
            raise ValueError("documents.text_column is empty, expected the name of the column that holds the text")
        if self.kind not in KINDS:
            raise ValueError(f"documents.kind is {self.kind!r}, expected {', '.join(KINDS)}")
        for name in ("max_row_bytes", "max_unpacked_bytes"):
            if not 1 <= getattr(self, name) <= MOST_BYTES:
                raise ValueError(f"documents.{name} is {getattr(self, name)}, expected 1 to {MOST_BYTES}")

    @property
    def columns(self) -> tuple[str, str, str, str, str]:
        """Columns of text, id, title, kind and language; "" where there is none."""
        return self.text_column, self.id_column, self.title_column, self.kind_column, self.language_column
