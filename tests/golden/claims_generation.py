"""Claims on sampling and generation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from golden.registry import Entry, behaviour
from golden.shared import built, noise, numbers
from model import GenerationConfig, generate, preset
from model.sampling import filter_top_k, filter_top_p, token_probabilities


@behaviour("s000-logits-vs-prob-plot")
def probabilities_keep_the_order_of_logits(entry: Entry) -> None:
    inputs, corrected = entry["inputs"], entry["corrected"]
    p = token_probabilities(numbers(inputs["logits"]), 1.0)
    found = dict(zip(("W", "o", "space"), (p / p[0] * inputs["p_ref"]).tolist(), strict=True))
    assert {name: found[name] for name in corrected} == pytest.approx(corrected, abs=1e-9)
    assert all(abs(found[name] - printed) > 0.005 for name, printed in entry["expected"].items())


@behaviour("s000-logit52-two-probs")
def one_logit_of_one_row_has_one_probability(entry: Entry) -> None:
    """Each printed probability implies a sum of exponentials; beside the rest of that sum the project gives it back."""
    logit, printed = entry["inputs"]["logit"], list(entry["expected"].values())
    for probability, total in zip(printed, entry["implied_denominators"], strict=True):
        rest = math.log(total - math.exp(logit))
        assert token_probabilities(numbers([logit, rest]), 1.0)[0].item() == pytest.approx(probability, abs=1e-9)
    assert entry["implied_denominators"][0] != pytest.approx(entry["implied_denominators"][1], rel=0.5)


@behaviour("s001-topk-example")
def a_kept_logit_stays_as_it_is(entry: Entry) -> None:
    inputs = entry["inputs"]
    logits = -torch.arange(1.0, 129.0, dtype=torch.float64)
    logits[inputs["kept"]] = inputs["l0"]
    filtered = filter_top_k(logits, inputs["k"])
    assert filtered[inputs["kept"]].tolist() == [entry["corrected"]] * len(inputs["kept"])
    assert (filtered > -torch.inf).sum() == inputs["k"]


@behaviour("s001-topp-count")
def the_token_that_crosses_the_threshold_is_kept(entry: Entry) -> None:
    """Counted from 1 the crossing token is number 20 and 20 are kept; counted from 0 it would be 21."""
    inputs = entry["inputs"]
    for first, n_kept in ((1, entry["expected"]), (0, entry["expected"] + 1)):
        n_before = inputs["crossing_index"] - first
        before = np.linspace(2.0, 1.0, n_before)
        before *= (inputs["p"] - 0.01) / before.sum()
        crossing = inputs["cumulative"] - before.sum()
        tail = np.full(40, (1 - inputs["cumulative"]) / 40)
        logits = numbers([*before, crossing, *tail]).log()
        assert int((filter_top_p(logits, inputs["p"]) > -torch.inf).sum()) == n_kept


@behaviour("s004-topk-cap")
def top_k_beyond_the_vocabulary_keeps_all(entry: Entry) -> None:
    logits = noise(2, entry["inputs"]["V"])
    assert torch.equal(filter_top_k(logits, entry["inputs"]["k"]), logits)


@behaviour("s004-gen-window")
def generation_goes_on_beyond_the_context(entry: Entry) -> None:
    inputs = entry["inputs"]
    context = inputs["max_seq_len"]
    model = built(preset("tiny", 31, max_seq_len=context))
    config = GenerationConfig(inputs["max_new_tokens"], seed=1)
    answer = generate(model, [list(range(inputs["prompt_len"]))], config)[0]
    assert (len(answer.ids), answer.finish_reason) == (inputs["max_new_tokens"], "length")
    with pytest.raises(ValueError, match=f"longer than max_seq_len={context}"):
        model(torch.zeros(1, context + 1, dtype=torch.int64))
