"""Runs in which a guard steps in, for the tests of one process and of several: a leap, and text learnt by heart."""

from __future__ import annotations

import numpy as np

from model import ModelConfig, SpanSource, TrainConfig
from model.data import order

LEAP = 60  # the step whose sequences are noise
N_SEQUENCES, LENGTH, ROWS, STEPS = 400, 16, 4, 75

NETWORK = ModelConfig(31, max_seq_len=LENGTH, n_layer=1, n_head=2, d_model=32, drop_resid=0.05)
PLAIN = TrainConfig(STEPS, batch_size=ROWS, lr=2e-2, eval_every=STEPS)
# the network learns few sequences by heart, and the validation loss turns
LEARNED = TrainConfig(200, batch_size=8, lr=1e-2, eval_every=5, patience=2)


def source_with_noise(first: int = LEAP, last: int = LEAP, seed: int = PLAIN.seed) -> SpanSource:
    """Text that is learned quickly, but for the sequences of some steps."""
    generator, n_ids = np.random.default_rng(0), N_SEQUENCES * LENGTH + 1
    text = ((np.arange(n_ids) * 7 + generator.integers(0, 3, n_ids)) % 31).astype(np.uint16)
    noise = generator.integers(0, 31, n_ids).astype(np.uint16)
    for place in order(N_SEQUENCES, seed, 0)[(first - 1) * ROWS : last * ROWS]:
        text[place * LENGTH : (place + 1) * LENGTH] = noise[place * LENGTH : (place + 1) * LENGTH]
    start = np.arange(N_SEQUENCES) * LENGTH
    return SpanSource([text], np.zeros(N_SEQUENCES), start, np.full(N_SEQUENCES, LENGTH + 1), LENGTH, 0)


def sources_to_learn() -> tuple[SpanSource, SpanSource]:
    """Sixteen sequences of noise to train on, and sixteen others."""
    noise = np.random.default_rng(5).integers(0, 31, 2000).astype(np.uint16)
    train, val = (
        SpanSource([noise], np.zeros(16), first + np.arange(16) * 20, np.full(16, 17), 16, 0) for first in (0, 1000)
    )
    return train, val
