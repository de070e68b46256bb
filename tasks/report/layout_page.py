"""The page of `layout`: a page of a PDF with the blocks that were found drawn on it, and the Markdown of them."""

from __future__ import annotations

import base64
import io
from contextlib import closing
from pathlib import Path
from typing import Any

import pypdfium2 as pdfium

from storage.errors import UserError
from tasks.readers.pdf import extract_pdf
from tasks.readers.records import Block, ExtractionProblem, ExtractOptions
from tasks.report.page import render
from tasks.text.markdown import document_markdown

SCALE = 2.0  # pixels a point of the picture
LONGEST_SIDE = 4000  # pixels
TONES = {
    "paragraph": "ink",
    "item": "green",
    "table": "contrary",
    "code": "violet",
    "heading": "teal",
    "caption": "gold",
    "footnote": "gold",
    "running_head": "quiet",
    "lines": "quiet",
}


def layout_page(path: Path, number: int) -> dict[str, Any]:
    """Read a page of a PDF without OCR.

    Args:
        number: Number of the page, from 1.

    Returns:
        The page's `width` and `height` in points, its `blocks` with places from the upper left corner, its `markdown`,
        and its `picture`, a PNG in base64.

    Raises:
        UserError: The file cannot be read, or has no such page.
    """
    try:
        data = path.read_bytes()
        found = list(extract_pdf(data, ExtractOptions(ocr=False), pages=[number]))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); name a PDF") from error
    except ExtractionProblem as problem:
        raise UserError(f"{path}: {problem.reason}") from problem
    if not found:
        raise UserError(f"{path} has no page {number}; give another with --page")
    if found[0].error:
        raise UserError(f"{path}, page {number}: {found[0].error}")
    try:
        with closing(pdfium.PdfDocument(data)) as document, closing(document[number - 1]) as page:
            page.set_rotation(0)  # places of blocks are those before the page is turned
            left, bottom, right, top = page.get_bbox()
            scale = min(SCALE, LONGEST_SIDE / max(page.get_size()))
            with closing(page.render(scale=scale)) as bitmap, io.BytesIO() as png:
                bitmap.to_pil().save(png, "PNG")
                picture = base64.b64encode(png.getvalue()).decode()
    except (pdfium.PdfiumError, IndexError) as error:
        raise UserError(f"{path}, page {number}, has text but cannot be drawn: {error}") from error
    blocks = [Block(**block) for block in found[0].blocks]
    text, roles = document_markdown([(number, blocks)]) if blocks else (found[0].text, [])
    kinds = {role["number"]: role["kind"] for role in roles}
    drawn = [
        {
            "kind": kinds.get(place, block.kind),
            "tone": TONES[kinds.get(place, block.kind)],
            "x": round(block.x0 - left, 1),
            "y": round(top - block.y1, 1),
            "width": round(block.x1 - block.x0, 1),
            "height": round(block.y1 - block.y0, 1),
        }
        for place, block in enumerate(blocks, 1)
        if block.x1 > block.x0  # lines whose layout is not known have no place
    ]
    return {
        "file": path.name,
        "page": number,
        "width": round(right - left, 1),
        "height": round(top - bottom, 1),
        "blocks": drawn,
        "markdown": text,
        "engine": found[0].engine,
        "picture": picture,
    }


def to_html(found: dict[str, Any]) -> str:
    """Render what `layout_page` returned."""
    return render("layout.html", tones=TONES, **found)
