"""The network, its training loop and its generation: PyTorch, NumPy and nothing else.

Token ids (as spans over token shards, or as prompts) and settings become weights, losses and continuations. Nothing
here knows files of documents, tokenisers, trackers or schedulers, and every import is relative, so that the folder can
travel inside a served model and be loaded under another package name.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .accounting import count_parameters
    from .architecture import ModelConfig
    from .callbacks import Callbacks
    from .checkpoint import load_checkpoint, load_weights, save_checkpoint, save_weights
    from .config import GenerationConfig, TrainConfig
    from .data import SpanSource
    from .generation import Completion, generate, prompt_problem, stream
    from .guards import NonFiniteLoss, OutOfMemory
    from .hf import from_hf, to_hf
    from .metrics import NllSum
    from .presets import PRESETS, preset
    from .randomness import seed_everything
    from .scoring import Continuation, Likelihood, continuation_likelihoods, evaluate_source
    from .step import measure_step_seconds
    from .trace import Trace, local_gains, operators
    from .trainer import Trainer, TrainResult
    from .transformer import Transformer

# Loaded at first use: settings and presets are read by commands that need no torch, which takes seconds to import.
_HOMES = {
    "accounting": ["count_parameters"],
    "checkpoint": ["load_checkpoint", "load_weights", "save_checkpoint", "save_weights"],
    "architecture": ["ModelConfig"],
    "config": ["GenerationConfig", "TrainConfig"],
    "data": ["SpanSource"],
    "generation": ["Completion", "generate", "prompt_problem", "stream"],
    "callbacks": ["Callbacks"],
    "guards": ["NonFiniteLoss", "OutOfMemory"],
    "hf": ["from_hf", "to_hf"],
    "metrics": ["NllSum"],
    "presets": ["PRESETS", "preset"],
    "randomness": ["seed_everything"],
    "scoring": ["Continuation", "Likelihood", "continuation_likelihoods", "evaluate_source"],
    "step": ["measure_step_seconds"],
    "trace": ["Trace", "local_gains", "operators"],
    "trainer": ["TrainResult", "Trainer"],
    "transformer": ["Transformer"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)


__all__ = [
    "PRESETS",
    "Callbacks",
    "Completion",
    "Continuation",
    "GenerationConfig",
    "Likelihood",
    "ModelConfig",
    "NllSum",
    "NonFiniteLoss",
    "OutOfMemory",
    "SpanSource",
    "Trace",
    "TrainConfig",
    "TrainResult",
    "Trainer",
    "Transformer",
    "continuation_likelihoods",
    "count_parameters",
    "evaluate_source",
    "from_hf",
    "generate",
    "load_checkpoint",
    "load_weights",
    "local_gains",
    "measure_step_seconds",
    "operators",
    "preset",
    "prompt_problem",
    "save_checkpoint",
    "save_weights",
    "seed_everything",
    "stream",
    "to_hf",
]
