"""What a training does about a leap of its loss or gradient: report it, leave the update out, or go back.

`guards.SpikeDetector` tells whether a step leaps, `rollback.Rollbacks` holds the states to go back to; here is what
follows from both, as the configuration's spike_action says. What was done is noted in the step's row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config import TrainConfig
from .guards import ROLLED_BACK_TO, SPIKE_SCORE, SPIKE_SKIPPED, Spike, SpikeDetector, TrainingDiverged
from .rollback import Rollbacks

if TYPE_CHECKING:
    from .checkpoint import Checkpoint
    from .distributed import Ranks
    from .step import Stepper

Row = dict[str, Any]


class SpikeGuard:
    """Watches the steps of one run.

    Args:
        config: gives spike_action and spike_zscore.
        folder: for the states to go back to.
        say: called with (step, message).

    Attributes:
        rollbacks: the states to go back to; None unless spike_action is "rollback".

    Raises:
        ValueError: it is, and there is no folder.
    """

    def __init__(self, config: TrainConfig, folder: Path | None, say: Callable[[int, str], None]) -> None:
        self.config = config
        self.say = say
        self.detector = SpikeDetector(config.spike_zscore)
        self.rollbacks: Rollbacks | None = None
        if config.spike_action == "rollback":
            if folder is None:
                raise ValueError("spike_action='rollback' goes back to a checkpoint; give a checkpoint_dir")
            self.rollbacks = Rollbacks(folder, config.max_steps)

    def accept(self, history: list[Row]) -> Callable[[float, float], bool] | None:
        """What the stepper asks before it changes the weights; None where they change in any case."""
        if self.config.spike_action == "report":
            return None
        return lambda loss, grad_norm: self.detector.judge(history, loss, grad_norm) is None

    def is_anchor(self, step: int) -> bool:
        """Whether the state after this step is kept to go back to."""
        return self.rollbacks is not None and self.rollbacks.is_anchor(step)

    def keep_anchor(self, state: Checkpoint, ranks: Ranks) -> None:
        """Keeps a state to go back to, on the first rank; the run's own checkpoint of the step is on the disk already.

        Args:
            state: as all ranks got it, of which only the first one's holds tensors.
            ranks: the processes that train together.
        """
        if self.rollbacks is not None and ranks.is_first:
            self.rollbacks.keep(state)

    def after(
        self, row: Row, applied: bool, history: list[Row], stepper: Stepper, documents: Callable[[], str]
    ) -> None:
        """Judges a step that was taken, does what is to be done, and notes it in the step's row.

        Args:
            row: of the step.
            applied: whether its update was made.
            history: the rows before it.
            stepper: is put back by a rollback.
            documents: names what the step read; asked for where a leap is told.

        Raises:
            TrainingDiverged: the run leaps again and again from the same state.
        """
        spike = self.detector.judge(history, row["train/loss"], row["grad_norm"])
        if spike is None:
            return
        row[SPIKE_SCORE] = spike.score
        what = f"step {row['step']} leaps: {spike}"
        if not applied:
            row[SPIKE_SKIPPED] = 1.0
            what += "; its update is left out"
        if self.rollbacks is not None:
            back = self._roll_back(self.rollbacks, spike, row["step"], history, stepper)
            row[ROLLED_BACK_TO] = float(back)
            what += f", and the run goes on from the state of step {back} with the next sequences"
        elif history and SPIKE_SCORE in history[-1]:
            return  # said at the first of several in a row
        self.say(row["step"], f"{what}. {documents()}".removesuffix(". "))

    def _roll_back(
        self, rollbacks: Rollbacks, spike: Spike, step: int, history: Sequence[Row], stepper: Stepper
    ) -> int:
        """Puts the stepper back to an earlier state and returns that state's step; the position in the data stays."""
        saved = rollbacks.load_before(step)
        times = rollbacks.times_to(saved.step, history)
        if times >= rollbacks.MOST_RETURNS:
            raise TrainingDiverged(spike, step, saved.step, times)
        stepper.load(saved.weights, saved.optimizer, saved.random, saved.step)
        if saved.scaler:
            stepper.scaler.load_state_dict(saved.scaler)
        return saved.step
