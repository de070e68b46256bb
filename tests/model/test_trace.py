"""Looking inside the network: what is shown is what happened, and looking changes nothing."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from model import Transformer
from model.trace import MAX_TRACED_TOKENS, local_gains, operators, trace

Build = Callable[..., Transformer]
LLAMA = {"pos": "rope", "norm": "rmsnorm", "act": "swiglu", "attn_bias": False, "ffn_bias": False}
VARIANTS: list[dict] = [
    {},
    {"pos": "sinusoidal", "tie_weights": False, "attn_bias": False},
    {"pos": "none"},
    {"pos": "rope"},
    {"pos": "rope", "rope_layout": "interleaved"},
    {"pos": "rope", "rope_layout": "interleaved", "rope_dim": 2, "head_dim": 3},
    {"pos": "rope", "rope_scaling": "yarn", "rope_factor": 4.0, "rope_original_len": 4},
    {"norm": "rmsnorm"},
    {"norm_order": "post"},
    {"norm_order": "post", "final_norm": False, "act": "relu"},
    {"final_norm": False},
    {"n_head": 4, "n_kv_head": 2},
    {"n_head": 4, "n_kv_head": 1, "window": 3},
    {"head_dim": 5},
    {"qk_norm": True},
    {"qk_norm": True, "pos": "rope", "norm_order": "post"},
    {"window": 1},
    {"act": "gelu_tanh"},
    {"act": "relu2"},
    {"head_bias": True},
    {"vocab_multiple": 64, "tie_weights": False, "head_bias": True},
    {"norm_order": "both", "norm": "rmsnorm", "embed_scale": True, "act": "geglu"},
    {"pos": "rope", "window": 3, "full_every": 2, "window_pos_base": 50.0},
    {"pos": "rope", "unrotated_every": 2},
    {"drop_embed": 0.5, "drop_attn": 0.5, "drop_ffn": 0.5, "drop_resid": 0.5},
    {**LLAMA, "n_head": 4, "n_kv_head": 2, "qk_norm": True, "window": 5, "vocab_multiple": 64},
]
every_architecture = pytest.mark.parametrize("settings", VARIANTS, ids=str)
# of those, the ones in which other parts are nonlinear
WITH_OTHER_GAINS = [VARIANTS[0], VARIANTS[8], VARIANTS[9], VARIANTS[10], VARIANTS[15], VARIANTS[-2], VARIANTS[-1]]


def ids_of(n_tokens: int = 9) -> Tensor:
    return torch.randint(31, (n_tokens,), generator=torch.Generator().manual_seed(1))


@every_architecture
def test_the_operators_one_after_the_other_are_the_model(build_model: Build, settings: dict) -> None:
    model, ids = build_model(**settings), torch.stack((ids_of(), ids_of().flip(0)))
    found: Tensor = ids
    with torch.no_grad():
        expected = model(ids)
        for operator in operators(model, ids.shape[1]).values():
            found = operator(found)
    assert torch.equal(found, expected)


@every_architecture
def test_shown_weights_times_values_are_what_attention_itself_gives(build_model: Build, settings: dict) -> None:
    model = build_model(**settings)
    found = trace(model, ids_of())
    for number, block in enumerate(model.blocks, 1):
        weights, v = found[f"block_{number}.weights"], found[f"block_{number}.v"]
        mixed = weights @ v.repeat_interleave(len(weights) // len(v), dim=0)
        torch.testing.assert_close(mixed, found[f"block_{number}.mixed"], atol=1e-5, rtol=1e-5)
        joined = block.attention.proj(mixed.transpose(0, 1).flatten(1))
        torch.testing.assert_close(joined, found[f"block_{number}.attention"], atol=1e-5, rtol=1e-5)


@every_architecture
def test_softmax_of_the_allowed_scores_gives_the_weights(build_model: Build, settings: dict) -> None:
    found = trace(build_model(**settings), ids_of())
    scores = found["block_2.scores"].masked_fill(~found.mask, -torch.inf)
    torch.testing.assert_close(scores.softmax(-1), found["block_2.weights"])


@every_architecture
def test_hidden_states_are_those_of_the_running_model(build_model: Build, settings: dict) -> None:
    model, ids = build_model(**settings), ids_of()
    caught: list[Tensor] = []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0][0]))
    model.blocks[-1].register_forward_hook(lambda _, __, output: caught.append(output[0]))
    with torch.no_grad():
        logits = model(ids[None])[0]
    expected = list(caught)
    found = trace(model, ids)
    assert torch.equal(found.hidden, torch.stack(expected))
    assert torch.equal(found["logits"], logits)
    assert torch.equal(found.hidden[0], found["sum"])


@every_architecture
def test_the_steps_add_up_to_the_block(build_model: Build, settings: dict) -> None:
    model = build_model(**settings)
    found = trace(model, ids_of())
    before, part = found.hidden[0], {step.kind: step.tensor for step in found.steps if step.block == 1}
    summed = before + part.get("norm_attention_out", part["attention"])
    torch.testing.assert_close(part["sum_attention"], summed)
    if settings.get("norm_order") == "post":
        torch.testing.assert_close(part["sum_ffn"], part["norm_attention"] + part["ffn"])
        torch.testing.assert_close(part["output"], model.blocks[0].norm_mlp(part["sum_ffn"]))
    else:
        torch.testing.assert_close(part["output"], summed + part.get("norm_ffn_out", part["ffn"]))
    torch.testing.assert_close(model.blocks[0].mlp.down(part["hidden"]), part["ffn"])


def test_probability_of_a_sequence_is_the_product_of_its_conditionals(build_model: Build) -> None:
    model, ids = build_model(vocab_multiple=64), ids_of(7)
    found = trace(model, ids)
    product = 1.0
    for place in range(1, 7):
        with torch.no_grad():
            product *= float(model(ids[None, :place])[0, -1].double().softmax(-1)[ids[place]])
    assert -found.score.nll_nats == pytest.approx(math.log(product), rel=1e-5)
    assert found.score.loss == pytest.approx(-math.log(product) / 6, rel=1e-5)
    assert found.score.perplexity == pytest.approx(product ** (-1 / 6), rel=1e-5)
    assert found.log_probs.shape == (7, 31)
    torch.testing.assert_close(found.log_probs.exp().sum(-1), torch.ones(7, dtype=torch.float64))


def test_one_token_has_no_score_but_a_next_token(build_model: Build) -> None:
    found = trace(build_model(), [3])
    assert math.isnan(found.score.loss)
    ids, log_probs = found.top(0, 5)
    assert len(ids) == 5
    assert (log_probs.diff() <= 0).all()


@pytest.mark.parametrize(
    ("look", "settings"),
    [*((trace, settings) for settings in VARIANTS), *((local_gains, settings) for settings in WITH_OTHER_GAINS)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_looking_disturbs_nothing(build_model: Build, settings: dict, look: Callable) -> None:
    model = build_model(**settings).train()
    model.blocks[1].eval()
    modes = [module.training for module in model.modules()]
    weights = copy.deepcopy(model.state_dict())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    random = torch.get_rng_state()
    look(model, ids_of())
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(p.grad, torch.ones_like(p)) and p.requires_grad for p in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("settings", WITH_OTHER_GAINS, ids=str)
def test_gains_are_finite_and_linear_parts_deviate_by_nothing(build_model: Build, settings: dict) -> None:
    gains = local_gains(build_model(**settings), ids_of())
    assert all(math.isfinite(gain.gain) and math.isfinite(gain.deviation) for gain in gains)
    for gain in gains:
        if not gain.nonlinear:
            assert gain.deviation < 1e-3, gain
    assert {gain.component for gain in gains} >= {"position", "block_1.attention", "block_2.ffn", "out", "model"}
    assert ("norm" in {gain.component for gain in gains}) == settings.get("final_norm", True)
    assert any(gain.deviation > 1e-3 for gain in gains if gain.component == "block_1.ffn")


def test_gain_of_the_head_is_that_of_its_matrix(build_model: Build) -> None:
    model, ids = build_model(), ids_of()
    state = trace(model, ids)["norm"]
    expected = float((state @ model.head_weight.T.detach()).norm() / state.norm())
    found = {gain.direction: gain.gain for gain in local_gains(model, ids) if gain.component == "out"}
    assert found["state"] == pytest.approx(expected, rel=1e-5)


def test_what_is_nonlinear_follows_the_architecture(build_model: Build) -> None:
    gains = local_gains(build_model(**LLAMA, qk_norm=True), ids_of(4))
    parts = {gain.component: gain.nonlinear for gain in gains}
    assert parts["block_1.attention"] == ("RMSNorm", "RMSNorm of queries and keys", "softmax")
    assert parts["block_1.ffn"] == ("RMSNorm", "SiLU gate")
    assert {gain.component: gain.nonlinear for gain in local_gains(build_model(norm_order="post"), ids_of(4))}[
        "block_1.ffn"
    ] == ("gelu",)


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([], "at least one id"),
        ([[1, 2]], "one sequence"),
        ([31], "vocab_size is 31"),
        ([-1], "vocab_size"),
        ([1] * 17, "16"),
    ],
)
def test_what_cannot_be_traced_is_said(build_model: Build, ids: list, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        trace(build_model(), ids)


def test_a_long_sequence_is_refused_before_it_fills_the_memory(build_model: Build) -> None:
    with pytest.raises(ValueError, match=f"at most {MAX_TRACED_TOKENS}"):
        trace(build_model(max_seq_len=1000), [1] * (MAX_TRACED_TOKENS + 1))
