"""The engine: it computes what the network computes, whatever shares the batch, and ends rows where they should end."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from network_variants import VARIANTS

from model import Completion, GenerationConfig, Transformer, generate, prompt_problem, stream
from model.generation import Engine, Row
from model.kv_cache import GraphedStep, KVCache

PROMPTS = [[(7 * place + start) % 31 for place in range(1 + (5 * start) % 13)] for start in range(13)]
LIMITS = [1 + (3 * number) % 11 for number in range(13)]
GREEDY = GenerationConfig(max_new_tokens=24, temperature=0.0)
SAMPLED = GenerationConfig(max_new_tokens=24, temperature=1.3, top_k=20, top_p=0.97, seed=8)
WORDS = [chr(ord("a") + token) if token < 26 else f"<{token}>" for token in range(31)]


def text_of(before: Sequence[int], ids: Sequence[int]) -> str:
    """Tokens as text: letters, and five longer tokens."""
    return "".join(WORDS[token] for token in ids)


def logits_without_cache(model: Transformer, window: Sequence[int]) -> torch.Tensor:
    """Logits (V) behind a window, by one pass over it."""
    with torch.no_grad():
        return model(torch.tensor([window]))[0, -1, : model.config.vocab_size]


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_every_architecture_decodes_what_it_computes_without_a_cache(
    build_model: Callable[..., Transformer], settings: dict[str, Any]
) -> None:
    model = build_model(**settings)
    context = model.config.max_seq_len
    config = GenerationConfig(max_new_tokens=12, temperature=0.0, top_logprobs=3)
    for completion in generate(model, PROMPTS[:5], config, batch_size=3):
        window = list(PROMPTS[completion.prompt])
        for token, best in zip(completion.ids, completion.top_logprobs, strict=True):
            expected = logits_without_cache(model, window).log_softmax(-1).topk(3)
            assert [logprob for _, logprob in best] == pytest.approx(expected.values.tolist(), abs=2e-4)
            assert token == best[0][0]
            window.append(token)
            if len(window) > context:
                window = window[-(context // 2) - 1 :]


@pytest.mark.parametrize("config", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("batch_size", [1, 2, 4, 13, 64])
def test_rows_that_take_the_place_of_ended_ones_get_what_they_get_alone(
    build_model: Callable[..., Transformer], config: GenerationConfig, batch_size: int
) -> None:
    model = build_model(pos="rope")
    # an end token makes rows end at different times, so that slots are taken over while others go on
    config = dataclasses.replace(config, eos_id=7, stop_ids=(4,))
    together = generate(model, PROMPTS, config, batch_size=batch_size)
    alone = [generate(model, [prompt], config, keys=[key])[0] for key, prompt in enumerate(PROMPTS)]
    assert len({len(one.ids) for one in alone}) > 4
    assert [(one.ids, one.finish_reason) for one in together] == [(one.ids, one.finish_reason) for one in alone]
    assert [one.prompt for one in together] == list(range(13))


@pytest.mark.parametrize(
    ("settings", "config"),
    [
        ({"pos": "rope", "n_head": 4, "n_kv_head": 2, "act": "swiglu"}, SAMPLED),
        pytest.param({"pos": "rope", "n_head": 4, "n_kv_head": 2, "act": "swiglu"}, GREEDY, marks=pytest.mark.full),
        pytest.param({}, GenerationConfig(24, top_p=0.9), marks=pytest.mark.full),
    ],
    ids=["groups, k, p", "groups, greedy", "p"],
)
def test_deterministic_rows_are_equal_to_the_bit_in_any_batch_and_order(
    build_model: Callable[..., Transformer], config: GenerationConfig, settings: dict[str, Any]
) -> None:
    model = build_model(d_model=32, vocab_size=1031, **settings)
    config = dataclasses.replace(config, deterministic=True, eos_id=3, top_logprobs=2)

    def run(order: Sequence[int], batch_size: int) -> list[tuple[list[int], list[float], Any]]:
        found = generate(model, [PROMPTS[at] for at in order], config, keys=list(order), batch_size=batch_size)
        return [(one.ids, one.logprobs, one.top_logprobs) for one in found]

    alone = [run([at], 1)[0] for at in range(len(PROMPTS))]
    for batch_size in (3, 16):
        assert run(range(13), batch_size) == alone
        assert run(range(12, -1, -1), batch_size) == alone[::-1]


@pytest.mark.full
def test_deterministic_rows_do_not_see_how_long_their_neighbours_are(build_model: Callable[..., Transformer]) -> None:
    model = build_model(d_model=32, vocab_size=1031, max_seq_len=300, pos="rope", act="swiglu", norm="rmsnorm")
    prompts = [[(7 * place + start) % 31 for place in range(length)] for start, length in enumerate((2, 60, 130, 200))]
    config = dataclasses.replace(SAMPLED, deterministic=True, max_new_tokens=70)
    alone = [generate(model, [prompt], config, keys=[key])[0] for key, prompt in enumerate(prompts)]
    together = generate(model, prompts, config)
    assert [(one.ids, one.logprobs) for one in together] == [(one.ids, one.logprobs) for one in alone]


@pytest.mark.parametrize("overflow", ["roll", "stop"])
@pytest.mark.parametrize("config", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_ends_that_are_noticed_a_step_late_change_nothing(
    build_model: Callable[..., Transformer], config: GenerationConfig, overflow: str
) -> None:
    model = build_model(pos="rope")
    config = dataclasses.replace(config, eos_id=7, overflow=overflow)
    expected = generate(model, PROMPTS, config)
    rows = [Row(prompt, key, Completion(key), 24, config.seed, config.stop) for key, prompt in enumerate(PROMPTS)]
    engine = Engine(model, config, 4, text_of, rows)
    engine.overlap = True  # as on a GPU
    told = [row.completion.prompt for finished in engine.run() for row in finished]
    assert sorted(told) == list(range(13))
    made = [(row.completion.ids, row.completion.finish_reason, row.completion.stopped_by) for row in rows]
    assert made == [(one.ids, one.finish_reason, one.stopped_by) for one in expected]


def test_each_prompt_may_have_its_own_limit(build_model: Callable[..., Transformer]) -> None:
    model = build_model()
    whole = generate(model, PROMPTS, SAMPLED)
    found = generate(model, PROMPTS, SAMPLED, limits=LIMITS, batch_size=4)
    assert [one.ids for one in found] == [one.ids[:limit] for one, limit in zip(whole, LIMITS, strict=True)]
    for limits in (LIMITS[1:], [0, *LIMITS[1:]], [25, *LIMITS[1:]]):
        with pytest.raises(ValueError, match=r"expected numbers from 1 to \[24, 24, .*, one for each prompt"):
            generate(model, PROMPTS, SAMPLED, limits=limits)


def test_samples_of_a_prompt_differ_and_each_repeats(build_model: Callable[..., Transformer]) -> None:
    model = build_model()
    config = dataclasses.replace(SAMPLED, n_samples=3)
    found = generate(model, PROMPTS[:2], config, batch_size=4)
    assert [(one.prompt, one.sample) for one in found] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert len({tuple(one.ids) for one in found}) == 6
    assert [one.ids for one in found] == [one.ids for one in generate(model, PROMPTS[:2], config, batch_size=1)]
    assert found[0].ids == generate(model, PROMPTS[:1], SAMPLED)[0].ids


def test_completions_are_told_as_they_finish(build_model: Callable[..., Transformer]) -> None:
    told: list[Completion] = []
    steps: list[tuple[int, int]] = []
    config = dataclasses.replace(GREEDY, eos_id=3, n_samples=2)
    found = generate(
        build_model(),
        PROMPTS,
        config,
        batch_size=4,
        on_finished=told.append,
        on_step=lambda *step: steps.append(step),
    )
    assert sorted((one.prompt, one.sample) for one in told) == [(one.prompt, one.sample) for one in found]
    assert all(one.finish_reason for one in told)
    assert steps[-1] == (26, 26)
    assert steps == sorted(steps)


def test_a_stream_grows_to_what_generate_gives(build_model: Callable[..., Transformer]) -> None:
    model = build_model().train()
    lengths, reasons = [], []
    for completion in stream(model, PROMPTS[4], SAMPLED, key=4):
        lengths.append(len(completion.ids))
        reasons.append(completion.finish_reason)
    assert lengths == list(range(1, 25))
    assert reasons == [""] * 23 + ["length"]
    assert completion.ids == generate(model, [PROMPTS[4]], SAMPLED, keys=[4])[0].ids
    assert model.training


def test_a_stream_that_is_left_early_gives_the_network_back(build_model: Callable[..., Transformer]) -> None:
    model = build_model().train()
    growing = stream(model, [1, 2], GREEDY)
    next(growing)
    growing.close()
    assert model.training


def test_changed_weights_are_seen_by_the_next_call(build_model: Callable[..., Transformer]) -> None:
    model, other = build_model(), build_model(seed=5)
    before = generate(model, PROMPTS, GREEDY)
    with torch.no_grad():
        for mine, new in zip(model.parameters(), other.parameters(), strict=True):
            mine.data.copy_(new)  # past the counter that autograd keeps
    assert generate(model, PROMPTS, GREEDY) == generate(other, PROMPTS, GREEDY) != before


@pytest.mark.parametrize(
    "stop",
    [["e"], ["<27"], *(pytest.param(stop, marks=pytest.mark.full) for stop in (["qq", "e"], ["7>"], ["<2", "zz"]))],
    ids=str,
)
@pytest.mark.parametrize("batch_size", [pytest.param(1, marks=pytest.mark.full), 6])
def test_a_stop_string_ends_the_row_with_the_token_that_completes_it(
    build_model: Callable[..., Transformer], stop: list[str], batch_size: int
) -> None:
    model = build_model()
    config = dataclasses.replace(SAMPLED, max_new_tokens=40, stop=tuple(stop))
    whole = generate(model, PROMPTS, dataclasses.replace(config, stop=()))
    found = generate(model, PROMPTS, config, decode=text_of, batch_size=batch_size)
    for one, free in zip(found, whole, strict=True):
        texts = [text_of([], free.ids[:n]) for n in range(1, 41)]
        hits = [n for n, text in enumerate(texts, 1) if any(part in text for part in stop)]
        assert one.ids == free.ids[: hits[0] if hits else 40]
        assert one.finish_reason == ("stop" if hits else "length")
        assert (one.stopped_by in stop) == bool(hits)
    assert any(one.finish_reason == "stop" for one in found)


def test_a_stop_string_may_lie_across_many_tokens(build_model: Callable[..., Transformer]) -> None:
    model = build_model()
    free = generate(model, [[1, 2]], SAMPLED)[0]
    text = text_of([], free.ids[3:11])
    config = dataclasses.replace(SAMPLED, stop=(text,))
    found = generate(model, [[1, 2]], config, decode=text_of)[0]
    assert (found.ids, found.stopped_by) == (free.ids[:11], text)


def test_stop_strings_are_not_looked_for_before_the_least_number_of_tokens(
    build_model: Callable[..., Transformer],
) -> None:
    model = build_model()
    free = generate(model, [[1, 2]], SAMPLED)[0]
    early = text_of([], free.ids[:1])
    config = dataclasses.replace(SAMPLED, stop=(early,), min_new_tokens=3)
    found = generate(model, [[1, 2]], config, decode=text_of)[0]
    later = [n for n in range(3, 25) if early in text_of([], free.ids[n - 1 : n])]
    assert len(found.ids) == (later[0] if later else 24)


def test_a_step_that_cannot_be_captured_is_computed_and_told(
    build_model: Callable[..., Transformer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("no memory for graphs\nsecond line")

    monkeypatch.setattr(GraphedStep, "_capture", fails)
    model = build_model().eval()
    ids, plain = torch.tensor([3, 4]), KVCache(model.config, 2)
    with torch.inference_mode():
        step = GraphedStep(model, KVCache(model.config, 2))
        with pytest.warns(UserWarning, match="without one, which is slower: no memory for graphs$"):
            found = step(ids)
        assert torch.equal(found, model.next_logits(ids, plain.slots(2, 1)))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            step(ids)


def test_stop_strings_need_a_decoder(build_model: Callable[..., Transformer]) -> None:
    with pytest.raises(ValueError, match=r"stop=\('x',\) needs decode"):
        generate(build_model(), [[1]], dataclasses.replace(GREEDY, stop=("x",)))


def test_overflow_stop_ends_where_the_context_is_full(build_model: Callable[..., Transformer]) -> None:
    model = build_model()
    rolled = generate(model, PROMPTS, GREEDY)
    for one, free in zip(generate(model, PROMPTS, dataclasses.replace(GREEDY, overflow="stop")), rolled, strict=True):
        room = 16 - len(PROMPTS[one.prompt]) + 1  # the last token is predicted behind a full context
        assert one.ids == free.ids[:room]
        assert one.finish_reason == ("context" if room < 24 else "length")


def test_overflow_refuse_names_the_prompt(build_model: Callable[..., Transformer]) -> None:
    model = build_model()
    config = GenerationConfig(max_new_tokens=6, temperature=0.0, overflow="refuse")
    fits, too_long = [1] * 10, [1] * 11
    assert prompt_problem(fits, config, model.config) == ""
    assert len(generate(model, [fits], config)[0].ids) == 6
    with pytest.raises(ValueError, match="prompt 1 has 11 tokens, 17 with max_new_tokens=6, and the context holds 16"):
        generate(model, [fits, too_long], config)


def test_a_row_in_which_every_token_is_forbidden_ends(build_model: Callable[..., Transformer]) -> None:
    config = GenerationConfig(max_new_tokens=60, temperature=1.0, no_repeat_ngram=1, suppress=(0,))
    found = generate(build_model(), [[1, 2, 3], [4]], config)
    assert [one.finish_reason for one in found] == ["exhausted", "exhausted"]
    for one, prompt in zip(found, ([1, 2, 3], [4]), strict=True):
        assert sorted([*prompt, *one.ids]) == list(range(1, 31))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"suppress": tuple(range(31))}, "suppress has all 31 tokens"),
        ({"suppress": (31,)}, "suppress names token 31; the model's tokens are 0 to 30"),
        ({"logit_bias": {40: 1.0}}, "logit_bias names token 40"),
        ({"stop_ids": (31,), "min_new_tokens": 2}, "stop_ids names token 31"),
        ({"eos_id": 31, "min_new_tokens": 2}, "eos_id names token 31"),
    ],
)
def test_settings_that_do_not_suit_the_model_are_refused(
    build_model: Callable[..., Transformer], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        generate(build_model(), [[1]], dataclasses.replace(GREEDY, **settings))


def test_no_ngram_repeats_across_prompt_and_continuation(build_model: Callable[..., Transformer]) -> None:
    config = dataclasses.replace(GREEDY, no_repeat_ngram=2, max_new_tokens=60)
    for one in generate(build_model(), PROMPTS, config):
        ids = [*PROMPTS[one.prompt], *one.ids]
        new = [tuple(ids[at : at + 2]) for at in range(max(0, len(PROMPTS[one.prompt]) - 1), len(ids) - 1)]
        old = {tuple(ids[at : at + 2]) for at in range(len(PROMPTS[one.prompt]) - 1)}
        assert len(set(new)) == len(new)
        assert not old & set(new)


@pytest.mark.parametrize("deterministic", [False, True])
def test_rows_that_come_and_go_while_others_run_change_nothing(
    build_model: Callable[..., Transformer], deterministic: bool
) -> None:
    model = build_model(pos="rope").eval()
    config = dataclasses.replace(SAMPLED, deterministic=deterministic, seed=0)
    stops = [("bc",), (), ("q", "zz")]
    rows = [
        Row(prompt, 0, Completion(), limit, seed, stops[seed % 3])
        for seed, (prompt, limit) in enumerate(zip(PROMPTS, LIMITS, strict=True))
    ]
    engine = Engine(model, config, 8, text_of)
    dropped = Row(PROMPTS[3], 0, Completion(), 24)
    engine.add(dropped)
    for place, row in enumerate(rows):
        engine.add(row)
        engine.step()
        if place == 2:
            engine.drop(dropped)
    for _ in engine.run():
        pass
    assert len(dropped.completion.ids) < 24
    for row in rows:
        alone = dataclasses.replace(config, seed=row.seed, stop=row.stop, max_new_tokens=row.limit)
        (expected,) = generate(model, [row.prompt], alone, keys=[0], decode=text_of)
        assert (row.completion.ids, row.completion.finish_reason) == (expected.ids, expected.finish_reason)
        assert row.completion.logprobs == (expected.logprobs if deterministic else pytest.approx(expected.logprobs))


def test_what_is_cropped_off_a_prompt_is_no_longer_remembered(build_model: Callable[..., Transformer]) -> None:
    model, end = build_model(), [(5 * place) % 31 for place in range(16)]
    config = GenerationConfig(max_new_tokens=12, seed=3, repetition_penalty=1.5, no_repeat_ngram=2)
    short, long = (generate(model, [prompt], config)[0].ids for prompt in (end, [*range(31), *end]))
    assert long == short
    row = Row([1] * 10_000, 0, Completion(), 12)
    assert Engine(model, config, 1, rows=[row]).sampler.history.shape[1] == 16 + 12


@pytest.mark.parametrize("vocab_size", [31, 2000], ids=["all", "shortlist"])
@pytest.mark.parametrize(
    "settings",
    [{"temperature": 0.0}, {}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}, {"typical_p": 0.5}],
    ids=str,
)
def test_a_network_that_gives_no_numbers_is_told(
    build_model: Callable[..., Transformer], settings: dict[str, Any], vocab_size: int
) -> None:
    model = build_model(vocab_size=vocab_size, pos="learned")
    assert model.position_table is not None
    with torch.no_grad():
        model.position_table[2] = torch.nan
    with pytest.raises(ValueError, match="the network's logits are NaN after prompt 1"):
        generate(model, [[1], [2, 3, 4]], GenerationConfig(max_new_tokens=4, **settings))
