"""ALTO, PAGE-XML, hOCR and TEI: the text that a reader of the page would read."""

from __future__ import annotations

import pytest
from extraction import extract_document

from tasks.readers.records import Extraction, ExtractOptions


def read(markup: str) -> Extraction:
    return extract_document(markup.encode(), ".xml", ExtractOptions())


def text_of(markup: str) -> str:
    found = read(markup)
    assert found.status == "ok", found.reason
    return found.pages[0].text


def test_words_of_alto_are_lines_of_blocks():
    strings = '<String CONTENT="The"/><SP/><String CONTENT="fold"/>'
    block = f"<TextBlock><TextLine>{strings}</TextLine><TextLine>{strings}</TextLine></TextBlock>"
    page = f'<alto xmlns="http://www.loc.gov/standards/alto/ns-v3#"><Layout><Page>{block * 2}</Page></Layout></alto>'
    assert text_of(page) == "The fold\nThe fold\n\nThe fold\nThe fold"


def test_a_divided_word_of_alto_is_whole_where_it_says_so():
    first = '<String CONTENT="exam" SUBS_TYPE="HypPart1" SUBS_CONTENT="example"/><HYP CONTENT="-"/>'
    second = '<String CONTENT="ple" SUBS_TYPE="HypPart2" SUBS_CONTENT="example"/><SP/><String CONTENT="two"/>'
    lines = f"<TextLine>{first}</TextLine><TextLine>{second}</TextLine><TextLine><String CONTENT='a'/><HYP/></TextLine>"
    assert text_of(f"<alto><TextBlock>{lines}</TextBlock></alto>") == "example\ntwo\na-"


def reading(text: str, index: int | None = None) -> str:
    place = "" if index is None else f' index="{index}"'
    return f"<TextEquiv{place}><Unicode>{text}</Unicode></TextEquiv>"


def test_regions_of_page_xml_come_in_the_stated_order_with_one_reading_of_a_line():
    refs = '<RegionRefIndexed regionRef="b"/><RegionRefIndexed regionRef="a"/>'
    order = f"<ReadingOrder><OrderedGroup>{refs}</OrderedGroup></ReadingOrder>"
    words = f"<Word>{reading('word')}</Word>"
    line = f"<TextLine>{words}{reading('worse', 1)}{reading('better', 0)}</TextLine>"
    one = f'<TextRegion id="a">{line}{line}{reading("whole")}</TextRegion>'
    two = f'<TextRegion id="b">{reading("no lines")}</TextRegion>'
    assert text_of(f"<PcGts><Page>{order}{one}{two}</Page></PcGts>") == "no lines\n\nbetter\nbetter"


def tei(body: str) -> str:
    header = "<teiHeader><fileDesc><titleStmt><title>Wool</title></titleStmt></fileDesc></teiHeader>"
    return f'<TEI xmlns="http://www.tei-c.org/ns/1.0">{header}<text><body>{body}</body></text></TEI>'


def test_an_edition_is_read_as_its_editors_read_it():
    found = read(
        tei(
            "<div><head>One</head><p>It <choice><sic>iz</sic><corr>is</corr></choice> <del>not</del>fine<lb/>"
            "yarn, un<lb break='no'/>dyed.</p><fw>running head</fw><div><head>Inner</head><p>Text</p></div></div>"
        )
    )
    assert found.pages[0].text == "# One\n\nIt is fine yarn, undyed.\n\n## Inner\n\nText"
    assert found.title == "Wool"


def test_verses_are_lines():
    assert text_of(tei("<lg><l>in the fold</l><l>in the cold</l></lg><lg><l>told</l></lg>")) == (
        "in the fold\nin the cold\n\ntold"
    )


def test_a_mistake_that_stands_alone_is_kept():
    assert text_of(tei("<p>it <sic>iz</sic> so</p>")) == "it iz so"


@pytest.mark.parametrize("root", ["alto", "PcGts", "TEI"])
def test_damage_and_bombs_have_a_reason(root):
    found = read(f"<{root}><a>")
    assert (found.status, found.reason_code) == ("failed", "corrupt")
    laughs = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
    bomb = read(f'<!DOCTYPE x [<!ENTITY l0 "ha">{laughs}]><{root}><p>&l9;</p></{root}>')
    assert sum(len(page.text) for page in bomb.pages) < 100


# hOCR

HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE html>\n<html><head><title>t</title></head><body>'


def hocr(*paragraphs: list[str], line: str = "ocr_line") -> str:
    """A page as Tesseract writes it."""
    written = ""
    for lines in paragraphs:
        spans = "".join(
            f"<span class='{line}' title='bbox 1 2 3 4'>\n"
            + "\n".join(f"<span class='ocrx_word' title='x_wconf 91'>{word}</span>" for word in one.split())
            + "\n</span>\n"
            for one in lines
        )
        written += f"<div class='ocr_carea'><p class='ocr_par' lang='eng'>{spans}</p></div>"
    return f"{HEAD}<div class='ocr_page' title='image &quot;a.png&quot;'>{written}</div></body></html>"


@pytest.mark.parametrize("suffix", [".hocr", ".html", ""])
def test_lines_of_hocr_are_those_of_the_page(suffix: str):
    found = extract_document(hocr(["The first", "and second"], ["the third"]).encode(), suffix, ExtractOptions())
    assert found.pages[0].text == "The first\nand second\n\nthe third"


def test_headers_and_captions_of_hocr_are_lines():
    found = extract_document(hocr(["A heading"], line="ocr_header").encode(), ".hocr", ExtractOptions())
    assert found.pages[0].text == "A heading"


def test_a_line_around_lines_is_read_once():
    inner = hocr(["The first"]).replace("<p class='ocr_par'", "<p class='ocr_caption'")
    found = extract_document(inner.encode(), ".hocr", ExtractOptions())
    assert found.pages[0].text == "The first" and found.pages[0].engine == "decoder (OCR)"


def test_cut_hocr_gives_what_is_there():
    whole = hocr(["The first", "and second"], ["the third"])
    found = extract_document(whole[: whole.index("third") + 5].encode(), ".hocr", ExtractOptions())
    assert found.pages[0].text == "The first\nand second\n\nthe third"


def test_hocr_of_deep_nesting_ends():
    deep = HEAD + "<div class='ocr_page'>" + "<span class='ocr_line'>x" * 20_000
    found = extract_document(deep.encode(), ".hocr", ExtractOptions())
    assert found.status in ("ok", "rejected", "failed")


def test_a_page_about_hocr_is_read_as_a_page():
    prose = "The mark class='ocr_page' stands at a page, and ocr_line at a line of it, as the format states. " * 3
    page = f"<html><body><article><p>{prose}</p></article></body></html>"
    assert extract_document(page.encode(), ".html", ExtractOptions()).pages[0].text.strip() == prose.strip()
