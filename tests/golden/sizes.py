"""Sizes (parameters, widths, activations, operations), text to ids, ids to chunks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from golden.layers import dk_scale
from golden.networks import projections
from golden.registry import Entry, Found, Function
from golden.shared import numbers, printable
from model import ModelConfig, SpanSource, Transformer, accounting, preset
from model.hf_config import ORIGINAL, config_from_hf
from model.transformer import Attention
from tasks.readers.records import ExtractOptions
from tasks.tokens.packing import Pieces, chunk_pieces
from tasks.tokens.tokenizer_kinds import AsciiTokenizer
from tests.tasks.extraction import extract_document


def _total(config: ModelConfig) -> int:
    return accounting.count_parameters(config)["total"]


def _counted(config: ModelConfig, unit: float = 0.0) -> Found:
    """All parameters, in a unit if there is one, and what they are made of."""
    counts = accounting.count_parameters(config)
    tied, untied = (dataclasses.replace(config, tie_weights=is_tied) for is_tied in (True, False))
    parts = {"exact_count": counts["total"], "untied_count": _total(untied)}
    parts |= {**counts, "approx_12d2_tied": accounting.approximate_parameters(tied)}
    return Found([counts["total"] / unit] if unit else counts["total"], parts=parts)


def count(V: int, d: int, L: int, d_ff: int = 0, ff: int = 0) -> Found:
    return _counted(preset("sheepop" if d_ff else "llama_toy", V, d_model=d, n_layer=L, d_ff=d_ff or ff))


def gpt2_params(
    V: int, n_pos: int, d: int, L: int, bias: bool, tied: bool, n_heads: int = 0, d_ff: int = 0, unit: float = 1e6
) -> Found:
    shape = {"max_seq_len": n_pos, "d_model": d, "n_layer": L, "n_head": n_heads or d // 64, "d_ff": d_ff or 4 * d}
    return _counted(preset("gpt2", V, attn_bias=bias, ffn_bias=bias, tie_weights=tied, **shape), unit)


def llama_params_unit(V: int, d: int, L: int, n_heads: int, d_ff: int, unit: float) -> Found:
    return _counted(preset("llama-7b", V, d_model=d, n_layer=L, n_head=n_heads, d_ff=d_ff), unit)


def encoder_lm_params(V: int, d: int, n_heads: int, d_ff: int, L: int, max_len: int) -> Found:
    shape = {"d_model": d, "n_head": n_heads, "d_ff": d_ff, "n_layer": L, "max_seq_len": max_len}
    config = preset("fundamentals", V, **shape)
    assert accounting.count_parameters(Transformer(config))["total"] == _total(config)
    return _counted(config)


def _branches(d: int) -> list[int]:
    """Parameters of attention and feed-forward of one layer without biases."""
    layer = accounting.layer_parameters(preset("fundamentals", d_model=d, attn_bias=False, ffn_bias=False))
    return [layer["attention"], layer["mlp"]]


def attn_ffn_total(d: int, L: int) -> Found:
    counts = [L * part for part in _branches(d)]
    return Found([part / 1e6 for part in counts], parts={"exact_counts": counts})


def attn_ffn_share(d: int, L: int, V: int) -> list[float]:
    whole = accounting.approximate_parameters(preset("fundamentals", V, d_model=d, n_layer=L))
    return [100 * L * part / whole for part in _branches(d)]


def approx_params(V: int, d: int, L: int) -> Found:
    config = preset("fundamentals", V, d_model=d, n_layer=L)
    rough = accounting.approximate_parameters(config)
    left_out = _total(config) - accounting.count_parameters(config)["position"] - rough
    untied = accounting.approximate_parameters(preset("fundamentals", V, d_model=d, n_layer=L, tie_weights=False))
    return Found({"tied": rough, "untied": untied}, parts={"extra_bias_norm": left_out})


def ff_rule(d4: list[int], d83: list[int], multiple: int) -> list[int]:
    wide = [ModelConfig(8, n_head=1, d_model=d).d_ff for d in d4]
    shape = {"vocab_size": 8, "n_layers": 1, "n_heads": 1, "multiple_of": multiple}
    return wide + [config_from_hf({**shape, "dim": d}, ORIGINAL).d_ff for d in d83]


def ratio(d: list[int], h: list[int]) -> list[int]:
    return [ModelConfig(8, d_model=width, n_head=heads).head_dim for width, heads in zip(d, h, strict=True)]


def light_dims(n_embd: int, n_head: int) -> list[Any]:
    config = preset("light_llm", d_model=n_embd, n_head=n_head)
    with torch.device("meta"):
        fused = sum(len(matrix) for matrix in projections(Attention(config))[1])
    return [*dk_scale(n_embd, n_head), fused, config.d_ff]


def _values(config: ModelConfig, T: int, part: str) -> int:
    return next(term.total for term in accounting.memory_complexity(config, T) if term.part == part)


def act_count(n_layer: int, T: int, n_embd: int) -> Found:
    found = _values(preset("light_llm", n_layer=n_layer, d_model=n_embd), T, "activations")
    return Found([found / 1e6], parts={"exact_count": found})


def attn_score_count(n_head: int, T: int) -> Found:
    found = _values(preset("light_llm", n_layer=1, n_head=n_head), T, "attention scores")
    return Found([found / 1e6], parts={"exact_count": found})


def flops(T: int, d: int, d_ff: int) -> dict[str, float]:
    found = accounting.layer_flops(preset("light_llm", d_model=d, d_ff=d_ff), T)
    names = {"qkvo": "projections", "scores_and_values": "scores_and_values", "ffn": "mlp"}
    halves = {name: found[ours] / 2 for name, ours in names.items()}  # the document counts multiply-adds
    return {**halves, "total": sum(halves.values())}


def scaled(x: float, factor: float, others: Mapping[str, Entry]) -> Found:
    """A count in another unit; the count itself is the one of the 12 d^2 rule."""
    counts = approx_params(**others["s004-total-formula"]["inputs"]).value
    return Found([x * factor], parts={"exact_count": counts["tied"], "untied_count": counts["untied"]})


# text


def encode_offset(text: str) -> Found:
    found = {"ascii_scheme": AsciiTokenizer().encode([text])[0], "offset_scheme": printable().encode([text])[0]}
    return Found(found, printed=found["offset_scheme"])


def ascii_offset(char: str, space_id: int) -> Found:
    tokenizer = printable()
    assert tokenizer.encode([" "])[0].tolist() == [space_id]
    return Found(tokenizer.encode([char])[0], parts={"printable_plus_specials": tokenizer.vocab_size})


def next_token_target(text: str, row: int) -> int:
    ids = AsciiTokenizer().encode([text])[0].astype(np.uint8)
    source = SpanSource([ids], np.zeros(1), np.zeros(1), np.array([len(ids)]), len(ids), pad_id=0)
    return int(source.batch(np.arange(1))[1][0, row])


def chunk(tokens: list[int], M: int, S: int, pad_id: int) -> np.ndarray:
    pieces = chunk_pieces(np.array([len(tokens)]), M, S)
    return _inputs(np.array(tokens, dtype=np.uint8), pieces, M, pad_id)


def chunk_count(L: int, M: int, S: int) -> dict[str, int]:
    pieces = chunk_pieces(np.array([L]), M, S)
    return {"n_chunks": len(pieces), "chunk_len": _inputs(np.zeros(L, dtype=np.uint8), pieces, M, 0).shape[1]}


def _inputs(ids: np.ndarray, pieces: Pieces, seq_len: int, pad_id: int) -> np.ndarray:
    source = SpanSource([ids], pieces.document, pieces.start, pieces.length, seq_len, pad_id)
    return source.batch(np.arange(len(pieces)))[0]


def samples_of_lines(text: str) -> list[str]:
    """Of a text file, one document for each line."""
    found = extract_document(text.encode(), ".txt", ExtractOptions(lines=True))
    return ["".join(page.text for page in line.pages) for line in found.members]


FORMULAS: dict[str, Function] = {
    "gpt2_params_unit": gpt2_params,
    "product": lambda V, d: [accounting.count_parameters(preset("fundamentals", V, d_model=d))["token_embedding"]],
    "layer_params": lambda d: [accounting.approximate_parameters(preset("fundamentals", 1, d_model=d, n_layer=1)) - d],
    "attn_ffn_params": _branches,
    "solve_layers": lambda target, embed, layer: [accounting.solve_depth(target, embed, layer)],
    "percent": lambda parts: 100 * numbers(parts) / numbers(parts).sum(),
    "encode_ascii": lambda text: AsciiTokenizer().encode([text])[0],
    "lengths": lambda texts: [len(ids) for ids in AsciiTokenizer().encode(texts)],
    "split_lines": samples_of_lines,
}
