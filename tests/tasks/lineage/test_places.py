"""A span leads to the page and the box of the document in which it stands."""

from __future__ import annotations

import io
from pathlib import Path

import pypdf
from pdf_samples import page_pdf, text_lines
from tiny_run import home_at, run_prepare, tiny_settings, write_texts

from tasks.lineage.memorised import explain_text
from tasks.lineage.places import find_spot

BLOCKS = [
    {"text": "A heading", "x0": 50.0, "y0": 700.0, "x1": 200.0, "y1": 720.0},
    {"text": "The shep-\nherd counts the sheep, and", "x0": 50.0, "y0": 600.0, "x1": 300.0, "y1": 690.0},
]
PAGES = [
    {"page": 3, "text": "Nothing here", "blocks": []},
    {"page": 4, "text": "A heading\nThe shep-\nherd counts the sheep, and", "blocks": BLOCKS},
    {"page": 5, "text": "counts them again", "blocks": []},
]


def test_a_passage_is_found_whatever_the_lines_and_marks_between_its_letters() -> None:
    assert find_spot("# The **shepherd** counts the sheep", PAGES) == {"page": 4, "box": [50.0, 600.0, 300.0, 690.0]}
    assert find_spot("A Heading. The shepherd", PAGES) == {"page": 4, "box": [50.0, 700.0, 200.0, 720.0]}
    assert find_spot("counts them again", PAGES) == {"page": 5, "box": None}
    assert find_spot("nothing of this", PAGES) == {}


def test_why_tells_the_page_of_a_pdf(tmp_path: Path) -> None:
    texts = {number: [f"The {word} of page {number} counts sheep at dawn and sings until the moon is gone."]
             for number, word in enumerate(("shepherd", "farmer", "weaver"), 1)}  # fmt: skip
    writer = pypdf.PdfWriter()
    for lines in texts.values():
        writer.append(io.BytesIO(page_pdf(text_lines(lines))))
    source = write_texts(tmp_path / "in")
    out = io.BytesIO()
    writer.write(out)
    (source / "manual.pdf").write_bytes(out.getvalue())
    home = home_at(tmp_path / "home")
    run_prepare(home, source, tiny_settings("curate.validation_share=0.1"))
    (span,) = explain_text(home, texts[2][0], "default", 8)["memorised"]["spans"]
    (place,) = [place for place in span["found_in"] if place["path"].endswith("manual.pdf")]
    assert place["page"] == 2
    left, low, right, high = place["box"]
    assert left < right and low < high
