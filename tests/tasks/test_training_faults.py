"""A training that goes wrong says which documents it was reading."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tasks.session import artifact
from tiny_run import direct_session, home_at, tiny_settings, write_texts

from flows import pipeline
from model.data import Batch
from model.order import order
from model.step import Stepper
from storage.errors import UserError
from tasks.blame import documents_in
from tasks.ingest.sources.resolve import resolve_sources
from tasks.tokens.index import load_index


def test_a_loss_that_is_no_number_names_step_and_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, settings = write_texts(tmp_path / "texts"), tiny_settings()
    with direct_session(home_at(tmp_path / "home")) as session:
        ingested = pipeline.ingest(session, resolve_sources([str(source)]), settings)
        prepared = pipeline.prepare(session, "default", settings, ingested)
        dataset = artifact(prepared.dataset)
        n = len(load_index(session.store.folder(dataset), "train"))
        guilty = int(order(n, seed=7, epoch=0)[2 * 4 + 1])  # the second one of step 3
        (culprit,) = documents_in(session.store, dataset, [guilty])
        original, seen = Stepper._nll, [0]

        def nll(stepper: Stepper, batch: Batch) -> torch.Tensor:
            seen[0] += 1
            found = original(stepper, batch)
            # the third step; then its rows are looked at one by one, and the second of them is it again
            return found * np.nan if seen[0] in (3, 3 + 2) else found

        monkeypatch.setattr(Stepper, "_nll", nll)
        with pytest.raises(UserError) as caught:
            pipeline.train_model(session, settings, prepared)
        message = str(caught.value)
        assert message.startswith("the training stopped: the loss is nan at step 3, in the sequences [")
        assert f"Alone, only [{guilty}] are so" in message
        assert f"Documents in these sequences: {culprit.path} (document {culprit.doc_id[:12]})." in message
        tracking = session.resources.tracking
        (run,) = tracking.client.search_runs([tracking.experiment_id])
        assert run.info.status == "FAILED"
