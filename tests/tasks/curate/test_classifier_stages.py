"""The stages: a classifier for examples, and scores for documents, each made once and the same everywhere."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from classifier_samples import held, manuals, rubbishes, write_files, write_lines
from tiny_run import direct_run, home_at

from storage.errors import UserError
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from storage.schemas import DOCUMENTS_FILE, SCORES, SCORES_FILE
from storage.tables import read_rows
from tasks.core.run import Run
from tasks.core.stage import NoSettings
from tasks.core.subprocesses import WORTH_A_PROCESS, Subprocesses
from tasks.curate.classifier import (
    BUCKETS,
    METRICS_FILE,
    WEIGHTS_FILE,
    ClassifierStageSettings,
    classifier,
    example_files,
    score,
    score_segment,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """One for all tests, so that each classifier is trained once."""
    with direct_run(home_at(tmp_path_factory.mktemp("run") / "home")) as found:
        yield found


def learn(run: Run, good: list[Path], bad: list[Path]) -> ArtifactRef:
    added = {}
    for side, paths in (("good", good), ("bad", bad)):
        files = {f"{number:04}/{file.name}": file for number, file in enumerate(example_files(side, paths))}
        added[side] = run.add("classifier_examples", files)
    (good_files, copied), (bad_files, other) = added["good"], added["bad"]
    settings = ClassifierStageSettings.of(copied, other)
    return classifier(run, settings, good_files=good_files, bad_files=bad_files)


def hold(run: Run, texts: list[str]) -> ArtifactRef:
    return held(run, texts)


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("examples")
    return write_lines(folder / "good.jsonl", manuals(20)), write_lines(folder / "bad.jsonl", rubbishes(20))


def test_an_artefact_holds_weights_and_figures(run: Run, sides: tuple[Path, Path]) -> None:
    made = learn(run, [sides[0]], [sides[1]])
    folder = run.store.folder(made)
    assert np.load(folder / WEIGHTS_FILE, allow_pickle=False).shape == (BUCKETS + 1,)
    metrics = json.loads((folder / METRICS_FILE).read_text())
    assert (metrics["good_examples"], metrics["bad_examples"]) == (20, 20)
    assert metrics["auc"] > 0.9
    counts = manifest_of(run.store, made).counts
    assert (counts["rows"], counts["weak"]) == (40, 0)


def test_two_stores_hold_the_same_bytes_wherever_the_examples_lie(tmp_path: Path, sides: tuple[Path, Path]) -> None:
    moved = [Path(shutil.copy(side, tmp_path / f"moved-{side.name}")) for side in sides]
    with direct_run(home_at(tmp_path / "one")) as here, direct_run(home_at(tmp_path / "two")) as there:
        made = [learn(here, [sides[0]], [sides[1]]), learn(there, [moved[0]], [moved[1]])]
    assert made[0] == made[1]
    for name in (WEIGHTS_FILE, METRICS_FILE):
        one, two = (run.store.folder(ref) / name for run, ref in zip((here, there), made, strict=True))
        assert one.read_bytes() == two.read_bytes()


def test_other_files_of_the_same_texts_give_other_keys_but_the_same_digest(
    run: Run, tmp_path: Path, sides: tuple[Path, Path]
) -> None:
    files = write_files(tmp_path / "files", manuals(20))
    one, other = learn(run, [sides[0]], [sides[1]]), learn(run, [files, files / "3.txt"], [sides[1]])
    assert one.key != other.key
    assert one.digest == other.digest


def test_a_weak_classifier_is_made_but_told_of(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    texts = manuals(120)
    good, bad = write_lines(tmp_path / "good.jsonl", texts[:60]), write_lines(tmp_path / "bad.jsonl", texts[60:])
    with caplog.at_level(logging.WARNING, logger="sheepfold"):
        made = learn(run, [good], [bad])
    assert manifest_of(run.store, made).counts["weak"] == 1
    assert "hardly tells good from bad" in caplog.text


def test_examples_on_both_sides_are_refused_by_the_stage(run: Run, sides: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match="20 texts are examples of both sides"):
        learn(run, [sides[0]], [sides[0]])


def test_every_document_of_a_segment_has_a_score(run: Run, sides: tuple[Path, Path]) -> None:
    texts = [*manuals(300, 500), *rubbishes(300, 500), ""]
    documents, trained = hold(run, texts), learn(run, [sides[0]], [sides[1]])
    made = score(run, NoSettings(), documents=documents, classifier=trained)
    rows = read_rows(run.store.folder(made) / SCORES_FILE)
    assert [row["doc_id"] for row in rows] == [f"doc{number}" for number in range(601)]
    assert all(row.keys() == set(SCORES.names) and 0 <= row["score"] <= 1 for row in rows)
    assert min(row["score"] for row in rows[:300]) > max(row["score"] for row in rows[300:600])
    assert manifest_of(run.store, made).counts["units"] == 601


def test_a_segment_without_documents_has_no_scores(run: Run, sides: tuple[Path, Path]) -> None:
    documents, trained = hold(run, []), learn(run, [sides[0]], [sides[1]])
    made = score(run, NoSettings(), documents=documents, classifier=trained)
    assert read_rows(run.store.folder(made) / SCORES_FILE) == []


@pytest.mark.full
def test_a_process_of_its_own_gives_the_same_scores(run: Run, tmp_path: Path, sides: tuple[Path, Path]) -> None:
    source = run.store.folder(hold(run, manuals(50))) / DOCUMENTS_FILE
    weights = run.store.folder(learn(run, [sides[0]], [sides[1]])) / WEIGHTS_FILE
    told: list[tuple[int, int]] = []
    made = []
    for size in (0, WORTH_A_PROCESS):
        out = tmp_path / str(size)
        out.mkdir()
        arguments = {"source": source, "weights": weights, "out": out}
        made.append(Subprocesses(1).call(score_segment, lambda *done: told.append(done), size, **arguments))
    assert made[0] == made[1]
    assert (tmp_path / "0" / SCORES_FILE).read_bytes() == (tmp_path / str(WORTH_A_PROCESS) / SCORES_FILE).read_bytes()
    assert told == [(50, 50), (50, 50)]
