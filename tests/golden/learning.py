"""Training and sampling: loss, optimisers, clipping, schedules, initial weights, filters, draws, greedy answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from golden.registry import Entry, Found, Function
from golden.shared import float64, numbers, small_config
from model import GenerationConfig, NllSum, TrainConfig, Transformer, generate, preset, schedule
from model.data import IGNORE
from model.metrics import unigram_log_probabilities
from model.optim import AdamStep, adam_walk, clip_gradients
from model.sampling import draw, filter_top_k, filter_top_p, running_sum, token_probabilities
from model.transformer import linear_nll

# loss


def _nll_of(logits: Tensor, labels: list[int]) -> Tensor:
    """Summed nll of labels (T,) under logits (T, V)."""
    return linear_nll(logits, torch.eye(logits.shape[-1], dtype=logits.dtype), torch.tensor(labels))


def _nll_sums(p: Tensor) -> list[NllSum]:
    """Of tokens that have these probabilities among two."""
    return [NllSum(float(_nll_of(torch.stack((one, 1 - one))[None].log(), [0])), 1) for one in p]


def cross_entropy_grad(logits: Any, labels: list[int]) -> dict[str, Any]:
    scores = numbers(logits).requires_grad_()
    total, n_valid = _nll_of(scores, labels), sum(label != IGNORE for label in labels)
    (total / n_valid).backward()
    found = NllSum(total.item(), n_valid)
    probabilities = token_probabilities(scores.detach(), 1.0)
    return {"loss": found.loss, "perplexity": found.perplexity, "grad": scores.grad, "probabilities": probabilities}


def uniform_ppl(V: int) -> dict[str, Any]:
    nll = linear_nll(torch.zeros(3, 2, dtype=torch.float64), torch.zeros(V, 2, dtype=torch.float64), torch.arange(3))
    found = NllSum(float(nll), 3)
    return {"loss": found.loss, "perplexity": found.perplexity}


def chain_rule(conditionals: Any) -> dict[str, Any]:
    total = sum(_nll_sums(numbers(conditionals)), NllSum())
    return {
        "p": 1 / NllSum(total.nll_nats, 1).perplexity,
        "nll": total.nll_nats,
        "ppl": total.perplexity,
        "loss": total.loss,
    }


def loss_mean(token_nll: Any) -> Found:
    """The document's formula has one sum per sequence, its code one mean over all tokens."""
    sequences = [sum(map(_nll_of_token, row), NllSum()) for row in token_nll]
    per_sequence = sum((NllSum(row.nll_nats, 1) for row in sequences), NllSum()).loss
    return Found({"per_token": sum(sequences, NllSum()).loss}, parts={"per_sequence": per_sequence})


def _nll_of_token(nll: float) -> NllSum:
    return _nll_sums(numbers([-nll]).exp())[0]


def valid_targets(labels: Any, ignore_index: int) -> dict[str, Any]:
    assert ignore_index == IGNORE
    wanted = torch.tensor(labels)
    model = Transformer(preset("sheepop", n_layer=1)).eval()
    logits = model(wanted.clamp(min=0)).detach()
    nll = _nll_of(torch.zeros(logits.flatten(0, 1).shape, dtype=torch.float64), wanted.flatten().tolist())
    return {
        "flat": wanted.flatten(),
        "n_valid": round(float(nll) / math.log(logits.shape[-1]), 9),  # each one costs the log of the vocabulary
        "logits_shape": list(logits.shape),
        "flat_shape": list(logits.flatten(0, 1).shape),
    }


def log(x: Any) -> list[float]:
    return [float(unigram_log_probabilities(numbers([p - 1, -p]).numpy())[0]) for p in x]  # one is added to each count


def exp_over(logit: float, denominator: float) -> Tensor:
    rest = math.log(denominator - NllSum(logit, 1).perplexity)
    return token_probabilities(numbers([logit, rest]), 1.0)[:1]


# optimisers

NAMES = {  # the file's names of a step's quantities
    **{name: name for name in AdamStep.__dataclass_fields__},
    **{"mhat": "m_hat", "vhat": "v_hat", "sqrt_vhat": "sqrt_v_hat", "update": "bracket"},
}


