"""Detection of a file's kind: the bytes decide, the suffix refines, and an uncertain language stays unknown."""

from __future__ import annotations

import io
import random
import tarfile
import zipfile

import pytest
from ingest_samples import picture_of, saved, text_pdf

from tasks.readers.detect import (
    HEAD_BYTES,
    LANGUAGES,
    SHARED_SUFFIXES,
    SHEBANGS,
    TEXT_TYPES,
    detect,
    identify,
)
from tasks.readers.records import Detected, ExtractOptions


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
        (b"\x7fELF\x02", "application/x-executable"),
        (b"MZ\x90\x00\x03", "application/vnd.microsoft.portable-executable"),
        (b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
        (b"\x28\xb5\x2f\xfd", "application/zstd"),
    ],
)
def test_known_binaries_have_a_media_type_and_no_kind(magic, media_type):
    assert detect_whole(magic + bytes(100), ".txt") == Detected("", media_type)


@pytest.mark.parametrize(
    ("magic", "kind", "media_type"),
    [
        (b"PK\x03\x04", "archive", "application/zip"),
        (b"\x1f\x8b\x08", "archive", "application/gzip"),
        (b"BZh91AY&SY\x00", "archive", "application/x-bzip2"),
        (b"\xfd7zXZ\x00", "archive", "application/x-xz"),
        (b"SQLite format 3\x00", "table", "application/vnd.sqlite3"),
        (b"PAR1\x00\x00", "table", "application/vnd.apache.parquet"),
    ],
)
def test_containers_are_told_by_their_magic(magic, kind, media_type):
    assert detect_whole(magic + bytes(100), ".txt") == Detected(kind, media_type)


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_tar_is_told_by_the_checksum_of_its_header(tar_format):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tar_format) as archive:
        info = tarfile.TarInfo("größe.pdf")
        info.size = 20
        archive.addfile(info, io.BytesIO(b"%PDF-1.4 in an entry"))
    assert detect_whole(file.getvalue(), ".pdf") == Detected("archive", "application/x-tar")


def test_an_archive_whose_first_entry_is_a_pdf_is_an_archive():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("a.pdf", text_pdf(["hello"]))
    assert detect_whole(file.getvalue()).kind == "archive"


def test_a_plain_archive_named_as_an_office_document_is_an_archive():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as package:
        package.writestr("readme.txt", "hello")
    assert identify(file.getvalue(), ".docx", ExtractOptions()) == Detected("archive", "application/zip")


@pytest.mark.parametrize(
    ("names", "kind", "media_type"),
    [
        ({"mimetype": "application/epub+zip"}, "text", "application/epub+zip"),
        ({"mimetype": "application/vnd.oasis.opendocument.text"}, "text", "application/vnd.oasis.opendocument.text"),
        ({"mimetype": "application/vnd.oasis.opendocument.image"}, "", "application/vnd.oasis.opendocument.image"),
        (
            {"[Content_Types].xml": "spreadsheetml.sheet.main+xml"},
            "text",
            "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        ),
        ({"AndroidManifest.xml": "x", "META-INF/MANIFEST.MF": "x"}, "", "application/vnd.android.package-archive"),
        ({"META-INF/MANIFEST.MF": "x", "A.java": "x"}, "archive", "application/java-archive"),
    ],
)
def test_what_a_package_is_stands_in_it(names, kind, media_type):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as package:
        for name, content in names.items():
            package.writestr(name, content)
    assert identify(file.getvalue(), "", ExtractOptions()) == Detected(kind, media_type)


@pytest.mark.parametrize(
    ("stream", "media_type"),
    [
        ("WordDocument", "application/msword"),
        ("Workbook", "application/vnd.ms-excel"),
        ("EncryptedPackage", "application/vnd.ms-office.encrypted"),
        ("Something", "application/x-ole-storage"),
    ],
)
def test_older_office_documents_are_told_by_their_streams(stream, media_type):
    data = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500) + stream.encode("utf-16-le") + bytes(50)
    assert identify(data, ".doc", ExtractOptions()) == Detected("", media_type)


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
        (".kt", "Kotlin"),
    ],
)
def test_the_suffix_names_the_language(suffix, language):
    found = detect_whole(b"x = 1\n", suffix)
    assert (found.kind, found.programming_language) == ("code", language)


