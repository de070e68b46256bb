"""Samples drawn during training: continuations of the beginnings of a few training documents.

Goes in: the dataset's index and the network as it is. Comes out: short continuations, drawn with noise of their own, so
that training goes on as if nobody had asked. The prompts are fixed and never held out: what is shown again
and again shapes decisions, and those must not be made on validation text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from storage.schemas import SHARD_FILE, TOKENS_FILE
from storage.tables import read_columns
from tasks.tokens.index import Index
from tasks.tokens.tokenizers import Tokenizer
from tasks.training.journal import Sample

N_PROMPTS = 2
PROMPT_CHARACTERS = 48
MOST_PROMPT_IDS = 48
NEW_TOKENS = 64
TEMPERATURE = 0.6  # what is always likeliest soon goes round in circles
SHARE_OF_TIME = 0.003  # of the training's, at most; the sample of the last step is always drawn
_TRIES = 200  # pieces looked at for beginnings of documents


def first_ids(index: Index, folders: Mapping[str, Path], tokenizer: Tokenizer, context: int) -> list[list[int]]:
    """Prompts: the beginnings of a few training documents, the same for the same dataset.

    Args:
        index: of the training split.
        folders: of the token artefacts, by key.
        context: longest input of the network; a prompt takes half of it at most.

    Returns:
        Ids of each prompt, none of them empty; fewer prompts where there are fewer documents.
    """
    from model.order import Permutation

    n = len(index.shard)
    if not n:
        return []
    begin: dict[int, np.ndarray] = {}
    found: dict[tuple[int, int], list[int]] = {}
    for place in Permutation(n, seed=0)(np.arange(min(n, _TRIES))).tolist():
        shard, start = int(index.shard[place]), int(index.start[place])
        folder = folders[index.shards[shard]]
        if shard not in begin:
            begin[shard] = np.sort(np.array(read_columns(folder / TOKENS_FILE, ["offset"])["offset"], np.int64))
        at = int(np.searchsorted(begin[shard], start))
        if at == len(begin[shard]) or begin[shard][at] != start or (shard, start) in found:
            continue  # it is in the middle of a document
        most = min(int(index.length[place]), MOST_PROMPT_IDS, max(1, context // 2))
        ids = np.load(folder / SHARD_FILE, mmap_mode="r", allow_pickle=False)[start : start + most].tolist()
        found[shard, start] = _cut(tokenizer, ids)
        if len(found) == N_PROMPTS:
            break
    return list(found.values())


def _cut(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """The fewest ids whose text is long enough; the one that ends the document is not among them."""
    if len(ids) > 1 and ids[-1] == tokenizer.eos_id:
        ids = ids[:-1]
    for n in range(1, len(ids)):
        if len(tokenizer.decode(ids[:n])) >= PROMPT_CHARACTERS:
            return list(ids[:n])
    return list(ids)


class Sampler:
    """Lets the network continue the prompts now and then.

    Args:
        tokenizer: of the dataset.
        prompts: ids of each.
        vocab_size: rows of the network's table; those that the tokeniser does not know are never drawn.
        clock: seconds.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompts: Sequence[Sequence[int]],
        vocab_size: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokenizer = tokenizer
        self._prompts = prompts
        unknown = range(tokenizer.vocab_size, vocab_size)
        self._never = tuple(index for index in (*tokenizer.special_ids, *unknown) if index != tokenizer.eos_id)
        self._clock = clock
        self._began = clock()
        self._spent = 0.0
        self._longest = 0.0

    def draw(self, model: Any, step: int, last: bool = False) -> list[Sample]:
        """Continuations of the prompts; none where they would take more than their share of the time.

        Args:
            model: the network; it is put into evaluation mode and back.
            step: the optimiser steps it has taken.
            last: whether it is trained no further.
        """
        started = self._clock()
        allowed = SHARE_OF_TIME * (started - self._began)
        if not self._prompts or (self._spent + self._longest > allowed and not last):
            return []
        found = self._continued(model, step)
        took = self._clock() - started
        self._spent += took
        self._longest = max(self._longest, took)
        return found

    def _continued(self, model: Any, step: int) -> list[Sample]:
        from model.config import GenerationConfig
        from model.generation import generate

        config = GenerationConfig(
            max_new_tokens=NEW_TOKENS,
            temperature=TEMPERATURE,
            eos_id=self._tokenizer.eos_id,
            min_new_tokens=1,
            suppress=self._never,
        )
        made = generate(model, self._prompts, config)
        return [
            Sample(step, self._tokenizer.decode(prompt), self._tokenizer.decode_continuation(prompt, item.ids))
            for prompt, item in zip(self._prompts, made, strict=True)
        ]
