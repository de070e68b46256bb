"""Random shapes of each layout, and how far two networks of the same weights lie apart.

The relative difference of two tensors is max |a - b| / max |b|, b being that of `transformers`. Gradients are compared
tensor by tensor under Hugging Face's names; the largest of all tensors counts.

Weights have a standard deviation of 1 / sqrt(d_model), so that every product keeps its input's scale. With larger ones,
or with fewer than eight columns, float32 alone, on either side, strays further than the limit from the exact result.
Even so, about one network of Gemma 3's layout in forty, one of Qwen3's in four hundred, and one of Qwen2's in seventy
(in the biases of its keys, which only shift scores), has a gradient that is a small remainder of terms that cancel, and
lies up to three times above the limit, both sides being about as far from the float64 result. The seeds draw none such.
A window of one token leaves queries and keys no gradient but rounding, so none is drawn.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from model import ModelConfig, Transformer
from model.hf import hf_parts
from model.hf_config import GEMMA3, ORIGINAL

LIMIT = 1e-5
SEEDS = {"gpt2": 2024, "llama": 2024, "mistral": 2024, "qwen2": 2026, "qwen3": 2025, ORIGINAL: 2024}
SEEDS |= {"smollm3": 2024, "gemma": 2024, GEMMA3: 2026}


@dataclass(frozen=True)
class Difference:
    """Largest relative differences."""

    logits: float
    gradients: float
    worst: str


def random_shape(layout: str, number: int) -> dict[str, Any]:
    """Fields of ModelConfig, drawn from a generator seeded with the layout and the number."""
    draw = random.Random(f"{SEEDS[layout]}-{layout}-{number}")
    heads = draw.choice([1, 2, 3, 4])
    width = draw.choice([8, 10, 12, 16])
    shape: dict[str, Any] = {
        "vocab_size": draw.randint(17, 120),
        "max_seq_len": draw.choice([8, 13, 24]),
        "n_layer": draw.randint(1, 3),
        "n_head": heads,
        "d_model": heads * width,
        "d_ff": draw.choice([None, 24, 40, 7]),
        "norm_eps": draw.choice([1e-5, 1e-6, 1e-3, 0.1]),
        "tie_weights": draw.random() < 0.5,
        "vocab_multiple": draw.choice([1, 1, 64]),
    }
    if layout == "gpt2":
        return {**shape, "act": draw.choice(["gelu", "gelu_tanh", "relu", "relu2"])}
    shape |= {
        "pos": "rope",
        "pos_base": draw.choice([100.0, 10000.0, 500000.0]),
        "rope_layout": draw.choice(["half", "interleaved"]),
        "rope_scaling": ["none", "linear", "ntk", "yarn", "llama3"][number % 5],
        "norm": "rmsnorm",
        "act": "swiglu",
        "n_kv_head": draw.choice([part for part in range(1, heads + 1) if heads % part == 0]),
        "head_dim": draw.choice([None, 4, 6, 12]),
        "attn_bias": draw.random() < 0.5,
        "ffn_bias": draw.random() < 0.5,
    }
    if shape["rope_scaling"] != "none":
        shape["rope_factor"] = draw.choice([2.0, 4.5])
    if shape["rope_scaling"] in ("yarn", "llama3"):
        shape["rope_original_len"] = draw.choice([8, 64, 300])
        shape["rope_ramp"] = draw.choice([None, (1.0, 3.0)])
    if layout == "qwen3":
        width = draw.choice([None, 8, 12, 16])
        odd = 0 if width is None else draw.choice([0, 1])  # its heads need not divide the stream
        shape |= {"qk_norm": True, "ffn_bias": False, "head_dim": width, "d_model": shape["d_model"] + odd}
    if layout == "smollm3":
        # without rotation, biases of keys shift scores only
        every = draw.choice([None, 2, 3])
        return {**shape, "attn_bias": False, "n_layer": draw.randint(2, 4), "unrotated_every": every}
    if layout in ("gemma", GEMMA3):
        shape |= {
            "act": "geglu",
            "attn_bias": False,
            "ffn_bias": False,
            "embed_scale": True,
            "init_std": shape["d_model"] ** -0.75,
        }
        if layout == GEMMA3:
            shape |= {"qk_norm": True, "norm_order": "both", "n_layer": draw.randint(2, 5)}
            shape |= draw.choice([{"window": 3}, {"window": 3, "full_every": 2, "window_pos_base": 50.0}, {}])
            shape |= {"init_std": shape["d_model"] ** -0.5, "rope_scaling": "none"} if "window" in shape else {}
            shape |= {"head_dim": draw.choice([8, 12])}
            if shape["rope_scaling"] == "none":
                shape = {
                    name: value for name, value in shape.items() if not name.startswith("rope_") or value == "half"
                }
        return shape
    if layout not in ("llama", "qwen3"):
        shape |= {"attn_bias": False, "qkv_bias": layout == "qwen2", "ffn_bias": False}
    if layout not in ("llama", ORIGINAL):
        shape["window"] = draw.choice([None, 2, 3, 5])
    return shape


def random_network(shape: dict[str, Any], seed: int = 0) -> Transformer:
    """A network of this shape; gains and biases are random as well, so that none can be taken for another."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Transformer(ModelConfig(**{"init_std": shape["d_model"] ** -0.5, **shape})).eval()
        perturb(model)
    return model


