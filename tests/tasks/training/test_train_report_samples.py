"""Samples during a training: from training documents only, within their share of the time, and without a trace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from model import ModelConfig, Transformer
from storage.schemas import SHARD_FILE, TOKENS, TOKENS_FILE
from storage.tables import write_table
from tasks.tokens.index import Index
from tasks.tokens.tokenizer_kinds import BOS, EOS, CharTokenizer
from tasks.training.telemetry import MOST_PROMPT_IDS, PROMPT_CHARACTERS, Sampler, first_ids

TEXTS = [f"document {name} tells of {name} sheep and of the fold behind the hill, at length" for name in "abcdefgh"]
TOKENIZER = CharTokenizer.fit(TEXTS)


def ids_of(text: str) -> list[int]:
    (ids,) = TOKENIZER.encode([text])
    return [BOS, *ids.tolist(), EOS]


def shard(folder: Path, texts: list[str]) -> Path:
    """A token artefact; returns its folder."""
    folder.mkdir()
    ids = [ids_of(text) for text in texts]
    starts = np.cumsum([0, *map(len, ids)]).tolist()
    np.save(folder / SHARD_FILE, np.array([index for one in ids for index in one], np.uint16))
    rows = [
        {
            "doc_id": str(number),
            "offset": start,
            "length": len(one),
            "n_bytes": len(text),
            "lost_bytes": 0,
            "digest": "",
        }
        for number, (text, one, start) in enumerate(zip(texts, ids, starts, strict=False))
    ]
    write_table(folder / TOKENS_FILE, TOKENS, rows)
    return folder


def index_of(pieces: list[tuple[int, int]]) -> Index:
    """One sequence for each piece (start, length) of the only shard."""
    starts, lengths = (np.array(column, np.int64) for column in zip(*pieces, strict=True))
    zeros = np.zeros(len(pieces), np.int64)
    return Index(["s"], zeros, starts, lengths, zeros, np.arange(len(pieces) + 1), False)


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    return {"s": shard(tmp_path / "shard", TEXTS)}


def pieces_of(numbers: list[int], size: int = 20) -> list[tuple[int, int]]:
    """Documents in chunks."""
    lengths = [len(ids_of(text)) for text in TEXTS]
    begin = np.cumsum([0, *lengths]).tolist()
    return [
        (begin[number] + start, min(size, lengths[number] - start))
        for number in numbers
        for start in range(0, lengths[number], size)
    ]


def test_prompts_are_beginnings_of_documents_of_the_index(folders: dict[str, Path]) -> None:
    chosen = [1, 4, 6]  # the others are held out
    prompts = first_ids(index_of(pieces_of(chosen)), folders, TOKENIZER, 256)
    assert len(prompts) == 2
    texts = [TOKENIZER.decode(prompt) for prompt in prompts]
    assert len(set(texts)) == 2
    for prompt, text in zip(prompts, texts, strict=True):
        assert prompt[0] == BOS
        assert any(TEXTS[number].startswith(text) for number in chosen)


def test_a_prompt_is_short_and_leaves_half_of_the_context_free(folders: dict[str, Path]) -> None:
    index = index_of([(0, 70)])
    (prompt,) = first_ids(index, folders, TOKENIZER, 256)
    assert len(prompt) <= MOST_PROMPT_IDS and len(TOKENIZER.decode(prompt)) <= PROMPT_CHARACTERS
    (prompt,) = first_ids(index, folders, TOKENIZER, 16)
    assert len(prompt) == 8


def test_documents_that_begin_alike_give_one_prompt(tmp_path: Path) -> None:
    licence = "Licensed to whom it may concern, under the terms of the fold; see the file."
    folders = {"s": shard(tmp_path / "alike", [f"{licence} {name}" for name in "abcdefgh"])}
    index = index_of([(number * len(ids_of(f"{licence} a")), 20) for number in range(8)])
    assert len(first_ids(index, folders, TOKENIZER, 256)) == 1


def network(dropout: float = 0.2) -> Transformer:
    torch.manual_seed(0)
    config = ModelConfig(TOKENIZER.vocab_size, max_seq_len=32, n_layer=1, n_head=2, d_model=16, drop_resid=dropout)
    return Transformer(config).train()


def sampler(clock: list[float] | None = None, ticks: float = 0.0) -> Sampler:
    """A sampler whose clock, if given, goes on by so much whenever it is asked."""
    prompts = [ids_of("document a")[:-1], ids_of("document")[:-1]]
    if clock is None:
        return Sampler(TOKENIZER, prompts, TOKENIZER.vocab_size, clock=lambda: 0.0)

    def now() -> float:
        clock[0] += ticks
        return clock[0]

    return Sampler(TOKENIZER, prompts, TOKENIZER.vocab_size, now)


def test_sampling_leaves_no_trace_in_the_network_or_in_random_streams() -> None:
    model = network()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    before = torch.get_rng_state()
    np_before = np.random.get_state()[1].copy()
    sampler().draw(model, 1)
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(np_before, np.random.get_state()[1])
    assert model.training and all(module.training for module in model.modules())
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    ids = torch.tensor([ids_of("document b")[:8]])
    model(ids).sum().backward()  # nothing that was kept from sampling stands in the way of gradients


def test_special_ids_are_never_written() -> None:
    model = network(0.0)
    with torch.no_grad():
        model.token_embedding.weight[:4] += 3.0
    texts = [sample.text for sample in sampler().draw(model, 1)]
    assert all(set(text) <= set("".join(TEXTS)) for text in texts)


def test_samples_take_their_share_of_the_time_and_no_more() -> None:
    clock = [0.0]
    drawn = sampler(clock, ticks=0.5)  # a drawing takes half a second, as far as the clock knows
    model = network()
    taken = 0
    for step in range(1, 13):
        clock[0] += 20.0
        taken += bool(drawn.draw(model, step))
    assert 0 < taken * 0.5 <= 0.011 * clock[0] + 0.5


def test_the_last_step_is_sampled_whatever_it_costs() -> None:
    clock = [0.0]
    drawn = sampler(clock, ticks=5.0)
    assert drawn.draw(network(), 1, last=True) and not drawn.draw(network(), 2)
    assert drawn.draw(network(), 3, last=True)
