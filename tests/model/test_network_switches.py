"""Every field of ModelConfig acts, and acts where it says: dropout, initial weights, tied and padded tables, bias."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from network_variants import ids_of

from model import PRESETS, GenerationConfig, ModelConfig, TrainConfig, Transformer, generate, preset
from model.accounting import count_parameters
from model.checkpoint import load_weights, save_weights
from model.data import IGNORE
from model.optim import build_optimizer

Build = Callable[..., Transformer]
ROPE = {"pos": "rope"}
YARN = {"pos": "rope", "rope_scaling": "yarn", "rope_factor": 4.0, "rope_original_len": 16}

# field: the other settings it needs, and values that must all give different networks
FIELDS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "vocab_size": ({}, [31, 32]),
    "max_seq_len": ({}, [16, 17]),
    "n_layer": ({}, [1, 2]),
    "n_head": ({}, [1, 2, 4]),
    "d_model": ({}, [16, 20]),
    "d_ff": ({}, [None, 24]),
    "n_kv_head": ({"n_head": 4}, [None, 2, 1]),
    "head_dim": ({}, [None, 5]),
    "pos": ({}, ["learned", "sinusoidal", "rope", "none"]),
    "pos_base": (ROPE, [None, 100.0]),
    "rope_layout": (ROPE, ["half", "interleaved"]),
    "rope_dim": (ROPE, [None, 4]),
    "rope_scaling": (
        {"pos": "rope", "rope_factor": 4.0},
        [
            "linear",
            "ntk",
            {"rope_scaling": "yarn", "rope_original_len": 16},
            {"rope_scaling": "llama3", "rope_original_len": 16},
            {"rope_scaling": "none", "rope_factor": 1.0},
        ],
    ),
    "rope_factor": (YARN, [2.0, 4.0]),
    "rope_original_len": (YARN, [16, 512]),
    "rope_ramp": ({**YARN, "rope_original_len": 512}, [(1.0, 32.0), (40.0, 80.0)]),
    "unrotated_every": (ROPE, [None, 2]),
    "norm": ({}, ["layernorm", "rmsnorm"]),
    "norm_order": ({}, ["pre", "post", "both"]),
    "norm_eps": ({}, [1e-5, 0.3]),
    "norm_bias": ({}, [True, False]),
    "final_norm": ({}, [True, False]),
    "qk_norm": ({}, [True, False]),
    "window": ({}, [None, 3, 4]),
    "full_every": ({"window": 3}, [None, 2]),
    "window_pos_base": ({**ROPE, "window": 3, "full_every": 2}, [None, 50.0]),
    "act": ({}, ["gelu", "gelu_tanh", "relu", "relu2", "swiglu", "geglu"]),
    "attn_bias": ({}, [True, False]),
    "qkv_bias": ({}, [True, False]),
    "ffn_bias": ({}, [True, False]),
    "head_bias": ({}, [True, False]),
    "embed_scale": ({}, [True, False]),
    "tie_weights": ({}, [True, False]),
    "vocab_multiple": ({}, [1, 64]),
    "drop_embed": ({}, [0.0, 0.2, 0.6]),
    "drop_attn": ({}, [0.0, 0.2, 0.6]),
    "drop_ffn": ({}, [0.0, 0.2, 0.6]),
    "drop_resid": ({}, [0.0, 0.2, 0.6]),
    "drop_resid_mlp": ({"drop_resid": 0.1}, [None, 0.0, 0.6]),
    "init": ({}, ["normal", "xavier", "inverse_cdf"]),
    "init_std": ({}, [0.02, 0.3]),
    "init_residual_scaling": ({}, [True, False]),
}


def test_every_field_has_values_to_be_tried() -> None:
    assert set(FIELDS) == {field.name for field in dataclasses.fields(ModelConfig)}


def outputs(build_model: Build, settings: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits in evaluation mode and in training mode, from the same seeds."""
    model, ids = build_model(**settings), ids_of(2, 12)
    with torch.no_grad():
        evaluated = model(ids)
        torch.manual_seed(5)
        return evaluated, model.train()(ids)


@pytest.mark.parametrize("name", FIELDS)
def test_every_value_of_a_field_gives_another_network(build_model: Build, name: str) -> None:
    base, values = FIELDS[name]
    made = []
    for value in values:
        settings = {**base, **(value if isinstance(value, dict) else {name: value})}
        shapes = {key: tensor.shape for key, tensor in build_model(**settings).state_dict().items()}
        made.append((shapes, *outputs(build_model, settings)))
    for index, (shapes, evaluated, trained) in enumerate(made):
        for other_shapes, other_evaluated, other_trained in made[:index]:
            same_outputs = torch.equal(evaluated, other_evaluated) and torch.equal(trained, other_trained)
            assert shapes != other_shapes or not same_outputs


