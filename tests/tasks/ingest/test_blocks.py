"""Blocks of PDF pages: from a file to the view in which their places can be looked up."""

from __future__ import annotations

from pathlib import Path

import pytest
from ingest_run import ingest, write
from pdf_samples import page_pdf, text_lines

from storage.home import Home

FIRST = ["The cost of a run follows the change and not the size", "of the corpus, so that one more document is cheap."]
SECOND = ["A kill at any moment costs nothing, and every number", "can be traced to its documents."]


def test_blocks_have_page_number_and_place(home: Home, tmp_path: Path) -> None:
    page = page_pdf(text_lines(FIRST, left=72, top=700) + text_lines(SECOND, left=100, top=500))
    found = ingest(home, write(tmp_path / "corpus", {"page.pdf": page, "other.txt": " ".join(SECOND)}))
    rows = found.query("select path, page, number, kind, text, x0, y1 from blocks join files using (doc_id)")
    assert [(row["path"], row["page"], row["number"], row["kind"]) for row in rows] == [
        ("page.pdf", 1, 1, "paragraph"),
        ("page.pdf", 1, 2, "paragraph"),
    ]
    assert [row["text"].splitlines() for row in rows] == [FIRST, SECOND]
    assert [row["x0"] for row in rows] == pytest.approx([72, 100], abs=2)
    assert [row["y1"] for row in rows] == pytest.approx([700 + 10, 500 + 10], abs=4)


def test_without_markdown_there_are_none(home: Home, tmp_path: Path) -> None:
    corpus = write(tmp_path / "corpus", {"page.pdf": page_pdf(text_lines(FIRST)), "other.txt": " ".join(SECOND)})
    found = ingest(home, corpus, "extract.markdown=false")
    assert found.query("from blocks") == []
    assert found.texts()["page.pdf"] == "\n".join(FIRST)
