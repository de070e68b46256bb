"""How a network does on every single token: one forward pass, and what evaluation adds up."""

from __future__ import annotations

import numpy as np
import torch

from .data import IGNORE, SequenceSource, trim
from .metrics import NllSum
from .transformer import Transformer


@torch.no_grad()
def evaluate_source(
    model: Transformer, source: SequenceSource, batch_size: int, device: torch.device | str = "cpu"
) -> NllSum:
    """Negative log-likelihood of every label in the source, in order, without dropout.

    Draws no random numbers and leaves the model in the mode it was in.

    Args:
        model: the network, on `device`.
        source: sequences to predict.
        batch_size: sequences at once.
        device: where the model is.
    """
    was_training = model.training
    model.eval()
    total = NllSum()
    try:
        for first in range(0, len(source), batch_size):
            indices = np.arange(first, min(first + batch_size, len(source)))
            inputs, labels, documents = trim(source.batch(indices))
            ids, targets = (torch.from_numpy(array).to(device) for array in (inputs, labels))
            nll = model.nll(ids, targets, documents=documents)
            total += NllSum(nll.item(), int((labels != IGNORE).sum()))
    finally:
        model.train(was_training)
    return total