@pytest.mark.parametrize("suffix", [".h", ".m", ".pl", ".v", ".r", ".ts", ".cls", ".inc", ".sql", ".unknown", ""])
def test_a_suffix_with_several_meanings_names_no_language_by_itself(suffix):
    assert detect_whole(b"It was a dark and stormy night.\n", suffix) == Detected("text", "text/plain")


@pytest.mark.parametrize(
    ("suffix", "text", "language"),
    [
        (".h", "#ifndef A_H\n#define A_H\nint f(void);\n#endif\n", "C"),
        (".h", "#pragma once\nnamespace a {\nclass B {\npublic:\n  int c();\n};\n}\n", "C++"),
        (".h", '#import "A.h"\n@interface B : NSObject\n@end\n', "Objective-C"),
        (".m", '#import "A.h"\n@implementation A\n@end\n', "Objective-C"),
        (".m", "function y = f(x)\n% Doubles.\ny = 2 * x;\nend\n", "MATLAB"),
        (".m", ":- module a.\n:- interface.\n% b\n", "Mercury"),
        (".pl", "use strict;\nmy $x = 1;\n", "Perl"),
        (".pl", ":- use_module(library(lists)).\nparent(a, b).\n", "Prolog"),
        (".pm", "package A::B;\nuse strict;\n1;\n", "Perl"),
        (".v", "module counter(input clk);\nendmodule\n", "Verilog"),
        (".v", "Require Import Arith.\nTheorem t : 1 = 1.\nProof. reflexivity. Qed.\n", "Coq"),
        (".v", "module main\n\nfn main() {\n}\n", "V"),
        (".r", "library(stats)\nx <- c(1, 2)\n", "R"),
        (".r", 'REBOL [Title: "x"]\nprint 1\n', "Rebol"),
        (".ts", "export const a: number = 1;\n", "TypeScript"),
        (".cls", "VERSION 1.0 CLASS\nBEGIN\n", "Visual Basic"),
        (".cls", "public with sharing class A {\n}\n", "Apex"),
        (".inc", "<?php\n$a = 1;\n", "PHP"),
        (".inc", 'SRC_URI = "git://x"\n', "BitBake"),
        (".sql", "-- all\nSELECT 1 FROM t;\n", "SQL"),
        (".d", "module a.b;\nimport std.stdio;\n", "D"),
        (".f", "      PROGRAM A\n      END\n", "Fortran"),
        (".fs", "module A\nlet x = 1\n", "F#"),
        (".fs", ": square ( n -- n ) dup * ;\n", "Forth"),
        (".ml", "let rec f x = x\n", "OCaml"),
        (".ml", "structure A = struct\nval x = 1\nend\n", "Standard ML"),
        (".s", "\t.globl main\nmain:\n\tret\n", "Assembly"),
        (".pp", "class a {\n  include b\n}\n", "Puppet"),
        ("", "#include <vector>\nint main() { std::vector<int> a; }\n", "C++"),
        ("", "FROM debian\nRUN apt-get update\n", "Dockerfile"),
        ("", "all: a.o\n\tcc -o all a.o\n", "Makefile"),
        ("", "import os\n\ndef main():\n    pass\n", "Python"),
        ("", "# -*- mode: ruby -*-\nx = 1\n", "Ruby"),
        ("", "# vim: set ft=python :\nx = 1\n", "Python"),
    ],
)
def test_marks_in_the_text_decide_where_the_suffix_does_not(suffix, text, language):
    found = detect_whole(text.encode(), suffix)
    assert (found.kind, found.programming_language) == ("code", language)


def test_a_latex_class_is_latex():
    assert detect_whole(b"\\NeedsTeXFormat{LaTeX2e}\n\\ProvidesClass{a}\n", ".cls").media_type == "text/x-tex"


def test_a_transport_stream_is_no_typescript():
    packet = b"\x47" + bytes(range(187))
    assert detect_whole(packet * 20, ".ts") == Detected("", "video/mp2t")


def test_a_translation_file_is_xml_and_no_typescript():
    data = b'<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE TS>\n<TS version="2.1"></TS>\n'
    assert detect_whole(data, ".ts") == Detected("text", "application/xml")


@pytest.mark.parametrize("suffix", sorted(SHARED_SUFFIXES | {""}))
def test_marks_are_looked_for_in_linear_time(suffix):
    # A pattern that backtracks would take minutes; the limit on the whole suite's tests would end it.
    for unit in ("a ", "#include ", "x(", "\t", "- ", "class a ", "%", "a:", '"', "a.", "(*", "-*-", "vim:"):
        detect_whole(unit.encode() * HEAD_BYTES, suffix)


