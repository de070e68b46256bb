"""Properties of every network: rows, documents and windows do not leak, rotations depend on distances only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from network_variants import ATTENTION_VARIANTS, VARIANTS, ids_of
from torch.nn.attention.flex_attention import flex_attention

from model import ModelConfig, Transformer
from model.attention import (
    additive,
    attend,
    attention_mask,
    attention_weights,
    block_mask,
    rotary_frequencies,
    rotary_table,
    spread,
    turn,
)
from model.kv_cache import KVCache

Build = Callable[..., Transformer]
ROTATIONS = [
    {"rope_layout": layout, **dim, **scaling}
    for layout in ("half", "interleaved")
    for dim in ({}, {"rope_dim": 4})
    for scaling in (
        {},
        {"rope_scaling": "linear", "rope_factor": 4.0},
        {"rope_scaling": "ntk", "rope_factor": 4.0},
        {"rope_scaling": "yarn", "rope_factor": 4.0, "rope_original_len": 32},
        {"rope_scaling": "llama3", "rope_factor": 4.0, "rope_original_len": 32},
    )
]


def other_ids(ids: torch.Tensor) -> torch.Tensor:
    """Ids of which each differs from the one in its place."""
    return (ids + 1 + torch.arange(ids.numel()).reshape(ids.shape) % 7) % 31


# rows


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_a_row_does_not_depend_on_the_other_rows(build_model: Build, settings: dict) -> None:
    model, ids = build_model(**settings), ids_of(4, 12)
    changed = other_ids(ids)
    changed[2] = ids[2]
    with torch.no_grad():
        before, after = model(ids), model(changed)
    assert torch.equal(before[2], after[2])
    assert not any(torch.allclose(before[row], after[row], atol=1e-3) for row in (0, 1, 3))


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_every_parameter_has_a_part_in_the_loss(build_model: Build, settings: dict) -> None:
    model, ids = build_model(**settings), ids_of(4, 16)
    model.loss(ids[:, :-1], ids[:, 1:]).backward()
    idle = [name for name, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()]
    assert idle == []


@pytest.mark.parametrize("tied", [True, False])
def test_gradients_of_a_repeated_id_add_up(build_model: Build, tied: bool) -> None:
    """Against the same network in which each occurrence reads a row of its own."""
    repeated, distinct = (build_model(tie_weights=tied) for _ in range(2))
    rows, labels = [3, 6, 7], torch.tensor([[9, 10, 11, 12]])
    for model, ids in ((repeated, [3, 5, 3, 3]), (distinct, [3, 5, 6, 7])):
        table = model.token_embedding.weight
        table.data[rows] = table.data[3].clone()
        model.loss(torch.tensor([ids]), labels).backward()
    added, single = repeated.token_embedding.weight.grad, distinct.token_embedding.weight.grad
    assert torch.allclose(added[rows].sum(0), single[rows].sum(0), atol=1e-6)
    assert torch.allclose(added[5], single[5], atol=1e-6)
    assert not torch.allclose(added[3], single[3], atol=1e-4)


# rotary positions


def rotated_pair(settings: dict, n_positions: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A query and a key (8,) and both of them rotated to each position, (n_positions, 8), in float64."""
    config = ModelConfig(31, max_seq_len=n_positions, n_head=2, d_model=16, pos="rope", **settings)
    generator = torch.Generator().manual_seed(3)
    q, k = torch.randn(2, 8, generator=generator, dtype=torch.float64)
    table = rotary_table(config, n_positions)
    rotation = spread(table, config.rope_layout)
    turned = [turn(x.expand(1, n_positions, 1, 8), rotation, config.rope_layout)[0, :, 0] for x in (q, k)]
    return q, k, turned[0], turned[1]


@pytest.mark.parametrize("settings", ROTATIONS, ids=str)
def test_rotated_scores_depend_on_the_distance_only(settings: dict) -> None:
    _, _, q, k = rotated_pair(settings, 64)
    scores = q @ k.T
    for distance in range(-40, 41):
        along = scores.diagonal(distance)
        assert (along - along[0]).abs().max() <= 1e-12
    assert scores[20].std() > 1e-3  # and they do depend on it


@pytest.mark.parametrize("settings", ROTATIONS, ids=str)
def test_rotation_is_the_complex_product(settings: dict) -> None:
    config = ModelConfig(31, max_seq_len=16, n_head=2, d_model=16, pos="rope", **settings)
    q, _, turned, _ = rotated_pair(settings, 16)
    frequencies, factor = rotary_frequencies(config)
    pairs = config.rope_dim // 2
    order = torch.arange(config.rope_dim)
    order = order.reshape(2, pairs).T if config.rope_layout == "half" else order.reshape(pairs, 2)
    angle = torch.arange(16, dtype=torch.float64)[:, None] * frequencies
    expected = torch.view_as_complex(q[order].contiguous()) * torch.polar(torch.full_like(angle, factor), angle)
    torch.testing.assert_close(torch.view_as_complex(turned[:, order].contiguous()), expected, atol=1e-12, rtol=0)


