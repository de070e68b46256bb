"""RTF: the text that a word processor shows."""

from __future__ import annotations

import pytest
from extraction import extract_document

from tasks.readers.records import ExtractOptions


def text_of(body: bytes, head: bytes = b"") -> str:
    found = extract_document(b"{\\rtf1\\ansi" + (head or b" ") + body + b"}", ".rtf", ExtractOptions())
    assert (found.status, found.media_type) == ("ok", "application/rtf"), found.reason
    return found.pages[0].text


def test_paragraphs_lines_and_tabs():
    assert text_of(b"One\\b  two\\b0 .\\par\nNext\\line line\\tab end\\par") == "One two.\n\nNext\nline\tend"


def test_fonts_pictures_feet_and_fields_are_no_text():
    head = b"{\\fonttbl{\\f0 Arial;}}{\\*\\generator Writer;}{\\info{\\title The Title}{\\author A}}{\\footer page}"
    field = b'{\\field{\\*\\fldinst HYPERLINK "x"}{\\fldrslt link}} {\\pict 89504e47} end'
    assert text_of(field, head) == "link  end"
    found = extract_document(b"{\\rtf1" + head + b"x}", ".rtf", ExtractOptions())
    assert found.title == "The Title"


@pytest.mark.parametrize(
    ("body", "head", "text"),
    [
        (b"Gr\\'f6\\'dfe", b"\\ansicpg1252", "Größe"),
        (b"\\'cf\\'f0\\'e8", b"\\ansicpg1251", "При"),
        (b"\\'93\\'fa\\'96\\'7b", b"\\ansicpg932", "日本"),
        (b"\\u8364?5 \\u-10179?\\u-8704?", b"", "€5 😀"),
        (b"{\\uc2\\u228ae}x \\uc0\\u228 y", b"", "äx äy"),
        (b"\\lquote a\\rquote\\~b \\{c\\}", b"", "‘a’\u00a0b {c}"),
        (b"a{\\v hidden}b", b"", "ab"),
        (b"x", b"\\ansicpg99999", "x"),
        (b"\\u8217\\rquote s", b"", "\u2019s"),
        (b"a\\trftsWidth1\\clwWidth2310 b", b"", "ab"),
        (b"a{\\pict\\bin5 }}}}}}b", b"", "ab"),
        (b"{\\*\\shpinst{\\sp{\\sn shapeType}{\\sv 202}}{\\shptxt box}}", b"", "box"),
    ],
)
def test_characters(body, head, text):
    assert text_of(body, head) == text


def test_cells_are_parted_by_tabs():
    assert text_of(b"a\\cell b\\cell\\row c\\cell d\\cell\\row") == "a\tb\nc\td"


@pytest.mark.parametrize("data", [b"{\\rtf1 cut off", b"{\\rtf1 {{{{{{{{", b"{\\rtf1 x}{{" * 1000 + b"{\\rtf1"])
def test_a_file_that_is_cut_off_is_told_unless_its_text_is_complete(data):
    found = extract_document(data, ".rtf", ExtractOptions())
    assert (found.status, found.reason_code) in {("failed", "corrupt"), ("ok", "")}
    assert found.status == ("ok" if data.startswith(b"{\\rtf1 x}") else "failed")


@pytest.mark.full
def test_groups_nested_a_million_deep_take_linear_time():
    data = b"{\\rtf1 " + b"{" * 1_000_000 + b"deep" + b"}" * 1_000_000 + b"}"
    assert extract_document(data, ".rtf", ExtractOptions()).pages[0].text == "deep"
