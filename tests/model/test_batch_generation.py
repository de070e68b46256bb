"""Generation: a batch gives what single prompts give, rows stop by themselves, the context rolls."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from model import GenerationConfig, Transformer, generate

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11], list(range(16)), [3, 3]]
SAMPLED = GenerationConfig(max_new_tokens=30, temperature=0.8, top_k=12, top_p=0.9, seed=4)
GREEDY = GenerationConfig(max_new_tokens=30, temperature=0.0)


def greedy_without_cache(model: Transformer, prompt: list[int], n_new: int) -> list[int]:
    """The definition, written out: argmax of an uncached pass over the window."""
    context, window, made = model.config.max_seq_len, prompt[-model.config.max_seq_len :], []
    for _ in range(n_new):
        with torch.no_grad():
            made.append(int(model(torch.tensor([window]))[0, -1].argmax()))
        window = [*window, made[-1]]
        if len(window) > context:
            window = window[-(context // 2) - 1 :]
    return made


def test_keys_keep_the_noise_when_the_order_changes(build_model: Callable[..., Transformer]) -> None:
    model = build_model()
    forwards = generate(model, PROMPTS, SAMPLED, keys=[10, 11, 12, 13, 14])
    backwards = generate(model, PROMPTS[::-1], SAMPLED, keys=[14, 13, 12, 11, 10])
    assert [one.ids for one in forwards] == [one.ids for one in backwards[::-1]]


def test_stop_token_ends_its_row_only(build_model: Callable[..., Transformer]) -> None:
    model = build_model()
    free = generate(model, PROMPTS, GREEDY)
    eos = free[0].ids[2]
    for one, whole in zip(generate(model, PROMPTS, GenerationConfig(30, 0.0, eos_id=eos)), free, strict=True):
        expected = whole.ids[: whole.ids.index(eos)] if eos in whole.ids else whole.ids
        assert one.ids == expected
        assert one.finish_reason == ("stop" if eos in whole.ids else "length")


def test_shortest_context_rolls(build_model: Callable[..., Transformer]) -> None:
    model = build_model(max_seq_len=2)
    found = generate(model, [[1], [2, 3]], GREEDY)
    assert [one.ids for one in found] == [greedy_without_cache(model, prompt, 30) for prompt in ([1], [2, 3])]


@pytest.mark.parametrize("training", [True, False])
def test_mode_is_restored_and_dropout_is_off(build_model: Callable[..., Transformer], training: bool) -> None:
    model = build_model(drop_resid=0.5).train(training)
    first, second = (generate(model, PROMPTS, GREEDY) for _ in range(2))
    assert first == second
    assert model.training is training


@pytest.mark.parametrize(
    ("prompts", "keys", "message"),
    [
        ([[1], []], None, "prompt 1 is empty"),
        ([[1], [2, 31]], None, "ids from 2 to 31, expected 0 to 30"),
        ([[1], [2]], [0], "1 keys for 2 prompts"),
    ],
)
def test_wrong_prompts_are_refused(
    build_model: Callable[..., Transformer], prompts: list, keys: list | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        generate(build_model(), prompts, GREEDY, keys=keys)


def test_the_end_is_not_drawn_before_the_least_number_of_tokens(build_model: Callable[..., Transformer]) -> None:
    model = build_model()
    first = generate(model, [[1, 2]], GenerationConfig(4, 0.0))[0].ids[0]
    stopped = generate(model, [[1, 2]], GenerationConfig(4, 0.0, eos_id=first))[0]
    held = generate(model, [[1, 2]], GenerationConfig(4, 0.0, eos_id=first, min_new_tokens=2))[0]
    assert stopped.ids == []
    assert len(held.ids) >= 2
    assert first not in held.ids[:2]