# dropout


def drop_factors(model: Transformer) -> dict[str, list[torch.Tensor]]:
    """Return the factors of each dropout site in one pass over real ids."""
    found: dict[str, list[torch.Tensor]] = {name: [] for name in SITES}

    def watch(site: str) -> Callable[..., None]:
        return lambda module, inputs, output: found[site].append((output / inputs[0])[inputs[0] != 0])

    block: Any = model.blocks[0]
    for site, module in (
        ("drop_embed", model.dropout),
        ("drop_resid", block.drop_attention),
        ("drop_resid_mlp", block.drop_mlp),
        ("drop_ffn", block.mlp.dropout),
    ):
        module.register_forward_hook(watch(site))
    with torch.no_grad():
        model(ids_of(16, 16))
        # a token that sees itself only gets its own value times the factor of its one weight
        now = model.plan(ids_of(64, 1))
        x = torch.randn(64, 1, 16, generator=torch.Generator().manual_seed(2))
        attention = block.attention
        attention.proj.weight.copy_(torch.eye(16))
        attention.proj.bias.zero_()
        values = attention.project(x)[2].transpose(1, 2).flatten(2)
        found["drop_attn"].append((attention(x, 0, now) / values).flatten())
    return found


SITES = ["drop_embed", "drop_attn", "drop_ffn", "drop_resid", "drop_resid_mlp"]


@pytest.mark.parametrize("site", SITES)
def test_dropout_acts_at_its_own_place_only(build_model: Build, site: str) -> None:
    torch.manual_seed(0)
    # that of the feed-forward branch is attention's unless it is given
    found = drop_factors(build_model(n_layer=1, **{"drop_resid_mlp": 0.0, site: 0.25}).train())
    for name, factors in found.items():
        for factor in factors:
            zeroed = factor == 0
            torch.testing.assert_close(
                factor[~zeroed], torch.full_like(factor[~zeroed], 4 / 3 if name == site else 1.0), atol=1e-5, rtol=0
            )
            assert zeroed.float().mean().item() == pytest.approx(0.25 if name == site else 0.0, abs=0.1)


# initial weights


def built(**settings: Any) -> Transformer:
    torch.manual_seed(0)
    return Transformer(ModelConfig(**{"vocab_size": 200, "max_seq_len": 128, "d_model": 128, "n_layer": 8, **settings}))


def is_residual(name: str) -> bool:
    return name.endswith(("attention.proj.weight", "mlp.down.weight"))


@pytest.mark.parametrize("act", ["gelu", "swiglu"])
@pytest.mark.parametrize(("scaling", "shrink"), [(True, 4.0), (False, 1.0)])
def test_normal_weights_have_their_deviation(act: str, scaling: bool, shrink: float) -> None:
    model = built(init_residual_scaling=scaling, act=act, tie_weights=False)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            expected = 0.02 / shrink if is_residual(name) else 0.02
            assert parameter.std().item() == pytest.approx(expected, rel=0.03), name
            assert abs(parameter.mean().item()) < 0.03 * expected, name


@pytest.mark.parametrize("act", ["gelu", "swiglu"])
def test_xavier_weights_have_the_deviation_of_each_matrix(act: str) -> None:
    settings = {"n_head": 8, "n_kv_head": 2, "head_dim": 32, "d_ff": 400, "act": act, "tie_weights": False}
    model = built(init="xavier", init_residual_scaling=False, **settings)
    checked = 0
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            continue
        if name in ("token_embedding.weight", "position_table"):
            parts, expected = [parameter], [0.02]
        else:
            parts = [parameter]
            expected = [math.sqrt(2 / (part.shape[0] + part.shape[1])) for part in parts]
        for part, deviation in zip(parts, expected, strict=True):
            assert part.std().item() == pytest.approx(deviation, rel=0.03), name
            checked += 1
    assert checked == 2 + 8 * (3 + 1 + (3 if act == "swiglu" else 2)) + 1


def test_weights_drawn_by_the_inverse_cdf_are_normal() -> None:
    model = built(init="inverse_cdf", init_std=0.5, init_residual_scaling=False)
    weights = model.blocks[0].mlp.up.weight.detach()
    # the share below each of the normal distribution's quantiles
    for share in (0.01, 0.1, 0.5, 0.9, 0.99):
        quantile = 0.5 * torch.special.ndtri(torch.tensor(share))
        assert float((weights < quantile).float().mean()) == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("init", ["normal", "xavier", "inverse_cdf"])
def test_gains_start_at_one_and_shifts_and_biases_at_zero(init: str) -> None:
    model = built(init=init, qk_norm=True, head_bias=True)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            gain = "norm" in name and name.endswith("weight")
            assert torch.equal(parameter, torch.full_like(parameter, float(gain))), name


