"""Examples: every form that can be read gives the same texts, and what cannot is refused by name."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from classifier_samples import manual, manuals, rubbishes, write_files, write_lines

from storage.errors import UserError
from tasks.curate import classifier as module
from tasks.curate.classifier import READ_CHARS, ClassifierStageSettings, read_examples, refuse_shared
from tasks.curate.settings import ClassifierSettings

TEXTS = manuals(12)


def write_parquet(path: Path, texts: list[str | None], kind: pa.DataType | None = None) -> Path:
    pq.write_table(pa.table({"id": list(range(len(texts))), "text": pa.array(texts, kind or pa.string())}), path)
    return path


def test_files_lines_and_rows_give_the_same_examples(tmp_path: Path) -> None:
    forms = [
        write_files(tmp_path / "files", TEXTS),
        write_lines(tmp_path / "lines.jsonl", TEXTS[::-1]),
        write_lines(tmp_path / "lines.txt", TEXTS),
        write_parquet(tmp_path / "rows.parquet", TEXTS),
        write_parquet(tmp_path / "dictionary.parquet", TEXTS, pa.dictionary(pa.int32(), pa.string())),
        write_parquet(tmp_path / "large.bin", TEXTS, pa.large_string()),
    ]
    found = [read_examples("good", [form]).texts for form in forms]
    assert sorted(found[0]) == sorted(TEXTS)
    assert all(texts == found[0] for texts in found)


def test_examples_are_normalised_and_decoded_as_documents_are(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "files", TEXTS)
    (folder / "wide.txt").write_bytes("Größe ﬁndet sich \r\n\r\n\r\n\r\nhier.".encode("utf-16"))
    assert "Größe findet sich\n\nhier." in read_examples("good", [folder]).texts


def test_code_and_markdown_are_examples_as_they_are(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "files", TEXTS)
    (folder / "setup.py").write_text("import os\nprint(os.name)")
    (folder / "NOTES.md").write_text("# Notes")
    assert {"import os\nprint(os.name)", "# Notes"} <= set(read_examples("good", [folder]).texts)


def test_hidden_files_of_a_folder_are_left_out(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "files", TEXTS)
    (folder / ".DS_Store").write_bytes(b"\0\1\2" * 100)
    (folder / ".git" / "refs").mkdir(parents=True)
    (folder / ".git" / "refs" / "main").write_text("a text")
    assert len(read_examples("good", [folder]).texts) == 12


def test_repeated_and_empty_texts_are_counted_not_learnt(tmp_path: Path) -> None:
    nearly = TEXTS[0] + " Done."
    path = write_lines(tmp_path / "lines.jsonl", [*TEXTS, TEXTS[3], TEXTS[4] + "\n", nearly, "", " \n"])
    found = read_examples("good", [path, write_parquet(tmp_path / "rows.parquet", [None, "", TEXTS[5]])])
    assert (len(found.texts), found.repeated, found.empty, found.left_out) == (12, 4, 4, 0)


@pytest.mark.parametrize(("max_examples", "max_chars"), [(15, 10**9), (10**9, 30_000)])
def test_beyond_the_limits_the_same_examples_are_chosen_in_whatever_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_examples: int, max_chars: int
) -> None:
    monkeypatch.setattr(module, "MAX_EXAMPLES", max_examples)
    monkeypatch.setattr(module, "MAX_CHARS", max_chars)
    texts = manuals(100)
    one = read_examples("good", [write_lines(tmp_path / "one.jsonl", texts)])
    other = read_examples("good", [write_lines(tmp_path / "other.jsonl", texts[::-1])])
    assert one.texts == other.texts
    assert 10 <= len(one.texts) <= 25
    assert len(one.texts) + one.left_out == 100


def test_of_a_giant_example_the_beginning_is_read(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "files", TEXTS)
    (folder / "giant.txt").write_text("wool " * 1_000_000)
    assert max(map(len, read_examples("good", [folder]).texts)) == READ_CHARS


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("page.html", b"<!doctype html><html><p>Text</p></html>", "is text/html"),
        ("page.txt", b"<html><p>Text</p></html>", "is text/html"),
        ("book.pdf", b"%PDF-1.7\n1 0 obj\n", "is application/pdf"),
        ("many.json", b'[{"text": "one"}]', "is application/json"),
        ("lines.jsonl.gz", b"\x1f\x8b\x08\0\0\0\0\0", "is application/gzip"),
        ("blob", b"\0\1\2\3" * 100, "is application/octet-stream"),
    ],
)
def test_what_needs_an_extractor_is_refused(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    for read in (lambda: read_examples("bad", [path]), lambda: ClassifierStageSettings.of([], [path])):
        with pytest.raises(UserError) as caught:
            read()
        assert f"classifier.bad: {path} {expected}" in str(caught.value)
        assert "JSON lines" in str(caught.value)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"{oops", "line 13 is not JSON"),
        (b"[" * 100_000, "line 13 is not JSON"),
        (b'{"body": "b", "id": 1}', "line 13 has no 'text'; it has: body, id"),
        (b'{"text": ["a"]}', "line 13 holds no text in 'text' but list"),
        (b'"bare"', "line 13 holds no object but str"),
        (b'{"text": "caf\xe9"}', "line 13: the text in 'text' is not UTF-8"),
    ],
)
def test_a_line_without_a_text_is_refused_by_its_number_and_the_others_are_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, line: bytes, expected: str
) -> None:
    path = write_lines(tmp_path / "lines.jsonl", TEXTS)
    path.write_bytes(path.read_bytes().rstrip(b"\n") + b"\n" + line + b"\n")
    with caplog.at_level(logging.WARNING, logger="sheepfold"):
        found = read_examples("good", [path])
    assert len(found.texts) == 12
    assert f"classifier.good: 1 row was refused: {path}, {expected}" in caplog.text


def test_where_too_few_are_left_the_refused_lines_are_told(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "lines.jsonl", TEXTS[:9])
    path.write_bytes(path.read_bytes().rstrip(b"\n") + b"\n{oops\n")
    with pytest.raises(UserError, match=r"gives 9 different texts .*; 1 row was refused: .*line 10 is not JSON"):
        read_examples("good", [path])


def test_a_table_without_a_text_column_is_refused_with_the_columns_it_has(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["a"], "text": [1]}), tmp_path / "rows.parquet")
    with pytest.raises(UserError, match=r"no column of text is called text; there are: body, text \(int64\)"):
        read_examples("good", [tmp_path / "rows.parquet"])


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "rows.parquet", list(TEXTS))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(UserError, match=r"rows\.parquet: the Parquet file is damaged"):
        read_examples("good", [path])


def test_a_missing_file_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="gone, which does not exist"):
        read_examples("good", [tmp_path / "gone"])
    with pytest.raises(UserError, match="a folder without files"):
        read_examples("good", [tmp_path])


def test_too_few_different_examples_are_refused_with_their_number(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "lines.jsonl", [*TEXTS[:9], TEXTS[0], ""])
    with pytest.raises(UserError, match=r"gives 9 different texts \(and 1 dup.* 1 empty ones\), expected at least 10"):
        read_examples("good", [path])


def test_a_text_on_both_sides_is_refused_with_both_places(tmp_path: Path) -> None:
    good = read_examples("good", [write_lines(tmp_path / "good.jsonl", TEXTS)])
    bad = read_examples("bad", [write_lines(tmp_path / "bad.jsonl", [*rubbishes(11), manual(2)])])
    with pytest.raises(UserError, match=r"good\.jsonl, line 3 in classifier\.good and .*bad\.jsonl, line 12"):
        refuse_shared(good, bad)


def test_files_are_identified_by_content_and_form_not_by_place(tmp_path: Path) -> None:
    here = write_lines(tmp_path / "a.jsonl", TEXTS)
    there = write_files(tmp_path / "folder", []) / "b.ndjson"
    there.write_bytes(here.read_bytes())
    before = ClassifierStageSettings.of([here], [])
    assert before == ClassifierStageSettings.of([there.parent], []) == ClassifierStageSettings.of([here, there], [])
    here.write_text(here.read_text() + "\n")
    assert ClassifierStageSettings.of([here], []) != ClassifierStageSettings.of([there], [])


@pytest.mark.parametrize(("good", "bad", "named"), [("a", "", "bad"), (" \n", "b", "good")])
def test_one_side_alone_is_refused(good: str, bad: str, named: str) -> None:
    with pytest.raises(ValueError, match=rf"but classifier\.{named} is not: .* give both or neither"):
        ClassifierSettings(good, bad)
