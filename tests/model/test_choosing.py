"""Choice of tokens: frequencies of each sampler, filters on a shortlist, penalties, forbidden tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from model import GenerationConfig
from model.sampling import Sampler, draw, ranked, token_probabilities, uniform_noise

SAMPLERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6},
    {"temperature": 3.0},
    {"top_k": 5},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"typical_p": 0.7},
    {"temperature": 1.4, "top_k": 20, "top_p": 0.9},
    {"temperature": 0.8, "top_p": 0.95, "min_p": 0.02},
    {"top_k": 30, "top_p": 0.95, "min_p": 0.01, "typical_p": 0.9, "temperature": 1.2},
]


def logits_of(vocab_size: int, seed: int = 0) -> torch.Tensor:
    """A peaked distribution, as a network's, over that many tokens."""
    noise = torch.randn(vocab_size, generator=torch.Generator().manual_seed(seed))
    return 2.5 * noise


def exact_distribution(logits: torch.Tensor, settings: dict[str, Any]) -> np.ndarray:
    """The definitions, written out on sorted probabilities."""
    scaled = logits.double().numpy() / settings.get("temperature", 1.0)
    p = np.exp(scaled - scaled.max())
    p /= p.sum()
    if "top_k" in settings:
        p[p < np.sort(p)[-min(settings["top_k"], len(p))]] = 0
        p /= p.sum()
    if "top_p" in settings:
        order = np.argsort(-p)
        n = int(np.searchsorted(p[order].cumsum(), settings["top_p"])) + 1
        p[order[n:]] = 0
        p /= p.sum()
    if "min_p" in settings:
        p[p < settings["min_p"] * p.max()] = 0
        p /= p.sum()
    if "typical_p" in settings:
        surprise = -np.log(p, where=p > 0, out=np.full(len(p), -np.inf))
        entropy = float((p * np.where(p > 0, surprise, 0)).sum())
        order = np.argsort(np.abs(surprise - entropy))
        n = int(np.searchsorted(p[order].cumsum(), settings["typical_p"])) + 1
        p[order[n:]] = 0
        p /= p.sum()
    return p


def chi_square(counts: np.ndarray, expected: np.ndarray) -> tuple[float, int]:
    """The statistic and its degrees of freedom; tokens with fewer than five expected are put together."""
    common = expected >= 5
    observed, awaited = [*counts[common], counts[~common].sum()], [*expected[common], expected[~common].sum()]
    if awaited[-1] < 5:
        observed, awaited = observed[:-1], awaited[:-1]
    o, e = np.array(observed), np.array(awaited)
    return float(((o - e) ** 2 / e).sum()), len(e) - 1


@pytest.mark.parametrize("settings", SAMPLERS, ids=str)
@pytest.mark.parametrize("vocab_size", [40, 1500])  # the second is large enough for a shortlist
def test_frequencies_follow_the_filtered_distribution(settings: dict[str, Any], vocab_size: int) -> None:
    logits, n_rows, n_rounds = logits_of(vocab_size), 500, 12
    chooser = Sampler(GenerationConfig(**settings), vocab_size, n_rows, 1)
    noise = torch.from_numpy(uniform_noise(3, 5, n_rows * n_rounds)).view(n_rounds, n_rows)
    drawn = [chooser.choose(logits.expand(n_rows, -1).clone(), uniform).tokens for uniform in noise]
    counts = torch.cat(drawn).bincount(minlength=vocab_size).numpy()
    p = exact_distribution(logits, settings)
    assert counts[p == 0].sum() == 0
    statistic, freedom = chi_square(counts, p * n_rows * n_rounds)
    # Wilson and Hilferty: the cube root of chi-square by its freedom is nearly normal; 4 deviations
    deviations = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / (2 / (9 * freedom)) ** 0.5
    assert deviations < 4


@pytest.mark.parametrize("settings", SAMPLERS, ids=str)
@pytest.mark.parametrize("step", [0.0, 0.5], ids=["distinct", "ties"])
def test_a_shortlist_gives_what_the_whole_vocabulary_gives(settings: dict[str, Any], step: float) -> None:
    vocab_size, n_rows = 3001, 64
    logits = torch.stack([logits_of(vocab_size, seed) for seed in range(n_rows)])
    if step:
        logits = (logits / step).round() * step
    uniform = torch.from_numpy(uniform_noise(1, 1, n_rows))
    config = GenerationConfig(**settings)
    filters = (config.top_k, config.top_p, config.min_p, config.typical_p)
    expected = draw(token_probabilities(logits, config.temperature, *filters), uniform)
    found = Sampler(config, vocab_size, n_rows, 1).choose(logits.clone(), uniform).tokens
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"top_k": 10_000}, 2000),
        ({"top_k": 1}, 1),
        ({"top_p": 0.0}, 1),
        ({"top_p": 1.0}, 2000),
        ({"min_p": 0.0}, 2000),
        ({"min_p": 1.0}, 1),
        ({"typical_p": 0.0}, 1),
        ({"typical_p": 1.0}, 2000),
        ({"temperature": 1e-300}, 1),
    ],
    ids=str,
)
def test_settings_at_their_ends(settings: dict[str, Any], kept: int) -> None:
    logits, n = logits_of(2000), 1500
    uniform = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    tokens = Sampler(GenerationConfig(**settings), 2000, n, 1).choose(logits.expand(n, -1).clone(), uniform).tokens
    if kept == 1:
        assert len(tokens.unique()) == 1
    else:
        expected = draw(token_probabilities(logits.expand(n, -1), 1.0), uniform)
        assert tokens.tolist() == expected.tolist()


