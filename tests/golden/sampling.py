"""Sampling: temperature, the filters, the draw, greedy answers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from golden.registry import Entry, Found, operation
from golden.shared import numbers
from model import GenerationConfig, Transformer, generate, preset
from model.kernels import linear_nll
from model.sampling import draw, filter_top_k, filter_top_p, token_probabilities


def kept(logits: Tensor) -> list[int]:
    """Ids that a filter leaves, the likeliest first."""
    n_kept = int((logits > -torch.inf).sum())
    return logits.sort(descending=True, stable=True).indices[:n_kept].tolist()


@operation("softmax_temperature")
def softmax_temperature(logits: Any, T: list[float]) -> list[Tensor]:
    return [token_probabilities(numbers(logits), temperature) for temperature in T]


@operation("softmax_vec")
def softmax_vec(logits: Any) -> Found:
    probabilities = token_probabilities(numbers(logits), 1.0)
    return Found(probabilities, printed=probabilities.sum())


@operation("softmax_ratios")
def softmax_ratios(logits: Any, T: float) -> dict[str, Tensor]:
    p = token_probabilities(numbers(logits), T)
    return {"p0_over_p1": p[0] / p[1], "p2_over_p0": p[2] / p[0]}


@operation("softmax_upper_bound")
def softmax_upper_bound(visible_logits: Any, V: int) -> Tensor:
    assert len(visible_logits) <= V  # every further logit lowers it
    return token_probabilities(numbers(visible_logits), 1.0).max()


@operation("prob_by_ratio")
def prob_by_ratio(p_ref: float, logit_ref: float, logits: Any) -> Tensor:
    p = token_probabilities(numbers([logit_ref, *logits]), 1.0)
    return p[1:] / p[0] * p_ref


@operation("stable_softmax")
def stable_softmax(z: Any) -> dict[str, Any]:
    logits = numbers(z)
    eye = torch.eye(len(logits), dtype=torch.float64)
    log_softmax = [-linear_nll(logits[None], eye, torch.tensor([label])) for label in range(len(logits))]
    return {"softmax": token_probabilities(logits, 1.0), "log_softmax": log_softmax}


@operation("topk_indices")
def topk_indices(x: Any, k: int) -> list[int]:
    return kept(filter_top_k(numbers(x), k))


@operation("topk_probs")
def topk_probs(p: Any, k: int) -> Tensor:
    return token_probabilities(numbers(p).log(), 1.0, top_k=k)


@operation("topk_mass")
def topk_mass(logits: Any, k: int) -> Found:
    return Found(token_probabilities(numbers(logits), 1.0, top_k=k).sum())


@operation("topk_filter_logits")
def topk_filter_logits(logits: Any, k: int) -> Found:
    filtered = filter_top_k(numbers(logits), k)
    removed = filtered == -torch.inf
    zeroed = token_probabilities(filtered.masked_fill(removed, 0.0), 1.0)
    return Found(filtered, extras={"leaked_mass": zeroed[removed].sum()})


@operation("nucleus_sizes")
def nucleus_sizes(p_sorted: Any, thresholds: list[float]) -> list[int]:
    """The printed probabilities are a prefix; less likely tokens make up the rest."""
    p = numbers(p_sorted)
    n_rest = math.ceil(float((1 - p.sum()) / p.min())) + 1
    logits = torch.cat((p, ((1 - p.sum()) / n_rest).expand(n_rest))).log()
    return [len(kept(filter_top_p(logits, threshold))) for threshold in thresholds]


@operation("nucleus_ids")
def nucleus_ids(p: float, probs: Any) -> list[int]:
    return kept(filter_top_p(numbers(probs).log(), p))


@operation("nucleus_tie")
def nucleus_tie(entry: Entry, p: float, probs: Any) -> Found:
    ids = kept(filter_top_p(numbers(probs).log(), p))
    value = ids if isinstance(entry["corrected"], list) else len(ids)
    return Found(value, printed=dict.fromkeys(entry["expected"], value))  # two rules that should be one


@operation("inverse_cdf")
def inverse_cdf(logits: Any, T: float, r: Any) -> Tensor:
    p = token_probabilities(numbers(logits), T)
    return draw(p.expand(len(r), -1), numbers(r))


def greedy(logits: Tensor) -> int:
    """What generation at temperature 0 answers if the network's logits are these."""
    config = preset("llama_toy", len(logits), head_bias=True)
    model = Transformer(config).double()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    model.head_bias.data = logits
    return generate(model, [[0]], GenerationConfig(1, temperature=0.0))[0].ids[0]


@operation("argmax")
def argmax(x: Any) -> list[int]:
    return [greedy(numbers(x))]


@operation("argmax_index")
def argmax_index(n_rows: int) -> int:
    return greedy(torch.arange(n_rows, dtype=torch.float64))


@operation("last_row_index")
def last_row_index(n: int) -> int:
    """The row of the logits that the next token comes from."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Transformer(preset("tiny", 97, init_std=0.5)).eval()
    ids = list(range(n))
    answer = generate(model, [ids], GenerationConfig(1, temperature=0.0))[0]
    candidates = model(torch.tensor([ids]))[0].log_softmax(dim=-1)[:, answer.ids[0]]
    (place,) = ((candidates - answer.logprobs[0]).abs() < 1e-4).nonzero()[:, 0].tolist()
    return place
