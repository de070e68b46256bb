"""What every way of generating begins with: a network that is not in training, and a prompt that has been read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from ..architecture import ModelConfig
from ..cache import KVCache
from ..transformer import Transformer


@contextmanager
def evaluating(model: Transformer) -> Iterator[bool]:
    """Evaluation mode, and back; gives whether the network was in training."""
    was_training = model.training
    model.eval()
    try:
        yield was_training
    finally:
        model.train(was_training)


def prompt_fault(prompt: Sequence[int], network: ModelConfig) -> str:
    """Why nothing can be continued from here, as the end of a sentence; empty if it can."""
    if len(prompt) == 0:
        return "is empty; begin it with a token such as BOS"
    if not 0 <= min(prompt) <= max(prompt) < network.vocab_size:
        return (
            f"holds ids from {min(prompt)} to {max(prompt)}, expected 0 to {network.vocab_size - 1}; it was encoded "
            f"with another tokeniser"
        )
    return ""


def room_fault(prompt: Sequence[int], max_new_tokens: int, network: ModelConfig) -> str:
    """Why prompt and continuation do not fit the context, as the end of a sentence; empty if they do."""
    needed = len(prompt) + max_new_tokens
    if needed <= network.max_seq_len:
        return ""
    return (
        f"has {len(prompt)} tokens, {needed} with max_new_tokens={max_new_tokens}, and the context holds "
        f"{network.max_seq_len}; shorten it or ask for fewer tokens"
    )


def checked_prompt(prompt: Sequence[int], max_new_tokens: int, network: ModelConfig) -> None:
    """Refuses a prompt that cannot be continued so far.

    Raises:
        ValueError: it is empty, or holds other tokens than the network's, or leaves too little of the context.
    """
    fault = prompt_fault(prompt, network) or room_fault(prompt, max_new_tokens, network)
    if fault:
        raise ValueError(f"the prompt {fault}")


def read_prompt(model: Transformer, prompt: Sequence[int], max_new_tokens: int) -> tuple[KVCache, Tensor]:
    """A cache of one row that holds the prompt, with room for what follows, and the prompt's features (1, T, D)."""
    weight = model.token_embedding.weight
    capacity = len(prompt) + max_new_tokens
    cache = KVCache(model.config, 1, capacity, device=weight.device, dtype=weight.dtype)
    return cache, model.features(torch.tensor([list(prompt)], device=weight.device), cache=cache)
