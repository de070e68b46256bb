"""Parameters, FLOPs and memory of a network, computed from its configuration for `sheepfold count`, without torch."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from model.accounting import (
    approximate_parameters,
    count_parameters,
    estimate_cost,
    layer_parameters,
    memory_complexity,
    solve_depth,
    time_complexity,
    wavelengths,
)
from model.architecture import ModelConfig
from model.presets import PRESETS
from storage.errors import UserError
from tasks.core.settings import parse_assignments

# published sizes; GPT-2's first report said 117M and 345M, which its authors corrected later
PUBLISHED = {
    "gpt2": "GPT-2 124M",
    "gpt2-medium": "GPT-2 355M",
    "gpt2-large": "GPT-2 774M",
    "gpt2-xl": "GPT-2 1.5B",
    "llama-7b": "LLaMA 7B",
    "llama-13b": "LLaMA 13B",
}


def network_cost(
    preset: str,
    vocab_size: int,
    context: int,
    batch_size: int,
    target: float,
    assignments: Sequence[str],
    adapter_rank: int = 0,
    recompute: bool = False,
) -> dict[str, Any]:
    """Return the figures of one network: counts in parameters, FLOPs and bytes, shares from 0 to 1.

    Args:
        preset: a key of PRESETS.
        vocab_size, context: override those of the preset; 0 keeps them.
        batch_size: sequences per batch.
        target: number of parameters to choose the depth for; 0 keeps the preset's depth.
        assignments: `model.name=value` overrides of fields of ModelConfig.
        adapter_rank, recompute: see `model.accounting.estimate_cost`.

    Raises:
        UserError: the preset or a field is unknown, the configuration is invalid, or the target is too small.
    """
    config = network_shape(preset, vocab_size, context, assignments)
    config, solved = _solve(config, target) if target else (config, {})
    counts = count_parameters(config)
    time = {term.part: term for term in time_complexity(config, config.max_seq_len)}
    square = time["projections"].factor + time["feed-forward"].factor
    return {
        "preset": preset,
        "config": config.to_dict(),
        "padded_vocab_size": config.padded_vocab_size,
        "parameters": counts,
        "shares": {name: value / counts["total"] for name, value in counts.items() if name != "total"},
        "layer": layer_parameters(config),
        "totals": {name: _total(config, is_tied) for name, is_tied in (("tied", True), ("untied", False))},
        "complexity": {
            "forward_pass": f"L ({square:g} T d^2 + {time['scores, values'].factor:g} T^2 d) + "
            f"{time['head'].factor:g} T d V = {sum(term.total for term in time.values()):,} FLOPs",
            "forward_flops": [dataclasses.asdict(term) for term in time.values()],
            "values": [dataclasses.asdict(term) for term in memory_complexity(config, config.max_seq_len)],
        },
        "cost": dataclasses.asdict(
            estimate_cost(
                config,
                batch_size=batch_size,
                n_tokens=config.max_seq_len,
                adapter_rank=adapter_rank,
                recompute=recompute,
            )
        ),
        **solved,
    }


def published_sizes() -> list[dict[str, Any]]:
    """Return name, shape, exact number of parameters and 12 L d^2 + V d of the published GPT-2 and LLaMA models."""
    rows = []
    for name, published in PUBLISHED.items():
        config = ModelConfig.from_dict(PRESETS[name])
        shape = {field: getattr(config, field) for field in ("n_layer", "d_model", "n_head", "head_dim", "d_ff")}
        counts = {"parameters": count_parameters(config)["total"], "rule_of_thumb": approximate_parameters(config)}
        rows.append({"preset": name, "published": published, **shape, **counts})
    return rows


def cost_at_a_glance(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of `network_cost` for the terminal, with one table of parameters."""
    shares, layer = {**found["shares"], "total": 1}, {**found["layer"], "total": sum(found["layer"].values())}
    rows = {
        part: {"parameters": number, "share": f"{shares[part]:.1%}", "per layer": layer.get(part)}
        for part, number in found["parameters"].items()
    }
    totals = {f"total, {name}": f"{item['sum']}; rule {item['rule']}" for name, item in found["totals"].items()}
    head = {name: found[name] for name in ("preset", "config", "padded_vocab_size")}
    rest = {name: value for name, value in found.items() if name in ("solved", "cost")}
    return {**head, **totals, "parameters": rows, **found["complexity"], **rest}


