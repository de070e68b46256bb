"""Saves and trainings in processes that can be killed: the children of `test_kills`.

torch takes seconds to import. So one process imports it and forks a child for each request (see `tests.zygote`).
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from model import ModelConfig, SpanSource, TrainConfig, Trainer, save_weights, seed_everything
from model.checkpoint import Checkpoint, load_checkpoint, newest_to_continue, save_checkpoint
from model.config import Execution
from tests.zygote import serve

SHAPE = ModelConfig(vocab_size=31, max_seq_len=16, n_layer=2, n_head=2, d_model=16, drop_resid=0.1, drop_attn=0.1)


def state_at(step: int) -> Checkpoint:
    """A small state that is different for every step."""
    filled = torch.full((64, 64), float(step))
    return Checkpoint(
        step,
        2 * step,
        weights={"w": filled},
        optimizer={"0.exp_avg": filled + 1},
        random={"cpu": torch.full((16,), step, dtype=torch.uint8)},
        history=[{"step": number, "train/loss": 1.0 / number} for number in range(1, step + 1)],
    )


def save(folder: str, gate: str, step: int) -> None:
    """Saves a step as the best one so far, once somebody wrote into the gate, a named pipe."""
    Path(gate).read_bytes()
    save_checkpoint(folder, dataclasses.replace(state_at(step), best_step=step))


def load(folder: str, gate: str) -> None:
    """Loads the newest checkpoint, which puts away what is no good, once somebody wrote into the gate."""
    Path(gate).read_bytes()
    place = newest_to_continue(Path(folder))
    assert place is not None
    load_checkpoint(place)


def train(folder: str, config: dict[str, Any]) -> None:
    """Trains from the newest checkpoint to the end, with kernels that give the same bits each time."""
    torch.set_num_threads(1)
    seed_everything(0, deterministic=True)
    generator = np.random.default_rng(0)
    shard = ((np.arange(4096) * 7 + generator.integers(0, 3, 4096)) % 31).astype(np.uint16)
    length, start = generator.integers(2, 18, 48), generator.integers(0, 4000, 48)
    sources = [
        SpanSource([shard], np.zeros(len(part)), start[part], length[part], 16, pad_id=0)
        for part in (np.arange(40), np.arange(40, 48))
    ]
    trainer = Trainer(
        SHAPE,
        TrainConfig.from_dict(config),
        *sources,
        checkpoint_dir=f"{folder}/checkpoints",
        execution=Execution(checkpoint_minutes=0),
    )
    result = trainer.fit()
    save_weights(f"{folder}/weights.safetensors", result.model)
    Path(folder, "history.json").write_text(json.dumps(result.history))


if __name__ == "__main__":
    serve({"save": save, "load": load, "train": train})
