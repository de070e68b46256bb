"""Settings of corpora that are imported: which column holds what."""

from __future__ import annotations

from typing import Literal

from pydantic.dataclasses import dataclass

from tasks.core.option import STRICT, option

KINDS = ("text", "code", "pdf", "image")
MOST_BYTES = 2**62  # what a file's size is counted in has 64 bits


@dataclass(frozen=True, config=STRICT)
class DocumentsSettings:
    """Conversion of the rows of a `documents:` source to documents.

    Columns of JSON Lines are the names in each line's object. A column other than the text's may be missing or null in
    some rows, but not in all.
    """

    text_column: str = option("text", "Column of the text.", min_length=1)
    id_column: str = option("", "Column of a name for the row; it becomes part of the row's path, after its number.")
    title_column: str = option("", "Column of the title.")
    kind_column: str = option(
        "",
        "Column of the kind of document (text, code, pdf or image), which decides how the text is normalised and "
        "measured; null stands for `documents.kind`.",
    )
    kind: Literal["text", "code", "pdf", "image"] = option("text", "Kind of the rows for which no column gives one.")
    language_column: str = option("", "Column of the programming language of code.")
    max_row_bytes: int = option(256 * 2**20, "Refuse larger rows.", ge=1, le=MOST_BYTES)
    max_unpacked_bytes: int = option(
        64 * 2**30, "Bytes that one compressed file may unpack to; refuse what is beyond.", ge=1, le=MOST_BYTES
    )

    @property
    def columns(self) -> tuple[str, str, str, str, str]:
        """Columns of text, id, title, kind and language; "" where there is none."""
        return self.text_column, self.id_column, self.title_column, self.kind_column, self.language_column