@pytest.mark.parametrize("vocab_size", [7, 4096])
@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2.0**-53])
@pytest.mark.parametrize("settings", SAMPLERS, ids=str)
def test_the_ends_of_the_noise_give_possible_tokens(settings: dict[str, Any], uniform: float, vocab_size: int) -> None:
    logits = logits_of(vocab_size)
    config = GenerationConfig(**settings, suppress=(0, vocab_size - 1))
    chosen = Sampler(config, vocab_size, 1, 1).choose(logits[None].clone(), torch.tensor([uniform]).double())
    logits[[0, vocab_size - 1]] = -torch.inf
    assert exact_distribution(logits, settings)[int(chosen.tokens)] > 0


def remembering(config: GenerationConfig, vocab_size: int, prompt: list[int], made: list[int]) -> Sampler:
    """A chooser of one row that has read a prompt and made some tokens."""
    chooser = Sampler(config, vocab_size, 1, len(prompt) + len(made) + 1)
    chooser.begin(0, prompt)
    for token in made:
        chooser._remember(torch.tensor([token]))
    return chooser


def after(config: dict[str, Any], logits: list[float], prompt: list[int], made: list[int]) -> list[float]:
    """Logits as they are changed before the draw."""
    chooser = remembering(GenerationConfig(temperature=0.0, **config), len(logits), prompt, made)
    return chooser._changed(torch.tensor([logits]))[0].tolist()


def test_penalties_are_those_of_their_definitions() -> None:
    logits, prompt, made = [3.0, -1.0, 2.0, -2.0, 0.5], [0, 1, 0], [2, 2, 0]
    # the repetition penalty looks at prompt and continuation, the two others at the continuation
    repeated = after({"repetition_penalty": 2.0}, logits, prompt, made)
    assert repeated == pytest.approx([1.5, -2.0, 1.0, -2.0, 0.5])
    assert after({"frequency_penalty": 0.5}, logits, prompt, made) == pytest.approx([2.5, -1.0, 1.0, -2.0, 0.5])
    assert after({"presence_penalty": 0.5}, logits, prompt, made) == pytest.approx([2.5, -1.0, 1.5, -2.0, 0.5])
    together = {"repetition_penalty": 2.0, "frequency_penalty": 0.5, "presence_penalty": 0.25}
    assert after(together, logits, prompt, made) == pytest.approx([0.75, -2.0, -0.25, -2.0, 0.5])


def test_bias_is_added_behind_the_penalties() -> None:
    found = after({"repetition_penalty": 2.0, "logit_bias": {0: 1.0, 1: -4.0}}, [3.0, -1.0, 2.0], [0], [])
    assert found == pytest.approx([2.5, -5.0, 2.0])


@pytest.mark.parametrize(
    ("n", "prompt", "made", "banned"),
    [
        (2, [1, 2, 3], [1], {2}),
        (2, [1, 2, 1, 3], [1], {2, 3}),
        (3, [1, 2, 3, 4], [1, 2], {3}),
        (3, [1, 2, 3, 4], [2, 3], {4}),
        (3, [1], [2], set()),
        (1, [0, 4], [2], {0, 2, 4}),
        (9, [1, 2], [1], set()),
    ],
)
def test_no_ngram_comes_twice(n: int, prompt: list[int], made: list[int], banned: set[int]) -> None:
    found = after({"no_repeat_ngram": n}, [1.0] * 5, prompt, made)
    assert {token for token, logit in enumerate(found) if logit == -torch.inf} == banned


def test_rows_remember_for_themselves() -> None:
    config = GenerationConfig(temperature=0.0, no_repeat_ngram=1, frequency_penalty=1.0)
    chooser = Sampler(config, 5, 2, 4)
    chooser.begin(0, [1, 2])
    chooser.begin(1, [3])
    chooser.choose(torch.tensor([[0.0, 0, 0, 0, 1.0], [1.0, 0, 0, 0, 0]]))
    left = chooser._changed(torch.zeros(2, 5))
    assert (left == -torch.inf).tolist() == [[False, True, True, False, True], [True, False, False, True, False]]
    chooser.begin(0, [2])
    assert (chooser._changed(torch.zeros(2, 5))[0] == -torch.inf).tolist() == [False, False, True, False, False]


def test_the_best_tokens_come_with_the_models_own_log_probabilities() -> None:
    logits = logits_of(50)[None]
    config = GenerationConfig(temperature=2.0, top_k=2, top_logprobs=3, suppress=(int(logits.argmax()),))
    chosen = Sampler(config, 50, 1, 1).choose(logits.clone(), torch.tensor([0.1]).double())
    expected = logits.log_softmax(-1)
    assert chosen.top is not None
    (best,) = ranked(chosen.top)
    assert [token for token, _ in best] == expected.topk(3).indices[0].tolist()
    assert [value for _, value in best] == pytest.approx(expected.topk(3).values[0].tolist())
    assert float(chosen.logprobs) == pytest.approx(float(expected[0, int(chosen.tokens)]))
