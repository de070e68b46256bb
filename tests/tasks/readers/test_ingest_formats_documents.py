"""Notebooks, Word documents and the formats that stay as they are."""

from __future__ import annotations

import io
import json
import zipfile

import docx
import pytest
from extraction import extract_document

from tasks.readers.records import Extraction, ExtractOptions

OPTIONS = ExtractOptions()


def read(data: bytes | str, suffix: str, options: ExtractOptions = OPTIONS) -> Extraction:
    return extract_document(data.encode() if isinstance(data, str) else data, suffix, options)


# Notebooks


def notebook(*cells: dict[str, object], **metadata: object) -> str:
    return json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})


def test_the_cells_of_a_notebook_come_in_order_without_outputs():
    data = notebook(
        {"cell_type": "markdown", "source": ["# Title\n", "Some words."]},
        {"cell_type": "code", "source": "x = 1\nx\n", "outputs": [{"data": {"text/plain": "an output"}}]},
        {"cell_type": "code", "source": []},
        {"cell_type": "raw", "source": "raw"},
        kernelspec={"language": "python", "name": "python3"},
    )
    found = read(data, ".ipynb")
    assert found.pages[0].text == "# Title\nSome words.\n\n```python\nx = 1\nx\n```\n\nraw"
    assert (found.kind, found.programming_language, found.encoding) == ("code", "Python", "utf-8")
    assert found.media_type == "application/x-ipynb+json"


@pytest.mark.parametrize(
    ("metadata", "language"),
    [
        ({"language_info": {"name": "julia"}}, "Julia"),
        ({"kernelspec": {"name": "ir", "language": "R"}}, "R"),
        ({"kernelspec": {"name": "unheard-of"}}, None),
        ({"kernelspec": "broken"}, None),
        ({}, None),
    ],
)
def test_the_kernel_names_the_language(metadata, language):
    found = read(notebook({"cell_type": "code", "source": "x"}, **metadata), ".ipynb")
    assert (found.status, found.kind, found.programming_language) == ("ok", "code", language)


def test_a_notebook_of_version_3_is_read():
    data = {"worksheets": [{"cells": [{"cell_type": "code", "input": ["x = 1"]}]}], "nbformat": 3}
    assert read(json.dumps(data), ".ipynb").pages[0].text == "```\nx = 1\n```"


def test_a_fence_is_longer_than_those_in_the_code():
    data = notebook({"cell_type": "code", "source": "a\n````\nb"})
    assert read(data, ".ipynb").pages[0].text == "`````\na\n````\nb\n`````"


def test_json_that_is_no_notebook_stays_json():
    found = read('{"a": [1, 2]}', ".ipynb")
    assert (found.status, found.kind, found.media_type) == ("ok", "text", "application/json")
    assert found.pages[0].text == '{"a": [1, 2]}'


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (notebook({"cell_type": "code", "source": "x = 1"})[:-30], "line 1"),
        ('{"cells": [5], "nbformat": 4}', "cell 1"),
        ('{"cells": [{"cell_type": "code", "source": 7}]}', "source of cell 1"),
        ('{"cells": ' + "[" * 200_000 + "]" * 200_000 + "}", "nested too deep"),
        ("{", "not a readable notebook"),
    ],
    ids=["cut", "cells", "source", "deep", "brace"],
)
def test_a_broken_notebook_says_what_is_wrong(data, complaint):
    found = read(data, ".ipynb")
    assert (found.status, found.reason_code) == ("failed", "corrupt")
    assert complaint in found.reason


def test_a_notebook_without_words_has_no_text():
    assert read(notebook(), ".ipynb").reason_code == "no_text"


# Word documents


def word(build) -> bytes:
    document = docx.Document()
    build(document)
    file = io.BytesIO()
    document.save(file)
    return file.getvalue()