# attention weights


@pytest.mark.parametrize("documents", [None, [[5, 4, 3], [12]]], ids=["one", "packed"])
@pytest.mark.parametrize("settings", ATTENTION_VARIANTS, ids=str)
def test_attention_is_its_weights_times_values(build_model: Build, settings: dict, documents: list | None) -> None:
    model, ids = build_model(**settings), ids_of(2, 12)
    with torch.no_grad():
        now = model.plan(ids, documents=documents)
        x = model.place(model.token_embedding(ids), now)
        attention: Any = model.blocks[0].attention
        q, k, v = attention.project(x, now.rotation)
        weights = attention_weights(q, k, None if now.mask is None else now.mask == 0)
        mixed = weights @ v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
        expected = attention.proj(mixed.transpose(1, 2).flatten(2))
        torch.testing.assert_close(attention(x, 0, now), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]), atol=1e-6, rtol=0)
    assert (weights >= 0).all()
    assert not weights.triu(1).any()


def test_mask_is_causal_windowed_and_keeps_documents_apart() -> None:
    places, numbers = torch.arange(6), torch.tensor([0, 0, 0, 0, 1, 1])
    found = attention_mask(places, places, 3, (numbers, numbers)).int().tolist()
    assert found == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [0, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 1, 1],
    ]


@pytest.mark.parametrize("window", [None, 3])
def test_what_is_added_to_the_scores_hides_tokens_too(build_model: Build, window: int | None) -> None:
    model, ids = build_model(window=window), ids_of(2, 9)
    padding = torch.zeros(2, 1, 1, 9)
    padding[1, ..., :4] = -torch.inf  # the second row is padded on the left, where its own tokens look at nothing
    padding[1, ..., 0] = 0.0
    with torch.no_grad():
        found, plain = model(ids, attention_mask=padding), model(ids)
        other = ids.clone()
        other[1, 1:4] = 5
        unseen = model(other, attention_mask=padding)
    assert torch.equal(found[0], plain[0])
    assert torch.equal(found[1, 4:], unseen[1, 4:])
    assert not torch.allclose(found[1, 4:], plain[1, 4:])
    with pytest.raises(ValueError, match="an attention mask and documents are given"):
        model(ids, attention_mask=padding, documents=[[9], [9]])
    with pytest.raises(ValueError, match="an attention mask has no place behind a cache"):
        model(ids, attention_mask=padding, cache=KVCache(model.config, 2))


@pytest.mark.parametrize("window", [None, 20])
def test_a_mask_of_blocks_hides_what_the_mask_of_documents_hides(window: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, n_head, 160, 16, generator=generator) for n_head in (4, 2, 2))
    numbers, places = torch.tensor([[0] * 100 + [1] * 60, [0] * 3 + [1] * 157]), torch.arange(160)
    seen = attention_mask(places, places, window, (numbers, numbers))[:, None]
    dense = attend(q, k, v, additive(seen, torch.float32))
    with torch.no_grad():
        blocks = flex_attention(q, k, v, block_mask=block_mask(numbers, window), enable_gqa=True)
    torch.testing.assert_close(blocks, dense, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [1, 3, 5, 16])
@pytest.mark.parametrize("pos", ["learned", "rope"])
def test_through_one_layer_a_token_sees_exactly_its_window(build_model: Build, window: int, pos: str) -> None:
    model, ids = build_model(n_layer=1, window=window, pos=pos), ids_of(1, 16)
    now = model.plan(ids)
    x = model.place(model.token_embedding(ids), now).detach().requires_grad_()
    features = model.norm(model.blocks[0](x, 0, now))
    for t in range(16):
        (gradient,) = torch.autograd.grad(model.head(features[0, t]).square().sum(), x, retain_graph=True)
        seen = gradient[0].abs().amax(dim=1) > 0
        assert seen.nonzero()[:, 0].tolist() == list(range(max(0, t - window + 1), t + 1))


# packed documents


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
@pytest.mark.parametrize("changed_document", [0, 1, 2])
def test_a_document_changes_no_bit_of_the_others(build_model: Build, settings: dict, changed_document: int) -> None:
    model, ids = build_model(**settings), ids_of(2, 16)
    lengths = [[5, 4, 6], [7, 9]]  # and one id of padding
    ends = [0, 5, 9, 15]
    inside = torch.zeros(2, 16, dtype=torch.bool)
    inside[0, ends[changed_document] : ends[changed_document + 1]] = True
    changed = torch.where(inside, other_ids(ids), ids)
    with torch.no_grad():
        before, after = model(ids, documents=lengths), model(changed, documents=lengths)
    assert torch.equal(before[~inside], after[~inside])
    assert not torch.allclose(before[inside], after[inside], atol=1e-3)


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_a_packed_document_reads_as_if_alone(build_model: Build, settings: dict) -> None:
    model, ids = build_model(**settings), ids_of(2, 16)
    with torch.no_grad():
        packed = model(ids, documents=[[5, 4, 6], [7, 9]])
        for row, first, last in ((0, 0, 5), (0, 5, 9), (0, 9, 15), (1, 0, 7), (1, 7, 16)):
            alone = model(ids[row : row + 1, first:last])[0]
            torch.testing.assert_close(packed[row, first:last], alone, atol=1e-5, rtol=0)


