"""How a training is computed, as opposed to what it computes: kernels, memory, devices.

These settings are chosen for a machine. They change no result but in the last bits, so they are no part of a run's
identity: a run may go on with others, and is told so where its bits may differ.
"""

from __future__ import annotations

import dataclasses

from .validation import Settings, check_bool, check_choice, limited

SHARDINGS = ("ddp", "fsdp")


@dataclasses.dataclass(frozen=True)
class Execution(Settings):
    """How a training is computed.

    Args:
        compile: fuse the network by torch.compile; where that fails, the run goes on without it and reports why (with
            "fsdp" it ends).
        recompute: compute the activations of each block again in the backward pass: less memory, a third more time.
        sharding: placement on several devices, "ddp" (each holds all weights) or "fsdp" (each holds a part of weights,
            gradients and optimiser state).
        keep: number of newest checkpoints that are kept; with patience, the one with the lowest validation loss is kept
            beside them.
        checkpoint_minutes: minutes between two checkpoints, at most what a kill costs; 0 saves every step.
    """

    compile: bool = False
    recompute: bool = False
    sharding: str = "ddp"
    keep: int = limited(2, ge=1)
    checkpoint_minutes: float = limited(5.0, ge=0)

    def __post_init__(self) -> None:
        self.check_limits()
        for name in ("compile", "recompute"):
            check_bool(name, getattr(self, name))
        check_choice("sharding", self.sharding, SHARDINGS)
