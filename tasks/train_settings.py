"""Settings of a training: the network, how it is trained, and how that is computed.

The network and the training hand most of their settings through to `model.ModelConfig` and `model.TrainConfig`, which
check them; how a training is computed is no part of what it computes (see `model.execution`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

AUTO = "auto"  # a preset that stands for what is proposed for a corpus and a machine
MAX_SEED = 2**63 - 1  # what torch's generators and the tables' columns take


def check_seed(name: str, seed: int) -> None:
    """Refuses a seed that not all random generators take.

    Raises:
        ValueError: naming the setting.
    """
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"{name} is {seed}, expected 0 to {MAX_SEED}")


@dataclass(frozen=True)
class ModelSettings:
    """The network: a preset, and what differs from it.

    Attributes:
        preset: one of `model.PRESETS`, or `auto` for the size that suits the corpus, the device and the time.
        overrides: fields of `model.ModelConfig` that replace the preset's.
    """

    preset: str = AUTO
    overrides: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainSettings:
    """How the network is trained. It has one budget: steps before tokens before minutes, whichever is given.

    Attributes:
        minutes: training time; what it has room for is found out once by a short probe on this machine.
        max_steps: number of optimiser steps; 0 leaves it to `max_tokens` or `minutes`.
        max_tokens: number of training tokens; 0 leaves it to `minutes`.
        max_epochs: never more passes over the training text than this (with `minutes` and `max_tokens`), but for the
            one step that there always is.
        base: a model to continue from: an alias, a version number, a `models:/` address, a run id, a folder with a
            model, or one in a layout of Hugging Face. It brings its network and its tokeniser.
        overrides: fields of `model.TrainConfig`.
    """

    minutes: float = 5.0
    max_steps: int = 0
    max_tokens: int = 0
    max_epochs: float = 20.0
    seed: int = 1337
    base: str = ""
    overrides: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("minutes", "max_steps", "max_tokens", "max_epochs"):
            if getattr(self, name) < 0 or (name == "max_epochs" and not self.max_epochs):
                raise ValueError(f"train.{name} is {getattr(self, name)}, expected a number above 0")
        check_seed("train.seed", self.seed)
        if not (self.minutes or self.max_steps or self.max_tokens):
            raise ValueError("training needs a budget: give minutes, max_steps or max_tokens above 0")


@dataclass(frozen=True)
class ExecutionSettings:
    """How a training is computed, on which nothing that it computes depends but the last bits.

    Attributes:
        processes: that train together on this machine, each with a GPU (or a share of the cores) of its own; see
            `tasks.launch` for several machines.
        compile: let torch.compile fuse the network; where it cannot, the run goes on without it and says why.
        recompute: forget activations and compute them again, which takes less memory and more time.
        sharding: with several processes, `ddp` (each holds all weights) or `fsdp` (each holds a part).
        halve_batch: when memory runs out, compute micro-batches in halves instead of stopping.
        keep: number of newest checkpoints that are kept beside the best.
    """

    processes: int = 1
    compile: bool = False
    recompute: bool = False
    sharding: str = "ddp"
    halve_batch: bool = True
    keep: int = 2

    def __post_init__(self) -> None:
        from model.execution import Execution

        if self.processes < 1:
            raise ValueError(f"execution.processes is {self.processes}, expected 1 or more")
        Execution.from_dict(self.fields())

    def fields(self) -> dict[str, Any]:
        """Fields of `model.execution.Execution`."""
        return {name: value for name, value in asdict(self).items() if name != "processes"}

    def words(self) -> str:
        """What makes a step take another time than one process that computes it plainly; empty where that does."""
        ways = {
            f"{self.processes} processes by {self.sharding}": self.processes > 1,
            "compiled": self.compile,
            "activations computed again": self.recompute,
        }
        return ", ".join(words for words, holds in ways.items() if holds)
