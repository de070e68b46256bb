"""Text from transcriptions of pages: ALTO, PAGE-XML and hOCR, which OCR engines and libraries write, and TEI editions.

Other XML and HTML is read by `tasks.readers.markup`. These are parsed as a tree, so a file of more than `MAX_XML_BYTES`
is read as others are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tasks.readers.decode import LONGEST_TITLE, Decoded, clean, decode_declared
from tasks.readers.markup import MAX_XML_BYTES, TextFlow, parse_xml, read_html, read_xml
from tasks.readers.records import OCR_FILE

_ROOT = re.compile(rb"<(?:[\w.-]{1,40}:)?(alto|PcGts|TEI)[\s>]")
_HOCR = re.compile(rb"""\sclass\s*=\s*["']?ocr_page\b""")
_HOCR_LINES = frozenset(("ocr_line", "ocrx_line", "ocr_header", "ocr_caption", "ocr_textfloat"))
_HOCR_BLOCKS = frozenset(("ocr_page", "ocr_carea", "ocr_par"))
_LINES = frozenset(("l", "item", "row"))
_BLOCKS = _LINES | frozenset(
    ("ab", "argument", "body", "byline", "castItem", "closer", "dateline", "div", "head", "lg")
)
_BLOCKS |= frozenset(("list", "note", "opener", "p", "quote", "salute", "signed", "sp", "speaker", "stage", "table"))
_BLOCKS |= frozenset(("titlePart", "trailer"))
# not the text as its editors read it: what was struck out, running heads, and the other reading of a choice
_LEFT_OUT = frozenset(["teiHeader", "del", "fw", "rdg", "sic", "orig", "abbr", "facsimile", "standOff"])
_ALTERNATIVES = frozenset(("sic", "orig", "abbr"))


def read_xml_or_transcription(data: bytes) -> Decoded:
    """Return the text of an XML file.

    Raises:
        ExtractionProblem: It is not well-formed ("corrupt").
    """
    if not _ROOT.search(data[:4096]) or len(data) > MAX_XML_BYTES:
        return read_xml(data)
    found = decode_declared(data)
    text = re.sub(r"\A\s*<\?xml[^>]*\?>", "", found.text)  # it is decoded already, whatever it declares
    tree = parse_xml(text.encode("utf-8"), "XML")
    writer = _WRITERS.get(_name(tree))
    if writer is None:
        return read_xml(data)
    written, title = writer(tree)
    engine = OCR_FILE if writer in (_alto, _page_xml) else found.engine
    return replace(found, text=clean(written), title=title, engine=engine)


def read_html_or_hocr(data: bytes) -> Decoded:
    """Return the main content of an HTML file; of hOCR, the lines of its paragraphs."""
    if not _HOCR.search(data[:65_536]) or len(data) > MAX_XML_BYTES:
        return read_html(data)
    from lxml import etree

    found = decode_declared(data)
    tree = etree.HTML(found.text.encode(), etree.HTMLParser(encoding="utf-8", no_network=True))
    paragraphs: list[list[str]] = [[]]
    walk = etree.iterwalk(tree, events=("start",)) if tree is not None else ()
    for _, element in walk:
        classes = (element.get("class") or "").split()
        if not _HOCR_BLOCKS.isdisjoint(classes):
            paragraphs.append([])
        elif not _HOCR_LINES.isdisjoint(classes):
            paragraphs[-1].append(" ".join("".join(element.itertext()).split()))
            walk.skip_subtree()  # type: ignore[union-attr]
    written = "\n\n".join(filter(None, ("\n".join(filter(None, lines)) for lines in paragraphs)))
    # without a line it is a page about hOCR, or has words alone
    return replace(found, text=clean(written), engine=OCR_FILE) if written else read_html(data)


def _name(element: Any) -> str:
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


# ALTO


def _alto(tree: Any) -> tuple[str, None]:
    """Return the lines of the blocks; a word that is divided at the end of a line is whole."""
    blocks = (
        "\n".join(filter(None, map(_alto_line, block.iter("{*}TextLine")))) for block in tree.iter("{*}TextBlock")
    )
    return "\n\n".join(filter(None, blocks)), None


def _alto_line(line: Any) -> str:
    words: list[str] = []
    mended = False
    for part in line:
        kind = _name(part)
        whole = part.get("SUBS_CONTENT")
        if kind == "String" and not (whole and part.get("SUBS_TYPE") == "HypPart2"):
            mended = bool(whole)
            words.append((whole if mended else part.get("CONTENT")) or "")
        elif kind == "HYP" and not mended and words:
            words[-1] += "-"
    return " ".join(" ".join(words).split())


# PAGE-XML


def _page_xml(tree: Any) -> tuple[str, None]:
    """Return the lines of the regions in the order of reading that the file states, else in that of the file."""
    pages = []
    for page in tree.iter("{*}Page"):
        stated = {
            item.get("regionRef"): place for place, item in enumerate(page.iter("{*}RegionRefIndexed", "{*}RegionRef"))
        }
        outer = (region for region in page.iter("{*}TextRegion") if _name(region.getparent()) != "TextRegion")
        regions = sorted(outer, key=lambda region: stated.get(region.get("id"), len(stated)))
        pages += [_region(region) for region in regions]
    return "\n\n".join(filter(None, pages)), None


def _region(region: Any) -> str:
    lines = (_reading(line) or " ".join(map(_reading, line.iter("{*}Word"))) for line in region.iter("{*}TextLine"))
    return "\n".join(filter(None, lines)) or _reading(region)


def _reading(element: Any) -> str:
    """Return the first reading of a line or region, not that of its words."""
    readings = sorted(element.iterchildren("{*}TextEquiv"), key=lambda item: (item.get("index") or "").zfill(9))
    found = next((item.find("{*}Unicode") for item in readings), None)
    return " ".join((found.text or "").split()) if found is not None else ""


# TEI


def _tei(tree: Any) -> tuple[str, str | None]:
    """Return the text of an edition as its editors read it, headings by the depth of their division; and its title."""
    from lxml import etree

    flow, depth = TextFlow(), 0
    walk = etree.iterwalk(tree, events=("start", "end", "comment", "pi"))
    for event, element in walk:
        name = _name(element)
        if event in ("comment", "pi"):
            flow.text(element.tail or "")
        elif event == "start":
            parent = element.getparent()
            if name in _LEFT_OUT and (name not in _ALTERNATIVES or (parent is not None and _name(parent) == "choice")):
                walk.skip_subtree()
                continue
            depth += name == "div"
            if name in _BLOCKS:
                flow.line() if name in _LINES else flow.paragraph()
            if name == "head":
                flow.text("#" * min(max(depth, 1), 6) + " ")
            if name in ("lb", "pb", "cb") and element.get("break") != "no":
                flow.text(" ")
            if name == "cell":
                flow.cell()
            flow.text(element.text or "")
        else:
            depth -= name == "div"
            if name in _BLOCKS:
                flow.line() if name in _LINES else flow.paragraph()
            if element is not tree:
                flow.text(element.tail or "")
    named = tree.find(".//{*}titleStmt/{*}title")
    title = " ".join("".join(named.itertext()).split())[:LONGEST_TITLE] if named is not None else ""
    return flow.result(), clean(title) or None


_WRITERS: dict[str, Callable[[Any], tuple[str, str | None]]] = {"alto": _alto, "PcGts": _page_xml, "TEI": _tei}
