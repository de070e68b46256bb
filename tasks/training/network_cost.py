"""Parameters, arithmetic and memory of a network, worked out from its shape: the figures of `sheepfold count`.

Nothing here needs torch, so the answer is there at once, for a model of any size.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from model.accounting import (
    approximate_parameters,
    count_parameters,
    estimate_cost,
    layer_parameters,
    solve_depth,
    solve_n_layer,
)
from model.architecture import ModelConfig
from model.presets import PRESETS
from storage.errors import UserError
from tasks.core.settings import parse_assignments

# Published names count in their own ways: GPT-2's first report said 117M and 345M, which its authors corrected later.
PUBLISHED = {
    "gpt2": "GPT-2 124M",
    "gpt2-medium": "GPT-2 355M",
    "gpt2-large": "GPT-2 774M",
    "gpt2-xl": "GPT-2 1.5B",
    "llama-7b": "LLaMA 7B",
    "llama-13b": "LLaMA 13B",
}


def network_cost(
    preset: str, vocab_size: int, context: int, batch_size: int, target: float, assignments: Sequence[str]
) -> dict[str, Any]:
    """Return the figures of one network as raw numbers: counts in parameters, FLOPs and bytes, shares of 1.

    Args:
        preset: a key of PRESETS.
        vocab_size, context: replace the preset's; 0 leaves them.
        batch_size: sequences per batch.
        target: number of parameters for which the depth is chosen; 0 leaves it.
        assignments: `model.name=value` items that replace fields of ModelConfig.

    Raises:
        UserError: an unknown preset or field, a shape that is not possible, or a target too small for any layer.
    """
    config = network_shape(preset, vocab_size, context, assignments)
    config, solved = _solve(config, target) if target else (config, {})
    counts = count_parameters(config)
    return {
        "preset": preset,
        "config": config.to_dict(),
        "padded_vocab_size": config.padded_vocab_size,
        "parameters": counts,
        "shares": {name: value / counts["total"] for name, value in counts.items() if name != "total"},
        "layer": layer_parameters(config),
        "rule_of_thumb": approximate_parameters(config),
        "cost": dataclasses.asdict(estimate_cost(config, batch_size=batch_size, n_tokens=config.max_seq_len)),
        **solved,
    }


def published_sizes() -> list[dict[str, Any]]:
    """Return name, shape, exact count, and 12 d^2 per layer plus embedding, of the published GPT-2 and LLaMA models."""
    rows = []
    for name, published in PUBLISHED.items():
        config = ModelConfig.from_dict(PRESETS[name])
        shape = {field: getattr(config, field) for field in ("n_layer", "d_model", "n_head", "head_dim", "d_ff")}
        counts = {"parameters": count_parameters(config)["total"], "rule_of_thumb": approximate_parameters(config)}
        rows.append({"preset": name, "published": published, **shape, **counts})
    return rows


def cost_at_a_glance(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a network for a person: its parameters as one table."""
    shares, layer = {**found["shares"], "total": 1}, {**found["layer"], "total": sum(found["layer"].values())}
    rows = {
        part: {"parameters": number, "share": f"{shares[part]:.1%}", "per layer": layer.get(part)}
        for part, number in found["parameters"].items()
    }
    cost = dict(found["cost"])
    rest = {name: value for name, value in found.items() if name not in ("shares", "layer")}
    return {**rest, "parameters": rows, "complexity": cost.pop("complexity"), "cost": cost}


def network_shape(name: str, vocab_size: int = 0, context: int = 0, assignments: Sequence[str] = ()) -> ModelConfig:
    """Return the shape of a preset; arguments and errors as for `network_cost`."""
    if name not in PRESETS:
        raise UserError(f"no preset {name!r}; {_hint(name, list(PRESETS))}")
    chosen: dict[str, Any] = dict(PRESETS[name])
    known = [field.name for field in dataclasses.fields(ModelConfig)]
    for key, value in parse_assignments(list(assignments)).items():
        section, _, field = key.partition(".")
        if section != "model" or field not in known:
            hint = _hint(key, [f"model.{item}" for item in known])
            raise UserError(f"--set {key}: a network has no such setting; {hint}")
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
    """Return the shape with the depth nearest to a number of parameters, and how it was found."""
    per_layer = sum(layer_parameters(config).values())
    outside = count_parameters(config)["total"] - config.n_layer * per_layer
    try:
        layers = solve_depth(target, outside, per_layer)
        found = dataclasses.replace(config, n_layer=solve_n_layer(config, target))
    except ValueError as error:
        raise UserError(str(error)) from error
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