def test_prose_that_quotes_code_has_no_language():
    text = "To print a line in Python one writes:\n\n    print('hello')\n\nand import os is not needed for it.\n"
    assert detect_whole(text.encode()) == Detected("text", "text/plain")


@pytest.mark.parametrize(
    ("first_line", "language"),
    [
        ("#!/bin/sh", "Shell"),
        ("#!/usr/bin/env python3", "Python"),
        ("#!/usr/bin/env -S python3.11 -u", "Python"),
        ("#! /usr/bin/perl -w", "Perl"),
        ("#!/usr/bin/env LANG=C perl", "Perl"),
        ("#!/usr/bin/env deno", "TypeScript"),
        ("#!/usr/bin/unheardof", None),
        ("#!", None),
    ],
)
def test_the_first_line_names_the_interpreter(first_line, language):
    assert detect_whole(f"{first_line}\nx\n".encode()).programming_language == language


@pytest.mark.parametrize(
    ("suffix", "media_type"),
    [
        (".md", "text/markdown"),
        (".rst", "text/x-rst"),
        (".csv", "text/csv"),
        (".json", "application/json"),
        (".tex", "text/x-tex"),
        (".html", "text/plain"),
        (".xml", "text/plain"),
        (".ipynb", "text/plain"),
        (".jsonl", "text/plain"),
    ],
)
def test_text_formats_are_text_with_their_media_type(suffix, media_type):
    assert detect_whole(b"something\n", suffix) == Detected("text", media_type)


@pytest.mark.parametrize(
    ("text", "suffix", "kind", "media_type"),
    [
        ("<!DOCTYPE html>\n<p>x", ".txt", "text", "text/html"),
        ("<!-- saved -->\n<HTML><body>x", ".py", "text", "text/html"),
        ("just <b>some</b> words", ".html", "text", "text/html"),
        ("just <b>some</b> words", ".txt", "text", "text/plain"),
        ('<?xml version="1.0"?><a/>', "", "text", "application/xml"),
        ('<?xml version="1.0"?><!-- x --><svg xmlns="y"/>', "", "text", "image/svg+xml"),
        ('<?xml version="1.0"?>\n<!DOCTYPE html PUBLIC "x">\n<html/>', ".xml", "text", "application/xhtml+xml"),
        ("<project><a/></project>", ".pom", "text", "application/xml"),
        ("<project><a/></project>", "", "text", "text/plain"),
        ("<html><?php echo 1; ?></html>", ".php", "code", "text/x-php"),
        ("<template><p>x</p></template>", ".vue", "code", "text/x-vue"),
        (
            '{"cells": [{"cell_type": "code", "source": []}], "nbformat": 4}',
            ".json",
            "code",
            "application/x-ipynb+json",
        ),
        ('{"a": 1}\n{"a": 2}\n', "", "text", "application/jsonl"),
        ('{"a": 1}\n', ".jsonl", "text", "application/jsonl"),
        ('{"a": [1, 2]}\n', "", "text", "application/json"),
        ("{this is no JSON}", "", "text", "text/plain"),
        ("\\documentclass{article}\n\\begin{document}", "", "text", "text/x-tex"),
        ("{\\rtf1\\ansi hello}", ".txt", "text", "application/rtf"),
        ("%!PS-Adobe-3.0\n", ".ps", "", "application/postscript"),
    ],
)
def test_text_formats_are_told_by_their_content(text, suffix, kind, media_type):
    found = detect_whole(text.encode(), suffix)
    assert (found.kind, found.media_type) == (kind, media_type)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_markup_is_seen_in_wide_encodings_too(encoding):
    data = ("<!DOCTYPE html><html><body><p>" + "Größe und Maß " * 20).encode(encoding)
    assert detect_whole(data).media_type == "text/html"


def test_the_tables_do_not_contradict_each_other():
    assert len(set(LANGUAGES.values())) >= 100
    assert not LANGUAGES.keys() & TEXT_TYPES.keys()
    assert not SHARED_SUFFIXES & (LANGUAGES.keys() | TEXT_TYPES.keys())
    assert all(name == name.lower() for name in SHEBANGS)
    assert all(suffix == suffix.lower() and suffix.startswith(".") for suffix in LANGUAGES | TEXT_TYPES)