def test_long_documents_stay_apart_bit_for_bit(build_model: Build) -> None:
    # longer than the blocks in which the attention kernel reads keys
    model, ids = build_model(n_layer=1, max_seq_len=1300, pos="rope"), ids_of(1, 1300)
    changed = ids.clone()
    changed[:, :600] = other_ids(ids)[:, :600]
    with torch.no_grad():
        before, after = (model(x, documents=[[600, 650]]) for x in (ids, changed))
        alone = model(ids[:, 600:1250])
    assert torch.equal(before[:, 600:], after[:, 600:])
    torch.testing.assert_close(before[:, 600:1250], alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("settings", ATTENTION_VARIANTS, ids=str)
def test_gradients_do_not_flow_between_documents(build_model: Build, settings: dict) -> None:
    model = build_model(**{**settings, "tie_weights": False})
    ids = torch.cat((torch.arange(0, 6), torch.arange(10, 15), torch.arange(20, 25)))[None]  # no id in two documents
    labels = torch.full((1, 16), -100)
    labels[0, 6:11] = 3
    model.loss(ids, labels, documents=[[6, 5, 5]]).backward()
    gradient = model.token_embedding.weight.grad
    assert gradient is not None
    touched = gradient.abs().amax(dim=1).nonzero()[:, 0].tolist()
    assert touched == [10, 11, 12, 13, 14]


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([[5]], "documents are given for 1 rows, but there are 2 rows of ids"),
        (
            [[5, 8], [4]],
            r"documents of row 0 have the lengths \[5, 8\]; expected numbers of at least 1 that add up to 12",
        ),
        ([[12], [4, 0, 3]], r"documents of row 1 have the lengths \[4, 0, 3\]"),
        ([[12], [14, -2]], r"documents of row 1 have the lengths \[14, -2\]"),
    ],
)
def test_documents_that_do_not_fit_are_refused(build_model: Build, documents: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_model()(ids_of(2, 12), documents=documents)


def test_documents_behind_a_cache_are_refused(build_model: Build) -> None:
    model = build_model()
    with pytest.raises(ValueError, match="documents cannot be told apart behind a cache; read them in one pass"):
        model(ids_of(1, 8), cache=KVCache(model.config, 1), documents=[[4, 4]])


# cache


@pytest.mark.parametrize("settings", ATTENTION_VARIANTS, ids=str)
def test_a_prompt_read_in_pieces_equals_one_pass(build_model: Build, settings: dict) -> None:
    model, ids = build_model(**settings), ids_of(2, 16)
    cache = KVCache(model.config, 2)
    with torch.no_grad():
        parts = [model(ids[:, a:b], cache=cache) for a, b in ((0, 7), (7, 8), (8, 13), (13, 16))]
        torch.testing.assert_close(torch.cat(parts, dim=1), model(ids), atol=1e-5, rtol=0)


@pytest.mark.parametrize("window", [1, 3, 4])
@pytest.mark.parametrize("pos", ["learned", "rope"])
def test_ragged_prompts_longer_than_the_window_equal_uncached(build_model: Build, window: int, pos: str) -> None:
    model, ids = build_model(window=window, pos=pos), ids_of(3, 16)
    lengths = [11, 2, 8]
    prompts = torch.zeros(3, 11, dtype=torch.int64)
    for row, length in enumerate(lengths):
        prompts[row, :length] = ids[row, :length]
    cache = KVCache(model.config, 3)
    with torch.no_grad():
        whole = model(ids)
        model(prompts, cache=cache, lengths=torch.tensor(lengths))
        for step in range(5):
            at = [length + step for length in lengths]
            logits = model(ids[range(3), at][:, None], cache=cache)[:, 0]
            torch.testing.assert_close(logits, whole[range(3), at], atol=1e-5, rtol=0)


def test_what_lies_in_the_padding_of_a_prompt_does_not_matter(build_model: Build) -> None:
    model, ids = build_model(), ids_of(2, 9)
    found = []
    for filling in (0, 30):
        prompts, cache = ids.clone(), KVCache(model.config, 2)
        prompts[1, 4:] = filling
        with torch.no_grad():
            model(prompts, cache=cache, lengths=torch.tensor([9, 4]))
            found.append(model(ids_of(2, 1), cache=cache))
    assert torch.equal(*found)