@torch.no_grad()
def initial_loss(config: ModelConfig) -> float:
    """Loss of fresh weights on random ids, averaged over all possible next ids instead of drawing one."""
    torch.manual_seed(0)
    model = Transformer(config).eval()
    ids = torch.randint(config.vocab_size, (2, min(config.max_seq_len, 32)))
    return -model(ids)[..., : config.vocab_size].log_softmax(-1).mean().item()


def shallow(name: str) -> ModelConfig:
    """The preset with its own vocabulary, at a depth that is soon computed."""
    config = preset(name)
    if count_parameters(config)["total"] <= 20_000_000:
        return config
    # a post-norm stream holds the token itself until some layers have mixed it, and a tied head then predicts it
    return dataclasses.replace(config, n_layer=4 if config.norm_order == "post" else 1)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.full) if count_parameters(preset(name))["total"] > 100_000_000 else name
        for name in PRESETS
    ],
)
def test_every_preset_starts_near_a_uniform_guess(name: str) -> None:
    config = shallow(name)
    assert initial_loss(config) == pytest.approx(math.log(config.vocab_size), rel=0.05)


@pytest.mark.parametrize("d_model", [128, 512, pytest.param(2048, marks=pytest.mark.full)])
@pytest.mark.parametrize("tie_weights", [False, True])
def test_initial_loss_is_uniform_plus_half_the_variance_of_the_logits(d_model: int, tie_weights: bool) -> None:
    config = ModelConfig(2000, n_layer=1, d_model=d_model, tie_weights=tie_weights, pos="none")
    # a normalised state has length sqrt(D), so its product with weights of deviation s has variance s^2 D
    expected = math.log(2000) + 0.02**2 * d_model / 2
    own = 0.0 if not tie_weights else 0.03  # a tied head recognises the token itself in its state
    assert initial_loss(config) == pytest.approx(expected, rel=0.01 + own)


# tied weights


def test_tied_weights_stay_tied_through_a_step_and_a_file(build_model: Build, tmp_path: Path) -> None:
    model, ids = build_model().train(), ids_of(2, 12)
    before = model.token_embedding.weight.detach().clone()
    optimizer = build_optimizer(model, TrainConfig(max_steps=1, lr=0.1))
    model.loss(ids[:, :-1], ids[:, 1:]).backward()
    optimizer.step()
    assert model.head_weight is model.token_embedding.weight
    assert not torch.equal(model.token_embedding.weight, before)
    save_weights(tmp_path / "weights.safetensors", model)
    loaded = load_weights(tmp_path / "weights.safetensors", model.config)
    assert loaded.head_weight is loaded.token_embedding.weight
    assert torch.equal(loaded(ids), model.eval()(ids))


# padded vocabulary and bias of the head


def with_loud_padding(build_model: Build, **settings: Any) -> Transformer:
    """A network of 31 ids in 64 rows; the rows behind the vocabulary would win every softmax."""
    model = build_model(vocab_multiple=64, head_bias=True, **settings)
    with torch.no_grad():
        model.head_weight[31:] = 50 * torch.randn(33, 16, generator=torch.Generator().manual_seed(1))
        assert model.head_bias is not None
        model.head_bias.normal_(generator=torch.Generator().manual_seed(2))
        model.head_bias[31:] = 100.0
    return model


def plain_loss(model: Transformer, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the logits that forward returns."""
    return F.cross_entropy(model(ids).flatten(0, 1), labels.flatten(), ignore_index=IGNORE)


@pytest.mark.parametrize("tie_weights", [True, False])
@pytest.mark.parametrize("loss", [Transformer.loss, plain_loss], ids=["blockwise", "plain"])
def test_padding_changes_neither_loss_nor_logits(build_model: Build, loss: Callable, tie_weights: bool) -> None:
    padded, ids = with_loud_padding(build_model, tie_weights=tie_weights), ids_of(2, 12)
    plain = build_model(tie_weights=tie_weights, head_bias=True)
    plain.load_state_dict(
        {
            name: tensor[:31] if name in ("token_embedding.weight", "untied_head.weight", "head_bias") else tensor
            for name, tensor in padded.state_dict().items()
        }
    )
    torch.testing.assert_close(padded(ids)[..., :31], plain(ids), atol=1e-5, rtol=0)
    found, expected = (loss(model, ids[:, :-1], ids[:, 1:]).item() for model in (padded, plain))
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("temperature", [0.0, 1.0, 50.0])
def test_padded_ids_are_never_generated(build_model: Build, temperature: float) -> None:
    model = with_loud_padding(build_model)
    config = GenerationConfig(max_new_tokens=40, temperature=temperature)
    for completion in generate(model, [[1], [2, 3], [4]], config):
        assert len(completion.ids) == 40
        assert max(completion.ids) < 31
        assert all(math.isfinite(logprob) for logprob in completion.logprobs)
