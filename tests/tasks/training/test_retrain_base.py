"""Retraining on a schedule that continues from the champion: new documents are trained on, once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny_run import direct_run, home_at, tiny_settings, write_texts

from flows.evaluate import evaluate_model
from flows.prepare import ingest_and_prepare
from flows.promote import promote_model
from flows.train import train_model
from storage.home import Home
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from tasks.core.settings import load_settings, parse_assignments
from tasks.registry.base import already_read, continuing
from tasks.registry.promote import Promotion

# the network is that of the champion, so it is not asked for again
CONTINUED = ("curate.validation_share=0.3", "train.max_steps=6", "train.batch_size=4", "evaluate.trace=false")


@dataclass(frozen=True)
class Round:
    """Result of one retraining."""

    checkpoint: ArtifactRef
    base: ArtifactRef | None
    promotion: Promotion
    trained: int
    notes: list[str]


def retrain(home: Home, source: Path, base: str) -> Round:
    """The stages of the flow, without Prefect."""
    with direct_run(home) as run:
        settings = continuing(run, load_settings(None, parse_assignments(CONTINUED)), base)
        settings = settings if settings.train.base else tiny_settings()
        _, prepared, model = ingest_and_prepare(run, str(source), settings)
        read = already_read(run, base, model, prepared.dataset)
        checkpoint = read or train_model(run, settings, prepared, model)
        evaluation, _ = evaluate_model(run, checkpoint, prepared.evalset, settings.evaluate)
        done, _ = promote_model(run, checkpoint, evaluation, settings)
        inputs = manifest_of(run.store, checkpoint)
        bases = inputs.input_refs("base") if "base" in inputs.inputs else [None]
        return Round(checkpoint, bases[0], done, run.reports["train"].computed, run.notes)


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> list[Round]:
    """From scratch, the same again, with new documents, that again."""
    folder = tmp_path_factory.mktemp("rounds")
    home, source = home_at(folder / "home"), write_texts(folder / "texts", range(12))
    made = [retrain(home, source, "champion"), retrain(home, source, "champion")]
    write_texts(source, range(12, 20))
    return [*made, retrain(home, source, "champion"), retrain(home, source, "champion")]


def test_before_there_is_a_champion_training_begins_from_scratch(rounds: list[Round]) -> None:
    first = rounds[0]
    assert (first.base, first.trained, first.promotion.alias) == (None, 1, "champion")
    assert "there is no champion as base yet, so this training starts from random weights" in first.notes


def test_a_champion_that_has_read_everything_is_not_trained_again(rounds: list[Round]) -> None:
    again = rounds[1]
    assert again.checkpoint == rounds[0].checkpoint
    assert (again.trained, again.promotion.moved) == (0, False)
    assert "the champion was already trained on this dataset, so nothing was trained" in again.notes


def test_new_documents_are_read_by_a_model_that_continues_the_champion(rounds: list[Round]) -> None:
    grown = rounds[2]
    assert (grown.base, grown.trained) == (rounds[0].checkpoint, 1)
    assert grown.promotion.version.version == "2"


def test_after_that_nothing_is_left_to_train_whoever_is_champion(rounds: list[Round]) -> None:
    last = rounds[3]
    assert (last.checkpoint, last.trained, last.promotion.moved) == (rounds[2].checkpoint, 0, False)
