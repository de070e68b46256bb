"""Settings of a training: the network, its training, and its execution.

`model.ModelConfig`, `model.TrainConfig` and `model.execution.Execution` define most of them; the sections here add what
concerns a run.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from pydantic.dataclasses import dataclass

from model.execution import Execution
from tasks.option import MAX_SEED, STRICT, option

AUTO = "auto"  # a preset that stands for what is proposed for a corpus and a machine


@dataclass(frozen=True, config=STRICT)
class ModelSettings:
    """The network: a preset, and fields of `model.ModelConfig` that replace the preset's."""

    preset: str = option(AUTO, "One of the presets, or `auto` for the size that suits corpus, device and budget.")
    overrides: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, config=STRICT)
class TrainSettings:
    """The training: its budget, and fields of `model.TrainConfig`.

    There is one budget: steps before tokens before minutes, whichever is given.
    """

    minutes: float = option(5.0, "Training time; a short probe turns it into a number of steps, once.", ge=0)
    max_steps: int = option(0, "Optimiser steps; 0 leaves it to `max_tokens` or `minutes`.", ge=0)
    max_tokens: int = option(0, "Training tokens; 0 leaves it to `minutes`.", ge=0)
    max_epochs: float = option(
        20.0, "Most passes over the training text under `minutes` or `max_tokens`; one step at least.", gt=0
    )
    seed: int = option(1337, "Seed of initial weights, data order and dropout.", ge=0, le=MAX_SEED)
    base: str = option(
        "",
        "Model to continue from: an alias, a version number, a `models:/` address, a run id, or a folder with a "
        "model of this project or in a Hugging Face layout. It brings its network and its tokeniser.",
    )
    overrides: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (self.minutes or self.max_steps or self.max_tokens):
            raise ValueError("training needs a budget: give minutes, max_steps or max_tokens above 0")


@dataclass(frozen=True, config=STRICT)
class ExecutionSettings(Execution):
    """Execution of a training; it changes no result except in the last bits."""

    processes: int = option(
        1, "Processes that train together on this machine, each on a GPU or a share of the cores.", ge=1
    )

    def fields(self) -> dict[str, Any]:
        """Fields of `model.execution.Execution`."""
        return {name: value for name, value in self.to_dict().items() if name != "processes"}

    def words(self) -> str:
        """What makes a step take another time than one process that computes it plainly; empty where that does."""
        ways = {
            f"{self.processes} processes by {self.sharding}": self.processes > 1,
            "compiled": self.compile,
            "activations computed again": self.recompute,
        }
        return ", ".join(words for words, holds in ways.items() if holds)
