"""A model folder of random weights, made in a moment, and what is asked of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tiny_run import direct_run

from flows.generate import make_completions
from model import ModelConfig, Transformer, save_weights
from storage.home import Home
from storage.schemas import COUNTS_FILE, TOKEN_COUNTS
from storage.tables import read_rows, write_table
from tasks.core.settings import load_settings, parse_assignments
from tasks.generation.completions import Prompt
from tasks.registry.models import checkpoint_of
from tasks.tokens.tokenizer_kinds import AsciiTokenizer, Tokenizer

CONTEXT = 48


def model_folder(
    folder: Path, tokenizer: Tokenizer | None = None, shape: dict[str, Any] | None = None, **entries: bool
) -> Path:
    """A model whose weights are large enough for clear preferences.

    Args:
        shape: fields of its network.
        entries: of config.json, such as `bos=False`.
    """
    tokenizer = tokenizer or AsciiTokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        fields = {"max_seq_len": CONTEXT, "n_layer": 2, "n_head": 2, "d_model": 32, "init_std": 0.3}
        config = ModelConfig(tokenizer.vocab_size, **{**fields, **(shape or {})})
        model = Transformer(config)
    folder.mkdir(parents=True)
    save_weights(folder / "model.safetensors", model)
    (folder / "config.json").write_text(json.dumps({"model": config.to_dict(), **entries}))
    tokenizer.save(folder / "tokenizer.json")
    write_table(folder / COUNTS_FILE, TOKEN_COUNTS, [])
    return folder


def completed(home: Home, model: Path, prompts: list[Prompt], *assignments: str) -> list[dict[str, Any]]:
    """Rows of a generation without Prefect."""
    with direct_run(home) as run:
        settings = load_settings(None, parse_assignments(["generate.max_new_tokens=8", *assignments]))
        made = make_completions(run, settings, checkpoint_of(run, str(model)), prompts)
        return read_rows(run.store.folder(made) / "completions.parquet")