def optimizer_steps(
    entry: Entry,
    theta0: float,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    grads: list[float],
    weight_decay: float = 0.0,
    fields: Sequence[str] = ("theta",),
) -> Found:
    """Quantities of the last step, or of all steps where the entry states lists of them."""
    kind = entry["op"].removesuffix("_steps")
    steps = _walk(kind, theta0, lr, beta1, beta2, eps, weight_decay, grads)
    unknown = [name for name in fields if name not in NAMES]
    assert not unknown, f"{entry['id']}: a step has no {', '.join(unknown)}; it has {', '.join(NAMES)}"
    stated = next(entry[name] for name in ("exact", "corrected", "expected", "inputs") if entry.get(name) is not None)
    last = {name: steps[-1][name] for name in NAMES}
    columns = {name: [step[name] for step in steps] for name in NAMES}
    if isinstance(stated, list) and isinstance(stated[0], dict):
        value: Any = steps
    elif isinstance(stated, list) and isinstance(stated[0], list):
        value = [[step[name] for name in fields] for step in steps]
    elif isinstance(stated, list):
        value = [last[name] for name in fields] if "fields" in entry["inputs"] else columns["theta"]
    else:
        value = {name: columns[name] if isinstance(stated.get(name), list) else last[name] for name in NAMES}
    parts = {name: columns[name] if isinstance(entry.get(name), list) else last[name] for name in NAMES}
    return Found(value, parts={**parts, "steps": steps})


def _walk(
    kind: str, theta0: float, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, grads: list[float]
) -> list[dict[str, float]]:
    """All quantities of each step by the names that the file has for them."""
    decay = None if kind == "adam" and not weight_decay else weight_decay
    settings = {"lr": lr, "betas": (beta1, beta2), "eps": eps, "weight_decay": decay}
    steps = adam_walk(TrainConfig(len(grads), optimizer=kind, **settings), theta0, grads)
    return [{name: getattr(step, own) for name, own in NAMES.items()} for step in steps]


def bias_denoms(beta1: float, beta2: float, t: int) -> list[float]:
    step = _walk("adam", 0.0, 1e-3, beta1, beta2, 1e-8, 0.0, [1.0] * t)[-1]
    return [step["m"] / step["mhat"], step["v"] / step["vhat"]]


def _clipped(g: Any, max_norm: float) -> tuple[Tensor, float]:
    """Gradient and norm from the function that training clips with."""
    parameter = nn.Parameter(torch.zeros(len(g), dtype=torch.float64))
    parameter.grad = numbers(g)
    norm = clip_gradients([parameter], max_norm)
    return parameter.grad, norm


def clip_by_norm(g: Any, max_norm: float) -> Found:
    gradient, norm = _clipped(g, max_norm)
    # torch divides by the norm plus 1e-6, which moves the result by less than 1e-6; taken out to compare all digits
    exact = gradient * (norm + 1e-6) / norm if norm > max_norm else gradient
    factor = float((exact.norm() / norm).clamp(max=1.0))
    return Found(exact, parts={"norm": norm, "sumsq": norm**2, "factor": factor, "clipped_norm": exact.norm()})


def l2norm(g: Any) -> list[float]:
    return [_clipped(g, 0.0)[1]]


# schedules and initial weights


def cosine_lr(eta_max: float, eta_min: float, T_max: int, t: list[int]) -> list[float]:
    return [schedule.cosine(step, eta_max, eta_min, T_max) for step in t]


def xavier_std(fan_in: int, fan_out: int) -> Found:
    """From two networks with the same noise: their weights differ by the standard deviation only."""

    def matrix(**fields: Any) -> Tensor:
        config = small_config(d_model=fan_in, d_ff=fan_out, init_residual_scaling=False, **fields)
        with float64(), torch.random.fork_rng():
            torch.manual_seed(0)
            return Transformer(config).blocks[0].mlp.up.weight.detach()

    ratio = matrix(init="xavier", init_std=1.0) / matrix(init="normal", init_std=1.0)
    std = ratio.mean()
    assert torch.allclose(ratio, std, rtol=1e-9)
    used = preset("light_llm").init_std
    return Found({"xavier_std": std, "default_std": used}, parts={"xavier_var": std**2, "used_std": used})


# sampling


def _kept(logits: Tensor) -> list[int]:
    """Ids that a filter leaves, the likeliest first."""
    n_kept = int((logits > -torch.inf).sum())
    return logits.sort(descending=True, stable=True).indices[:n_kept].tolist()


