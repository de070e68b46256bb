"""Figures of trainings made by hand: one with everything, and odd ones."""

from __future__ import annotations

import math
from typing import Any

from tasks.report.queries import Row
from tasks.report.training import Curve
from tasks.training.telemetry import Event, Notes, Sample, Start

HOSTILE = "<img src=x onerror=hit=1>\n\u202egnp\x00 שלום é 漢 </style></title><script>hit=1</script>&amp;\"'|`*"
MODEL: dict[str, Any] = {
    "vocab_size": 8192, "max_seq_len": 256, "n_layer": 6, "n_head": 6, "d_model": 384, "d_ff": 1536, "pos": "learned",
    "act": "gelu", "window": None,
}  # fmt: skip
TRAIN: dict[str, Any] = {
    "max_steps": 600, "batch_size": 16, "grad_accum": 1, "optimizer": "adamw", "lr": 0.001, "betas": [0.9, 0.95],
    "precision": "fp32", "seed": 1337,
}  # fmt: skip


def wave(step: int) -> float:
    """Something that looks like noise and is the same each time."""
    return math.sin(12.9898 * step) * math.sin(78.233 * step)


def curves(steps: int) -> dict[str, Curve]:
    """A loss that falls, with everything beside it."""
    every = list(range(1, steps + 1))
    evaluated = [step for step in every if step % 50 == 0]
    lr = [1e-3 * min(1.0, step / 30) * (0.55 + 0.45 * math.cos(math.pi * step / steps)) for step in every]
    falling = [2.6 + 6.4 * math.exp(-step / 90) for step in every]
    return {
        "train/loss": Curve(every, [value + 0.12 * wave(step) for step, value in zip(every, falling, strict=True)]),
        "val_sample/loss": Curve(evaluated, [falling[step - 1] + 0.05 + 2e-4 * step for step in evaluated]),
        "lr": Curve(every, lr),
        "grad_norm": Curve(every, [0.8 + 2 * math.exp(-step / 40) + 0.3 * abs(wave(step)) for step in every]),
        "tokens": Curve(every, [4096.0 * step for step in every]),
        "time/step_seconds": Curve(every, [2.2 + 0.2 * wave(step) for step in every]),
        "time/tokens_per_second": Curve(every, [4096 / (2.2 + 0.2 * wave(step)) for step in every]),
        "memory/resident_mb": Curve(every, [1200.0 + min(step, 20) for step in every]),
    }


def rich(steps: int = 600) -> Row:
    """A training in which much happened."""
    events = [
        Event(0, "execution", "torch.compile does not work here, so the network is trained without it", 1.79e9),
        Event(212, "resumed", "went on from the checkpoint of step 212", 1.79e9 + 3600),
        Event(333, "spike", f"the loss leapt to 9.1 in the document {HOSTILE}", 1.79e9 + 4000),
        Event(400, "memory", "the micro-batch is computed in halves: the device has no more memory", 1.79e9 + 5000),
        Event(401, "something_new", "a kind that this page does not know", 1.79e9 + 5000),
    ]
    prompts = ["The sheep were counted at dusk, and ", HOSTILE]
    samples = [
        Sample(step, prompt, f"the fold was closed {'before the rain ' * (step // 100)}{HOSTILE}")
        for step in range(50, steps + 1, 50)
        for prompt in prompts
    ]
    starts = [Start(1.79e9, 8.5e7, 2.55e11, "measured: float32 products of 1024 by 1024 on 2 threads")] * 2
    return Row(
        key="ab" * 32,
        model=MODEL,
        train={**TRAIN, "max_steps": steps},
        curves=curves(steps),
        parameters=13_800_000,
        flops_per_token=8.5e7,
        notes=Notes(starts, events, samples),
        epoch=Row(sequences=3200, tokens=780_000.0, documents=412),
        tools={"torch": "2.13.0+cpu", "device": "cpu, 2 threads, torch 2.13.0+cpu"},
        modes={"seed": "1337", "kernels": "fastest"},
        evaluation={
            "val/loss": 2.71, "val/perplexity": 15.03, "val/bits_per_byte": 1.234, "val/unigram_bits_per_byte": 3.2,
        },
    )  # fmt: skip


def changed(figures: Row, **values: Any) -> Row:
    """The figures with others in place of some."""
    return Row(**vars(figures) | values)


def bare() -> Row:
    """Return the row of a training without any records."""
    return Row(
        key="ab" * 32, model={}, train={}, curves={}, parameters=0, flops_per_token=0.0,
        notes=Notes(), epoch=None, tools={}, modes={}, evaluation={},
    )  # fmt: skip


def one_step() -> Row:
    return changed(rich(1), notes=Notes(), epoch=None, evaluation={})


def broken() -> Row:
    """Values that are no numbers, and none that fell."""
    odd = Curve([1, 2, 3, 4], [2.0, math.inf, math.nan, 2.5])
    return changed(bare(), curves={"train/loss": odd, "val_sample/loss": odd, "grad_norm": odd, "tokens": odd})


def stopped_early() -> Row:
    made = rich(300)
    risen = Curve([100, 200, 300], [3.0, 2.9, 3.2])
    return changed(made, train={**made.train, "max_steps": 600}, curves={**made.curves, "val_sample/loss": risen})
