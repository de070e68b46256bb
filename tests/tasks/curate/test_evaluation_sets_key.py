"""The stage of external evaluation sets: its key follows what is read and how, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from dedup_samples import prose

from storage.errors import UserError
from tasks.curate.evaluation_sets import EvaluationSetSettings, evaluation_grams
from tasks.readers.rows import Refused

QUESTION = prose(40, seed=1).replace("\n", " ")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A set with one file that is read and one that is passed over."""
    made = tmp_path / "set"
    (made / "deep").mkdir(parents=True)
    (made / "a.txt").write_text(prose(40, seed=2))
    (made / "deep" / "b.dat").write_text(QUESTION)
    return made


def test_a_file_that_is_read_under_its_new_name_alone_changes_the_key(folder: Path) -> None:
    before = EvaluationSetSettings.of([folder]), evaluation_grams([folder], Refused())
    (folder / "deep/b.dat").rename(folder / "deep/b.txt")
    after = EvaluationSetSettings.of([folder]), evaluation_grams([folder], Refused())
    assert not np.array_equal(before[1], after[1])
    assert before[0] != after[0]


def test_a_file_that_is_read_otherwise_under_its_new_name_changes_the_key(tmp_path: Path) -> None:
    """As JSON the two strings are texts of their own, as text they stand side by side."""
    file = tmp_path / "a.json"
    file.write_text(json.dumps([QUESTION, QUESTION]))
    as_json = EvaluationSetSettings.of([file]), evaluation_grams([file], Refused())
    renamed = file.rename(tmp_path / "a.txt")
    assert not np.array_equal(evaluation_grams([renamed], Refused()), as_json[1])
    assert EvaluationSetSettings.of([renamed]) != as_json[0]


def test_what_is_passed_over_is_not_in_the_key(folder: Path) -> None:
    before = EvaluationSetSettings.of([folder])
    (folder / "deep/b.dat").write_text("something else")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    assert EvaluationSetSettings.of([folder]) == before


def test_a_file_that_is_named_itself_is_in_the_key_whatever_its_suffix(folder: Path) -> None:
    before = EvaluationSetSettings.of([folder / "deep/b.dat"])
    (folder / "deep/b.dat").write_text("something else")
    assert EvaluationSetSettings.of([folder / "deep/b.dat"]) != before


def test_another_name_for_the_same_way_of_reading_keeps_the_key(folder: Path) -> None:
    before = EvaluationSetSettings.of([folder])
    (folder / "a.txt").rename(folder / "deep/other.MD")
    assert EvaluationSetSettings.of([folder]) == before


def test_a_folder_of_which_nothing_would_be_read_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match=r"deep, a folder without files of \.parquet, "):
        EvaluationSetSettings.of([folder / "deep"])