def softmax_vec(logits: Any) -> Found:
    probabilities = token_probabilities(numbers(logits), 1.0)
    return Found(probabilities, printed=running_sum(probabilities)[-1])


def softmax_ratios(logits: Any, T: float) -> dict[str, Tensor]:
    p = token_probabilities(numbers(logits), T)
    return {"p0_over_p1": p[0] / p[1], "p2_over_p0": p[2] / p[0]}


def softmax_upper_bound(visible_logits: Any, V: int) -> Tensor:
    assert len(visible_logits) <= V  # every further logit lowers it
    return token_probabilities(numbers(visible_logits), 1.0).max()


def prob_by_ratio(p_ref: float, logit_ref: float, logits: Any) -> Tensor:
    p = token_probabilities(numbers([logit_ref, *logits]), 1.0)
    return p[1:] / p[0] * p_ref


def stable_softmax(z: Any) -> dict[str, Any]:
    logits = numbers(z)
    log_softmax = [-_nll_of(logits[None], [label]) for label in range(len(logits))]
    return {"softmax": token_probabilities(logits, 1.0), "log_softmax": log_softmax}


def topk_filter_logits(logits: Any, k: int) -> Found:
    filtered = filter_top_k(numbers(logits), k)
    removed = filtered == -torch.inf
    zeroed = token_probabilities(filtered.masked_fill(removed, 0.0), 1.0)
    return Found(filtered, parts={"leaked_mass": running_sum(zeroed[removed])[-1:].sum()})


def nucleus_sizes(p_sorted: Any, thresholds: list[float]) -> list[int]:
    """The printed probabilities are a prefix; less likely tokens make up the rest."""
    p = numbers(p_sorted)
    n_rest = math.ceil(float((1 - p.sum()) / p.min())) + 1
    logits = torch.cat((p, ((1 - p.sum()) / n_rest).expand(n_rest))).log()
    return [len(_kept(filter_top_p(logits, threshold))) for threshold in thresholds]


def nucleus_ids(p: float, probs: Any) -> list[int]:
    return _kept(filter_top_p(numbers(probs).log(), p))


def nucleus_tie(entry: Entry, p: float, probs: Any) -> Found:
    ids = nucleus_ids(p, probs)
    value = ids if isinstance(entry.get("corrected"), list) else len(ids)
    return Found(value, printed=dict.fromkeys(entry.get("expected") or {}, value))  # two rules that should be one


def inverse_cdf(logits: Any, T: float, r: Any) -> Tensor:
    p = token_probabilities(numbers(logits), T)
    return draw(p.expand(len(r), -1), numbers(r))


def argmax(x: Any) -> list[int]:
    """Return the token that generation at temperature 0 chooses from these logits."""
    model = Transformer(preset("llama_toy", len(x), head_bias=True)).double()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    model.head_bias.data = numbers(x)
    return generate(model, [[0]], GenerationConfig(1, temperature=0.0))[0].ids


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


FORMULAS: dict[str, Function] = {
    **dict.fromkeys(("adamw_steps", "adam_steps", "adam_l2_steps"), optimizer_steps),
    "sumexp": lambda x: [NllSum(x[0] + float(_nll_of(numbers([x]), [0])), 1).perplexity],
    "sumsq": lambda g: [l2norm(g)[0] ** 2],
    "cos_pi_ratio": lambda t, T: cosine_lr(1.0, -1.0, T, t),
    "cumsum": lambda p: running_sum(numbers(p)),
    "topk_indices": lambda x, k: _kept(filter_top_k(numbers(x), k)),
    "topk_probs": lambda p, k: token_probabilities(numbers(p).log(), 1.0, top_k=k),
    "topk_mass": lambda logits, k: running_sum(token_probabilities(numbers(logits), 1.0, top_k=k))[-1],
    "argmax_index": lambda n_rows: argmax(list(range(n_rows)))[0],
    "exp": lambda x: [NllSum(value, 1).perplexity for value in x],
    "softmax_temperature": lambda logits, T: [token_probabilities(numbers(logits), temperature) for temperature in T],
    "noam": lambda d_model, warmup, t: [schedule.noam(step, d_model, warmup) for step in t],
    "warmup_cosine": lambda warmup, max_steps, t: [
        schedule.warmup_cosine(step, 1.0, 0.0, warmup, max_steps) for step in t
    ],
}
