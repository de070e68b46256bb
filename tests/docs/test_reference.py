"""The pages and pictures that are made from the code are those that are committed."""

from __future__ import annotations

import re

import pytest

from docs.columns import TABLES, column_meaning
from docs.drawings import drawings
from docs.reference import FOLDER, pages
from docs.stage_graph import wiring
from flows.stages import all_stages

IMAGES = FOLDER.parent / "images"
PAGES = pages()
DRAWINGS = drawings()


@pytest.mark.parametrize("name", PAGES)
def test_a_committed_page_is_what_the_code_says(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == PAGES[name], "run: make reference"


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_committed_drawing_is_what_the_code_draws(name: str) -> None:
    file = IMAGES / f"{name}.svg"
    assert file.read_text(encoding="utf-8") == DRAWINGS[name], "run: make reference"
    assert file.stat().st_size < 100_000


def test_no_meaning_is_of_a_column_that_is_not_there() -> None:
    shown = set(re.findall(r"^### (\w+) \{ #table", PAGES["tables.md"], re.MULTILINE))
    assert shown == set(TABLES)
    for name, meaning in TABLES.items():
        section = PAGES["tables.md"].partition(f"### {name} {{")[2].partition("\n### ")[0]
        assert set(meaning.columns) <= set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE)), name


def test_a_column_without_a_meaning_is_an_error() -> None:
    with pytest.raises(KeyError):
        column_meaning("files", "colour")


def test_the_graph_has_every_stage_and_only_stages() -> None:
    stages = wiring()
    assert set(stages) == set(all_stages())
    sources = {source for here in stages.values() for given in here.inputs.values() for source in given}
    assert sources <= set(stages)


def test_the_graph_names_the_needed_inputs_of_every_stage() -> None:
    stages = all_stages()
    for name, here in wiring().items():
        assert stages[name].needed_inputs <= set(here.inputs), name
