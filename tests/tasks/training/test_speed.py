"""Speed of a training: throughput from clock values, the limit of the machine, and their wording."""

from __future__ import annotations

import pytest
import torch

from model import ModelConfig
from tasks.training.throughput import Speedometer, duration, flops_per_token, limit_of


class Clock:
    """A clock that goes as the test says."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_tokens_per_second_share_and_time_left_follow_from_steps_after_the_first(clock: Clock) -> None:
    speed = Speedometer(100.0, 1e6, clock)
    assert speed.pace(1, 11, 64) == ""
    clock.now += 2.0
    assert speed.pace(5, 11, 64 + 4000) == "2,000 tokens/s, 20 % MFU, 3 s left"


def test_a_training_that_goes_on_does_not_count_the_tokens_from_before(clock: Clock) -> None:
    speed = Speedometer(100.0, 1e6, clock)
    speed.pace(501, 600, 1e9)
    clock.now += 1.0
    assert speed.pace(502, 600, 1e9 + 70) == "70 tokens/s, 1 % MFU, 1:38 min left"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.25, "0.2 s"),
        (1, "1 s"),
        (59.4, "59 s"),
        (59.6, "1:00 min"),
        (3599, "59:59 min"),
        (3599.6, "1:00 h"),
        (7260, "2:01 h"),
        (86400 * 3 + 3600 * 5, "3 d 5 h"),
    ],
)
def test_times_are_said_in_two_units(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_a_token_costs_what_the_rule_says() -> None:
    network = ModelConfig(vocab_size=65, max_seq_len=64, n_layer=4, n_head=4, d_model=128, pos="none", attn_bias=False)
    in_blocks = 4 * (4 * 128**2 + 2 * 128 * 512 + 512 + 128 + 4 * 128) + 2 * 128
    assert flops_per_token(network) == 6 * (in_blocks + 65 * 128) + 12 * 4 * 128 * 64


def test_the_limit_is_measured_once_and_no_random_number_is_drawn() -> None:
    before = torch.get_rng_state()
    limit = limit_of("cpu")
    assert limit is limit_of("cpu", "fp32")
    assert limit.flops > 1e8 and limit.source.startswith("measured: float32")
    assert torch.equal(before, torch.get_rng_state())
