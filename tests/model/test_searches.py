"""Beam search and contrastive search beside the definitions, and both greedy and beams beside `transformers`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hf_parity import random_theirs

from model import Completion, GenerationConfig, Transformer, from_hf, generate
from model.search import beam_search

EOS = 1


def beams_of(model: Transformer, prompt: list[int], limit: int, **settings: Any) -> list[tuple[float, Completion]]:
    return beam_search(model.eval(), prompt, limit, GenerationConfig(strategy="beam", **settings))


def contrastive(model: Transformer, prompt: list[int], **settings: Any) -> Completion:
    return generate(model, [prompt], GenerationConfig(10, strategy="contrastive", **settings))[0]


def exhaustive(
    model: Transformer, prompt: list[int], longest: int, length_penalty: float, eos: int | None
) -> list[tuple[float, list[int]]]:
    """Every continuation with its score, the best first."""
    vocab_size, found = model.config.vocab_size, []
    for length in range(1, longest + 1):
        for ids in itertools.product(range(vocab_size), repeat=length):
            if eos in ids[:-1] or (length < longest and ids[-1] != eos):
                continue
            with torch.no_grad():
                logprobs = model(torch.tensor([prompt + list(ids)])).double().log_softmax(-1)[0]
            total = sum(float(logprobs[len(prompt) - 1 + at, token]) for at, token in enumerate(ids))
            found.append((total / length**length_penalty, [token for token in ids if token != eos]))
    return sorted(found, key=lambda one: -one[0])


@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("eos", [EOS, None])
def test_enough_beams_find_what_an_exhaustive_search_finds(
    build_model: Callable[..., Transformer], length_penalty: float, eos: int | None
) -> None:
    model, prompt = build_model(vocab_size=4, seed=3), [2, 0, 3]
    expected = exhaustive(model, prompt, 4, length_penalty, eos)
    found = beams_of(model, prompt, 4, n_beams=300, length_penalty=length_penalty, eos_id=eos)
    assert [beam.ids for _, beam in found[:20]] == [ids for _, ids in expected[:20]]
    assert [score for score, _ in found] == pytest.approx([score for score, _ in expected], abs=1e-5)


def test_with_a_negative_length_penalty_what_is_cut_still_takes_part(build_model: Callable[..., Transformer]) -> None:
    for seed in range(20):
        model, prompt = build_model(vocab_size=3, seed=seed, init_std=0.5), [2, 0]
        best = exhaustive(model, prompt, 2, -2.0, EOS)[:3]
        found = beams_of(model, prompt, 2, n_beams=3, length_penalty=-2.0, eos_id=EOS)
        assert [score for score, _ in found] == pytest.approx([score for score, _ in best], abs=1e-5)


def test_one_beam_is_greedy(build_model: Callable[..., Transformer]) -> None:
    model = build_model()
    greedy = generate(model, [[1, 2, 3]], GenerationConfig(10, temperature=0.0))[0]
    ((score, beam),) = beams_of(model, [1, 2, 3], 10, n_beams=1, length_penalty=0.0)
    assert beam.ids == greedy.ids
    assert score == pytest.approx(sum(greedy.logprobs), abs=1e-4)


def test_more_beams_never_find_worse_ones_when_none_can_end(build_model: Callable[..., Transformer]) -> None:
    model = build_model(vocab_size=5)
    best = [beams_of(model, [1], 5, n_beams=n)[0][0] for n in (1, 625)]
    assert best[0] <= best[1]


@pytest.mark.parametrize("layout", ["gpt2", "llama", "qwen3"])
@pytest.mark.parametrize("number", [0, 2, 3])
def test_greedy_and_beams_are_those_of_transformers(layout: str, number: int, tmp_path: Path) -> None:
    theirs = random_theirs(layout, number)
    theirs.save_pretrained(tmp_path)
    ours = from_hf(tmp_path)
    prompt = [3, 5, 2]
    n_new = ours.config.max_seq_len - len(prompt)
    common = {"max_new_tokens": n_new, "do_sample": False, "pad_token_id": 0, "eos_token_id": EOS}
    with torch.no_grad():
        greedy = theirs.generate(torch.tensor([prompt]), **common)[0, len(prompt) :].tolist()
        beams = theirs.generate(
            torch.tensor([prompt]),
            **common,
            num_beams=3,
            num_return_sequences=3,
            early_stopping="never",
            length_penalty=1.3,
            return_dict_in_generate=True,
            output_scores=True,
        )
    found = generate(ours, [prompt], GenerationConfig(n_new, temperature=0.0, eos_id=EOS))[0].ids
    assert found == [token for token in greedy if token != EOS]
    ours_best = beams_of(ours, prompt, n_new, n_beams=3, length_penalty=1.3, eos_id=EOS)
    rows = [row[len(prompt) :].tolist() for row in beams.sequences]
    assert [beam.ids for _, beam in ours_best] == [row[: row.index(EOS)] if EOS in row else row for row in rows]
    assert [score for score, _ in ours_best] == pytest.approx(beams.sequences_scores.tolist(), abs=1e-4)


@pytest.mark.parametrize("settings", [{}, {"pos": "rope", "norm": "rmsnorm"}], ids=str)
@pytest.mark.parametrize(("top_k", "alpha"), [(4, 0.6), (2, 0.9), (31, 0.3), (100, 1.0), (5, 0.0)])
def test_contrastive_search_is_its_definition(
    build_model: Callable[..., Transformer], settings: dict[str, str], top_k: int, alpha: float
) -> None:
    model, ids = build_model(**settings), [1, 2, 3]
    found = contrastive(model, ids, top_k=top_k, alpha=alpha)
    for token in found.ids:
        with torch.no_grad():
            p = model(torch.tensor([ids]))[0, -1].softmax(-1)
            scores = {}
            for candidate in p.topk(min(top_k, 31)).indices.tolist():
                states = F.normalize(model.features(torch.tensor([[*ids, candidate]]))[0], dim=-1)
                scores[candidate] = float((1 - alpha) * p[candidate] - alpha * (states[:-1] @ states[-1]).max())
        assert scores[token] == pytest.approx(max(scores.values()), abs=1e-5)
        ids = [*ids, token]
    assert len(found.ids) == 10


def test_contrastive_search_without_contrast_is_greedy(build_model: Callable[..., Transformer]) -> None:
    model = build_model()
    found = contrastive(model, [4, 5], top_k=6, alpha=0.0)
    greedy = generate(model, [[4, 5]], GenerationConfig(10, temperature=0.0))[0]
    assert found.ids == greedy.ids
    assert found.logprobs == pytest.approx(greedy.logprobs, abs=1e-5)
    end = greedy.ids[3]
    ended = contrastive(model, [4, 5], top_k=6, alpha=0.0, eos_id=end)
    assert (ended.ids, ended.finish_reason) == (greedy.ids[: greedy.ids.index(end)], "stop")


@pytest.mark.parametrize("strategy", ["beam", "contrastive"])
def test_what_does_not_fit_the_context_is_refused(build_model: Callable[..., Transformer], strategy: str) -> None:
    model = build_model().train()
    with pytest.raises(ValueError, match="has 10 tokens, 17 with max_new_tokens=7, and the context holds 16"):
        generate(model, [[1] * 10], GenerationConfig(7, strategy=strategy))
    with pytest.raises(ValueError, match="prompt 0 is empty"):
        generate(model, [[]], GenerationConfig(7, strategy=strategy))
    generate(model, [[1] * 10], GenerationConfig(6, strategy=strategy))
    assert model.training


@pytest.mark.parametrize("strategy", ["beam", "contrastive"])
def test_a_network_of_nan_is_told_and_not_continued(build_model: Callable[..., Transformer], strategy: str) -> None:
    model = build_model(pos="learned")
    assert model.position_table is not None
    with torch.no_grad():
        model.position_table[2] = torch.nan
    with pytest.raises(ValueError, match="the network's logits are NaN behind prompt 1"):
        generate(model, [[1], [2, 3, 4]], GenerationConfig(2, strategy=strategy))
