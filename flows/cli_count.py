"""`sheepfold count`: what a network would cost, worked out from its shape alone, before anything is built.

Nothing here needs torch, so the answer is there at once, for a model of any size.
"""

from __future__ import annotations

import dataclasses
import difflib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli_common import AsJson, Assign, plain_errors, print_json
from model.accounting import (
    Cost,
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

if TYPE_CHECKING:
    from rich.table import Table

COMPONENT_NAMES = {
    "token_embedding": "token embedding",
    "position": "positions",
    "attention": "attention",
    "mlp": "feed-forward",
    "norm": "norms",
    "head": "head",
}
# Published names count in their own ways: GPT-2's first report said 117M and 345M, which its authors corrected later.
PUBLISHED = {
    "gpt2": "GPT-2 124M",
    "gpt2-medium": "GPT-2 355M",
    "gpt2-large": "GPT-2 774M",
    "gpt2-xl": "GPT-2 1.5B",
    "llama-7b": "LLaMA 7B",
    "llama-13b": "LLaMA 13B",
}

Preset = Annotated[str, typer.Option(help="Shape of the network, such as small, gpt2 or llama-7b.")]
VocabSize = Annotated[int, typer.Option(help="Token ids; 0 takes those of the preset's own model.", min=0)]
Context = Annotated[int, typer.Option(help="Longest sequence in tokens; 0 takes the preset's.", min=0)]
Batch = Annotated[int, typer.Option(help="Sequences per batch, for the memory figures.", min=1)]
Target = Annotated[float, typer.Option(help="Choose the depth nearest to so many parameters, such as 1e9.", min=0)]
ShowTable = Annotated[bool, typer.Option("--table", help="Compare the published GPT-2 and LLaMA sizes.")]


def count(
    preset: Preset = "small",
    vocab_size: VocabSize = 0,
    context: Context = 0,
    batch: Batch = 1,
    target: Target = 0,
    table: ShowTable = False,
    assign: Assign = None,
    as_json: AsJson = False,
) -> None:
    """Count a network's parameters, arithmetic and memory without building it."""
    with plain_errors():
        if table:
            if vocab_size or context or target or assign:
                raise UserError("--table shows the published sizes as they are; leave out what would change them")
            rows = comparison()
            if as_json:
                print_json({"models": rows})
            else:
                _show_comparison(rows)
            return
        config = configure(preset, vocab_size, context, assign or [])
        solved = None
        if target:
            config, solved = solve(config, target)
        cost = estimate_cost(config, batch_size=batch, n_tokens=config.max_seq_len)
        if as_json:
            print_json(document(preset, config, cost, solved))
        else:
            _show(preset, config, cost, solved)


def configure(name: str, vocab_size: int = 0, context: int = 0, assignments: list[str] | None = None) -> ModelConfig:
    """The shape that was asked for.

    Args:
        name: a key of PRESETS.
        vocab_size, context: replace the preset's; 0 leaves them.
        assignments: `model.name=value` items that replace fields of ModelConfig.

    Raises:
        UserError: an unknown preset or field, or a shape that is not possible.
    """
    from tasks.settings import parse_assignments

    if name not in PRESETS:
        raise UserError(f"no preset {name!r}; {_hint(name, list(PRESETS))}")
    chosen: dict[str, Any] = dict(PRESETS[name])
    known = [field.name for field in dataclasses.fields(ModelConfig)]
    for key, value in parse_assignments(assignments or []).items():
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


def solve(config: ModelConfig, target: float) -> tuple[ModelConfig, dict[str, Any]]:
    """The shape with the depth that comes nearest to a number of parameters, and how that was found.

    Raises:
        UserError: the target leaves nothing for the layers.
    """
    per_layer = sum(layer_parameters(config).values())
    outside = count_parameters(config)["total"] - config.n_layer * per_layer
    try:
        layers = solve_depth(target, outside, per_layer)
        found = dataclasses.replace(config, n_layer=solve_n_layer(config, target))
    except ValueError as error:
        raise UserError(str(error)) from error
    return found, {
        "target": round(target),
        "parameters_outside_layers": outside,
        "parameters_per_layer": per_layer,
        "layers": layers,
        "n_layer": found.n_layer,
    }


def document(name: str, config: ModelConfig, cost: Cost, solved: dict[str, Any] | None) -> dict[str, Any]:
    """Everything as raw numbers: counts in parameters, FLOPs and bytes; shares of 1."""
    counts = count_parameters(config)
    parameters = {key: value for key, value in counts.items() if key != "total"}
    found: dict[str, Any] = {
        "preset": name,
        "config": config.to_dict(),
        "padded_vocab_size": config.padded_vocab_size,
        "parameters": counts,
        "shares": {key: value / counts["total"] for key, value in parameters.items()},
        "layer": layer_parameters(config),
        "rule_of_thumb": approximate_parameters(config),
        "cost": dataclasses.asdict(cost),
    }
    return found if solved is None else {**found, "solved": solved}


def comparison() -> list[dict[str, Any]]:
    """The published sizes: name, shape, exact count, and 12 d^2 per layer plus embedding."""
    rows = []
    for name, published in PUBLISHED.items():
        config = ModelConfig.from_dict(PRESETS[name])
        rows.append(
            {
                "preset": name,
                "published": published,
                "n_layer": config.n_layer,
                "d_model": config.d_model,
                "n_head": config.n_head,
                "head_dim": config.head_dim,
                "d_ff": config.d_ff,
                "parameters": count_parameters(config)["total"],
                "rule_of_thumb": approximate_parameters(config),
            }
        )
    return rows


def _hint(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"choose one of {', '.join(known)}"


def _scaled(value: float, step: int, prefixes: str) -> tuple[float, str]:
    """A number divided by a power of the step, and that power's prefix."""
    power = 0
    while value >= step and power < len(prefixes):
        value, power = value / step, power + 1
    return value, prefixes[power - 1] if power else ""


def _decimal(value: float) -> str:
    """Floating-point operations with a thousand-step prefix, such as 285 MFLOP."""
    scaled, prefix = _scaled(value, 1000, "kMGTPE")
    return f"{scaled:,.{2 if scaled < 10 else 1 if scaled < 100 else 0}f} {prefix}FLOP"


def _binary(value: float) -> str:
    """Bytes with a 1024-step prefix, such as 474.7 MiB."""
    scaled, prefix = _scaled(value, 1024, "KMGTPE")
    return f"{scaled:,.1f} {prefix}iB" if prefix else f"{scaled:,.0f} B"


def _share(part: int, whole: int) -> str:
    return "<0.1%" if 0 < part / whole < 0.0005 else f"{part / whole:.1%}"


def _table(*columns: str) -> Table:
    """A table whose first column is text and whose others are numbers."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for index, column in enumerate(columns):
        made.add_column(column, justify="right" if index else "left", no_wrap=True)
    return made


def _show(name: str, config: ModelConfig, cost: Cost, solved: dict[str, Any] | None) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    counts = count_parameters(config)
    console.print(f"[bold]{name}[/]: {counts['total']:,} parameters", soft_wrap=True)
    console.print(_shape_sentence(config), soft_wrap=True)
    if solved is not None:
        console.print(
            f"{solved['target']:,} parameters would be {solved['layers']:.2f} layers of "
            f"{solved['parameters_per_layer']:,}, with {solved['parameters_outside_layers']:,} outside them; "
            f"nearest is {solved['n_layer']}.",
            soft_wrap=True,
        )
    console.print()
    console.print(_share_table(config))
    console.print(_arithmetic_table(cost))
    console.print(_memory_table(config, cost))
    console.print(f"Time grows as {cost.complexity}.", soft_wrap=True)


def _shape_sentence(config: ModelConfig) -> str:
    heads = f"{config.n_head} heads of {config.head_dim}"
    if config.n_kv_head != config.n_head:
        heads += f" over {config.n_kv_head} key-value heads"
    vocabulary = f"{config.vocab_size:,} token ids"
    if config.padded_vocab_size != config.vocab_size:
        vocabulary += f" (padded to {config.padded_vocab_size:,})"
    layers = "1 layer" if config.n_layer == 1 else f"{config.n_layer} layers"
    return (
        f"{layers}, d_model {config.d_model:,}, {heads}, d_ff {config.d_ff:,}, {vocabulary}, "
        f"context {config.max_seq_len:,}"
    )


def _share_table(config: ModelConfig) -> Table:
    counts, layer = count_parameters(config), layer_parameters(config)
    made = _table("Parameters", "in all", "share", "per layer")
    for key, title in COMPONENT_NAMES.items():
        if key == "head" and config.tie_weights:
            title = "head (shares the embedding)"
        per_layer = f"{layer[key]:,}" if key in layer else ""
        made.add_row(title, f"{counts[key]:,}", _share(counts[key], counts["total"]), per_layer)
    made.add_section()
    made.add_row("total", f"{counts['total']:,}", "100.0%", f"{sum(layer.values()):,}")
    made.add_row("rule: 12 d² a layer + tables", f"{approximate_parameters(config):,}")
    return made


def _arithmetic_table(cost: Cost) -> Table:
    made = _table("Arithmetic per token", "FLOPs", "")
    for title, value in (
        ("forward", cost.forward_flops_per_token),
        ("  attention scores and values", cost.attention_flops_per_token),
        ("  what the causal mask shows", cost.visible_attention_flops_per_token),
        ("training (3 x forward)", cost.training_flops_per_token),
        ("rule: 6 N", cost.rule_6n),
        ("rule: 6 N + 12 L d T", cost.rule_palm),
    ):
        made.add_row(title, f"{value:,}", _decimal(value))
    made.add_section()
    title = f"training step of {cost.batch_size:,} x {cost.n_tokens:,} tokens"
    made.add_row(title, f"{cost.training_step_flops:,}", _decimal(cost.training_step_flops))
    return made


def _memory_table(config: ModelConfig, cost: Cost) -> Table:
    made = _table(f"Memory at {cost.bytes_per_value} bytes per value", "bytes", "")
    for title, value in (
        ("weights", cost.weight_bytes),
        ("gradients", cost.gradient_bytes),
        ("AdamW's running means", cost.optimizer_bytes),
        ("activations kept for backward", cost.activation_bytes),
        ("training, sum of these", cost.training_bytes),
    ):
        made.add_row(title, f"{value:,}", _binary(value))
    made.add_section()
    whole = f"key-value cache, {cost.batch_size:,} x {cost.n_tokens:,} tokens"
    if config.window is not None:
        whole += " (not cut to the window)"
    for title, value in (("key-value cache, one token", cost.cache_bytes_per_token), (whole, cost.cache_bytes)):
        made.add_row(title, f"{value:,}", _binary(value))
    return made


def _show_comparison(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console

    made = _table("Model", "layers", "d_model", "heads", "d_ff", "parameters", "12 d² rule")
    for row in rows:
        made.add_row(
            row["published"],
            str(row["n_layer"]),
            f"{row['d_model']:,}",
            str(row["n_head"]),
            f"{row['d_ff']:,}",
            f"{row['parameters']:,}",
            f"{row['rule_of_thumb']:,}",
        )
    console = Console(highlight=False)
    console.print(made)
    console.print(
        "12 d² rule: 12 d_model² per layer, plus the token embedding and, where it is a matrix of its own, the head.",
        soft_wrap=True,
    )