def perturb(model: nn.Module) -> None:
    """Moves every vector (gain or bias) away from its initial value."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)


def compare(ours: Transformer, theirs: Any, seed: int = 1, n_tokens: int | None = None) -> Difference:
    """Logits and gradients of the mean cross-entropy of random labels, over the whole context or so many tokens.

    A network of LLaMA's own names has its gradients compared in the names and the order of rows of `transformers`.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (2, n_tokens or ours.config.max_seq_len)
    ids, labels = (torch.randint(ours.config.vocab_size, shape, generator=generator) for _ in range(2))
    our_logits = ours(ids)[..., : ours.config.vocab_size]
    their_logits = theirs(input_ids=ids).logits
    for network, logits in ((ours, our_logits), (theirs, their_logits)):
        network.zero_grad()
        F.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
    gradients = {name: _gradient(parameter) for name, parameter in ours.named_parameters()}
    parts = hf_parts(gradients, ours.config, theirs.config.model_type)
    mapped = {name: torch.cat(own, -1) for name, own in parts.items()}
    named = dict(theirs.named_parameters())
    assert mapped.keys() == named.keys()
    apart = {name: relative(mapped[name], _gradient(parameter)) for name, parameter in named.items()}
    worst = max(apart, key=lambda name: apart[name])
    return Difference(relative(our_logits.detach(), their_logits.detach()), apart[worst], worst)


def relative(ours: Tensor, theirs: Tensor) -> float:
    """max |a - b| / max |b|."""
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max() / theirs.abs().max())