def test_headings_paragraphs_and_tables_come_in_order():
    def build(document):
        document.core_properties.title = "The Title"
        document.add_heading("One", 1)
        document.add_paragraph("First ").add_run("bold").bold = True
        table = document.add_table(2, 2)
        for place, text in enumerate(("a", "b", "c", "d")):
            table.cell(place // 2, place % 2).text = text
        table.cell(0, 0).add_paragraph("more")
        document.add_heading("Two", 2)
        document.add_paragraph("Last\tline\nbroken")

    found = read(word(build), ".docx")
    assert found.pages[0].text == "One\n\nFirst bold\n\na more\tb\nc\td\n\nTwo\n\nLast\tline\nbroken"
    assert (found.status, found.kind, found.title, found.encoding) == ("ok", "text", "The Title", None)
    assert "wordprocessingml" in found.media_type


def with_body(markup: str) -> bytes:
    """A Word document with this in its body."""
    source = zipfile.ZipFile(io.BytesIO(word(lambda document: document.add_paragraph("@"))))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as package:
        for name in source.namelist():
            data = source.read(name)
            if name == "word/document.xml":
                data = data.replace(b"<w:body>", b"<w:body>" + markup.encode(), 1)
            package.writestr(name, data)
    return file.getvalue()


def test_text_in_controls_boxes_and_insertions_is_not_lost():
    run = "<w:r><w:t>{}</w:t></w:r>"
    markup = (
        "<w:sdt><w:sdtContent><w:p>" + run.format("control") + "</w:p></w:sdtContent></w:sdt>"
        "<w:p><w:ins>"
        + run.format("inserted")
        + "</w:ins><w:del><w:r><w:delText>deleted</w:delText></w:r></w:del></w:p>"
        '<w:p><w:hyperlink r:id="x">' + run.format("link") + "</w:hyperlink></w:p>"
    )
    assert read(with_body(markup), "").pages[0].text == "control\n\ninserted\n\nlink\n\n@"


def test_a_cell_that_spans_a_billion_columns_is_one_cell():
    cell = '<w:tc><w:tcPr><w:gridSpan w:val="1000000000"/></w:tcPr><w:p><w:r><w:t>wide</w:t></w:r></w:p></w:tc>'
    assert read(with_body(f"<w:tbl><w:tr>{cell}</w:tr></w:tbl>"), "").pages[0].text == "wide\n\n@"


def test_deep_nesting_in_a_word_document_ends_in_a_row():
    found = read(with_body("<w:sdt>" * 5000 + "</w:sdt>" * 5000), ".docx")
    assert (found.status, found.reason_code) == ("failed", "corrupt")


def test_a_word_document_that_is_a_bomb_is_rejected():
    data = with_body("<w:p/>" * 50_000)
    found = read(data, ".docx", ExtractOptions(max_file_bytes=200_000))
    assert (found.status, found.reason_code) == ("rejected", "too_large")
    assert "max_file_bytes" in found.reason


def test_entities_in_a_word_document_are_not_expanded():
    source = zipfile.ZipFile(io.BytesIO(word(lambda document: document.add_paragraph("words"))))
    entities = "".join(f'<!ENTITY l{number} "{f"&l{number - 1};" * 10}">' for number in range(1, 10))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as package:
        for name in source.namelist():
            data = source.read(name)
            if name == "word/document.xml":
                head, _, rest = data.partition(b"?>")
                data = head + b'?><!DOCTYPE x [<!ENTITY l0 "ha">' + entities.encode() + b"]>" + rest
                data = data.replace(b"words", b"words &l9;")
            package.writestr(name, data)
    found = read(file.getvalue(), ".docx")
    assert len(found.pages[0].text if found.pages else "") < 100
    assert found.status in ("ok", "failed")


@pytest.mark.parametrize("missing", ["word/document.xml", "_rels/.rels"])
def test_a_word_document_without_its_parts_is_corrupt(missing):
    source = zipfile.ZipFile(io.BytesIO(word(lambda document: document.add_paragraph("words"))))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as package:
        for name in source.namelist():
            if name != missing:
                package.writestr(name, source.read(name))
    found = read(file.getvalue(), ".docx")
    assert (found.status, found.reason_code) == ("failed", "corrupt")
    assert "Word document" in found.reason


def test_a_truncated_word_document_is_corrupt():
    data = word(lambda document: document.add_paragraph("words"))
    found = read(data[: len(data) // 2], ".docx")
    assert (found.status, found.reason_code) == ("failed", "corrupt")


def test_a_protected_office_document_is_told():
    data = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500) + "EncryptedPackage".encode("utf-16-le")
    found = read(data, ".docx")
    assert (found.status, found.reason_code) == ("rejected", "encrypted")


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "WordDocument".encode("utf-16-le"), "application/msword"),
        (b"%!PS-Adobe-3.0\nshowpage", "application/postscript"),
    ],
)
def test_what_is_not_read_is_named(data, media_type):
    found = read(data, "")
    assert (found.status, found.reason_code, found.media_type) == ("skipped", "unsupported", media_type)
    assert media_type in found.reason


# What stays as it is


@pytest.mark.parametrize(
    ("text", "suffix", "media_type"),
    [
        ("# Title\n\nSome *words*.\n", ".md", "text/markdown"),
        ("Title\n=====\n\n.. note:: words\n", ".rst", "text/x-rst"),
        ("\\documentclass{article}\n\\begin{document}\nx\n\\end{document}\n", ".tex", "text/x-tex"),
        ("a,b\n1,2\n", ".csv", "text/csv"),
        ('{"a": 1}\n', ".json", "application/json"),
        ("[" * 100_000 + "]" * 100_000, ".json", "application/json"),
        ("key: value\n", ".yaml", "application/yaml"),
    ],
    ids=["markdown", "rst", "latex", "csv", "json", "deep-json", "yaml"],
)
def test_text_formats_stay_as_they_are(text, suffix, media_type):
    found = read(text, suffix)
    assert (found.status, found.kind, found.media_type) == ("ok", "text", media_type)
    assert found.pages[0].text == text


def test_one_line_of_fifty_megabytes_is_text():
    found = read(b"word " * 10_000_000, ".txt")
    assert (found.status, len(found.pages[0].text)) == ("ok", 50_000_000)


@pytest.mark.parametrize(
    "suffix", [".zip", ".docx", ".parquet", ".html", ".xml", ".ipynb", ".jsonl", ".db", ".gz", ".pdf"]
)
def test_zero_bytes_are_empty_under_any_name(suffix):
    assert read(b"", suffix).reason_code == "empty"


def test_a_polyglot_is_what_its_first_bytes_say():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.txt", "hidden")
    picture = b"GIF89a\x01\x00\x01\x00\x00\x00\x00;" + file.getvalue()
    found = read(picture, ".zip", ExtractOptions(ocr=False))
    assert (found.kind, found.members) == ("image", [])
