"""PDFs by pypdf: the second opinion on documents that PDFium cannot open. Text layers only, for it draws nothing.

Pure Python and slow, but its repairs differ from PDFium's. Damaged files make it raise nearly anything; what it raises
is that document's or that page's outcome.
"""

from __future__ import annotations

import io
import re
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING

from tasks.readers.decode import clean
from tasks.readers.legibility import is_legible
from tasks.readers.records import ExtractionProblem, ExtractOptions, PageText

if TYPE_CHECKING:
    import pypdf

SECOND_OPINION_BYTES = 2 * 1024**2
SOUND_SHARE = 0.85
_GLYPH_NAME = re.compile(
    r"(?<!\w)/(?:[A-Za-z]{1,3}\d+|[A-Za-z]_[A-Za-z])"
)  # What pypdf writes for a glyph it cannot map.


def extract_with_pypdf(
    data: bytes,
    options: ExtractOptions,
    first_opinion: str,
    passwords: Sequence[str] = (),
    pages: Sequence[int] | None = None,
) -> Generator[PageText, None, str | None]:
    """Read a PDF's text layers.

    Args:
        data: The file.
        options: The page limit.
        first_opinion: What the other engine said of it; part of the reason if this one fails too.
        passwords: Tried in turn after the empty one.
        pages: Only these pages; None for all.

    Yields:
        One record for each page; a page that cannot be read has an `error`.

    Returns:
        The title that the document's metadata states, or None.

    Raises:
        ExtractionProblem: It needs a password ("encrypted") or cannot be read either ("corrupt").
    """
    reader, n_pages, title = _open(data, first_opinion, passwords)
    for index in wanted_pages(n_pages, options, pages):
        yield _read_page(reader, index)
    yield from note_page_limit(n_pages, options, pages, "pypdf")
    return title


class SecondOpinion:
    """What pypdf makes of single pages of a document that PDFium opens; pypdf is asked for as late as can be.

    Args:
        data: The file.
        passwords: Tried in turn after the empty one.
    """

    def __init__(self, data: bytes, passwords: Sequence[str]) -> None:
        self._data = data
        self._passwords = passwords
        self._reader: pypdf.PdfReader | None = None
        # pypdf takes seconds over pages of large documents that PDFium reads at a glance.
        self._of_use = len(data) <= SECOND_OPINION_BYTES

    def text(self, index: int) -> str:
        """The text layer of a page; empty where pypdf has none either."""
        if self._of_use and self._reader is None:
            try:
                self._reader = _open(self._data, "", self._passwords)[0]
            except ExtractionProblem:
                self._of_use = False
        return _read_page(self._reader, index).text if self._reader else ""


def is_sound(text: str) -> bool:
    """Whether a second opinion is worth more than none: letters and figures, no names of glyphs, no salad of signs."""
    visible = "".join(text.split())
    plain = sum(map(str.isalnum, visible))
    return plain >= SOUND_SHARE * max(1, len(visible)) and not _GLYPH_NAME.search(text) and is_legible(text)


def wanted_pages(n_pages: int, options: ExtractOptions, pages: Sequence[int] | None) -> list[int] | range:
    """Return the indexes (from 0) of the pages to read, in order."""
    n_read = min(n_pages, options.max_pages)
    if pages is None:
        return range(n_read)
    return sorted({page - 1 for page in pages if 0 < page <= n_read})


def note_page_limit(
    n_pages: int, options: ExtractOptions, pages: Sequence[int] | None, engine: str
) -> Iterator[PageText]:
    """Yield a record that says that pages were left out, if any were."""
    number = options.max_pages + 1
    if n_pages > options.max_pages and (pages is None or number in pages):
        error = f"{n_pages} pages; those after {options.max_pages} were not read (extract.max_pages)"
        yield PageText(number, "", "none", engine, error=error, error_code="too_many")


def tidy_title(title: object) -> str | None:
    """Return a title on one line, or None."""
    return " ".join(clean(str(title)).split()) or None if title else None


def encrypted(passwords: Sequence[str]) -> ExtractionProblem:
    """Return what to raise for a document that no password opens."""
    tried = "the empty password does" if not passwords else f"neither the empty password nor the {len(passwords)} given"
    verb = "not lead" if not passwords else "lead"
    return ExtractionProblem(
        "rejected",
        "encrypted",
        f"the PDF is encrypted; {tried} {verb} to its pages; give its password or save it without one",
    )


def _open(data: bytes, first_opinion: str, passwords: Sequence[str]) -> tuple[pypdf.PdfReader, int, str | None]:
    """The reader, the number of pages and the title."""
    import pypdf  # a quarter of a second that most workers never need

    try:
        reader = pypdf.PdfReader(io.BytesIO(data), strict=False)
        locked = reader.is_encrypted and not any(reader.decrypt(password) for password in ("", *passwords))
        n_pages = 0 if locked else len(reader.pages)
        title = tidy_title(reader.metadata.title if n_pages and reader.metadata else None)
        second_opinion = "no page found"
    except MemoryError:
        raise
    # RecursionError too.
    except Exception as error:  # noqa: BLE001
        n_pages, second_opinion = 0, f"{type(error).__name__}: {error}"
    if n_pages:
        return reader, n_pages, title
    # Told from the bytes: what pypdf raises for a password varies, and PDFium's error code is not to be trusted.
    if b"/Encrypt" in data:
        raise encrypted(passwords)
    raise ExtractionProblem("failed", "corrupt", f"the PDF cannot be read: {first_opinion}; pypdf: {second_opinion}")


def _read_page(reader: pypdf.PdfReader, index: int) -> PageText:
    number = index + 1
    try:
        text = clean(reader.pages[index].extract_text())
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - as above; the other pages may still be sound
        problem = f"page cannot be read: {type(error).__name__}: {error}"
        return PageText(number, "", "none", "pypdf", error=problem)
    if text.strip():
        return PageText(number, text, "text", "pypdf")
    return PageText(number, "", "none", "pypdf", error="no text layer, and PDFium cannot render the page for OCR")