def load_theirs(folder: Path, attention: str) -> Any:
    """The model of `transformers` in a folder."""
    from transformers import AutoModelForCausalLM

    found, told = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation=attention, output_loading_info=True, dtype=torch.float32
    )
    # nothing may be left at its initial value, and nothing unread
    assert not any(told[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), told
    return found.eval()


def random_theirs(layout: str, number: int) -> Any:
    """A random model of `transformers`, made from its own configuration class."""
    from transformers import AutoConfig, AutoModelForCausalLM

    draw = random.Random(f"{SEEDS[layout]}-theirs-{layout}-{number}")
    heads = draw.choice([1, 2, 4])
    width = heads * draw.choice([8, 12, 16])
    common: dict[str, Any] = {
        "vocab_size": draw.randint(17, 120),
        "tie_word_embeddings": draw.random() < 0.5,
        "initializer_range": width**-0.5,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": None,
    }
    torch.manual_seed(number)
    fields: dict[str, Any]
    if layout == "gpt2":
        fields = {
            **common,
            "n_positions": draw.choice([8, 13, 24]),
            "n_embd": width,
            "n_layer": draw.randint(1, 3),
            "n_head": heads,
            "n_inner": draw.choice([None, 24, 7]),
            "activation_function": draw.choice(["gelu_new", "gelu", "relu", "gelu_pytorch_tanh"]),
            "layer_norm_epsilon": draw.choice([1e-5, 1e-3, 0.1]),
            "reorder_and_upcast_attn": draw.random() < 0.3,
        }
    else:
        length = draw.choice([8, 13, 24])
        scaling: dict[str, Any] = [
            {"rope_type": "default"},
            {"rope_type": "linear", "factor": 3.0},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": draw.choice([16, 200])},
            {
                **{"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": draw.choice([16, 200])},
                **{"low_freq_factor": 1.0, "high_freq_factor": 4.0},
            },
        ][number % 4]
        fields = {
            **common,
            "hidden_size": width,
            "intermediate_size": draw.choice([24, 40, 7]),
            "num_hidden_layers": draw.randint(1, 3),
            "num_attention_heads": heads,
            "num_key_value_heads": draw.choice([part for part in range(1, heads + 1) if heads % part == 0]),
            "head_dim": draw.choice([None, 4, 12]) or width // heads,
            "max_position_embeddings": length,
            "rms_norm_eps": draw.choice([1e-6, 1e-3, 0.1]),
            "attention_bias": draw.random() < 0.5,
            "mlp_bias": draw.random() < 0.5,
            "rope_parameters": {"rope_theta": draw.choice([100.0, 10000.0, 500000.0]), **scaling},
        }
        if layout == "smollm3":
            fields |= {"num_hidden_layers": draw.randint(2, 4), "no_rope_layer_interval": draw.choice([2, 3, 4])}
            del fields["attention_bias"]
        elif layout != "llama":
            del fields["mlp_bias"]
        if layout in ("mistral", "qwen2", "gemma", GEMMA3):
            del fields["attention_bias"]
        if layout == "qwen3":
            fields["hidden_size"] += draw.choice([0, 1])  # its heads need not divide the stream
            fields["head_dim"] = draw.choice([8, 12, 16])
        if layout == GEMMA3:
            del fields["rope_parameters"]
            fields |= {"num_hidden_layers": draw.randint(2, 4), "sliding_window": draw.choice([2, 3, 5])}
            fields |= {"sliding_window_pattern": draw.choice([2, 3]), "rope_local_base_freq": 50.0}
            fields |= {"rope_theta": 1000.0, "query_pre_attn_scalar": fields["head_dim"]}
        elif layout not in ("llama", "smollm3", "gemma"):
            window = draw.choice([None, 2, 3, 5])
            fields["sliding_window"] = window
            if layout != "mistral":
                fields |= {"use_sliding_window": window is not None, "max_window_layers": 0}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(layout, **fields))
    perturb(model)
    return model.eval()


def write_original(theirs: Any, folder: Path) -> None:
    """Writes a LLaMA of `transformers` as LLaMA's own release has it: other names, pairs side by side."""
    config, heads = theirs.config, {"q": theirs.config.num_attention_heads, "k": theirs.config.num_key_value_heads}
    names = {"embed_tokens": "tok_embeddings", "input_layernorm": "attention_norm", "lm_head": "output"}
    names |= {"post_attention_layernorm": "ffn_norm", "self_attn": "attention", "mlp": "feed_forward"}
    names |= {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"} | {f"{part}_proj": f"w{part}" for part in "qkvo"}
    tensors = {"rope.freqs": torch.ones(config.head_dim // 2)}
    for name, tensor in theirs.state_dict().items():
        for part, n_heads in heads.items():
            if f".{part}_proj." in name:
                halves = tensor.view(n_heads, 2, config.head_dim // 2, -1)
                tensor = torch.stack((halves[:, 0], halves[:, 1]), dim=2).flatten(0, 2)
        own = ".".join(names.get(part, part) for part in name.removeprefix("model.").split("."))
        tensors[own] = tensor.contiguous().clone()
    params = {
        **{"dim": config.hidden_size, "n_layers": config.num_hidden_layers, "n_heads": heads["q"]},
        **{"n_kv_heads": heads["k"], "norm_eps": config.rms_norm_eps, "vocab_size": -1, "multiple_of": 8},
        **{"ffn_dim_multiplier": 1.3, "rope_theta": config.rope_parameters["rope_theta"]},
    }
    save_file(tensors, folder / "consolidated.00.safetensors")
    (folder / "params.json").write_text(json.dumps(params))


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad.clone()
