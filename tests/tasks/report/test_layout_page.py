"""The command `layout`: a page with the blocks that are found on it, and errors that say what to give."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import pypdfium2 as pdfium
import pytest
from pdf_samples import page_pdf, ruled, text_lines
from PIL import Image
from typer.testing import CliRunner

from flows.cli import app

PROSE = ["The cost of a run follows the change and not the size", "of the corpus, so that one more document is cheap."]


def layout(*arguments: str) -> tuple[int, str]:
    """Exit code, and standard output or the error."""
    ran = CliRunner().invoke(app, ["layout", *arguments])
    return ran.exit_code, ran.output if ran.exit_code else ran.stdout


def pdf(folder: Path, content: str) -> Path:
    path = folder / "page.pdf"
    path.write_bytes(page_pdf(content))
    return path


def test_blocks_lie_where_their_text_is_drawn(tmp_path: Path) -> None:
    path = pdf(tmp_path, text_lines(PROSE, left=100, top=600))
    code, printed = layout(str(path), "--out", str(tmp_path / "page.html"), "--json")
    found = json.loads(printed)
    assert code == 0
    (block,) = found["blocks"]
    assert block["kind"] == "paragraph"
    # the first line stands 600 points above the lower edge, in letters of 12 points
    assert block["x"] == pytest.approx(100, abs=2)
    assert block["y"] == pytest.approx(found["height"] - 600 - 12, abs=4)
    assert block["height"] == pytest.approx(26, abs=6)
    assert found["markdown"].split("\n")[0] == " ".join(PROSE)


def test_the_page_shows_the_picture_and_a_box_for_each_block(tmp_path: Path) -> None:
    table = ruled((72, 200, 330), (560, 580, 600, 620))
    cells = "".join(text_lines([f"cell {n}"], left=80 + 128 * (n % 2), top=605 - 20 * (n // 2)) for n in range(6))
    path, out = pdf(tmp_path, text_lines(PROSE) + table + cells), tmp_path / "new" / "page.html"
    assert layout(str(path), "--out", str(out))[0] == 0
    page = out.read_text(encoding="utf-8")
    assert page.count("<rect") == 2 and 'class="tone-contrary"' in page
    _, _, rest = page.partition("data:image/png;base64,")
    with Image.open(io.BytesIO(base64.b64decode(rest.partition('"')[0]))) as picture:
        assert picture.size == tuple(round(2 * side) for side in pdfium.PdfDocument(path)[0].get_size())


@pytest.mark.parametrize(
    ("name", "data", "page", "told"),
    [
        ("none.pdf", None, 1, "none.pdf cannot be read"),
        ("text.pdf", b"not a PDF", 1, "text.pdf: the PDF cannot be read"),
        ("short.pdf", page_pdf(text_lines(PROSE)), 2, "short.pdf has no page 2; give another with --page"),
    ],
)
def test_what_cannot_be_drawn_is_an_error_in_words(
    tmp_path: Path, name: str, data: bytes | None, page: int, told: str
) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    code, printed = layout(str(tmp_path / name), "--page", str(page), "--out", str(tmp_path / "page.html"))
    assert code == 1 and told in printed
    assert not (tmp_path / "page.html").exists()


def test_text_of_the_file_is_escaped(tmp_path: Path) -> None:
    path = pdf(tmp_path, text_lines(["<script>alert 1</script> is text of this page and no script"]))
    out = tmp_path / "page.html"
    assert layout(str(path), "--out", str(out))[0] == 0
    assert "<script>" not in out.read_text(encoding="utf-8")
