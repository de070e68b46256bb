"""A training that goes wrong, or leaps, says which documents it was reading."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_run import direct_run, home_at, tiny_settings, with_tracking, write_texts

from flows.prepare import ingest_and_prepare
from flows.train import train_model
from model.data import Batch, order
from model.step import Stepper
from storage.errors import UserError
from tasks.lineage.training_data import documents_in
from tasks.tokens.index import load_index
from tasks.training.telemetry import read_notes


def test_a_loss_that_is_no_number_names_step_and_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, settings = write_texts(tmp_path / "texts"), tiny_settings()
    with direct_run(with_tracking(home_at(tmp_path / "home"))) as run:
        _, prepared, _ = ingest_and_prepare(run, str(source), settings)
        dataset = prepared.dataset
        n = len(load_index(run.store.folder(dataset), "train"))
        guilty = int(order(n, seed=7, epoch=0)[2 * 4 + 1])  # the second one of step 3
        (culprit,) = documents_in(run.store, dataset, [guilty])
        original, seen = Stepper._nll, [0]

        def nll(stepper: Stepper, batch: Batch) -> torch.Tensor:
            seen[0] += 1
            found = original(stepper, batch)
            # the third step; then its rows are looked at one by one, and the second of them is it again
            return found * np.nan if seen[0] in (3, 3 + 2) else found

        monkeypatch.setattr(Stepper, "_nll", nll)
        with pytest.raises(UserError) as caught:
            train_model(run, settings, prepared)
        message = str(caught.value)
        assert message.startswith("the training stopped: the loss is nan at step 3, in the sequences [")
        assert f"Computed alone, only [{guilty}] are not finite" in message
        assert f"Documents in these sequences: {culprit.path} (document {culprit.doc_id[:12]})." in message
        tracking = run.tracking
        (failed,) = tracking.client.search_runs([tracking.experiment_id])
        assert failed.info.status == "FAILED"


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_leap_of_the_loss_names_its_documents(processes: int, tmp_path: Path) -> None:
    source = write_texts(tmp_path / "texts")
    given = ("train.spike_zscore=0.000001", "train.max_steps=60", f"execution.processes={processes}")
    with direct_run(with_tracking(home_at(tmp_path / "home"))) as run:
        _, prepared, _ = ingest_and_prepare(run, str(source), tiny_settings(*given))
        trained = train_model(run, tiny_settings(*given), prepared)
        spikes = [event for event in read_notes(run.store.folder(trained)).events if event.kind == "spike"]
    assert spikes
    assert all("Documents in these sequences: " in event.message for event in spikes)
