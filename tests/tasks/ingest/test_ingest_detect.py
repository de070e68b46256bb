"""What a file is: the bytes decide, the suffix refines, and a doubtful language stays unknown."""

from __future__ import annotations

import random

import pytest
from ingest_samples import picture_of, saved, text_pdf

from tasks.ingest.detect import HEAD_BYTES, Detected, detect
from tasks.ingest.languages import LANGUAGES, TEXT_TYPES


def detect_whole(data: bytes, suffix: str = "") -> Detected:
    return detect(data[:HEAD_BYTES], len(data), suffix)


@pytest.mark.parametrize("suffix", [".pdf", ".txt", "", ".py"])
def test_a_pdf_is_a_pdf_under_any_name(suffix):
    assert detect_whole(text_pdf(["hello"]), suffix) == Detected("pdf", "application/pdf")


def test_a_pdf_may_begin_with_junk():
    assert detect_whole(b"\x00\x01junk\n" * 50 + text_pdf(["hello"])).kind == "pdf"


def test_text_about_pdf_is_text():
    assert detect_whole(b"Every file begins with %PDF-1.4 or so.\n" * 3, ".md").kind == "text"


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "TIFF", "WEBP", "BMP", "GIF"])
def test_images_are_told_by_their_magic(file_format):
    expected = Detected("image", f"image/{file_format.lower()}")
    assert detect_whole(saved(picture_of("x", (40, 40)), file_format), ".txt") == expected


@pytest.mark.parametrize(
    ("magic", "media_type"),
    [
        (b"PK\x03\x04", "application/zip"),
        (b"\x1f\x8b\x08", "application/gzip"),
        (b"\x7fELF\x02", "application/x-executable"),
        (b"SQLite format 3\x00", "application/vnd.sqlite3"),
        (b"\x28\xb5\x2f\xfd", "application/zstd"),
    ],
)
def test_known_binaries_have_a_media_type_and_no_kind(magic, media_type):
    assert detect_whole(magic + bytes(100), ".txt") == Detected("", media_type)


def test_an_office_document_is_named_by_its_suffix():
    assert "wordprocessingml" in detect_whole(b"PK\x03\x04" + bytes(50), ".docx").media_type


@pytest.mark.parametrize("size", [64, 500, 4096, 100_000])
def test_noise_is_not_text_even_when_named_so(size):
    noise = random.Random(size).randbytes(size)
    assert detect_whole(noise, ".txt") == Detected("", "application/octet-stream")


@pytest.mark.parametrize("text", ["BM is a brand", "ID3 tags", "PAR1 is a magic", "BZh", "OTTO went home", "II* II*"])
def test_text_that_begins_like_a_binary_is_text(text):
    assert detect_whole((text + " and so on.\n").encode() * 20, ".txt").kind == "text"


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("utf-8", "Größe und Maß. 吾輩は猫である。"),
        ("utf-16", "Größe und Maß. 吾輩は猫である。"),
        ("utf-16-le", "Größe und Maß, so viel."),
        ("utf-16-be", "Größe und Maß, so viel."),
        ("cp1252", "Größe und Maß – so viel."),
        ("koi8-r", "Все счастливые семьи похожи друг на друга"),
        ("shift_jis", "吾輩は猫である。名前はまだ無い。"),
        ("gb18030", "天地玄黄，宇宙洪荒。"),
        ("iso2022_jp", "吾輩は猫である。名前はまだ無い。"),
    ],
)
def test_text_in_any_encoding_is_text(encoding, text):
    assert detect_whole((text * 20).encode(encoding)) == Detected("text", "text/plain")


def test_a_head_that_ends_within_a_character_is_still_text():
    data = ("x" + "吾輩" * HEAD_BYTES).encode()
    assert detect_whole(data).kind == "text"


def test_some_stray_nul_bytes_do_not_make_text_binary():
    assert detect_whole(b"some text\x00with NULs\x00 inside\n" * 50).kind == "text"


@pytest.mark.parametrize(
    ("suffix", "language"),
    [
        (".py", "Python"),
        (".RS", "Rust"),
        (".cpp", "C++"),
        (".f90", "Fortran"),
        (".hs", "Haskell"),
        (".ts", "TypeScript"),
    ],
)
def test_the_suffix_names_the_language(suffix, language):
    found = detect_whole(b"x = 1\n", suffix)
    assert (found.kind, found.programming_language) == ("code", language)


@pytest.mark.parametrize("suffix", [".h", ".m", ".pl", ".v", ".unknown", ""])
def test_a_suffix_with_several_meanings_names_no_language(suffix):
    assert detect_whole(b"x = 1\n", suffix) == Detected("text", "text/plain")


@pytest.mark.parametrize(
    ("first_line", "language"),
    [
        ("#!/bin/sh", "Shell"),
        ("#!/usr/bin/env python3", "Python"),
        ("#!/usr/bin/env -S python3.11 -u", "Python"),
        ("#! /usr/bin/perl -w", "Perl"),
        ("#!/usr/bin/unheardof", None),
        ("#!", None),
    ],
)
def test_the_first_line_names_the_interpreter(first_line, language):
    assert detect_whole(f"{first_line}\nx\n".encode()).programming_language == language


@pytest.mark.parametrize(
    ("suffix", "media_type"),
    [(".md", "text/markdown"), (".html", "text/html"), (".json", "application/json"), (".tex", "text/x-tex")],
)
def test_text_formats_are_text_with_their_media_type(suffix, media_type):
    assert detect_whole(b"something\n", suffix) == Detected("text", media_type)


def test_the_tables_do_not_contradict_each_other():
    assert len(LANGUAGES) >= 60
    assert not LANGUAGES.keys() & TEXT_TYPES.keys()
    assert all(suffix == suffix.lower() and suffix.startswith(".") for suffix in LANGUAGES | TEXT_TYPES)