def wavelength_table(config: ModelConfig, bases: Sequence[float]) -> list[dict[str, Any]]:
    """Return the wavelength of each pair of columns, in tokens, for the network's base and others.

    Raises:
        UserError: the position encoding has no wavelengths, or a base is not above 1.
    """
    if wrong := [base for base in bases if not 1 < base < float("inf")]:
        raise UserError(f"--base {wrong[0]:g}; expected a number above 1")
    try:
        columns = {f"{base:g}": wavelengths(config, base) for base in (config.pos_base or 0, *bases)}
    except ValueError as error:
        raise UserError(str(error)) from error
    n_pairs = len(next(iter(columns.values())))
    return [{"pair": i, **{base: found[i] for base, found in columns.items()}} for i in range(n_pairs)]


def _total(config: ModelConfig, is_tied: bool) -> dict[str, Any]:
    """Return the parameters with tied or untied output projection, as a sum of tables, layers and the rest."""
    config = dataclasses.replace(config, tie_weights=is_tied)
    total, n_layer = count_parameters(config)["total"], config.n_layer
    table, layer = config.padded_vocab_size * config.d_model, sum(layer_parameters(config).values())
    n_tables = 1 if is_tied else 2
    rest = total - n_tables * table - n_layer * layer
    times = "" if is_tied else "2 x "
    return {
        "parameters": total,
        "tables": n_tables * table,
        "layers": n_layer * layer,
        "rest": rest,
        "sum": f"{times}V d + L N + rest = {times}{table:,} + {n_layer} x {layer:,} + {rest:,} = {total:,}",
        "rule": f"{times}V d + L 12 d^2 = {approximate_parameters(config):,}",
        "rule_of_thumb": approximate_parameters(config),
    }


def network_shape(name: str, vocab_size: int = 0, context: int = 0, assignments: Sequence[str] = ()) -> ModelConfig:
    """Return the configuration of a preset with overrides; arguments and errors as for `network_cost`."""
    if name not in PRESETS:
        raise UserError(f"no preset {name!r}; {_hint(name, list(PRESETS))}")
    chosen: dict[str, Any] = dict(PRESETS[name])
    known = [field.name for field in dataclasses.fields(ModelConfig)]
    for key, value in parse_assignments(list(assignments)).items():
        section, _, field = key.partition(".")
        if section != "model" or field not in known:
            hint = _hint(key, [f"model.{item}" for item in known])
            raise UserError(f"--set {key}: unknown setting of a network; {hint}")
        chosen[field] = value
    if vocab_size:
        chosen["vocab_size"] = vocab_size
    if context:
        chosen["max_seq_len"] = context
    try:
        return ModelConfig.from_dict(chosen)
    except ValueError as error:
        raise UserError(str(error)) from error


def _solve(config: ModelConfig, target: float) -> tuple[ModelConfig, dict[str, Any]]:
    """Return the configuration with the depth nearest to a number of parameters, and its derivation."""
    per_layer = sum(layer_parameters(config).values())
    outside = count_parameters(config)["total"] - config.n_layer * per_layer
    try:
        layers = solve_depth(target, outside, per_layer)
    except ValueError as error:
        raise UserError(str(error)) from error
    found = dataclasses.replace(config, n_layer=max(1, math.floor(layers + 0.5)))
    solved = {
        "target": round(target),
        "parameters_outside_layers": outside,
        "parameters_per_layer": per_layer,
        "layers": layers,
        "n_layer": found.n_layer,
    }
    return found, {"solved": solved}


def _hint(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"choose one of {', '.join(known)}"
