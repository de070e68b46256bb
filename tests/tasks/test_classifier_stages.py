"""The stages: a classifier for examples, and scores for documents, each made once and the same everywhere."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
from classifier_samples import HeldSettings, Means, held, manuals, rubbishes, write_files, write_lines

from storage.schemas import DOCUMENTS_FILE, SCORES, SCORES_FILE
from storage.store import Store
from storage.tables import read_rows
from tasks.apart import WORTH_A_PROCESS, Apart
from tasks.curate.classifier.examples import ExamplesError
from tasks.curate.classifier.features import BUCKETS
from tasks.curate.classifier.stages import (
    METRICS_FILE,
    WEIGHTS_FILE,
    ClassifierStageSettings,
    ScoreSettings,
    classifier,
    load_metrics,
    score,
    score_segment,
)
from tasks.stage import Outcome


def learn(store: Store, good: list[Path], bad: list[Path]) -> Outcome:
    settings = ClassifierStageSettings.of(good, bad)
    return classifier.run(store, settings, {}, resources=Means(classifier_examples=(good, bad)))


def hold(store: Store, texts: list[str]) -> Outcome:
    return held.run(store, HeldSettings(), {}, resources=Means(texts=texts))


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("examples")
    return write_lines(folder / "good.jsonl", manuals(20)), write_lines(folder / "bad.jsonl", rubbishes(20))


def test_an_artefact_holds_weights_and_figures(tmp_path: Path, sides: tuple[Path, Path]) -> None:
    store = Store(tmp_path)
    made = learn(store, [sides[0]], [sides[1]])
    folder = store.folder(made.ref)
    assert np.load(folder / WEIGHTS_FILE, allow_pickle=False).shape == (BUCKETS + 1,)
    metrics = load_metrics(folder)
    assert (metrics["good_examples"], metrics["bad_examples"]) == (20, 20)
    assert metrics["auc"] > 0.9
    assert made.manifest.counts["rows"] == 40
    assert made.manifest.counts["weak"] == 0


def test_two_stores_hold_the_same_bytes_wherever_the_examples_lie(tmp_path: Path, sides: tuple[Path, Path]) -> None:
    moved = [Path(shutil.copy(side, tmp_path / f"moved-{side.name}")) for side in sides]
    stores = [Store(tmp_path / name) for name in ("one", "two")]
    made = [learn(stores[0], [sides[0]], [sides[1]]), learn(stores[1], [moved[0]], [moved[1]])]
    assert made[0].ref == made[1].ref
    for name in (WEIGHTS_FILE, METRICS_FILE):
        one, two = (store.folder(outcome.ref) / name for store, outcome in zip(stores, made, strict=True))
        assert one.read_bytes() == two.read_bytes()


def test_other_files_of_the_same_texts_give_other_keys_but_the_same_digest(
    tmp_path: Path, sides: tuple[Path, Path]
) -> None:
    files = write_files(tmp_path / "files", manuals(20))
    store = Store(tmp_path / "store")
    one, other = learn(store, [sides[0]], [sides[1]]), learn(store, [files, files / "3.txt"], [sides[1]])
    assert one.ref.key != other.ref.key
    assert one.ref.digest == other.ref.digest


def test_a_weak_classifier_is_made_but_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    texts = manuals(120)
    good, bad = write_lines(tmp_path / "good.jsonl", texts[:60]), write_lines(tmp_path / "bad.jsonl", texts[60:])
    with caplog.at_level(logging.WARNING, logger="sheepfold"):
        made = learn(Store(tmp_path / "store"), [good], [bad])
    assert made.manifest.counts["weak"] == 1
    assert "hardly tells good from bad" in caplog.text


def test_examples_on_both_sides_are_refused_by_the_stage(tmp_path: Path, sides: tuple[Path, Path]) -> None:
    with pytest.raises(ExamplesError, match="20 texts are examples of both sides"):
        learn(Store(tmp_path), [sides[0]], [sides[0]])


def test_every_document_of_a_segment_has_a_score(tmp_path: Path, sides: tuple[Path, Path]) -> None:
    store = Store(tmp_path)
    texts = [*manuals(300, 500), *rubbishes(300, 500), ""]
    documents, trained = hold(store, texts).ref, learn(store, [sides[0]], [sides[1]]).ref
    made = score.run(store, ScoreSettings(), {"documents": documents, "classifier": trained}, resources=Means())
    rows = read_rows(store.folder(made.ref) / SCORES_FILE)
    assert [row["doc_id"] for row in rows] == [f"doc{number}" for number in range(601)]
    assert all(row.keys() == set(SCORES.names) and 0 <= row["score"] <= 1 for row in rows)
    assert min(row["score"] for row in rows[:300]) > max(row["score"] for row in rows[300:600])
    assert made.manifest.counts["units"] == 601


def test_a_segment_without_documents_has_no_scores(tmp_path: Path, sides: tuple[Path, Path]) -> None:
    store = Store(tmp_path)
    documents, trained = hold(store, []).ref, learn(store, [sides[0]], [sides[1]]).ref
    made = score.run(store, ScoreSettings(), {"documents": documents, "classifier": trained}, resources=Means())
    assert read_rows(store.folder(made.ref) / SCORES_FILE) == []


def test_a_process_of_its_own_gives_the_same_scores(tmp_path: Path, sides: tuple[Path, Path]) -> None:
    store = Store(tmp_path / "store")
    source = store.folder(hold(store, manuals(50)).ref) / DOCUMENTS_FILE
    weights = store.folder(learn(store, [sides[0]], [sides[1]]).ref) / WEIGHTS_FILE
    told: list[tuple[int, int]] = []
    made = []
    for size in (0, WORTH_A_PROCESS):
        out = tmp_path / str(size)
        out.mkdir()
        arguments = {"source": str(source), "weights": str(weights), "out": str(out)}
        made.append(Apart(1).call(score_segment, lambda *done: told.append(done), size, **arguments))
    assert made[0] == made[1]
    assert (tmp_path / "0" / SCORES_FILE).read_bytes() == (tmp_path / str(WORTH_A_PROCESS) / SCORES_FILE).read_bytes()
    assert told == [(50, 50), (50, 50)]
