"""Too little text: ingestion says what became of every file, and preparation refuses in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from ingest_run import ingest, prose, settings_of, write
from tiny_run import run_prepare, tiny_settings

from storage.home import Home
from tasks.curate.curate import EmptyCorpus


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({}, "there are no files in the sources.*name a folder"),
        (
            {"only.txt": prose(1)},
            r"of 1 file\(s\), the corpus has 1 training and 0 validation document\(s\)",
        ),
        ({"a.txt": prose(1), "b.txt": prose(1) + "\n"}, r"of 2 file\(s\), .* 1 training .*add documents"),
        ({"a.txt": "", "b.txt": " \n", "c.bin": bytes(range(256)) * 9}, r"of 3 file\(s\), .* 0 training"),
    ],
    ids=["nothing", "one", "one-twice", "no-text"],
)
def test_a_corpus_without_two_texts_is_ingested_and_not_prepared(
    home: Home, tmp_path: Path, files: dict[str, str | bytes], told: str
) -> None:
    (tmp_path / "in").mkdir()
    source = write(tmp_path / "in", files)
    ran = ingest(home, source)
    assert ran.files().keys() == files.keys()
    assert "validation" not in ran.sides().values()
    with pytest.raises(EmptyCorpus, match=told):
        run_prepare(home, source, tiny_settings())


def test_two_texts_are_enough(home: Home, tmp_path: Path) -> None:
    source = write(tmp_path / "in", {"a.txt": prose(1), "b.txt": prose(2)})
    ran = run_prepare(home, source, settings_of("model.preset=tiny"))
    assert ran.reports["dataset"].rows > 0


def test_a_page_and_the_manual_that_it_stands_in_are_not_enough(home: Home, tmp_path: Path) -> None:
    page = prose(1, 100)
    source = write(tmp_path / "in", {"page.txt": page, "manual.txt": f"{prose(2, 900)}\n{page}\n{prose(3, 900)}"})
    ingest(home, source)
    with pytest.raises(EmptyCorpus, match="not contained in each other"):
        run_prepare(home, source, tiny_settings())
