"""EPUB books, presentations, spreadsheets and OpenDocument files: their text as Markdown, and hostile ones as a row."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

import pytest
from extraction import extract_document

from tasks.readers import detect
from tasks.readers.packages import PACKAGES
from tasks.readers.records import Extraction, ExtractOptions

OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"
SLIDES = "http://schemas.openxmlformats.org/presentationml/2006/main"
SHEETS = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
CORE = '<p xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title> The  Title </dc:title></p>'


def zipped(parts: Mapping[str, str]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as package:
        for name, content in parts.items():
            package.writestr(name, content)
    return file.getvalue()


def read(data: bytes, options: ExtractOptions | None = None) -> Extraction:
    return extract_document(data, "", options or ExtractOptions())


def text_of(data: bytes) -> str:
    found = read(data)
    assert (found.status, found.kind) == ("ok", "text"), found.reason
    return found.pages[0].text


# books


def book(spine: str = "two one", more: Mapping[str, str] | None = None, **chapters: str) -> bytes:
    chapters = chapters or {"one": "<p>First &amp; last</p>", "two": "<h1>Two</h1><p>of the\nbook</p>"}
    items = "".join(f'<item id="{name}" href="text/{name}%20.xhtml"/>' for name in ["one", "two"])
    refs = "".join(f'<itemref idref="{name}"/>' for name in spine.split())
    title = '<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>Wool</dc:title></metadata>'
    package = f"<package>{title}<manifest>{items}</manifest><spine>{refs}</spine></package>"
    return zipped(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": '<c><rootfiles><rootfile full-path="OEBPS/book.opf"/></rootfiles></c>',
            "OEBPS/book.opf": package,
            **{f"OEBPS/text/{name} .xhtml": f"<html><body>{body}</body></html>" for name, body in chapters.items()},
            **(more or {}),
        }
    )


def test_chapters_come_in_the_order_of_reading():
    found = read(book())
    assert (found.title, found.media_type) == ("Wool", "application/epub+zip")
    assert found.pages[0].text == "Two\n\nof the book\n\nFirst & last"


def test_a_chapter_that_is_named_twice_is_read_once_and_a_missing_one_left_out():
    assert text_of(book(spine="one one two nowhere", one="<p>First</p>")) == "First"


def test_a_book_protected_against_copying_is_told():
    lock = '<e><CipherReference URI="OEBPS/text/one%20.xhtml"/></e>'
    found = read(book(more={"META-INF/encryption.xml": lock}))
    assert (found.status, found.reason_code) == ("rejected", "encrypted")


def test_a_book_with_scrambled_fonts_is_read():
    lock = '<e><CipherReference URI="OEBPS/font.otf"/></e>'
    assert "First" in text_of(book(more={"META-INF/encryption.xml": lock}))


# presentations


def shape(text: str, kind: str = "") -> str:
    place = f'<p:ph type="{kind}"/>' if kind else ""
    lines = "".join(f"<a:p><a:r><a:t>{line}</a:t></a:r></a:p>" for line in text.split("|"))
    return f"<p:sp>{place}<p:txBody>{lines}</p:txBody></p:sp>"


def presentation(*slides: str, notes: str = "", order: list[int] | None = None) -> bytes:
    names = f'xmlns:a="{DRAWING}" xmlns:p="{SLIDES}" xmlns:r="{OFFICE}"'
    order = order or list(range(len(slides)))
    ids = "".join(f'<p:sldId r:id="r{number}"/>' for number in order)
    rels = "".join(f'<R Id="r{number}" Target="slides/slide{number}.xml"/>' for number in range(len(slides)))
    parts = {
        "[Content_Types].xml": "presentationml.presentation.main+xml",
        "ppt/presentation.xml": f"<p:presentation {names}>{ids}</p:presentation>",
        "ppt/_rels/presentation.xml.rels": f"<R>{rels}</R>",
        "docProps/core.xml": CORE,
        **{f"ppt/slides/slide{number}.xml": f"<p:sld {names}>{one}</p:sld>" for number, one in enumerate(slides)},
    }
    if notes:
        parts["ppt/slides/_rels/slide0.xml.rels"] = '<R><R Id="n" Target="../notesSlides/n.xml"/></R>'
        parts["ppt/notesSlides/n.xml"] = f"<p:notes {names}>{shape(notes, 'body')}{shape('7', 'sldNum')}</p:notes>"
    return zipped(parts)


def test_slides_come_in_their_order_with_titles_as_headings():
    data = presentation(shape("Second", "title") + shape("a|b"), shape("First", "ctrTitle"), order=[1, 0])
    assert text_of(data) == "## First\n\n## Second\n\na\nb"
    assert read(data).title == "The Title"


def test_numbers_and_feet_of_slides_are_left_out_and_notes_follow():
    data = presentation(shape("Text") + shape("7", "sldNum") + shape("ACME", "ftr"), notes="Say it")
    assert text_of(data) == "Text\n\nSay it"


def test_a_table_of_a_slide_is_a_table():
    def row(*cells: str) -> str:
        return "<a:tr>" + "".join(f"<a:tc><a:p><a:t>{cell}</a:t></a:p></a:tc>" for cell in cells) + "</a:tr>"

    data = presentation("<a:tbl>" + row("City", "People") + row("Graz", "300,000") + "</a:tbl>")
    assert text_of(data) == "| City | People |\n|---|---|\n| Graz | 300,000 |"


# spreadsheets


def workbook(*sheets: str, settings: str = "", strings: str = "", formats: str = "") -> bytes:
    entries = "".join(f'<sheet name="Sheet {number}" r:id="r{number}"/>' for number in range(len(sheets)))
    rels = "".join(f'<R Id="r{number}" Target="/xl/worksheets/s{number}.xml"/>' for number in range(len(sheets)))
    names = f'xmlns="{SHEETS}" xmlns:r="{OFFICE}"'
    styles = f'{formats}<cellXfs><xf numFmtId="0"/><xf numFmtId="14"/><xf numFmtId="170"/></cellXfs>'
    return zipped(
        {
            "[Content_Types].xml": "spreadsheetml.sheet.main+xml",
            "xl/workbook.xml": f"<workbook {names}>{settings}<sheets>{entries}</sheets></workbook>",
            "xl/_rels/workbook.xml.rels": f"<R>{rels}</R>",
            "xl/sharedStrings.xml": f"<sst {names}>{strings}</sst>",
            "xl/styles.xml": f"<styleSheet {names}>{styles}</styleSheet>",
            **{f"xl/worksheets/s{n}.xml": f"<worksheet {names}>{one}</worksheet>" for n, one in enumerate(sheets)},
        }
    )


def test_sheets_are_tables_under_their_names():
    strings = "<si><t>City</t></si><si><r><t>Gr</t></r><r><t>az</t></r><rPh><t>ignored</t></rPh></si>"
    one = (
        '<row><c r="A1" t="s"><v>0</v></c><c r="C1" t="inlineStr"><is><t>a|b</t></is></c></row><row/>'
        '<row><c r="A3" t="s"><v>1</v></c><c r="B3"/><c r="C3"><f>1+1</f><v>2</v></c></row>'
    )
    two = '<row><c t="b"><v>1</v></c><c t="str"><v>text</v></c></row>'
    assert text_of(workbook(one, "", two, strings=strings)) == (
        "## Sheet 0\n\n| City | a\\|b |\n|---|---|\n| Graz | 2 |\n\n## Sheet 2\n\n| TRUE | text |\n|---|---|"
    )


@pytest.mark.parametrize(
    ("settings", "cell", "shown"),
    [
        ("", '<c s="1"><v>45000</v></c>', "2023-03-15"),
        ('<workbookPr date1904="1"/>', '<c s="1"><v>43538</v></c>', "2023-03-15"),
        ("", '<c s="2"><v>45000.75</v></c>', "2023-03-15 18:00:00"),
        ("", '<c s="2"><v>0.25</v></c>', "06:00:00"),
        ("", '<c s="1"><v>1e300</v></c>', "1e300"),
        ("", '<c s="0"><v>45000</v></c>', "45000"),
        ("", '<c s="99"><v>45000</v></c>', "45000"),
    ],
)
def test_dates_are_shown_as_such(settings, cell, shown):
    formats = '<numFmts><numFmt numFmtId="170" formatCode="[Red]yyyy"/></numFmts>'
    found = text_of(workbook(f"<row>{cell}</row>", settings=settings, formats=formats))
    assert found.split("\n")[2] == f"| {shown} |"


def test_colours_and_quoted_words_of_a_format_make_no_date():
    formats = '<numFmts><numFmt numFmtId="170" formatCode="[Red]0&quot;days&quot;"/></numFmts>'
    assert "| 45000 |" in text_of(workbook('<row><c s="2"><v>45000</v></c></row>', formats=formats))


def test_a_cell_at_the_end_of_the_sheet_and_a_string_that_is_missing_cost_nothing():
    far = '<row r="1048576"><c r="XFD1048576"><v>1</v></c><c r="A1" t="s"><v>99</v></c><c r="B1"><v>2</v></c></row>'
    assert text_of(workbook(far)).endswith("| 2 |\n|---|")


# OpenDocument


def open_document(body: str, kind: str = "text", **parts: str) -> bytes:
    names = " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{long}:1.0"'
        for name, long in (
            ("office", "office"),
            ("text", "text"),
            ("table", "table"),
            ("draw", "drawing"),
            ("presentation", "presentation"),
        )
    )
    content = (
        f"<office:document {names}><office:body><office:{kind}>{body}</office:{kind}></office:body></office:document>"
    )
    named = {name.replace("__", "/").replace("_", "."): part for name, part in parts.items()}
    return zipped({"mimetype": f"application/vnd.oasis.opendocument.{kind}", "content.xml": content, **named})


def test_headings_lists_and_paragraphs_come_in_order():
    body = (
        '<text:h text:outline-level="2">Wool</text:h>'
        '<text:p>It is<text:s text:c="3"/>fine<text:line-break/>yarn</text:p>'
        "<text:list><text:list-item><text:p>one</text:p><text:list><text:list-item><text:p>inner</text:p>"
        "</text:list-item></text:list></text:list-item><text:list-item><text:p>two</text:p></text:list-item></text:list>"
        "<text:p>end</text:p>"
    )
    assert text_of(open_document(body)) == "## Wool\n\nIt is fine yarn\n\n- one\n- inner\n- two\n\nend"


def test_deleted_text_and_comments_are_left_out():
    body = (
        "<text:tracked-changes><text:p>deleted</text:p></text:tracked-changes>"
        "<text:p>kept <office:annotation><text:p>comment</text:p></office:annotation>text</text:p>"
    )
    assert text_of(open_document(body)) == "kept text"


def test_sheets_of_opendocument_are_tables():
    def cell(text: str, times: str = "1") -> str:
        return f'<table:table-cell table:number-columns-repeated="{times}"><text:p>{text}</text:p></table:table-cell>'

    rows = "".join(
        f"<table:table-row>{row}</table:table-row>"
        for row in (cell("City") + cell("x", "2"), cell("Graz") + cell("", "16384"), cell("", "1000000000"))
    )
    found = text_of(open_document(f'<table:table table:name="One">{rows}</table:table>', "spreadsheet"))
    assert found == "## One\n\n| City | x | x |\n|---|---|---|\n| Graz |  |  |"


def test_slides_of_opendocument_have_headings():
    frame = '<draw:frame presentation:class="title"><draw:text-box><text:p>Wool</text:p></draw:text-box></draw:frame>'
    body = (
        f"<draw:page>{frame}<draw:frame><draw:text-box><text:p>fine</text:p></draw:text-box></draw:frame></draw:page>"
    )
    assert text_of(open_document(body, "presentation")) == "## Wool\n\nfine"


def test_an_opendocument_file_with_a_password_is_told():
    found = read(open_document("", **{"META-INF__manifest_xml": "<m><encryption-data/></m>"}))
    assert (found.status, found.reason_code) == ("rejected", "encrypted")


# hostile


ALL = {
    "epub": (book(), "META-INF/container.xml"),
    "pptx": (presentation(shape("x")), "ppt/presentation.xml"),
    "xlsx": (workbook("<row><c><v>1</v></c></row>"), "xl/workbook.xml"),
    "odt": (open_document("<text:p>x</text:p>"), "content.xml"),
}


def changed(data: bytes, name: str, content: bytes | None) -> bytes:
    source, file = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as package:
        for part in source.namelist():
            if part != name:
                package.writestr(part, source.read(part))
            elif content is not None:
                package.writestr(part, content)
    return file.getvalue()


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("content", [None, b"", b"<a>", b"\x00\xff", b"<a/>"])
def test_a_package_without_a_sound_main_part_has_a_reason(kind, content):
    data, name = ALL[kind]
    found = read(changed(data, name, content))
    assert found.status in ("failed", "rejected")
    assert found.reason_code in ("corrupt", "no_text")


@pytest.mark.parametrize("kind", ALL)
def test_a_damaged_member_is_corrupt(kind):
    data, name = ALL[kind]
    place = data.index(name.encode()) + len(name) + 4
    found = read(data[:place] + bytes(6) + data[place + 6 :])
    assert (found.status, found.reason_code) == ("failed", "corrupt")


@pytest.mark.parametrize("kind", ALL)
def test_a_bomb_is_rejected(kind):
    data, name = ALL[kind]
    bomb = changed(data, name, b"<a>" + b" " * 300_000 + b"</a>")
    found = read(bomb, ExtractOptions(max_file_bytes=200_000))
    assert (found.status, found.reason_code) == ("rejected", "too_large")
    assert "max_file_bytes" in found.reason


@pytest.mark.parametrize("kind", ALL)
def test_entities_are_neither_expanded_nor_fetched(kind, tmp_path):
    (tmp_path / "secret").write_text("secret words")
    data, name = ALL[kind]
    part = zipfile.ZipFile(io.BytesIO(data)).read(name)
    laughs = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
    declared = f'<!DOCTYPE x [<!ENTITY l0 "ha">{laughs}<!ENTITY s SYSTEM "{(tmp_path / "secret").as_uri()}">]>'
    place = part.rindex(b"x</") if b"x</" in part else part.rindex(b"</")
    found = read(changed(data, name, declared.encode() + part[:place] + b"&l9;&s;" + part[place:]))
    text = "".join(page.text for page in found.pages)
    assert len(text) < 100
    assert "secret" not in text


def test_each_package_that_is_detected_has_a_reader():
    assert set(PACKAGES) == detect._PACKAGES


def test_a_comment_in_a_paragraph_and_a_note_cost_no_words():
    note = (
        "<text:note><text:note-citation>1</text:note-citation>"
        "<text:note-body><text:p>See</text:p></text:note-body></text:note>"
    )
    assert text_of(open_document(f"<text:p>one<!-- c --> two{note} end</text:p>")) == "one two See end"


def test_a_table_in_a_cell_is_text_of_the_cell():
    def row(*contents: str) -> str:
        cells = "".join(f"<table:table-cell>{content}</table:table-cell>" for content in contents)
        return f"<table:table><table:table-row>{cells}</table:table-row></table:table>"

    assert text_of(open_document(row(row("<text:p>in</text:p>"), "<text:p>b</text:p>"))).startswith("| in | b |")


def test_a_chapter_with_an_empty_title_and_a_figure_is_whole():
    head = "</body><head><title/></head><body>"
    assert (
        text_of(book(one=f"{head}<p>First</p><figure><pre>code</pre></figure>", two="<p>x</p>")) == "x\n\nFirst\n\ncode"
    )
