"""Figures are tied to a run, to the logged model and to the dataset that they were measured on."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from storage.tracking import DIGEST_LENGTH

if TYPE_CHECKING:
    from storage.tracking import Tracking

DIGEST = "ab" * 32


@pytest.fixture
def run_id(tracking: Tracking) -> str:
    return tracking.ensure_run(uuid.uuid4().hex, "train-test", {}, {})


@pytest.fixture
def model_id(tracking: Tracking) -> str:
    return str(tracking.client.create_logged_model(tracking.experiment_id, name="model").model_id)


def log(tracking: Tracking, run_id: str, model_id: str, digest: str = DIGEST, **metrics: float) -> None:
    tracking.log_figures(run_id, model_id, metrics, 20, "evalset", digest, "/store/evalset")


def test_the_models_page_has_figures_with_their_dataset(tracking: Tracking, run_id: str, model_id: str) -> None:
    log(tracking, run_id, model_id, loss=2.0, top1=0.5)
    found = tracking.client.get_logged_model(model_id).metrics or []
    assert {(point.key, point.value, point.step, point.dataset_name, point.dataset_digest) for point in found} == {
        (name, value, 20, "evalset", DIGEST[:DIGEST_LENGTH]) for name, value in (("loss", 2.0), ("top1", 0.5))
    }
    assert {point.run_id for point in found} == {run_id}
    assert tracking.latest_metrics(run_id) == {"loss": 2.0, "top1": 0.5}
    inputs = tracking.client.get_run(run_id).inputs.dataset_inputs
    assert [(entry.dataset.name, entry.tags[0].value) for entry in inputs] == [("evalset", "evaluation")]


def test_the_same_figures_again_are_not_written_again(tracking: Tracking, run_id: str, model_id: str) -> None:
    for _ in range(2):
        log(tracking, run_id, model_id, loss=2.0)
    assert len(tracking.client.get_logged_model(model_id).metrics or []) == 1
    assert len(tracking.client.get_metric_history(run_id, "loss")) == 1


def test_figures_on_another_dataset_stand_beside_the_first(tracking: Tracking, run_id: str, model_id: str) -> None:
    log(tracking, run_id, model_id, loss=2.0)
    log(tracking, run_id, model_id, digest="cd" * 32, loss=3.0)
    found = tracking.client.get_logged_model(model_id).metrics or []
    assert {(point.dataset_digest[:2], point.value) for point in found} == {("ab", 2.0), ("cd", 3.0)}


def test_without_a_logged_model_the_run_has_them(tracking: Tracking, run_id: str) -> None:
    for _ in range(2):
        log(tracking, run_id, "", loss=2.0)
    assert len(tracking.client.get_metric_history(run_id, "loss")) == 1
