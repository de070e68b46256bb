"""Speed of evaluation compared with training of the same network on the same machine.

    python -m benchmarks.evaluate [--rounds 10]

One side takes training steps, the other scores the same number of tokens (nll, rivals, confidence); they are separate
processes that take turns. Evaluation has no backward pass, which costs twice as much as the forward pass.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.pairs import Side, ratio, serve, take_turns

SHAPE, ROWS, CONTEXT = "llama", 8, 256
TRAINING = {"max_steps": 10**6, "batch_size": ROWS}
GOAL_RATIO = 2.5


def serve_side(name: str) -> None:
    """Serve one side: a step reads ROWS windows of CONTEXT tokens."""
    import numpy as np
    import torch

    from model import Transformer, preset
    from model.config import Execution, TrainConfig
    from model.data import Batch
    from model.scoring import score_windows
    from model.step import Stepper

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    shape = preset(SHAPE)
    model = Transformer(shape).to(device)
    width = CONTEXT + 1
    ids = np.random.default_rng(1).integers(0, shape.vocab_size, ROWS * width)
    if name == "training":
        rows = ids.reshape(ROWS, width)
        batch = Batch(np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:]))
        stepper = Stepper(model, TrainConfig.from_dict(TRAINING), torch.device(device), Execution())
        steps = iter(range(1, 10**9))
        serve(lambda: stepper.run([batch], 1e-4, next(steps), [list(range(ROWS))]).loss)
    else:
        start, length = np.arange(ROWS) * width, np.full(ROWS, width)

        def step() -> float:
            found = score_windows(model, ids, start, length, np.ones_like(start), device=device)
            return float(found.nll.sum(dtype=np.float64) / found.predicted.sum())

        serve(step)


def report(rounds: int) -> bool:
    """Measure and print; returns True if the goal is reached."""
    sides = take_turns({name: ["benchmarks.evaluate", "--side", name] for name in ("evaluation", "training")}, rounds)
    faster = ratio(sides["evaluation"], sides["training"])
    print("| side | tokens/s (median) | ms per step | peak MB beyond idle |")
    print("|---|---|---|---|")
    for side in sides.values():
        print(_row(side))
    reached = faster >= GOAL_RATIO
    print("\n| row | found | goal | reached |")
    print("|---|---|---|---|")
    print(f"| evaluation over training, median of {rounds} rounds | {faster:.2f} | >= {GOAL_RATIO} | ", end="")
    print("yes |" if reached else "NO |")
    return reached


def _row(side: Side) -> str:
    rate = ROWS * CONTEXT / side.median
    return f"| {side.name} | {rate:,.0f} | {1000 * side.median:,.0f} | {side.peak_bytes / 1e6:,.0f} |"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--side", choices=("evaluation", "training"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        serve_side(arguments.side)
    else:
        sys.exit(0 if report(arguments.rounds) else 1)


if __name__ == "__main__":
    main()
