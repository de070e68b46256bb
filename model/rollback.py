"""States that a training goes back to when a step leaps.

Going back must give the same bits however often the run was killed before. So it never goes to whatever checkpoint a
clock happened to write, but to states of fixed steps, kept beside the run's checkpoints. The number of the step goes on
rising: only weights, optimiser, scaler and random streams return, and the sequences read since then are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from .guards import ROLLED_BACK_TO

STATES_PER_RUN, FEWEST_STEPS = 50, 10  # a state for every fiftieth of a run, but not more often than every ten steps
KEPT = 2  # the newest may be too near to a leap, which then began before it; the one before is not


class Rollbacks:
    """The states of a run that it may go back to.

    Args:
        folder: holds them; nothing else lies in it.
        max_steps: of the run; says how far apart they are.
    """

    MOST_RETURNS = 3  # to one state

    def __init__(self, folder: Path, max_steps: int) -> None:
        self.folder = folder
        self.interval = max(FEWEST_STEPS, math.ceil(max_steps / STATES_PER_RUN))

    def is_anchor(self, step: int) -> bool:
        """Whether the state after this step is kept."""
        return step % self.interval == 0

    def keep(self, state: Checkpoint) -> None:
        """Keeps a state and forgets older ones, and what another run may have left of later steps.

        The run's own checkpoint of that step must be on the disk already: a run that goes on from an older one could
        need states that are forgotten here.
        """
        save_checkpoint(self.folder, state, keep=KEPT)

    def load_before(self, step: int) -> Checkpoint:
        """The newest state that is half an interval or more older than a step.

        Raises:
            FileNotFoundError: there is none; someone has removed it.
        """
        newest = step - self.interval // 2
        for place in sorted(self.folder.glob("step-*"), reverse=True):
            if int(place.name.removeprefix("step-")) <= newest:
                return load_checkpoint(place)
        raise FileNotFoundError(
            f"step {step} is to be undone, but {self.folder} has no state of step {newest} or before; expected one of "
            f"every {self.interval} steps. Start the run anew, or use spike_action='skip'"
        )

    def times_to(self, step: int, history: Sequence[Mapping[str, Any]]) -> int:
        """How often the run went back to the state of a step."""
        return sum(row.get(ROLLED_BACK_TO) == step for row in history)
