"""Every way of packing, from files to a trained network."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tiny_run import Ran, direct_run, home_at, tiny_settings, with_tracking

from flows.prepare import ingest_and_prepare
from flows.train import train_model
from storage.home import Home
from storage.tables import read_rows


@pytest.fixture
def home(tiny: Ran, tmp_path: Path) -> Home:
    """A home with everything before the dataset."""
    target = with_tracking(home_at(tmp_path / "home"))
    ignored = shutil.ignore_patterns("dataset", "train", "evaluate", "generate", "prompts", ".work", ".locks")
    shutil.copytree(tiny.run.home.store, target.store, ignore=ignored)
    shutil.copyfile(tiny.run.home.hash_memo, target.hash_memo)
    return target


@pytest.mark.parametrize(
    "asked",
    [
        ("dataset.stride=20",),
        pytest.param(("dataset.packing=pack",), marks=pytest.mark.full),
        pytest.param(("dataset.packing=concat", "dataset.drop_last=true"), marks=pytest.mark.full),
        ("dataset.packing=pack", "mix.by=language", "mix.epochs=*=1.5"),
    ],
    ids=" ".join,
)
def test_a_training_reads_what_the_dataset_counts(home: Home, tiny_source: Path, asked: tuple[str, ...]) -> None:
    settings = tiny_settings("train.max_steps=0", "train.max_tokens=1000", *asked)
    with direct_run(home) as run:
        _, prepared, _ = ingest_and_prepare(run, str(tiny_source), settings)
        checkpoint = train_model(run, settings, prepared)
        record = json.loads((run.store.folder(prepared.dataset) / "dataset.json").read_text())
        history = read_rows(run.store.folder(checkpoint) / "history.parquet")
    train = record["splits"]["train"]
    assert train["ids"] == train["kept"] + train["cut"]
    assert sum(group["reads"] for group in record["groups"]) > 0
    tokens = [row["value"] for row in history if row["metric"] == "tokens"]
    # the budget was resolved from the index, and the network counted what it was given
    assert ([0.0, *tokens])[-2] < 1000 <= tokens[-1]
