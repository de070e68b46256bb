"""Cost of a network: exact counts, arithmetic, and memory compared with torch's."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from model import ModelConfig, Transformer, preset
from model.accounting import (
    activation_bytes,
    count_parameters,
    estimate_cost,
    layer_parameters,
    solve_depth,
    wavelengths,
)
from model.adapters import adapt
from model.attention import wavelength_frequencies
from model.config import TrainConfig
from model.kv_cache import KVCache
from model.optim import build_optimizer

ROOT = Path(__file__).resolve().parents[2]
GPT2 = {"vocab_size": 500, "max_seq_len": 64, "n_layer": 3, "n_head": 4, "d_model": 128, "act": "gelu_tanh"}
LLAMA = {
    **GPT2,
    **{"d_ff": 352, "pos": "rope", "norm": "rmsnorm", "act": "swiglu"},
    **{"attn_bias": False, "ffn_bias": False, "tie_weights": False},
}


def test_accounting_needs_no_torch() -> None:
    code = (
        "import sys; from model.accounting import count_parameters, estimate_cost; from model.presets import preset; "
        "config = preset('llama-13b'); count_parameters(config); estimate_cost(config, batch_size=1, n_tokens=9); "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("sheepop", 19_034_112),
        ("light_llm", 30_339_456),
        ("llama_toy", 714),
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        ("llama-7b", 6_738_415_616),
        ("llama-13b", 13_015_864_320),
    ],
)
def test_known_models_have_their_known_counts(name: str, total: int) -> None:
    assert count_parameters(preset(name))["total"] == total


@pytest.mark.parametrize(
    "settings", [GPT2, LLAMA, {**LLAMA, "n_kv_head": 2, "qk_norm": True}], ids=["gpt2", "llama", "gqa"]
)
def test_one_layer_is_the_difference_between_two_depths(settings: dict) -> None:
    one, two = (count_parameters(ModelConfig(**{**settings, "n_layer": n})) for n in (1, 2))
    layer = layer_parameters(ModelConfig(**settings))
    assert {name: two[name] - one[name] for name in layer} == layer
    assert two["total"] - one["total"] == sum(layer.values())


@pytest.mark.parametrize("target", [102_400_000, 5, float("nan"), float("inf")])
def test_a_target_that_leaves_nothing_for_the_layers_is_refused(target: float) -> None:
    with pytest.raises(ValueError, match="leave nothing for the layers, because 102,400,000 lie outside"):
        solve_depth(target, 102_400_000, 50_331_648)


@pytest.mark.parametrize(
    "settings",
    [GPT2, LLAMA, {**LLAMA, "n_kv_head": 2}, {**GPT2, "head_dim": 16, "vocab_multiple": 64}],
    ids=["gpt2", "llama", "gqa", "narrow heads, padded"],
)
@pytest.mark.parametrize("training", [False, True])
def test_flops_are_those_that_torch_counts(settings: dict, training: bool) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    config, n_tokens = ModelConfig(**settings), 64
    model = Transformer(config).eval()  # in training, products go to a library that torch does not count
    ids = torch.zeros(2, n_tokens, dtype=torch.int64)
    model(ids)  # the first product of a process tries the libraries, with a small product of its own
    # the plain formula of attention is made of matrix products, which torch counts on every device
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        logits = model(ids)
        if training:
            logits.sum().backward()
    cost = estimate_cost(config, batch_size=2, n_tokens=n_tokens)
    expected = cost.training_flops_per_token if training else cost.forward_flops_per_token
    assert counter.get_total_flops() == expected * 2 * n_tokens


@pytest.mark.parametrize("pos", ["sinusoidal", "rope"])
def test_a_wave_is_whole_after_its_wavelength(pos: str) -> None:
    config = ModelConfig(64, d_model=32, n_head=2, pos=pos, pos_base=50.0)
    dim = 32 if pos == "sinusoidal" else 16
    found = torch.tensor(wavelengths(config), dtype=torch.float64)
    torch.testing.assert_close(
        found * wavelength_frequencies(dim, 50.0), torch.full((dim // 2,), 2 * torch.pi).double()
    )
    assert (
        wavelengths(config, 10.0)[0] == wavelengths(config)[0] < wavelengths(config, 10.0)[1] < wavelengths(config)[1]
    )


@pytest.mark.parametrize("window", [None, 1, 5, 64])
def test_visible_attention_is_the_share_that_the_mask_lets_through(window: int | None) -> None:
    from model.attention import attention_mask

    config = ModelConfig(**{**GPT2, "window": window})
    cost, places = estimate_cost(config, batch_size=1, n_tokens=64), torch.arange(64)
    share = attention_mask(places, places, window).double().mean().item()
    assert cost.visible_attention_flops_per_token == cost.attention_flops_per_token * share


def test_published_rules_for_gpt2() -> None:
    cost = estimate_cost(preset("gpt2"), batch_size=1, n_tokens=1024)
    n = 124_439_808 - 1024 * 768
    assert cost.rule_6n == 6 * n
    assert cost.rule_palm == 6 * n + 12 * 12 * 768 * 1024
    # the rule counts biases and norms as if they were matrices; that is all that tells it from the exact figure
    assert cost.training_flops_per_token == pytest.approx(cost.rule_palm, rel=1e-3)


def test_training_is_three_forward_passes_of_the_whole_batch() -> None:
    cost = estimate_cost(ModelConfig(**GPT2), batch_size=5, n_tokens=7)
    assert cost.training_step_flops == 3 * cost.forward_flops_per_token * 35


@pytest.mark.parametrize(
    "settings", [GPT2, {**LLAMA, "n_kv_head": 2}, {**GPT2, "window": 8}], ids=["all", "gqa", "window"]
)
def test_cache_bytes_are_those_of_the_cache(settings: dict) -> None:
    config = ModelConfig(**settings)
    cache = KVCache(config, 3, 40)
    cost = estimate_cost(config, batch_size=3, n_tokens=40)
    assert cost.cache_bytes == cache.keys.nbytes + cache.values.nbytes == 120 * cost.cache_bytes_per_token


def test_weights_gradients_and_optimizer_state_are_those_of_a_real_step() -> None:
    config = ModelConfig(**LLAMA)
    model = Transformer(config)
    optimizer = build_optimizer(model, TrainConfig(max_steps=1))
    model.loss(torch.zeros(1, 4, dtype=torch.int64), torch.ones(1, 4, dtype=torch.int64)).backward()
    optimizer.step()
    cost = estimate_cost(config, batch_size=1, n_tokens=4)
    parameters = list(model.parameters())
    assert cost.weight_bytes == sum(p.nbytes for p in parameters)
    assert cost.gradient_bytes == sum(p.grad.nbytes for p in parameters if p.grad is not None)
    state = [value for entry in optimizer.state.values() for value in entry.values() if value.dim() > 0]
    assert cost.optimizer_bytes == sum(tensor.nbytes for tensor in state)
    parts = cost.weight_bytes + cost.gradient_bytes + cost.optimizer_bytes + cost.activation_bytes
    assert cost.training_bytes == parts


def kept_bytes(config: ModelConfig, batch_size: int, n_tokens: int, rank: int = 0, recompute: bool = False) -> int:
    """Bytes of all storages that autograd keeps in a training pass, weights and tables not counted.

    The gradients that torch's loss by blocks computes at once, of the features and of the head, are kept where no hook
    sees them.
    """
    torch.manual_seed(0)
    model = Transformer(config).train()
    model.recompute = recompute
    if rank:
        adapt(model, TrainConfig(1, adapter="lora", adapter_rank=rank))
    own = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    kept: dict[int, torch.Tensor] = {}  # the tensors themselves, so that no address is used twice

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    ids = torch.randint(config.vocab_size, (batch_size, n_tokens + 1))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model.loss(ids[:, :-1], ids[:, 1:])
    assert loss.requires_grad
    in_blocks = config.vocab_size > config.d_model
    unseen = 4 * config.d_model * (batch_size * n_tokens + (0 if rank else config.vocab_size)) if in_blocks else 0
    return unseen + sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize(
    "settings",
    [
        *(
            {"act": act, "drop_ffn": drop}
            for act in ("gelu", "relu", "relu2", "swiglu", "geglu")
            for drop in (0.0, 0.1)
        ),
        *({"qk_norm": qk_norm, "pos": pos} for qk_norm in (False, True) for pos in ("rope", "learned")),
        {"norm": "rmsnorm"},
        {"norm_order": "post", "drop_resid": 0.1},
        {"norm_order": "both"},
        {"norm_order": "both", "norm": "rmsnorm", "drop_resid": 0.1},
        {"window": 16, "full_every": 2},
        {"final_norm": False},
        {"drop_embed": 0.1},
        {"drop_attn": 0.1},
        {"drop_attn": 0.1, "window": 16},
        {"window": 16},
        {"head_dim": 16},
        {"n_kv_head": 1},
        {"vocab_multiple": 512},
        {"n_layer": 1, "vocab_size": 2000},
        {"n_layer": 1, "vocab_size": 100},
        LLAMA,
        {**LLAMA, "n_kv_head": 2, "qk_norm": True},
    ],
    ids=str,
)
def test_activation_bytes_are_what_autograd_keeps_within_a_hundredth(settings: dict) -> None:
    config = ModelConfig(**{**GPT2, **settings})
    assert activation_bytes(config, 4, 64) == pytest.approx(kept_bytes(config, 4, 64), rel=0.01)


@pytest.mark.parametrize("settings", [GPT2, LLAMA, {**LLAMA, "n_kv_head": 2, "qk_norm": True}], ids=str)
def test_adapters_keep_their_rank_for_each_matrix(settings: dict) -> None:
    config = ModelConfig(**settings)
    assert activation_bytes(config, 4, 64, adapter_rank=24) == pytest.approx(kept_bytes(config, 4, 64, 24), rel=0.01)


def test_with_recompute_all_layers_but_one_keep_their_input_only() -> None:
    one, two, three = (ModelConfig(**{**LLAMA, "n_layer": n}) for n in (1, 2, 3))
    assert activation_bytes(three, 4, 64, recompute=True) - activation_bytes(two, 4, 64, recompute=True) == (
        pytest.approx(kept_bytes(three, 4, 64, recompute=True) - kept_bytes(two, 4, 64, recompute=True), rel=0.01)
    )
    inputs = 4 * 4 * 64 * one.d_model
    assert activation_bytes(one, 4, 64, recompute=True) == activation_bytes(one, 4, 64) + inputs


def test_weights_gradients_and_optimizer_state_of_adapters_are_those_of_a_real_step() -> None:
    config = ModelConfig(**LLAMA)
    model = Transformer(config)
    adapt(model, TrainConfig(1, adapter="lora", adapter_rank=3))
    optimizer = build_optimizer(model, TrainConfig(1))
    model.loss(torch.zeros(1, 4, dtype=torch.int64), torch.ones(1, 4, dtype=torch.int64)).backward()
    optimizer.step()
    cost = estimate_cost(config, batch_size=1, n_tokens=4, adapter_rank=3)
    parameters = list(model.parameters())
    assert cost.weight_bytes == sum(p.nbytes for p in parameters)
    assert cost.gradient_bytes == sum(p.grad.nbytes for p in parameters if p.grad is not None)
    state = [value for entry in optimizer.state.values() for value in entry.values() if value.dim() > 0]
    assert cost.optimizer_bytes == sum(tensor.nbytes for tensor in state)


@pytest.mark.parametrize("bytes_per_value", [2, 8])
def test_every_memory_figure_scales_with_the_bytes_per_value(bytes_per_value: int) -> None:
    config = ModelConfig(**GPT2)
    base = dataclasses.asdict(estimate_cost(config, batch_size=2, n_tokens=8))
    other = dataclasses.asdict(estimate_cost(config, batch_size=2, n_tokens=8, bytes_per_value=bytes_per_value))
    sizes = [name for name in base if name.endswith(("_bytes", "_bytes_per_token"))]
    assert len(sizes) == 7
    assert all(other[name] * 4 == base[name] * bytes_per_value for name in sizes)
    assert all(other[name] == base[name] for name in base if name not in {*sizes, "bytes_per_value"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0, "n_tokens": 8}, "batch_size=0"),
        ({"batch_size": 1, "n_tokens": 0}, "n_tokens=0"),
        ({"batch_size": 1, "n_tokens": 8, "bytes_per_value": 0}, "bytes_per_value=0"),
        ({"batch_size": 1, "n_tokens": 65}, "n_tokens=65 is longer than max_seq_len=64"),
    ],
)
def test_impossible_batches_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        estimate_cost(ModelConfig(**GPT2), **settings)
