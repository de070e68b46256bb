"""How fast a training goes: the pace from clock values, the limit of the machine, the words of both."""

from __future__ import annotations

import pytest
import torch

from model import ModelConfig
from tasks.speed import WINDOW_SECONDS, Limit, Pace, Speedometer, duration, flops_per_token, limit_of, memory


class Clock:
    """A clock that goes as the test says."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def meter(clock: Clock, limit: float = 1e6) -> Speedometer:
    return Speedometer(100.0, Limit(limit, "the test"), clock)


def test_the_first_step_has_no_pace(clock: Clock) -> None:
    pace = meter(clock).pace(1, 10, 64)
    assert (pace.tokens_per_second, pace.share, pace.seconds_left) == (0.0, None, None)
    assert pace.words() == ""


def test_tokens_per_second_share_and_time_left_follow_from_steps_after_the_first(clock: Clock) -> None:
    speed = meter(clock)
    speed.pace(1, 11, 64)
    clock.now += 2.0
    pace = speed.pace(5, 11, 64 + 400)
    assert pace.tokens_per_second == pytest.approx(200)
    assert pace.share == pytest.approx(200 * 100 / 1e6)
    assert pace.seconds_left == pytest.approx(6 * 2.0 / 4)


def test_tokens_per_second_forget_what_is_long_past_but_the_time_left_does_not(clock: Clock) -> None:
    speed = meter(clock)
    speed.pace(1, 1000, 0)
    clock.now += 100.0
    speed.pace(2, 1000, 10)
    for step in range(3, 60):
        clock.now += 1.0
        pace = speed.pace(step, 1000, 10 + 50 * (step - 2))
    assert pace.tokens_per_second == pytest.approx(50, rel=1 / WINDOW_SECONDS)
    assert pace.seconds_left == pytest.approx((1000 - 59) * 157 / 58)


def test_a_training_that_goes_on_does_not_count_the_tokens_from_before(clock: Clock) -> None:
    speed = meter(clock)
    speed.pace(501, 600, 1e9)
    clock.now += 1.0
    pace = speed.pace(502, 600, 1e9 + 70)
    assert pace.tokens_per_second == pytest.approx(70)
    assert pace.seconds_left == pytest.approx(98)


def test_a_training_that_goes_back_is_measured_anew(clock: Clock) -> None:
    speed = meter(clock)
    for step in (1, 2, 3):
        clock.now += 1.0
        speed.pace(step, 10, 10 * step)
    clock.now += 1.0
    assert speed.pace(2, 10, 20).seconds_left is None
    clock.now += 1.0
    assert speed.pace(3, 10, 30).tokens_per_second == pytest.approx(10)


def test_without_a_limit_there_is_no_share(clock: Clock) -> None:
    speed = Speedometer(100.0, None, clock)
    speed.pace(1, 10, 0)
    clock.now += 1.0
    assert speed.pace(2, 10, 1234).share is None


def test_the_pace_is_said_in_words() -> None:
    assert Pace(1800.4, 0.631, 252.0).words() == "1,800 tokens/s, 63 % of the machine, 4:12 min left"
    assert Pace(1800.4, None, None).words() == "1,800 tokens/s"


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


def test_half_precision_is_no_lower_limit_than_float32() -> None:
    assert limit_of("cpu", "bf16").flops > 0.5 * limit_of("cpu").flops


def test_the_memory_of_this_process_is_known() -> None:
    found = memory("cpu")
    assert found.keys() == {"memory/resident_mb"}
    assert 50 < found["memory/resident_mb"] < 1e6
