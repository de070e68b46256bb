"""Two columns: written one after the other they stay as they are, written row by row they are put in order."""

from __future__ import annotations

import pypdfium2 as pdfium
import pytest
from pdf_samples import page_pdf, text_lines

from tasks.readers.decode import clean
from tasks.readers.pdf import extract_pdf
from tasks.readers.records import ExtractOptions

OPTIONS = ExtractOptions(ocr=False)
LEFT = [
    "The cost of a run follows the change and",
    "not the size of the corpus, so that one",
    "more document in a large folder takes a",
    "moment and not a night. Nothing is lost",
] * 4
RIGHT = [
    "Every number can be traced to the files",
    "from which it came, and every file that",
    "was seen has a row that says what became",
    "of it. The same code serves a laptop and",
] * 4
TITLE = "A title that goes all the way across both of the columns of this page, in one line"


def interleaved(left: list[str], right: list[str], shift: float = 0, gutter_at: float = 320) -> str:
    """Both columns row by row; the right one's lines may stand lower."""
    rows = zip(left, right, strict=True)
    return "".join(
        text_lines([one], left=60, top=680 - 14 * row) + text_lines([other], left=gutter_at, top=680 - shift - 14 * row)
        for row, (one, other) in enumerate(rows)
    )


def lines_of(content: str) -> list[str]:
    (page,) = extract_pdf(page_pdf(content), OPTIONS)
    return [line.strip() for line in page.text.split("\n")]


def as_in_the_file(content: str) -> str:
    page = pdfium.PdfDocument(page_pdf(content))[0].get_textpage()
    return page.get_text_range().replace("\r\n", "\n")


@pytest.mark.parametrize("shift", [0, 3, 7])
def test_columns_written_row_by_row_are_read_one_after_the_other(shift):
    assert lines_of(interleaved(LEFT, RIGHT, shift)) == [*LEFT, *RIGHT]


def test_a_word_divided_at_the_end_of_a_line_is_left_to_who_sees_the_document():
    divided = [*RIGHT[:-2], "of it, and each of the models is a self-", "contained folder that anybody can serve"]
    assert lines_of(interleaved(LEFT, divided))[-2:] == divided[-2:]


def test_a_title_across_both_columns_stays_above_them():
    content = text_lines([TITLE], left=60, top=720) + interleaved(LEFT, RIGHT)
    assert lines_of(content) == [TITLE, *LEFT, *RIGHT]


def test_a_line_across_both_columns_below_them_stays_below():
    content = interleaved(LEFT, RIGHT) + text_lines([TITLE], left=60, top=440)
    assert lines_of(content) == [*LEFT, *RIGHT, TITLE]


COST = ["The cost of a run follows", "the change, not the size", "of the corpus: one more", "file takes a moment only"]
TRACE = ["Every number is traced to", "the files from which it", "came, and each of those", "has a row of its own too"]
KILL = [
    "A kill at any moment will",
    "cost nothing, as all that",
    "was done is in the store",
    "and the rest is repeated",
]
THREE = [COST * 4, TRACE * 4, KILL * 4]


def row_by_row(columns: list[list[str]], lefts: list[float], shift: float = 0) -> str:
    return "".join(
        text_lines([line], left=left, top=680 - shift * number - 14 * row)
        for row, lines in enumerate(zip(*columns, strict=True))
        for number, (line, left) in enumerate(zip(lines, lefts, strict=True))
    )


@pytest.mark.parametrize("shift", [0, 4])
def test_three_columns_written_row_by_row_are_read_one_after_the_other(shift):
    content = row_by_row(THREE, [60, 220, 380], shift)
    assert lines_of(content) == [line for column in THREE for line in column]


def test_rows_of_numbers_in_three_columns_stay_rows():
    rows = [[f"{column}{row}.{row * 7 % 10}5" for row in range(16)] for column in (1, 2, 3)]
    content = row_by_row(rows, [60, 220, 380])
    (page,) = extract_pdf(page_pdf(content), OPTIONS)
    assert page.text == as_in_the_file(content)


def test_wide_spaces_do_not_make_columns():
    words = [line.split() for line in LEFT]
    content = "".join(
        text_lines([word], left=60 + 45 * place, top=700 - 14 * row)
        for row, line in enumerate(words)
        for place, word in enumerate(line)
    )
    (page,) = extract_pdf(page_pdf(content), OPTIONS)
    assert page.text == as_in_the_file(content)


def test_columns_written_one_after_the_other_are_as_in_the_file():
    content = text_lines(LEFT, left=60) + text_lines(RIGHT, left=320)
    (page,) = extract_pdf(page_pdf(content), OPTIONS)
    assert page.text == as_in_the_file(content)
    assert lines_of(content) == [*LEFT, *RIGHT]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ([f"Entry number {row}" for row in range(16)], [f"{row}.25 EUR" for row in range(16)]),
        ([f"ocr_option_{row}" for row in range(16)], RIGHT),
        (
            [line[: 12 + 2 * row] for row, line in enumerate(LEFT)],
            [line[: 40 - 2 * row] for row, line in enumerate(RIGHT)],
        ),
    ],
    ids=["short cells", "terms and what they mean", "ragged cells"],
)
def test_a_table_stays_row_by_row(left, right):
    content = interleaved(left, right)
    (page,) = extract_pdf(page_pdf(content), OPTIONS)
    assert page.text == as_in_the_file(content)


def test_pages_of_one_column_and_tables_of_the_corpus_are_as_in_the_file(corpus):
    for name in ("memman.pdf", "R-intro.pdf"):
        data = (corpus / "documents" / name).read_bytes()
        wanted = range(20, 100)
        document = pdfium.PdfDocument(data)
        raw = [document[number - 1].get_textpage().get_text_range() for number in wanted]
        plain = [clean(text.replace("\ufffe", "-\n")) for text in raw]
        assert [page.text for page in extract_pdf(data, OPTIONS, pages=list(wanted))] == plain
