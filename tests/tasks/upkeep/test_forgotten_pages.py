"""Pages and samples beside MLflow runs go with the documents that they show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ingest_run import prose, write
from tiny_run import home_at, run_prepare, tiny_settings, with_tracking

from storage.digest import sha256_json
from storage.home import Home
from storage.manifest import ArtifactRef, Manifest, describe_inputs
from storage.store import Store, open_store
from storage.tables import read_rows
from storage.tombstones import read_tombstones
from storage.tracking import Tracking
from tasks.upkeep import forget as sweep
from tasks.upkeep.forget import forget

DROPPED = "marmalade cathedral hums"  # three words: the policy drops the document


class Killed(BaseException):
    """Stands for a process that ends here."""


def put(store: Store, stage: str, name: str, **inputs: Any) -> ArtifactRef:
    """Commit an artefact that holds a name, and the samples of a training."""
    key = sha256_json([stage, name])
    with store.workspace(stage, key) as workspace:
        sample = {"step": 1, "prompt": name, "text": "and so on"}
        (workspace.out / "journal.json").write_text(json.dumps({"starts": [], "events": [], "samples": [sample]}))
        return store.commit(workspace, Manifest(stage, 1, key, key, describe_inputs(inputs), {}, [])).ref


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A corpus of which a document was dropped; its model, another model that was measured on it, and a third one."""
    found = with_tracking(home_at(tmp_path / "home"))
    files: dict[str, str | bytes] = {f"{number}.txt": prose(number) for number in range(8)}
    source = write(tmp_path / "in", {**files, "dropped.txt": DROPPED})
    ran = run_prepare(found, source, tiny_settings("policy.min_words=10"))
    store = open_store(found.store)
    evalset = ran.prepared.evalset
    elsewhere = put(store, "dataset", "of another corpus", curated=ArtifactRef("curate", "gone", "gone"))
    trainings = {
        "own": put(store, "train", "own", dataset=ran.prepared.dataset),
        "measured": put(store, "train", "measured", dataset=elsewhere),
        "third": put(store, "train", "third", dataset=elsewhere),
    }
    put(store, "evaluate", "of another", checkpoint=trainings["measured"], evalset=evalset)
    tracking = Tracking(found)
    (tmp_path / "corpus.html").write_text(DROPPED)
    for name, training in trainings.items():
        run_id = tracking.ensure_run(training.key, name, {}, {})
        tracking.client.log_artifact(run_id, str(tmp_path / "corpus.html"))
        tracking.log_table(run_id, "samples.json", ["step"], [[1]])
    return found


def beside(home: Home) -> dict[str, set[str]]:
    """Names of the files beside each training's run."""
    tracking = Tracking(home)
    runs = {name: tracking.runs(sha256_json(["train", name]))[0] for name in ("own", "measured", "third")}
    return {
        name: {entry.path for entry in tracking.client.list_artifacts(run_id)}
        for name, run_id in runs.items()
        if run_id
    }


def test_pages_go_of_models_whose_corpus_held_the_document_though_it_was_dropped(home: Home) -> None:
    done = forget(home, open_store(home.store), "dropped.txt", "", "default", dry_run=False)
    assert done["seen_by"] == []
    left = beside(home)
    assert left["own"] == {"samples.json"}
    assert left["third"] == {"corpus.html", "samples.json"}


def test_pages_go_of_models_that_were_measured_on_the_document(home: Home) -> None:
    store = open_store(home.store)
    (evalset,) = store.manifests("evalset")
    (first, *_) = read_rows(store.folder(evalset.ref) / "documents.parquet", ["doc_id"])
    forget(home, open_store(home.store), first["doc_id"], "", "default", dry_run=False)
    left = beside(home)
    assert left["measured"] == {"samples.json"}
    assert left["third"] == {"corpus.html", "samples.json"}


@pytest.mark.full
def test_killed_after_any_of_its_steps_no_page_stays_when_the_next_run_has_finished_it(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(home.store)

    def killed(*_: Any) -> None:
        raise Killed

    for step in ("clear_pages", "_carry_out", "show_samples"):
        with monkeypatch.context() as patch:
            patch.setattr(sweep, step, killed)
            with pytest.raises(Killed):
                forget(home, open_store(home.store), "dropped.txt", "", "default", dry_run=False)
        assert read_tombstones(store).pending is not None
    sweep.finish_forgetting(home, store)
    assert read_tombstones(store).pending is None
    assert "corpus.html" not in beside(home)["own"]
