"""Settings that a document fixes.

A setting is looked up where the project keeps it (presets and defaults), or shown to be one that can be chosen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from golden.registry import Entry, claim
from golden.shared import built, noise, printable, same, small_config
from model import GenerationConfig, TrainConfig, Transformer, count_parameters, preset
from model.attention import wavelength_frequencies
from model.data import IGNORE
from model.optim import build_optimizer
from model.schedule import learning_rate, noam
from model.transformer import FeedForward
from tasks.report.inspection_page import BINS
from tasks.tokens.packing import chunk_pieces
from tasks.tokens.tokenizer_kinds import BOS, EOS, PAD, UNK, WordTokenizer

FIELD_OF = {
    **{"n_heads": "n_head", "n_layers": "n_layer", "d_k": "head_dim", "ln_eps": "norm_eps", "n_embd": "d_model"},
    **{"n_positions": "max_seq_len", "hidden": "d_model", "max_seq": "max_seq_len", "rms_eps": "norm_eps"},
    **{"intermediate": "d_ff", "rope_base": "pos_base"},
}


def assert_preset_has(name: str, stated: dict[str, Any]) -> None:
    config = preset(name)
    assert {field: getattr(config, FIELD_OF.get(field, field)) for field in stated} == stated


@claim("s000-dims")
def sheepop_sizes(entry: Entry) -> None:
    assert_preset_has("sheepop", entry["expected"])


@claim("s003-config")
def toy_sizes(entry: Entry) -> None:
    assert_preset_has("llama_toy", entry["expected"])


@claim("s002-config")
def light_llm_sizes(entry: Entry) -> None:
    stated = dict(entry["expected"])
    training = TrainConfig(1)
    assert (list(training.betas), training.eps) == (stated.pop("betas"), stated.pop("eps"))
    # the documents mark what is left out of the loss by -1 or by -100; the project has one mark for all
    assert stated.pop("ignore_index") == -1
    assert IGNORE == -100
    assert_preset_has("light_llm", stated)


@claim("s000-init-sigma")
def initial_weights(entry: Entry) -> None:
    stated = entry["expected"]
    config = preset("sheepop", n_layer=1)
    assert config.init_std == stated["sigma"]
    first, second, other = (built(config, seed) for seed in (stated["seed"], stated["seed"], stated["seed"] + 1))
    assert first.token_embedding.weight.std().item() == pytest.approx(stated["sigma"], rel=0.02)
    assert torch.equal(first.head_weight, second.head_weight)
    assert not torch.equal(first.head_weight, other.head_weight)


@claim("s000-special-ids")
def special_ids(entry: Entry) -> None:
    ids = {"pad": PAD, "unk": UNK, "bos": BOS, "eos": EOS}
    assert [ids[name] for name in entry["inputs"]["order"]] == entry["expected"]


@claim("s001-special-ids")
def special_ids_and_first_characters(entry: Entry) -> None:
    space, mark = printable().encode([" !"])[0].tolist()
    assert entry["expected"] == {"pad": PAD, "unk": UNK, "bos": BOS, "eos": EOS, "space": space, "!": mark}


@claim("s001-adamw-defaults")
def adamw_settings(entry: Entry) -> None:
    stated = entry["expected"]
    betas = (stated["beta1"], stated["beta2"])
    config = TrainConfig(1, betas=betas, weight_decay=stated["weight_decay"])
    assert (config.optimizer, config.lr) == ("adamw", stated["lr_example"])
    assert (config.eps, config.clip_norm) == (stated["eps"], stated["max_grad_norm"])
    (group,) = build_optimizer(nn.Linear(1, 1, bias=False), config).param_groups
    assert (group["betas"], group["weight_decay"], group["eps"]) == (betas, stated["weight_decay"], stated["eps"])


@claim("s004-adam-defaults")
def adam_settings(entry: Entry) -> None:
    stated = entry["expected"]
    optimizer = {"optimizer": "adam", "betas": (stated["beta1"], stated["beta2"]), "eps": stated["eps"]}
    for warmup in stated["warmup"]:
        peak = noam(warmup, 2048, warmup)
        config = TrainConfig(20 * warmup, schedule="noam", warmup_steps=warmup, lr=peak, **optimizer)
        rates = [learning_rate(t - 1, config) for t in (1, warmup, 10 * warmup)]
        assert rates == pytest.approx([noam(t, 2048, warmup) for t in (1, warmup, 10 * warmup)], rel=1e-14)
    (group,) = build_optimizer(nn.Linear(1, 1, bias=False), config).param_groups
    assert (list(group["betas"]), group["eps"], group["weight_decay"]) == ([0.9, 0.98], stated["eps"], 0.0)


@claim("s001-base-options")
def position_bases(entry: Entry) -> None:
    default, *others = entry["expected"]
    assert preset("sheepop").pos_base == default
    for base in others:
        frequencies = wavelength_frequencies(512, preset("sheepop", pos_base=float(base)).pos_base)
        assert frequencies[128].item() == pytest.approx(base**-0.5)


@claim("s001-dropout")
def dropout(entry: Entry) -> None:
    config = preset("sheepop")
    assert {config.drop_embed, config.drop_ffn, config.drop_resid} == {entry["expected"]}


@claim("s001-gen-defaults")
def sampling_settings(entry: Entry) -> None:
    stated = entry["expected"]
    default = GenerationConfig()
    assert (default.temperature, default.top_k, default.top_p) == (stated["temperature"], None, None)
    chosen = GenerationConfig(top_k=stated["top_k_example"], top_p=stated["top_p_example"])
    assert (chosen.top_k, chosen.top_p) == (50, 0.95)


@claim("s004-gen-defaults")
def generation_settings(entry: Entry) -> None:
    stated = entry["expected"]
    # 100 new tokens are a choice of the document's; the other defaults are the project's too
    assert GenerationConfig.from_dict(stated) == GenerationConfig(max_new_tokens=stated["max_new_tokens"])


@claim("s001-stride-default")
def default_stride(entry: Entry) -> None:
    length = entry["inputs"]["M"]
    first, second, *_ = chunk_pieces(np.array([4 * length]), length).start
    assert second - first == entry["expected"]


@claim("s003-tokenize")
def toy_words(entry: Entry) -> None:
    """The toy vocabulary is a table of three words; their ids must be tokens of the toy network."""
    ids = WordTokenizer(entry["vocab"]).encode([entry["inputs"]["text"]])[0].tolist()
    assert ids == entry["expected"]
    model = Transformer(preset("llama_toy")).eval()
    assert model(torch.tensor([ids])).shape == (1, 2, preset("llama_toy").vocab_size)


@claim("s004-norm-order")
def norm_orders(entry: Entry) -> None:
    found = [preset(name).norm_order for name in ("fundamentals", "fundamentals-pre")]
    assert found == entry["expected"]["variants"]
    assert preset("fundamentals").final_norm


@claim("s004-out-bias")
def head_bias(entry: Entry) -> None:
    config = preset("fundamentals")
    with_bias = preset("fundamentals", head_bias=True)
    assert not config.head_bias
    assert count_parameters(with_bias)["total"] - count_parameters(config)["total"] == config.vocab_size


@claim("s001-ffn-activation")
def feed_forward_options(entry: Entry) -> None:
    config = preset("sheepop")
    assert (config.act, config.ffn_bias) == ("gelu", True)
    x = noise(3, 8)
    for act, function in (("gelu", torch.nn.functional.gelu), ("relu", torch.relu)):
        for bias in (True, False):
            layer = FeedForward(small_config(d_model=8, act=act, ffn_bias=bias)).double()
            assert (layer.up.bias is None) is (not bias)
            assert same(layer(x), layer.down(function(layer.up(x))))


@claim("s000-heatmap-bins")
def value_classes_of_the_attention_map(entry: Entry) -> None:
    assert [0.0, *BINS] == entry["expected"]
