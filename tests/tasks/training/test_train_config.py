"""Defaults of a training's configuration: number format and highest learning rate."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from model.schedule import learning_rate, noam
from tasks.core.settings import TrainSettings
from tasks.training.train import EVALUATION_SHARE, VALIDATION_SAMPLE, train_config

NETWORK = {"d_model": 512}


def configured(device: str, precision: str = "auto", **overrides: Any) -> dict[str, Any]:
    return train_config(TrainSettings(precision=precision, overrides=overrides), NETWORK, device, 100)


@pytest.mark.parametrize(("capability", "precision"), [((9, 0), "bf16"), ((7, 5), "fp16")])
def test_the_precision_of_a_gpu_is_recorded_as_what_it_was_resolved_to(
    capability: tuple[int, int], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert configured("cuda")["precision"] == precision
    assert configured("cuda", "fp32")["precision"] == "fp32"


def test_a_cpu_trains_in_float32_unless_asked_otherwise() -> None:
    assert configured("cpu")["precision"] == "fp32"
    assert configured("cpu", "bf16")["precision"] == "bf16"


@pytest.mark.parametrize(("warmup", "steps"), [({"warmup_steps": 4000}, 4000), ({"warmup_ratio": 0.25}, 25)])
def test_the_peak_of_noam_follows_from_width_and_warmup(warmup: dict[str, float], steps: int) -> None:
    from model import TrainConfig

    found = TrainConfig.from_dict(configured("cpu", schedule="noam", **warmup))
    rates = [learning_rate(step, found) for step in (0, 24, 99)]
    assert rates == pytest.approx([noam(step + 1, 512, steps) for step in (0, 24, 99)], rel=1e-13)


def test_a_given_rate_is_the_peak_of_noam() -> None:
    assert configured("cpu", schedule="noam", lr=0.5)["lr"] == 0.5


def test_evaluations_take_a_small_share_of_the_minutes() -> None:
    rows, steps = 8, 100
    settings = TrainSettings(overrides={"batch_size": rows})
    plain, timed = (train_config(settings, NETWORK, "cpu", steps, **given) for given in ({}, {"minutes": 5}))
    assert plain["eval_every"] == steps / 10
    assert VALIDATION_SAMPLE / 3 / rows <= EVALUATION_SHARE * timed["eval_every"]
    asked = train_config(TrainSettings(overrides={"eval_every": 7}), NETWORK, "cpu", steps, minutes=5)
    assert asked["eval_every"] == 7
